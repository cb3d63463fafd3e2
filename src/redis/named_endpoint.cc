// Rotates through the addresses of a host name, and refreshes them.
#include "redis/named_endpoint.h"

namespace rate_limit::redis {

NamedEndpoint::~NamedEndpoint() {
    if (lookup_ != nullptr) {
        lookup_->forget();
    }
}

Endpoint::Target NamedEndpoint::target() {
    const char* trouble = nullptr;
    if (lookup_ != nullptr && lookup_->done()) {
        if (!lookup_->addresses().empty()) {
            addresses_ = lookup_->addresses();
        } else {
            trouble = "the host has no address now";
        }
        lookup_->forget();
        lookup_ = nullptr;
    }
    if (!address_.path.empty()) {
        return {address_.path, 0};
    }
    if (addresses_.empty()) {
        return {"", 0, trouble != nullptr ? trouble : "the host has no address"};
    }
    return {addresses_[next_ % addresses_.size()], address_.port, trouble};
}

void NamedEndpoint::look_up() {
    if (lookup_ == nullptr && address_.path.empty() && !is_numeric(address_.host)) {
        lookup_ = NameLookup::start(address_.host);
    }
}

void NamedEndpoint::suspect() {
    look_up();
    next_++;
}

}  // namespace rate_limit::redis
