// Writes words with their lengths.
#include "redis/command.h"

#include <cstring>

namespace rate_limit::redis {
namespace {

// The digits of a number, which stand as the length of a word would.
class Digits {
  public:
    explicit Digits(std::uint64_t number) : start_(text_ + kEnd) {
        do {
            *--start_ = static_cast<char>('0' + number % 10);
            number /= 10;
        } while (number != 0);
        start_[-1] = '$';
        text_[kEnd] = '\r';
        text_[kEnd + 1] = '\n';
    }

    std::string_view view() const { return {start_, static_cast<std::size_t>(text_ + kEnd - start_)}; }
    std::string_view header() const { return {start_ - 1, view().size() + 3}; }

  private:
    static constexpr std::size_t kEnd = 1 + 20;

    char text_[kEnd + 2];
    char* start_;
};

}  // namespace

std::string format_command(std::initializer_list<std::string_view> words) {
    std::string text = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string_view word : words) {
        text += "$" + std::to_string(word.size()) + "\r\n";
        text += word;
        text += "\r\n";
    }
    return text;
}

void append_decimal(std::uint64_t number, Buffer* buffer) { buffer->append(Digits(number).view()); }

void append_bulk_header(std::size_t size, Buffer* buffer) { buffer->append(Digits(size).header()); }

// Every word of every call is written here, so not part by part.
void append_bulk(std::string_view text, Buffer* buffer) {
    const Digits digits(text.size());
    const std::string_view header = digits.header();
    char* at = buffer->extend(header.size() + text.size() + 2);
    if (at == nullptr) {
        return;
    }
    std::memcpy(at, header.data(), header.size());
    at += header.size();
    if (!text.empty()) {
        std::memcpy(at, text.data(), text.size());
    }
    at[text.size()] = '\r';
    at[text.size() + 1] = '\n';
}

void append_bulk_number(std::uint64_t number, Buffer* buffer) { append_bulk(Digits(number).view(), buffer); }

}  // namespace rate_limit::redis
