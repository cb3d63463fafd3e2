// What a key holds, read back into the words that core would have.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/state_layout.h"

namespace rate_limit {

using Words = std::vector<std::uint64_t>;

// State without what only one side has: the words of the places, of which a log is its newest time and its
// entries from the oldest on, then the marks and the time of min_interval. Both sides must have the same.
using Content = std::vector<std::uint64_t>;

inline std::uint64_t bytes_at(std::string_view text, std::size_t at, std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
        number |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (i * 8);
    }
    return number;
}

inline bool has_lives(const StateLayout& layout) {
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

// Reads a value that must have been written for `layout`.
class ValueReader {
  public:
    ValueReader(const StateLayout& layout, std::string_view value) : layout_(layout), value_(value) {}

    // Nothing if it is not as it should be.
    std::optional<Content> read() {
        if (layout_.algorithm == Algorithm::kSlidingLog && value_.size() >= kRingHeader &&
            value_[8] == '\xc0') {
            return read_ring();
        }
        if (!has_lives(layout_) && !layout_.interval) {
            read_place(value_.size());
            return finish();
        }
        return read_long();
    }

    // The moment until which some rate needs it, if it has one.
    std::uint64_t lives() const { return lives_; }

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
            0x80 | (layout_.rates - 1) | (layout_.interval ? 8 : 0) | (has_lives(layout_) ? 16 : 0);
        if ((bits & ~32U) != expected) {
            return {};
        }
        if (has_lives(layout_)) {
            lives_ = time;
            time = layout_.interval ? take(8) : 0;
        }
        std::uint64_t marks = 0;
        for (std::uint32_t place = 0; place < layout_.rates; ++place) {
            if (at_ == value_.size()) {
                const bool log = layout_.algorithm == Algorithm::kSlidingLog;
                content_.resize(content_.size() + (log ? 1 : words_per_rate(layout_)));
                continue;
            }
            marks |= has_marks(layout_) ? take(1) << (place * 8) : 0;
            read_place_of(bits);
        }
        if (has_marks(layout_)) {
            content_.push_back(marks);
        }
        if (layout_.interval) {
            content_.push_back(time);
        }
        return finish();
    }

    void read_place_of(unsigned bits) {
        switch (layout_.algorithm) {
            case Algorithm::kSlidingBuckets:
                return read_place(take(2));
            case Algorithm::kSlidingLog:
                return read_place(value_.size() - at_);
            default:
                return read_place((bits & 32) != 0 ? 16 : 12);
        }
    }

    void read_place(std::size_t length) {
        switch (layout_.algorithm) {
            case Algorithm::kSlidingBuckets:
                return read_buckets(length);
            case Algorithm::kSlidingLog:
                return read_log(length);
            default:
                content_.push_back(take(8));
                content_.push_back(take(length - 8));
                // A short value is no longer than it must be.
                good_ &= length == 12 || length == 16;
                good_ &= has_lives(layout_) || length == 12 || content_.back() >> 32 != 0;
        }
    }

    void read_buckets(std::size_t length) {
        Content words(words_per_rate(layout_));
        if (length != 0) {
            words[0] = take(8);
            good_ &= take(1) == layout_.buckets;
            words[1] = take(4);
            const std::size_t bytes = (length - 13) / layout_.buckets;
            good_ &= (bytes == 1 || bytes == 2 || bytes == 4) && length == 13 + bytes * layout_.buckets;
            std::uint64_t most = 0;
            for (std::size_t i = 1; good_ && i <= layout_.buckets; ++i) {
                const std::uint64_t count = take(bytes);
                most |= count;
                words[1 + i / 2] |= count << (i % 2 * 32);
            }
            good_ &= bytes == (most < 256 ? 1U : most < 65536 ? 2U : 4U);
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

    // A log in the form of lua/log_ring.lua.
    std::optional<Content> read_ring() {
        lives_ = take(8);
        take(1);
        const std::uint64_t bytes = take(1) - 16;
        const std::uint64_t admitted = take(8);
        content_.push_back(take(8));
        const std::uint64_t shift = take(6);
        const std::uint64_t room = take(4);
        const std::uint64_t head = take(4);
        const std::uint64_t size = take(4);
        if ((bytes != 4 && bytes != 6) || bytes < layout_.log_bytes || head >= room || size > room ||
            (!has_lives(layout_) && lives_ != 0) || (!layout_.interval && admitted != 0)) {
            return {};
        }
        for (std::uint64_t i = 0; i < size; ++i) {
            const std::size_t at = kRingHeader + (head + i) % room * bytes;
            if (at + bytes > value_.size()) {
                return {};
            }
            // Wider entries than core's stay as they are.
            const std::uint64_t time = bytes_at(value_, at, bytes) - shift;
            content_.push_back(time & ((std::uint64_t{1} << (layout_.log_bytes * 8)) - 1));
        }
        if (layout_.interval) {
            content_.push_back(admitted);
        }
        return content_;
    }

    static constexpr std::size_t kRingHeader = 44;

    const StateLayout& layout_;
    std::string_view value_;
    std::size_t at_ = 0;
    bool good_ = true;
    std::uint64_t lives_ = 0;
    Content content_;
};

}  // namespace rate_limit
