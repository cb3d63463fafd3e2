// Creates the memory of zones, shares it with the workers of the old configuration, or converts its clients
// to a new layout.
#include "nginx/zone.h"

#include <sched.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>

#include "nginx/background.h"
#include "nginx/clock.h"

namespace rate_limit {
namespace {

// Whether a process is a zombie in /proc: it has ended, and its parent has not waited for it yet.
bool is_zombie(std::uint32_t process) {
    u_char path[32];
    char stat[128] = {};
    *ngx_snprintf(path, sizeof(path) - 1, "/proc/%uD/stat", process) = '\0';
    const ngx_fd_t fd = ngx_open_file(path, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);
    if (fd == NGX_INVALID_FILE) {
        return false;
    }
    const ssize_t size = ngx_read_fd(fd, stat, sizeof(stat) - 1);
    ngx_close_file(fd);
    const std::string_view text(stat, size > 0 ? static_cast<std::size_t>(size) : 0);
    const std::size_t name_end = text.rfind(") ");
    return name_end != std::string_view::npos && name_end + 2 < text.size() &&
           (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

bool process_lives(std::uint32_t process) {
    return (kill(static_cast<pid_t>(process), 0) == 0 || ngx_errno != ESRCH) && !is_zombie(process);
}

Micros steady_clock() { return read_clock(CLOCK_MONOTONIC); }

void yield_processor() { sched_yield(); }

Zone* zone_of(const ngx_shm_zone_t* shm) { return static_cast<Zone*>(shm->data); }

// Calls `visit` with every zone of the module and its memory.
template <class Visit>
void for_each_zone(ngx_cycle_t* cycle, Visit visit) {
    for (ngx_list_part_t* part = &cycle->shared_memory.part; part != nullptr; part = part->next) {
        auto* memories = static_cast<ngx_shm_zone_t*>(part->elts);
        for (ngx_uint_t i = 0; i < part->nelts; i++) {
            if (memories[i].tag == &ngx_http_rate_limit_module && memories[i].data != nullptr) {
                visit(zone_of(&memories[i]), &memories[i]);
            }
        }
    }
}

// The memory of the same zone in the running configuration; null if there is none.
ngx_shm_zone_t* running_memory(const Zone* zone) {
    ngx_shm_zone_t* found = nullptr;
    // While nginx reads a configuration, ngx_cycle is still the running one.
    for_each_zone(const_cast<ngx_cycle_t*>(ngx_cycle), [&](const Zone* running, ngx_shm_zone_t* memory) {
        if (memory->shm.size == zone->shm->shm.size && view(running->name) == view(zone->name)) {
            found = memory;
        }
    });
    return found;
}

constexpr std::size_t kLine = 64;  // bytes of a cache line

// How much of a zone's memory is for denials; the rest is for the table.
std::size_t denials_share(const Zone& zone, std::size_t size) {
    constexpr std::size_t kPart = 4;  // beside a table, denials get one of this many parts
    if (!needs_denials(zone)) {
        return 0;
    }
    return needs_table(zone) ? ngx_align(std::max(size / kPart, Denials::least_size()), kLine) : size;
}

// How much of a zone's memory is for leases.
std::size_t leases_share(const Zone& zone, std::size_t size) {
    constexpr std::size_t kPart = 4;
    return needs_leases(zone) ? ngx_align(std::max(size / kPart, Leases::least_size()), kLine) : 0;
}

// Creates the table, the denials and the leases in all pages of a zone's memory that nginx's slab allocator
// leaves.
ngx_int_t make_memory(Zone* zone) {
    auto* pool = reinterpret_cast<ngx_slab_pool_t*>(zone->shm->shm.addr);
    std::size_t size = pool->pfree << ngx_pagesize_shift;
    auto* memory = static_cast<char*>(ngx_slab_alloc(pool, size));
    HashKey keys[3] = {};
    if (memory == nullptr || getentropy(keys, sizeof(keys)) != 0) {
        ngx_log_error(NGX_LOG_EMERG, zone->shm->shm.log, ngx_errno, "cannot set up rate_limit_zone \"%V\"",
                      &zone->name);
        return NGX_ERROR;
    }
#if (NGX_DEBUG_MALLOC)
    ngx_memzero(memory, size);
#endif
    const std::size_t leased = std::min(leases_share(*zone, size), size);
    if (needs_leases(*zone)) {
        zone->leases = Leases::create(memory, leased, keys[2]);
    }
    memory += leased;
    size -= leased;
    const std::size_t share = std::min(denials_share(*zone, size), size);
    if (needs_denials(*zone)) {
        zone->denials = Denials::create(memory, share, keys[0]);
    }
    if (needs_table(*zone)) {
        zone->table =
            Table::create(memory + share, size - share, zone->layout, keys[1], needs_unsent_counts(*zone));
    }
    if ((zone->denials == nullptr && needs_denials(*zone)) ||
        (zone->leases == nullptr && needs_leases(*zone)) || (zone->table == nullptr && needs_table(*zone))) {
        ngx_log_error(NGX_LOG_EMERG, zone->shm->shm.log, 0,
                      "rate_limit_zone \"%V\" is too small: it needs %uz bytes", &zone->name,
                      zone_least_size(*zone));
        return NGX_ERROR;
    }
    pool->log_nomem = 0;
    return NGX_OK;
}

// `data` is the old zone of this name, or null. Since 1.27.3, nginx also passes the old zone to a zone with
// `noreuse`, whose memory is new, and unmaps the old memory afterwards. So nginx has reused the memory only
// if the addresses are equal.
ngx_int_t init_memory(ngx_shm_zone_t* shm, void* data) {
    Zone* zone = zone_of(shm);
    zone->shm = shm;
    const auto* old_zone = static_cast<const Zone*>(data);
    if (old_zone != nullptr && old_zone->shm->shm.addr == shm->shm.addr) {
        zone->table = old_zone->table;
        zone->denials = old_zone->denials;
        zone->leases = old_zone->leases;
        return NGX_OK;
    }
    if (make_memory(zone) != NGX_OK) {
        return NGX_ERROR;
    }
    if (zone->replaces != nullptr) {
        Zone& old = *zone_of(zone->replaces);
        zone_follow(&old);
        if (old.table != nullptr && zone->table != nullptr &&
            can_convert(old.table->layout(), zone->layout)) {
            zone->table->import(*old.table, old.policy.rates, zone->policy, wall_clock(), this_process());
        }
    }
    return NGX_OK;
}

}  // namespace

const Process& this_process() {
    static Process process = {0, process_lives, yield_processor, steady_clock, true};
    process.self = static_cast<std::uint32_t>(ngx_pid);
    return process;
}

std::size_t zone_least_size(const Zone& zone) {
    // The slab allocator also needs a header, and an entry for each page.
    std::size_t need = needs_table(zone) ? Table::least_size(zone.layout, needs_unsent_counts(zone)) : 0;
    if (needs_denials(zone)) {
        need = std::max(need + Denials::least_size() + kLine, need + need / 3 + kLine);
    }
    if (needs_leases(zone)) {
        need = std::max(need + Leases::least_size() + kLine, need + need / 3 + kLine);
    }
    const std::size_t pages = need / ngx_pagesize + 1;
    const std::size_t entries = (pages * sizeof(ngx_slab_page_t)) / ngx_pagesize + 1;
    return std::max<std::size_t>((pages + entries + 2) * ngx_pagesize, 8 * ngx_pagesize);
}

bool zone_add_memory(ngx_conf_t* cf, Zone* zone, std::size_t size) {
    zone->shm = ngx_shared_memory_add(cf, &zone->name, size, &ngx_http_rate_limit_module);
    if (zone->shm == nullptr) {
        return false;
    }
    zone->shm->init = init_memory;
    zone->shm->data = zone;
    return true;
}

void zone_plan_memory(Zone* zone) {
    ngx_shm_zone_t* running = running_memory(zone);
    if (running == nullptr) {
        return;
    }
    const Zone& old = *zone_of(running);
    const bool had_unsent_counts = old.table != nullptr && old.table->has_unsent_counts();
    const bool same_parts =
        (old.table != nullptr) == needs_table(*zone) && had_unsent_counts == needs_unsent_counts(*zone) &&
        (old.denials != nullptr) == needs_denials(*zone) && (old.leases != nullptr) == needs_leases(*zone);
    if (same_parts && (old.table == nullptr || old.table->layout() == zone->layout)) {
        return;
    }
    // Workers of the running configuration still use its memory, so the layout cannot change in place.
    zone->replaces = running;
    zone->shm->noreuse = 1;
}

void zone_connect(Zone* zone) {
    zone->batcher = redis_batcher(zone->redis);
    if (needs_leases(*zone) && zone->lender == nullptr) {
        auto& lenders = zone->redis->lenders;
        lenders.push_back(std::make_unique<RedisLender>(zone, this_process(), wall_clock));
        zone->lender = lenders.back().get();
    }
    zone->membership = zone->redis->membership();
}

void zone_connect_corrector(Zone* zone) {
    if (zone->sync != 0 && zone->corrector == nullptr) {
        zone->corrector = redis_batcher(zone->redis);
    }
}

const char* zone_objection(const Zone& zone, const RateList& rates) {
    Policy changed = zone.policy;
    changed.rates = rates;
    if (holds(zone.layout, changed)) {
        return nullptr;
    }
    if (has_state<StateKind::kLog>(zone.policy.algorithm)) {
        return "the zone's log has no room for so many requests or so long a period";
    }
    return "the zone has no room for so many rates";
}

std::string_view zone_rate_text(const Zone& zone, char* at) {
    if (!zone.is_live) {
        return view(zone.rate_text);
    }
    return {at, print_rates(zone.live, at)};
}

void zone_follow(Zone* zone) {
    RateList rates = {};
    std::uint64_t version = 0;
    if (zone->shared == nullptr || zone->shared->live.version() == zone->live_version) {
        return;
    }
    const LiveRate::Kind kind = zone->shared->live.read(&version, &rates);
    if (kind == LiveRate::Kind::kTorn) {
        return;
    }
    zone->live_version = version;
    zone->is_live = kind == LiveRate::Kind::kRates;
    zone->live = rates;
    const char* objection = zone->is_live ? zone_objection(*zone, rates) : nullptr;
    if (objection != nullptr) {
        // The configuration may be newer than the rate, and may have left the zone less room for rates.
        zone->is_live = false;
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0, "the live rate of zone \"%V\" is not used: %s",
                      &zone->name, objection);
    }
    if (zone->rate != nullptr) {
        return;
    }
    // While the live rate is off, the policy keeps its last rates: earlier requests remain charged by them.
    if (!zone->is_live) {
        zone->policy.rates = zone->configured;
    } else if (rates.size != 0) {
        zone->policy.rates = rates;
    }
}

void zone_replace_memory(ngx_cycle_t* cycle) {
    for_each_zone(cycle, [](Zone* zone, ngx_shm_zone_t* memory) {
        if (zone->replaces != nullptr) {
            // A process without workers still uses both memories.
            zone->replaces->noreuse = ngx_process == NGX_PROCESS_SINGLE ? 0 : 1;
            zone->replaces = nullptr;
            memory->noreuse = 0;
        }
    });
}

}  // namespace rate_limit
