// Packs and unpacks records by the formats in core/constants.h, which the scripts use with Lua's struct.pack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

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

// Compilers turn a fold over the bytes into one instruction, but not a loop.
template <std::size_t... kBytes>
char* put(char* at, std::uint64_t number, std::index_sequence<kBytes...>) {
    ((at[kBytes] = static_cast<char>(number >> (kBytes * 8))), ...);
    return at + sizeof...(kBytes);
}

template <std::size_t... kBytes>
const char* get(const char* at, std::uint64_t* number, std::index_sequence<kBytes...>) {
    *number = ((std::uint64_t{static_cast<unsigned char>(at[kBytes])} << (kBytes * 8)) | ...);
    return at + sizeof...(kBytes);
}

template <const auto& kFormat, std::size_t... kFields, class... Numbers>
char* put_all(char* at, std::index_sequence<kFields...>, Numbers... numbers) {
    ((at = put(at, static_cast<std::uint64_t>(numbers),
               std::make_index_sequence<width_of(kFormat, kFields)>())),
     ...);
    return at;
}

template <const auto& kFormat, std::size_t... kFields, class... Numbers>
void get_all(const char* at, std::index_sequence<kFields...>, Numbers*... numbers) {
    ((at = get(at, numbers, std::make_index_sequence<width_of(kFormat, kFields)>())), ...);
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
