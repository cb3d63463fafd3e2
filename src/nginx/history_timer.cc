// The timer of the history, and what it reads.
#include "nginx/history_timer.h"

#include "nginx/collections.h"
#include "nginx/event_loop.h"

namespace rate_limit {

// Of a worker.
struct HistoryTimer {
    explicit HistoryTimer(ngx_http_rate_limit_main_conf_t* conf)
        : conf(conf), alarm(nginx_loop()->make_timer(on_alarm, this, false)) {}

    static void on_alarm(void* self);

    ngx_http_rate_limit_main_conf_t* conf;
    std::unique_ptr<redis::Alarm> alarm;
};

namespace {

constexpr redis::Milliseconds kEvery = 1000;

// Of a ZoneSharedState or a RedisSharedState.
template <class State>
void record(State* shared, Micros now) {
    if (shared->history.is_due(now)) {
        shared->history.add(shared->statistics.read_moment(now));
    }
}

template <class State>
auto history_of(const State& shared) {
    const Micros now = this_process().clock();
    const Micros since = wall_clock() - now;  // the time of day when `clock` was 0
    auto moments = shared.history.read(now);
    for (auto& moment : moments) {
        moment.time += since;
    }
    return moments;
}

}  // namespace

void HistoryTimer::on_alarm(void* self) {
    auto* timer = static_cast<HistoryTimer*>(self);
    timer->alarm->arm(kEvery);
    const Micros now = this_process().clock();
    for (const Zone* zone : pointers<Zone>(timer->conf->zones)) {
        record(zone->shared, now);
    }
    for (const RedisServer* server : pointers<RedisServer>(timer->conf->servers)) {
        record(server->shared, now);
    }
}

void start_history(ngx_http_rate_limit_main_conf_t* conf) {
    if (conf->shows_history != 0 && conf->zones.nelts != 0 && conf->history_timer == nullptr) {
        auto* timer = new HistoryTimer(conf);
        conf->history_timer = timer;
        timer->alarm->arm(0);
    }
}

void stop_history(ngx_http_rate_limit_main_conf_t* conf) {
    if (conf != nullptr) {
        delete static_cast<HistoryTimer*>(conf->history_timer);
        conf->history_timer = nullptr;
    }
}

std::vector<ZoneHistory::Moment> zone_history(const Zone& zone) { return history_of(*zone.shared); }

std::vector<RedisHistory::Moment> redis_history(const RedisServer& server) {
    return history_of(*server.shared);
}

}  // namespace rate_limit
