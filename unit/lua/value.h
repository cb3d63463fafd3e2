// Reads the value of a key into the words of core's state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/state_layout.h"

namespace rate_limit {

using Words = std::vector<std::uint64_t>;

// The part of a state that Redis and core both have: the words of the slots, the marks, and the time of
// min_interval. For a log: the time of the newest entry, the entries from the oldest on, and the time of
// min_interval.
using Content = std::vector<std::uint64_t>;

inline std::uint64_t bytes_at(std::string_view text, std::size_t at, std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
        number |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (i * 8);
    }
    return number;
}

inline bool has_expiry(const StateLayout& layout) {
    return has_marks(layout) || (layout.algorithm == Algorithm::kSlidingLog && layout.varied);
}

inline Content content_of_log(const StateLayout& layout, const Words& words) {
    const std::uint64_t head = words[1] & 0xffffffff;
    const std::uint64_t size = words[1] >> 32;
    const std::string_view ring(reinterpret_cast<const char*>(words.data() + 2), (words.size() - 2) * 8);
    Content content = {words[0]};
    for (std::uint64_t i = 0; i < size; ++i) {
        content.push_back(
            bytes_at(ring, (head + i) % layout.log_entries * layout.log_bytes, layout.log_bytes));
    }
    return content;
}

inline Content content_of(const StateLayout& layout, const Words& words) {
    const std::size_t end = weight_index(layout);
    if (layout.algorithm != Algorithm::kSlidingLog) {
        return {words.begin(), words.begin() + static_cast<std::ptrdiff_t>(end)};
    }
    Content content = content_of_log(layout, words);
    if (layout.interval) {
        content.push_back(words[interval_index(layout)]);
    }
    return content;
}

// Reads a value that was written for `layout`.
class ValueReader {
  public:
    ValueReader(const StateLayout& layout, std::string_view value) : layout_(layout), value_(value) {}

    // Nothing if the value is not exactly as lua/ writes it.
    std::optional<Content> read() {
        if (layout_.algorithm == Algorithm::kSlidingLog && value_.size() >= kLogHeader &&
            value_[8] == '\xc0') {
            return read_ring();
        }
        if (!has_expiry(layout_) && !layout_.interval) {
            read_slot(value_.size());
            return finish();
        }
        return read_long();
    }

    // The expiry in the value; 0 if it has none.
    std::uint64_t expiry() const { return expiry_; }

  private:
    std::optional<Content> finish() {
        if (!good_ || at_ != value_.size()) {
            return {};
        }
        return content_;
    }

    std::uint64_t take(std::size_t bytes) {
        if (value_.size() - at_ < bytes) {
            good_ = false;
            return 0;
        }
        at_ += bytes;
        return bytes_at(value_, at_ - bytes, bytes);
    }

    std::optional<Content> read_long() {
        std::uint64_t time = take(8);
        const auto bits = static_cast<unsigned>(take(1));
        const unsigned expected =
            0x80 | (layout_.rates - 1) | (layout_.interval ? 8 : 0) | (has_expiry(layout_) ? 16 : 0);
        if ((bits & ~(32U | 64U)) != expected || (bits & 96) == 96) {
            return {};
        }
        if (has_expiry(layout_)) {
            expiry_ = time;
            time = layout_.interval ? take(8) : 0;
        }
        std::uint64_t marks = 0;
        for (std::uint32_t slot = 0; slot < layout_.rates; ++slot) {
            if (at_ == value_.size()) {
                const bool log = layout_.algorithm == Algorithm::kSlidingLog;
                content_.resize(content_.size() + (log ? 1 : words_per_rate(layout_)));
                continue;
            }
            marks |= has_marks(layout_) ? take(1) << (slot * 8) : 0;
            read_slot_of(bits);
        }
        if (has_marks(layout_)) {
            content_.push_back(marks);
        }
        if (layout_.interval) {
            content_.push_back(time);
        }
        return finish();
    }

    void read_slot_of(unsigned bits) {
        switch (layout_.algorithm) {
            case Algorithm::kSlidingBuckets:
                return read_slot(take(2));
            case Algorithm::kSlidingLog:
                return read_slot(value_.size() - at_);
            default:
                return read_slot((bits & 64) != 0 ? take(1) : (bits & 32) != 0 ? 16 : 12);
        }
    }

