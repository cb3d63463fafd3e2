// Creates the shared state of zones and servers. A reload keeps it, so old and new workers share it.
#include "nginx/shared_state.h"

#include <sys/random.h>

#include <algorithm>
#include <new>

#include "statistics/body_statistics.h"

namespace rate_limit {
namespace {

// Tags of the shared memory. nginx compares their addresses, which differ from the tag of the tables.
char zone_tag;
char redis_tag;
char body_tag;

void* allocate(ngx_shm_zone_t* shm, std::size_t size) {
    return ngx_slab_calloc(reinterpret_cast<ngx_slab_pool_t*>(shm->shm.addr), size);
}

// A live rate survives a reload. Logs if a changed rate= therefore has no effect. The level is error, since
// `nginx -t` cannot report this and logs omit warnings by default.
void log_ignored_rate(const Zone& zone, const Zone& old, ngx_log_t* log) {
    std::uint64_t version = 0;
    RateList live = {};
    if (view(zone.rate_text) == view(old.rate_text) ||
        zone.shared->live.read(&version, &live) != LiveRate::Kind::kRates ||
        (zone.rate == nullptr && same_rates(live, zone.configured))) {
        return;
    }
    char text[kLongestRates];
    const ngx_str_t shown = ngx_str({text, print_rates(live, text)});
    ngx_log_error(NGX_LOG_ERR, log, 0,
                  "\"rate_limit_zone\": \"rate=%V\" of zone \"%V\" has no effect: the live rate %V applies "
                  "until DELETE zones/%V of rate_limit_api ends it in %V:%ui",
                  &zone.rate_text, &zone.name, &shown, &zone.name, &zone.file, zone.line);
}

ngx_int_t init_zone_state(ngx_shm_zone_t* shm, void* data) {
    auto* zone = static_cast<Zone*>(shm->data);
    if (data != nullptr) {
        const Zone& old = *static_cast<Zone*>(data);
        zone->shared = old.shared;
        zone->shared->empty_keys.restart();
        log_ignored_rate(*zone, old, shm->shm.log);
        return NGX_OK;
    }
    void* memory = allocate(shm, sizeof(ZoneSharedState));
    if (memory == nullptr) {
        return NGX_ERROR;
    }
    zone->shared = new (memory) ZoneSharedState;
    return NGX_OK;
}

ngx_int_t init_redis_state(ngx_shm_zone_t* shm, void* data) {
    auto* server = static_cast<RedisServer*>(shm->data);
    if (data != nullptr) {
        server->shared = static_cast<RedisServer*>(data)->shared;
        return NGX_OK;
    }
    void* memory = allocate(shm, sizeof(RedisSharedState));
    std::uint64_t id = 0;
    if (memory == nullptr || !read_instance_id(&id)) {
        return NGX_ERROR;
    }
    server->shared = new (memory) RedisSharedState(id);
    return NGX_OK;
}

ngx_int_t init_body_statistics(ngx_shm_zone_t* shm, void* data) {
    auto* conf = static_cast<ngx_http_rate_limit_main_conf_t*>(shm->data);
    if (data != nullptr) {
        conf->body_statistics = static_cast<ngx_http_rate_limit_main_conf_t*>(data)->body_statistics;
        return NGX_OK;
    }
    void* memory = allocate(shm, sizeof(BodyStatistics));
    if (memory == nullptr) {
        return NGX_ERROR;
    }
    conf->body_statistics = new (memory) BodyStatistics;
    return NGX_OK;
}

// The size of shared memory for `size` bytes and for nginx's allocator.
std::size_t memory_for(std::size_t size) {
    constexpr std::size_t kLeast = 8;  // pages; nginx requires as many
    return std::max(kLeast, size / ngx_pagesize + 4) * ngx_pagesize;
}

bool add(ngx_conf_t* cf, const char* directive, const ngx_str_t& name, std::size_t size, void* tag,
         ngx_shm_zone_init_pt init, void* owner) {
    ngx_str_t whole;
    whole.len = ngx_strlen(directive) + 1 + name.len;
    whole.data = static_cast<u_char*>(ngx_pnalloc(cf->pool, whole.len));
    if (whole.data == nullptr) {
        return false;
    }
    ngx_sprintf(whole.data, "%s %V", directive, &name);
    ngx_shm_zone_t* shm = ngx_shared_memory_add(cf, &whole, memory_for(size), tag);
    if (shm == nullptr) {
        return false;
    }
    shm->init = init;
    shm->data = owner;
    return true;
}

}  // namespace

bool read_instance_id(std::uint64_t* id) {
    static std::uint64_t own = 0;
    if (own == 0 && getentropy(&own, sizeof(own)) != 0) {
        return false;
    }
    *id = own;
    return true;
}

bool add_shared_state(ngx_conf_t* cf, Zone* zone) {
    return add(cf, "rate_limit_zone", zone->name, sizeof(ZoneSharedState), &zone_tag, init_zone_state, zone);
}

bool add_shared_state(ngx_conf_t* cf, RedisServer* server) {
    return add(cf, "rate_limit_redis", server->name, sizeof(RedisSharedState), &redis_tag, init_redis_state,
               server);
}

bool add_body_statistics(ngx_conf_t* cf, ngx_http_rate_limit_main_conf_t* conf) {
    const ngx_str_t name = ngx_string("bodies");
    return add(cf, "rate_limit", name, sizeof(BodyStatistics), &body_tag, init_body_statistics, conf);
}

}  // namespace rate_limit
