// Looks up the host names of seeds one after the other.
#include "cluster/seeds.h"

namespace rate_limit::redis {

Seeds::~Seeds() {
    if (lookup_ != nullptr) {
        lookup_->forget();
    }
}

const std::vector<Seed>& Seeds::all() {
    if (lookup_ != nullptr && lookup_->done()) {
        if (!lookup_->addresses().empty()) {
            seeds_[looked_].addresses = lookup_->addresses();
        }
        lookup_->forget();
        lookup_ = nullptr;
    }
    return seeds_;
}

void Seeds::look_up() {
    all();
    for (std::size_t i = 0; i < seeds_.size() && lookup_ == nullptr; i++) {
        looked_ = next_++ % seeds_.size();
        if (!is_numeric(seeds_[looked_].host)) {
            lookup_ = NameLookup::start(seeds_[looked_].host);
        }
    }
}

}  // namespace rate_limit::redis
