// Bytes as the scripts pack and unpack them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rate_limit {

// Numbers, little-endian and without gaps, as the script packs them.
class Packed {
  public:
    Packed& add(std::uint64_t number, std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; i++) {
            text_.push_back(static_cast<char>(i < 8 ? number >> (8 * i) & 0xff : 0));
        }
        return *this;
    }

    Packed& add(const std::string& text) {
        text_ += text;
        return *this;
    }

    const std::string& text() const { return text_; }

  private:
    std::string text_;
};

}  // namespace rate_limit
