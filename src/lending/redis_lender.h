// Asks Redis for leased portions, and gives back what is not used.
#pragma once

#include "lease/lender.h"
#include "store/check_batcher.h"
#include "store/limit.h"

namespace rate_limit {

// A portion is charged by a check like that of a request, and given back like a charge that was too much. So
// both join the calls of requests. Belongs to one thread.
class RedisLender final : public Lender {
  public:
    // The zone has leases and a batcher; its policy may change. All that is referred to must outlive the
    // lender, except for the batcher, which may be destroyed first. `wall` reads the time of day.
    RedisLender(const StoreZone* zone, const Process& process, Micros (*wall)())
        : zone_(zone), process_(&process), wall_(wall) {}
    ~RedisLender() override;
    RedisLender(const RedisLender&) = delete;
    RedisLender& operator=(const RedisLender&) = delete;

    void ask(const LeaseClient& client, const LeaseAsk& ask) override;
    bool give_back(const LeaseClient& client, const LeaseRest& rest) override;
    void end() override { ended_ = true; }

  private:
    struct Asked;

    static void on_answer(Question* question);
    static void on_lost(Question* question);
    Asked* make_asked();
    bool send(Asked* asked);
    void take_answer(Asked* asked);
    void take_refusal(Asked* asked);
    bool tell_memory(const Limit& limit) const;
    void recycle(Asked* asked);

    const StoreZone* zone_;
    const Process* process_;
    Micros (*wall_)();
    Asked* in_flight_ = nullptr;
    Asked* free_ = nullptr;
    bool ended_ = false;
};

}  // namespace rate_limit
