// The keys of a call, as the commands use them.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/time.h"

namespace rate_limit {

// Keeps the expiry that a key has.
constexpr Micros kKeepExpiry = 0;

// The keys of one call, by their position in the call. A key that occurs twice is the same key.
class CommandKeys {
  public:
    // The value of a key, until the key is written; a null pointer if there is no key, or no string in it.
    virtual std::string_view value(std::size_t position) = 0;

    // Writes a value that is needed until `expires`, rounded up to milliseconds, or kKeepExpiry.
    virtual void write(std::size_t position, std::string_view value, Micros expires) = 0;

    virtual void remove(std::size_t position) = 0;

    // Whether a key occurs twice in the call.
    virtual bool repeated() const = 0;

  protected:
    ~CommandKeys() = default;
};

}  // namespace rate_limit