    // Reads a state of 12 or 16 bytes, or one of 23 bytes whose counts need them.
    void read_state(std::size_t length) {
        Content words(3);
        const bool is_level = is_bucket(layout_.algorithm);
        words[0] = take(8);
        if (length == kLargeState) {
            good_ &= take(1) == 0;
            words[1] = take(7);
            words[2] = take(7);
            good_ &= is_level ? words[1] >> 31 != 0 : (words[1] | words[2]) >> 32 != 0;
        } else {
            // A value has no more bytes than needed.
            const std::uint64_t second = take(length - 8);
            good_ &= length == kShortState || length == kWideState;
            good_ &= has_expiry(layout_) || length == kShortState || second >> 32 != 0;
            words[1] = second;
            if (layout_.large && is_level) {
                words[1] = words[0] >> 52 | second >> 45 << 12;
                words[2] = second & ((std::uint64_t{1} << 45) - 1);
                words[0] &= (std::uint64_t{1} << 52) - 1;
            } else if (layout_.large && layout_.algorithm == Algorithm::kSlidingWindow) {
                words[1] = (second & 0xffff) | (second >> 32 & 0xffff) << 16;
                words[2] = (second >> 16 & 0xffff) | second >> 48 << 16;
            }
        }
        if (is_level && layout_.large) {
            std::swap(words[1], words[2]);
        }
        good_ &= layout_.large || length != kLargeState;
        words.resize(words_per_rate(layout_));
        content_.insert(content_.end(), words.begin(), words.end());
    }

    void read_slot(std::size_t length) {
        switch (layout_.algorithm) {
            case Algorithm::kSlidingBuckets:
                return read_buckets(length);
            case Algorithm::kSlidingLog:
                return read_log(length);
            default:
                if (length == 0) {
                    content_.resize(content_.size() + words_per_rate(layout_));
                } else {
                    read_state(length);
                }
        }
    }

    void read_buckets(std::size_t length) {
        Content words(words_per_rate(layout_));
        if (length != 0) {
            words[0] = take(8);
            good_ &= take(1) == layout_.buckets;
            words[1] = take(4);
            const std::size_t bytes = (length - kRingHeader) / layout_.buckets;
            good_ &= (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 7) &&
                     length == kRingHeader + bytes * layout_.buckets;
            std::uint64_t most = 0;
            for (std::size_t i = 1; good_ && i <= layout_.buckets; ++i) {
                const std::uint64_t count = take(bytes);
                most |= count;
                words[layout_.large ? 1 + i : 1 + i / 2] |= count << (layout_.large ? 0 : i % 2 * 32);
            }
            good_ &= bytes == (most < 256 ? 1U : most < 65536 ? 2U : most >> 32 == 0 ? 4U : 7U);
        }
        content_.insert(content_.end(), words.begin(), words.end());
    }

    void read_log(std::size_t length) {
        good_ &= take(1) == layout_.log_bytes;
        content_.push_back(take(8));
        for (std::size_t at = 9; good_ && at < length; at += layout_.log_bytes) {
            content_.push_back(take(layout_.log_bytes));
        }
    }

    // Reads a large log: see lua/log_ring.lua.
    std::optional<Content> read_ring() {
        expiry_ = take(8);
        take(1);
        const std::uint64_t bytes = take(1) - 16;
        const std::uint64_t admitted = take(8);
        content_.push_back(take(8));
        const std::uint64_t shift = take(6);
        const std::uint64_t room = take(4);
        const std::uint64_t head = take(4);
        const std::uint64_t size = take(4);
        if ((bytes != 4 && bytes != 6) || bytes < layout_.log_bytes || head >= room || size > room ||
            (!has_expiry(layout_) && expiry_ != 0) || (!layout_.interval && admitted != 0)) {
            return {};
        }
        for (std::uint64_t i = 0; i < size; ++i) {
            const std::size_t at = kLogHeader + (head + i) % room * bytes;
            if (at + bytes > value_.size()) {
                return {};
            }
            // An entry may have more bytes than in core.
            const std::uint64_t time = bytes_at(value_, at, bytes) - shift;
            content_.push_back(time & ((std::uint64_t{1} << (layout_.log_bytes * 8)) - 1));
        }
        if (layout_.interval) {
            content_.push_back(admitted);
        }
        return content_;
    }

    static constexpr std::size_t kLogHeader = 44;

    const StateLayout& layout_;
    std::string_view value_;
    std::size_t at_ = 0;
    bool good_ = true;
    std::uint64_t expiry_ = 0;
    Content content_;
};

}  // namespace rate_limit
