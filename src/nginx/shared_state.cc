// Makes boards, and shares them with the workers of an older configuration.
#include "nginx/shared_state.h"

#include <sys/random.h>

#include <algorithm>
#include <new>

namespace rate_limit {
namespace {

// Their addresses tell this memory from that of zones.
char zone_tag;
char redis_tag;

void* board_memory(ngx_shm_zone_t* shm, std::size_t size) {
    return ngx_slab_calloc(reinterpret_cast<ngx_slab_pool_t*>(shm->shm.addr), size);
}

// A rate that was changed while nginx runs outlives a reload. Tells if it hides that the configuration has
// another rate than before: as an error, since `nginx -t` cannot know, and logs leave warnings out by
// default.
void warn_of_live_rate(const Zone& zone, const Zone& old, ngx_log_t* log) {
    std::uint64_t version = 0;
    RateList live = {};
    if (view(zone.rate_text) == view(old.rate_text) ||
        zone.shared->live.read(&version, &live) != LiveRate::Kind::kRates ||
        (zone.rate == nullptr && same_rates(live, zone.configured))) {
        return;
    }
    char text[kLongestRates];
    const ngx_str_t shown = ngx_str({text, print_rates(live, text)});
    ngx_log_error(
        NGX_LOG_ERR, log, 0,
        "\"rate_limit_zone\": \"rate=%V\" of zone \"%V\" has no effect: the live rate %V stays in force "
        "until DELETE zones/%V of rate_limit_api ends it in %V:%ui",
        &zone.rate_text, &zone.name, &shown, &zone.name, &zone.file, zone.line);
}

ngx_int_t init_zone_board(ngx_shm_zone_t* shm, void* data) {
    auto* zone = static_cast<Zone*>(shm->data);
    if (data != nullptr) {
        const Zone& old = *static_cast<Zone*>(data);
        zone->shared = old.shared;
        warn_of_live_rate(*zone, old, shm->shm.log);
        return NGX_OK;
    }
    void* memory = board_memory(shm, sizeof(ZoneSharedState));
    if (memory == nullptr) {
        return NGX_ERROR;
    }
    zone->shared = new (memory) ZoneSharedState;
    return NGX_OK;
}

ngx_int_t init_redis_board(ngx_shm_zone_t* shm, void* data) {
    auto* server = static_cast<RedisServer*>(shm->data);
    if (data != nullptr) {
        server->shared = static_cast<RedisServer*>(data)->shared;
        return NGX_OK;
    }
    void* memory = board_memory(shm, sizeof(RedisSharedState));
    std::uint64_t id = 0;
    if (memory == nullptr || !read_instance_id(&id)) {
        return NGX_ERROR;
    }
    server->shared = new (memory) RedisSharedState(id);
    return NGX_OK;
}

// Room for a board of so many bytes, with what nginx's allocator needs.
std::size_t memory_for(std::size_t size) {
    constexpr std::size_t kLeast = 8;  // pages, that nginx gives
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
    return add(cf, "rate_limit_zone", zone->name, sizeof(ZoneSharedState), &zone_tag, init_zone_board, zone);
}

bool add_shared_state(ngx_conf_t* cf, RedisServer* server) {
    return add(cf, "rate_limit_redis", server->name, sizeof(RedisSharedState), &redis_tag, init_redis_board,
               server);
}

}  // namespace rate_limit
