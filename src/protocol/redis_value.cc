// Reads the value of a client's key, by the same rules as lua/state.lua.
#include "protocol/redis_value.h"

#include <algorithm>

#include "algorithms/algorithm_functions.h"
#include "algorithms/rate_slots.h"
#include "core/bytes.h"

namespace rate_limit {
namespace {

constexpr std::size_t kFlagsAt = 8;
constexpr unsigned kCountBits = kMaxRates - 1;  // of the flags
constexpr std::size_t kLargeCounter = 7;        // bytes

// The most words of a state that a value may hold.
constexpr std::size_t kMostWords = kMaxRates * (2 + kMaxBuckets) + 2;

// Takes numbers from the front of a text. After the end of the text, numbers are 0 and good() is false.
class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    std::uint64_t number(std::size_t bytes) {
        const std::string_view digits = text(bytes);
        good_ = good_ && digits.size() == bytes;
        return good_ ? little_endian(digits.data(), bytes) : 0;
    }

    // The next `size` bytes, or fewer at the end of the text.
    std::string_view text(std::size_t size) {
        const std::string_view taken = text_.substr(0, size);
        text_.remove_prefix(taken.size());
        return taken;
    }

    bool empty() const { return text_.empty(); }
    bool good() const { return good_; }

  private:
    std::string_view text_;
    bool good_ = true;
};

// Garbage may have any bits. With 53 bits, the sum of two times does not overflow.
std::uint64_t take_time(Reader* reader) { return reader->number(8) & ((std::uint64_t{1} << 53) - 1); }

bool is_long(std::string_view value) {
    return value.size() > kFlagsAt && value.size() != kShortState && value.size() != kWideState &&
           (static_cast<unsigned char>(value[kFlagsAt]) & kValueIsLong) != 0;
}

// Reads a large state of a rate into words of a large layout: for a bucket the time, the part and the whole
// requests; for a window its end and its counts.
bool read_large(Algorithm algorithm, std::string_view slot, std::uint64_t* words) {
    Reader reader(slot);
    words[0] = reader.number(8);
    reader.number(1);
    const std::uint64_t first = std::min(reader.number(7), kMaxCount);
    const std::uint64_t second = std::min(reader.number(7), kMaxCount);
    if (is_bucket(algorithm)) {
        words[0] &= (std::uint64_t{1} << kWindowBits) - 1;
        words[1] = second;
        words[2] = first;
    } else {
        words[1] = first;
        if (!has_state<StateKind::kCount>(algorithm)) {
            words[2] = second;
        }
    }
    return true;
}

// Reads a small state of a rate. The high half of the second word is absent if zero.
bool read_small(Algorithm algorithm, std::string_view slot, std::uint64_t* words) {
    words[0] = little_endian<8>(slot.data());
    words[1] =
        slot.size() == kShortState ? little_endian<4>(slot.data() + 8) : little_endian<8>(slot.data() + 8);
    if (has_state<StateKind::kCount>(algorithm) && words[1] >> 32 != 0) {
        words[0] = words[1] = 0;
    }
    return (words[0] | words[1]) != 0;
}

// Whether a slot has a large state. Its ninth byte is 0, so that the value is not taken for a long one.
bool is_large_state(std::string_view slot) { return slot.size() == kLargeState && slot[kFlagsAt] == 0; }

// Reads the words of a rate, for any algorithm but sliding_buckets.
bool read_words(const StateLayout& layout, std::string_view slot, std::uint64_t* words) {
    const bool large = is_large_state(slot);
    if (!large && slot.size() != kShortState && slot.size() != kWideState) {
        return false;
    }
    if (large == layout.large) {
        return large ? read_large(layout.algorithm, slot, words) : read_small(layout.algorithm, slot, words);
    }
    StateLayout left = layout;
    left.large = large;
    std::uint64_t room[3] = {};
    const bool read =
        large ? read_large(layout.algorithm, slot, room) : read_small(layout.algorithm, slot, room);
    if (read) {
        functions_of(layout.algorithm).convert(left, room, layout, words);
    }
    return read;
}

// Whether a slot is long enough for a ring of this layout and names its number of buckets.
bool is_ring(const StateLayout& layout, std::string_view slot) {
    return slot.size() >= kRingHeader + layout.buckets &&
           static_cast<unsigned char>(slot[kFlagsAt]) == layout.buckets;
}

// Reads a ring of sliding_buckets. All counters have 1, 2, 4 or 7 bytes, as the largest counter needs.
bool read_ring(const StateLayout& layout, std::string_view slot, std::uint64_t* words) {
    if (!is_ring(layout, slot)) {
        return false;
    }
    const std::size_t bytes = (slot.size() - kRingHeader) / layout.buckets;
    if ((bytes != 1 && bytes != 2 && bytes != 4 && bytes != kLargeCounter) ||
        slot.size() != kRingHeader + bytes * layout.buckets) {
        return false;
    }
    Reader reader(slot);
    const std::uint64_t newest = reader.number(8);
    if (newest >> kWindowBits >= layout.buckets) {
        return false;
    }
    words[0] = newest;
    reader.number(1);
    words[1] = reader.number(4);
    for (std::size_t i = 1; i <= layout.buckets; i++) {
        const std::uint64_t count = std::min(reader.number(bytes), max_counter(layout));
        if (layout.large) {
            words[1 + i] = count;
        } else {
            words[1 + i / 2] |= count << (i % 2 * 32);
        }
    }
    return true;
}

bool read_slot(const StateLayout& layout, std::string_view slot, std::uint64_t* words) {
    return has_state<StateKind::kRing>(layout.algorithm) ? read_ring(layout, slot, words)
                                                         : read_words(layout, slot, words);
}

// Sets the marks and the words of all slots of a long value. `layout` has as many slots. The value omits
// trailing slots that were never used. A slot that cannot be read keeps its mark, unless it should be a ring
// and is not.
void read_slots(const StateLayout& layout, unsigned flags, Reader* reader, std::uint64_t* state) {
    const std::size_t state_size = (flags & kValueIsWide) != 0 ? kWideState : kShortState;
    const bool large = (flags & kValueIsLarge) != 0;
    const bool ring = has_state<StateKind::kRing>(layout.algorithm);
    for (std::uint32_t i = 0; i < layout.rates && !reader->empty(); i++) {
        const std::uint64_t mark = has_marks(layout) ? reader->number(1) : 0;
        const std::size_t length = ring ? reader->number(2) : large ? reader->number(1) : state_size;
        const std::string_view slot = reader->text(length);
        read_slot(layout, slot, state + i * words_per_rate(layout));
        if (has_marks(layout) && (!ring || length == 0 || is_ring(layout, slot))) {
            state[marks_index(layout)] |= mark << (i * 8);
        }
    }
}

// Reads a short or long value, and sets layout->rates to its number of slots. False if the value cannot be
// read.
bool read_value(std::string_view value, StateLayout* layout, std::uint64_t* state) {
    if (!is_long(value)) {
        layout->rates = 1;
        return read_slot(*layout, value, state);
    }
    Reader reader(value);
    std::uint64_t time = take_time(&reader);
    const auto bits = static_cast<unsigned>(reader.number(1));
    if ((bits & kValueHasExpiry) != 0) {
        time = (bits & kValueHasInterval) != 0 ? take_time(&reader) : 0;
    }
    layout->rates = (bits & kCountBits) + 1;
    read_slots(*layout, bits, &reader, state);
    state[interval_index(*layout)] = time;
    return reader.good();
}

// The rate that a single slot was used with; none if its words do not tell.
RateList left_by(const Policy& policy, const std::uint64_t* words) {
    RateList rates = {};
    if ((words[0] | words[1]) == 0) {
        return rates;
    }
    if (has_state<StateKind::kRing>(policy.algorithm)) {
        rates.size = 1;
        rates.rates[0] = {1, static_cast<Micros>(words[1] & 0xffffffff) * kSecond};
    } else if (!is_bucket(policy.algorithm)) {
        for (std::uint32_t i = 0; i < policy.rates.size && rates.size == 0; i++) {
            if (has_period(words[0], policy.rates.rates[i])) {
                rates.rates[rates.size++] = policy.rates.rates[i];
            }
        }
    }
    return rates;
}

}  // namespace

bool decode_value(const Policy& policy, const StateLayout& layout, std::string_view value,
                  std::uint64_t* state) {
    std::fill_n(state, words_of(layout), 0);
    if (has_state<StateKind::kLog>(layout.algorithm)) {
        return false;
    }
    // Most values have one rate, and their words are those of the state.
    if (layout.rates == 1 && !has_state<StateKind::kRing>(layout.algorithm) && !is_long(value)) {
        return read_words(layout, value, state);
    }
    StateLayout left = layout;
    left.interval = true;
    left.varied = false;
    std::uint64_t words[kMostWords] = {};
    if (!read_value(value, &left, words)) {
        return false;
    }
    if (left.rates != layout.rates) {
        const RateList rates = has_marks(left) ? RateList() : left_by(policy, words);
        convert(left, rates, words, layout, policy.rates, state);
        return true;
    }
    std::copy_n(words, interval_index(layout), state);
    if (layout.interval) {
        state[interval_index(layout)] = words[interval_index(left)];
    }
    return true;
}

}  // namespace rate_limit
