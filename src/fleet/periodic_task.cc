// The timer of a periodic task, and its part in the election of a leader.
#include "fleet/periodic_task.h"

namespace rate_limit {

PeriodicTask::PeriodicTask(Leader* leader, redis::Milliseconds every, redis::Router* router,
                           redis::Loop* loop, const Process& process)
    : leader_(leader),
      every_(every),
      router_(router),
      loop_(loop),
      process_(&process),
      timer_(loop->make_timer([](void* self) { static_cast<PeriodicTask*>(self)->tick(); }, this, false)) {}

PeriodicTask::~PeriodicTask() {
    resign();
    delete timer_;
}

void PeriodicTask::start(redis::Milliseconds after) { timer_->arm(after); }

void PeriodicTask::run_again(redis::Milliseconds after) { timer_->arm(after); }

void PeriodicTask::end() {
    if (ended_ || router_ == nullptr) {
        return;
    }
    ended_ = true;
    timer_->disarm();
    on_end();
}

void PeriodicTask::stop() {
    router_ = nullptr;
    timer_->disarm();
}

bool PeriodicTask::lead() { return leader_->lead(*process_) != Leader::Lead::kNo; }

void PeriodicTask::tick() {
    timer_->arm(every_);
    on_timer();
    if (lead()) {
        run();
    }
}

}  // namespace rate_limit
