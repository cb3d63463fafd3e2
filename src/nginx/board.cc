// Makes boards, and shares them with the workers of an older configuration.
#include "nginx/board.h"

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

ngx_int_t init_zone_board(ngx_shm_zone_t* shm, void* data) {
    auto* zone = static_cast<Zone*>(shm->data);
    if (data != nullptr) {
        zone->board = static_cast<Zone*>(data)->board;
        return NGX_OK;
    }
    void* memory = board_memory(shm, sizeof(ZoneBoard));
    if (memory == nullptr) {
        return NGX_ERROR;
    }
    zone->board = new (memory) ZoneBoard;
    return NGX_OK;
}

ngx_int_t init_redis_board(ngx_shm_zone_t* shm, void* data) {
    auto* server = static_cast<RedisServer*>(shm->data);
    if (data != nullptr) {
        server->board = static_cast<RedisServer*>(data)->board;
        return NGX_OK;
    }
    void* memory = board_memory(shm, sizeof(RedisBoard));
    std::uint64_t id = 0;
    if (memory == nullptr || !read_instance_id(&id)) {
        return NGX_ERROR;
    }
    server->board = new (memory) RedisBoard(id);
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

bool add_board(ngx_conf_t* cf, Zone* zone) {
    return add(cf, "rate_limit_zone", zone->name, sizeof(ZoneBoard), &zone_tag, init_zone_board, zone);
}

bool add_board(ngx_conf_t* cf, RedisServer* server) {
    return add(cf, "rate_limit_redis", server->name, sizeof(RedisBoard), &redis_tag, init_redis_board,
               server);
}

}  // namespace rate_limit
