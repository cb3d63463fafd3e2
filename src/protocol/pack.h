// Packs and unpacks records by the formats in core/constants.h, which the scripts use with Lua's struct.pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/bytes.h"

namespace rate_limit {
namespace packing {

// The bytes of a field: 1 for "B", N for "IN".
template <std::size_t kSize>
constexpr std::size_t width_of(const char (&format)[kSize], std::size_t field) {
    for (std::size_t i = 0; i + 1 < kSize; i++) {
        if ((format[i] == 'B' || format[i] == 'I') && field-- == 0) {
            return format[i] == 'B' ? 1 : static_cast<std::size_t>(format[i + 1] - '0');
        }
    }
    return 0;
}

template <std::size_t kSize>
constexpr std::size_t fields_of(const char (&format)[kSize]) {
    std::size_t fields = 0;
    while (width_of(format, fields) != 0) {
        fields++;
    }
    return fields;
}

template <const auto& kFormat, std::size_t... kFields, class... Numbers>
char* put_all(char* at, std::index_sequence<kFields...>, Numbers... numbers) {
    ((at = put_little_endian<width_of(kFormat, kFields)>(at, static_cast<std::uint64_t>(numbers))), ...);
    return at;
}

template <std::size_t kBytes>
const char* get(const char* at, std::uint64_t* number) {
    *number = little_endian<kBytes>(at);
    return at + kBytes;
}

template <const auto& kFormat, std::size_t... kFields, class... Numbers>
void get_all(const char* at, std::index_sequence<kFields...>, Numbers*... numbers) {
    ((at = get<width_of(kFormat, kFields)>(at, numbers)), ...);
}

}  // namespace packing

// The bytes of a record.
template <std::size_t kSize>
constexpr std::size_t packed_size(const char (&format)[kSize]) {
    std::size_t size = 0;
    for (std::size_t field = 0; field < packing::fields_of(format); field++) {
        size += packing::width_of(format, field);
    }
    return size;
}

// Writes a record of `numbers`, one for each field, to `at`, which has room for packed_size(kFormat) bytes.
// Returns the end of the record. The high bytes of a number that is too large for its field are dropped.
template <const auto& kFormat, class... Numbers>
char* pack(char* at, Numbers... numbers) {
    static_assert(sizeof...(Numbers) == packing::fields_of(kFormat));
    return packing::put_all<kFormat>(at, std::index_sequence_for<Numbers...>(), numbers...);
}

// Reads a record from the front of `text` into `numbers`, which are pointers to std::uint64_t, one for each
// field, and removes the record. False, with nothing changed, if `text` is too short.
template <const auto& kFormat, class... Numbers>
bool unpack(std::string_view* text, Numbers*... numbers) {
    static_assert(sizeof...(Numbers) == packing::fields_of(kFormat));
    if (text->size() < packed_size(kFormat)) {
        return false;
    }
    packing::get_all<kFormat>(text->data(), std::index_sequence_for<Numbers...>(), numbers...);
    text->remove_prefix(packed_size(kFormat));
    return true;
}

}  // namespace rate_limit
