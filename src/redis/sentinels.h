// A primary that Sentinels know: one of them is asked for it, and tells when it changes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "redis/address.h"
#include "redis/connection.h"
#include "redis/endpoint.h"
#include "redis/log_limit.h"
#include "redis/resolver.h"
#include "redis/seeds.h"

namespace rate_limit::redis {

// Keeps one connection, to any Sentinel that answers: it asks for the primary and then listens for
// +switch-master. When the connection is lost, or the primary in suspect, the next Sentinel is asked. However
// often a Sentinel names another primary, it is followed ten times a second at most, and one name is looked
// up at a time.
class Sentinels final : public Endpoint, private Connection::Owner {
  public:
    // `settings` are those of the Sentinels, not of the servers that they watch, and live as long as this.
    // Null if there is no memory.
    static Sentinels* make(const Settings& settings, const std::vector<Seed>& seeds, std::string_view primary,
                           Loop* loop);
    ~Sentinels() override;
    Sentinels(const Sentinels&) = delete;
    Sentinels& operator=(const Sentinels&) = delete;

    void set_owner(Endpoint::Owner* owner) override { owner_ = owner; }
    Target target() override;
    void suspect() override;
    bool wants_primary() const override { return true; }

  private:
    Sentinels(const Settings& settings, const std::vector<Seed>& seeds, std::string_view primary, Loop* loop);

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
    Alarm* timer_ = nullptr;  // until the Sentinel must have answered, or until the next is asked
    std::size_t next_ = 0;
    unsigned failures_ = 0;  // in a row
    bool asking_ = false;    // a Sentinel is expected to answer
    Milliseconds asked_at_ = 0;
    Target target_;
    std::string host_;        // of the primary, as the Sentinels last said it
    std::uint16_t port_ = 0;  // of it
    bool pending_ = false;    // it was said so soon after the last time that it is yet to be followed
    std::string looked_up_;   // the name that is being looked up, if one is
    Lookup* lookup_ = nullptr;
    std::string where_;    // the Sentinel that was last asked, for the log
    Journal own_journal_;  // unless the settings have one
    Milliseconds followed_at_ = 0;
    LogLimit moves_;
};

}  // namespace rate_limit::redis
