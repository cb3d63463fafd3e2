// Reads the values of keys, by the same rules as lua/state.lua.
#include "store/value.h"

#include <algorithm>

#include "core/places.h"
#include "core/view.h"
#include "store/bytes.h"

namespace rate_limit {
namespace {

constexpr std::size_t kShort = 12;
constexpr std::size_t kWide = 16;
constexpr std::size_t kBitsAt = 8;

enum Bits : unsigned { kCountBits = 7, kHasInterval = 8, kHasMoment = 16, kIsWide = 32, kIsLong = 128 };

constexpr std::size_t kMostWords = kMaxRates * (1 + (kMaxBuckets + 2) / 2) + 2;

// Takes numbers from the front of a text. One that is too short gives 0, and is then bad.
class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    std::uint64_t number(std::size_t bytes) {
        const std::string_view digits = text(bytes);
        good_ = good_ && digits.size() == bytes;
        std::uint64_t number = 0;
        for (std::size_t i = 0; good_ && i < bytes; i++) {
            number |= std::uint64_t{static_cast<unsigned char>(digits[i])} << (i * 8);
        }
        return number;
    }

    // So much of the text, or what is left of it.
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

// Of a time no more is believed than what may be added to another.
std::uint64_t take_time(Reader* reader) { return reader->number(8) & ((std::uint64_t{1} << 53) - 1); }

bool is_long(std::string_view value) {
    return value.size() > kBitsAt && value.size() != kShort && value.size() != kWide &&
           (static_cast<unsigned char>(value[kBitsAt]) & kIsLong) != 0;
}

// The state of one rate but of sliding_buckets: its two words, of which the second may be half.
bool read_pair(Algorithm algorithm, std::string_view place, std::uint64_t* words) {
    if (place.size() != kShort && place.size() != kWide) {
        return false;
    }
    words[0] = little_endian<std::uint64_t>(place.data());
    words[1] = place.size() == kShort ? little_endian<std::uint32_t>(place.data() + 8)
                                      : little_endian<std::uint64_t>(place.data() + 8);
    if (algorithm == Algorithm::kFixedWindow && words[1] >> 32 != 0) {
        words[0] = words[1] = 0;
    }
    return (words[0] | words[1]) != 0;
}

constexpr std::size_t kHeader = 13;  // of a ring

// Whether a place may be the ring of a sliding_buckets of this shape.
bool is_ring(const Shape& shape, std::string_view place) {
    return place.size() >= kHeader + shape.buckets &&
           static_cast<unsigned char>(place[kBitsAt]) == shape.buckets;
}

// The ring, whose counters have as many bytes as the largest needs.
bool read_ring(const Shape& shape, std::string_view place, std::uint64_t* words) {
    if (!is_ring(shape, place)) {
        return false;
    }
    const std::size_t bytes = (place.size() - kHeader) / shape.buckets;
    if ((bytes != 1 && bytes != 2 && bytes != 4) || place.size() != kHeader + bytes * shape.buckets) {
        return false;
    }
    Reader reader(place);
    const std::uint64_t newest = reader.number(8);
    if (newest >> kWindowBits >= shape.buckets) {
        return false;
    }
    words[0] = newest;
    reader.number(1);
    words[1] = reader.number(4);
    for (std::size_t i = 1; i <= shape.buckets; i++) {
        words[1 + i / 2] |= reader.number(bytes) << (i % 2 * 32);
    }
    return true;
}

bool read_place(const Shape& shape, std::string_view place, std::uint64_t* words) {
    return shape.algorithm == Algorithm::kSlidingBuckets ? read_ring(shape, place, words)
                                                         : read_pair(shape.algorithm, place, words);
}

// Sets the marks and the words of all places of a long value; `shape` has as many. Those at its end that were
// never used are left out. A mark stays with a place that cannot be read, but not with what is no ring at
// all.
void read_places(const Shape& shape, bool wide, Reader* reader, std::uint64_t* state) {
    const bool ring = shape.algorithm == Algorithm::kSlidingBuckets;
    for (std::uint32_t i = 0; i < shape.rates && !reader->empty(); i++) {
        const std::uint64_t mark = has_marks(shape) ? reader->number(1) : 0;
        const std::size_t length = ring ? reader->number(2) : wide ? kWide : kShort;
        const std::string_view place = reader->text(length);
        read_place(shape, place, state + i * words_per_rate(shape));
        if (has_marks(shape) && (!ring || length == 0 || is_ring(shape, place))) {
            state[marks_index(shape)] |= mark << (i * 8);
        }
    }
}

// Reads a value of either form; sets the shape of what it has. False if it cannot be read.
bool read_value(std::string_view value, Shape* shape, std::uint64_t* state) {
    if (!is_long(value)) {
        shape->rates = 1;
        return read_place(*shape, value, state);
    }
    Reader reader(value);
    std::uint64_t time = take_time(&reader);
    const auto bits = static_cast<unsigned>(reader.number(1));
    if ((bits & kHasMoment) != 0) {
        time = (bits & kHasInterval) != 0 ? take_time(&reader) : 0;
    }
    shape->rates = (bits & kCountBits) + 1;
    read_places(*shape, (bits & ~kIsLong) >= kIsWide, &reader, state);
    state[interval_index(*shape)] = time;
    return reader.good();
}

// The rate that a single place was used with, as far as its words tell.
RateList left_by(const Policy& policy, const std::uint64_t* words) {
    RateList rates = {};
    if ((words[0] | words[1]) == 0) {
        return rates;
    }
    if (policy.algorithm == Algorithm::kSlidingBuckets) {
        rates.size = 1;
        rates.rates[0] = {1, static_cast<Micros>(words[1] & 0xffffffff) * kSecond};
    } else if (policy.algorithm >= Algorithm::kFixedWindow) {
        for (std::uint32_t i = 0; i < policy.rates.size && rates.size == 0; i++) {
            if (has_period(words[0], policy.rates.rates[i])) {
                rates.rates[rates.size++] = policy.rates.rates[i];
            }
        }
    }
    return rates;
}

}  // namespace

bool decode_value(const Policy& policy, const Shape& shape, std::string_view value, std::uint64_t* state) {
    std::fill_n(state, words_of(shape), 0);
    if (shape.algorithm == Algorithm::kSlidingLog) {
        return false;
    }
    // Most values are of one rate, and their words are the state's.
    if (shape.rates == 1 && shape.algorithm != Algorithm::kSlidingBuckets && !is_long(value)) {
        return read_pair(shape.algorithm, value, state);
    }
    Shape left = shape;
    left.interval = true;
    left.varied = false;
    std::uint64_t words[kMostWords] = {};
    if (!read_value(value, &left, words)) {
        return false;
    }
    if (left.rates != shape.rates) {
        const RateList rates = has_marks(left) ? RateList() : left_by(policy, words);
        convert(left, rates, words, shape, policy.rates, state);
        return true;
    }
    std::copy_n(words, interval_index(shape), state);
    if (shape.interval) {
        state[interval_index(shape)] = words[interval_index(left)];
    }
    return true;
}

}  // namespace rate_limit
