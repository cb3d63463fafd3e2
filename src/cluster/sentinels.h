// The endpoint of a primary that Sentinels monitor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/seeds.h"
#include "connection/address.h"
#include "connection/connection.h"
#include "connection/endpoint.h"
#include "connection/log_limit.h"
#include "connection/resolver.h"

namespace rate_limit::redis {

// Keeps one connection, to any Sentinel that answers: asks it for the primary, and then subscribes to
// +switch-master. Asks the next Sentinel when the connection is lost, or after suspect(). Changes the primary
// at most ten times a second, however often a Sentinel names another one, and looks up one host name at a
// time.
class Sentinels final : public Endpoint, private Connection::Owner {
  public:
    // `settings` are for the Sentinels, not for the servers that they monitor, and must outlive this object.
    // `seeds` must not be empty.
    Sentinels(const Settings& settings, const std::vector<Seed>& seeds, std::string_view primary, Loop* loop);
    ~Sentinels() override;
    Sentinels(const Sentinels&) = delete;
    Sentinels& operator=(const Sentinels&) = delete;

    void set_owner(Endpoint::Owner* owner) override { owner_ = owner; }
    Target target() override;
    void suspect() override;
    bool wants_primary() const override { return true; }

  private:
    static void on_primary(redisAsyncContext* context, void* answer, void* self_pointer);
    static void on_message(redisAsyncContext* context, void* answer, void* self_pointer);
    void on_ready() override;
    void on_lost(Error error, std::string_view line) override;
    void on_timer();

    void ask();
    void end_lookup();
    void forget_lookup();
    void follow();
    void fail(Error error, std::string_view line);
    void learn(std::string_view host, std::string_view port);
    void settle(const std::string& address);
    void complain(Error error, std::string_view line);

    const Settings& settings_;
    Seeds seeds_;
    std::string primary_;
    Loop* loop_;
    Connection connection_;
    Endpoint::Owner* owner_ = nullptr;
    Alarm* timer_;           // timeout of the Sentinel, pause before the next one, or poll of lookup_
    std::size_t next_;       // in seeds_, modulo their number; starts at random, to distribute the workers
    unsigned failures_ = 0;  // in a row
    bool asking_ = false;    // a Sentinel has not yet answered
    Milliseconds asked_at_ = 0;
    Target target_;
    std::string host_;        // of the primary, as last named by a Sentinel
    std::uint16_t port_ = 0;  // of the primary
    bool pending_ = false;    // host_ is not used yet, because the primary has just changed
    std::string looked_up_;   // the host name of lookup_
    NameLookup* lookup_ = nullptr;
    std::string where_;             // the last Sentinel, for the log
    Journal own_journal_;           // unless the settings have one
    Milliseconds followed_at_ = 0;  // when host_ was last used; 0 for never
    LogLimit moves_;
};

}  // namespace rate_limit::redis
