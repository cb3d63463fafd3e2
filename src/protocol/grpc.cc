// Recognises gRPC by its media type, and writes protobuf: tags, varints and texts with their length.
#include "protocol/grpc.h"

#include <algorithm>
#include <cstdint>

namespace rate_limit {
namespace {

// gRPC-Web's types come first: the type of gRPC is a prefix of them.
constexpr std::string_view kTypes[] = {"application/grpc-web-text", "application/grpc-web",
                                       "application/grpc"};
constexpr std::string_view kSuffixLetters =
    "+-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr std::string_view kRetryInfo = "type.googleapis.com/google.rpc.RetryInfo";

constexpr unsigned kVarint = 0;
constexpr unsigned kBytes = 2;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

// Whether a text begins with a media type, without regard to case. `type` is in lower case.
bool begins_with(std::string_view text, std::string_view type) {
    return text.size() >= type.size() &&
           std::equal(type.begin(), type.end(), text.begin(), [](char a, char b) { return a == lower(b); });
}

// The length of the suffix at the front of a text, such as "+proto"; 0 if there is none.
std::size_t suffix_size(std::string_view text) {
    const bool has_suffix = !text.empty() && text.front() == '+';
    return has_suffix ? std::min(text.find_first_not_of(kSuffixLetters), text.size()) : 0;
}

// Whether a media type may end before this text.
bool is_end(std::string_view text) {
    return text.empty() || text.front() == ';' || text.front() == ' ' || text.front() == '\t';
}

char* put_varint(std::uint64_t number, char* at) {
    for (; number >= 0x80; number >>= 7) {
        *at++ = static_cast<char>(number | 0x80);
    }
    *at++ = static_cast<char>(number);
    return at;
}

// A number that is 0 is not written: 0 is the default of a field.
char* put_number(unsigned field, std::uint64_t number, char* at) {
    return number == 0 ? at : put_varint(number, put_varint(field << 3 | kVarint, at));
}

// A text, or a message that is already encoded.
char* put_bytes(unsigned field, std::string_view bytes, char* at) {
    at = put_varint(bytes.size(), put_varint(field << 3 | kBytes, at));
    return std::copy(bytes.begin(), bytes.end(), at);
}

std::string_view text_between(const char* text, const char* end) {
    return {text, static_cast<std::size_t>(end - text)};
}

}  // namespace

std::string_view grpc_media_type(std::string_view content_type) {
    for (const std::string_view type : kTypes) {
        if (!begins_with(content_type, type)) {
            continue;
        }
        const std::string_view rest = content_type.substr(type.size());
        if (!is_end(rest) && rest.front() != '+') {
            return {};
        }
        const std::size_t suffix = suffix_size(rest);
        const bool is_valid = suffix > 1 && is_end(rest.substr(suffix));
        return content_type.substr(0, type.size() + (is_valid ? suffix : 0));
    }
    return {};
}

char* write_retry_status(unsigned code, std::string_view message, Micros retry_after, char* at) {
    char duration[32];
    char* end = put_number(1, static_cast<std::uint64_t>(retry_after / kSecond), duration);
    end = put_number(2, static_cast<std::uint64_t>(retry_after % kSecond) * 1000, end);
    char retry_info[sizeof(duration) + 2];
    end = put_bytes(1, text_between(duration, end), retry_info);
    char any[sizeof(retry_info) + kRetryInfo.size() + 4];
    char* any_end = put_bytes(1, kRetryInfo, any);
    any_end = put_bytes(2, text_between(retry_info, end), any_end);
    // 16 bytes: the tags, the code, and the lengths of the message and of the details.
    static_assert(sizeof(any) + 16 <= kLongestRetryStatus);
    at = put_number(1, code, at);
    at = put_bytes(2, message, at);
    return put_bytes(3, text_between(any, any_end), at);
}

}  // namespace rate_limit
