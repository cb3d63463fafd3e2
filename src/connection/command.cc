// Writes bulk strings with their lengths.
#include "connection/command.h"

#include <cstring>

namespace rate_limit::redis {
namespace {

// The digits of a number, and the same as the header of a bulk string.
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

// Begins EVAL or EVALSHA.
void append_script(std::string_view name, std::string_view script, std::size_t keys, std::size_t arguments,
                   Buffer* buffer) {
    constexpr std::size_t kOtherWords = 3;  // the name, the script, the number of keys
    buffer->append("*");
    append_decimal(keys + arguments + kOtherWords, buffer);
    buffer->append("\r\n");
    append_bulk(name, buffer);
    append_bulk(script, buffer);
    append_bulk_number(keys, buffer);
}

void end_line(char* at) {
    at[0] = '\r';
    at[1] = '\n';
}

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

std::string format_eval(std::string_view script, const std::vector<std::string_view>& keys,
                        const std::vector<std::string_view>& arguments) {
    Buffer command;
    append_script("EVAL", script, keys.size(), arguments.size(), &command);
    for (const std::string_view key : keys) {
        append_bulk(key, &command);
    }
    for (const std::string_view argument : arguments) {
        append_bulk(argument, &command);
    }
    return std::string(command.view());
}

void append_evalsha(std::string_view sha1, std::size_t keys, std::size_t arguments, Buffer* buffer) {
    append_script("EVALSHA", sha1, keys, arguments, buffer);
}

NativeCommand::NativeCommand(std::string_view name, Buffer* command) : command_(command) {
    constexpr std::string_view kScript = "$7\r\nEVALSHA\r\n$40\r\n";
    constexpr std::size_t kDigest = 40 + 2;
    const std::string_view text = command->view();
    std::size_t words = 0;
    std::size_t at = 1;
    for (; text[at] != '\r'; at++) {
        words = words * 10 + static_cast<std::size_t>(text[at] - '0');
    }
    const std::size_t end = at + 2 + kScript.size() + kDigest;
    const Digits count(words - 1);
    const Digits length(name.size());
    // "*WORDS\r\n" and "$LENGTH\r\nNAME\r\n"
    size_ = 1 + count.view().size() + 2 + length.header().size() + name.size() + 2;
    at_ = end - size_;
    char* to = command->data() + at_;
    std::memcpy(replaced_, to, size_);
    *to++ = '*';
    to += count.view().copy(to, kMost);
    end_line(to);
    to += 2;
    to += length.header().copy(to, kMost);
    to += name.copy(to, kMost);
    end_line(to);
}

NativeCommand::~NativeCommand() { std::memcpy(command_->data() + at_, replaced_, size_); }

void append_decimal(std::uint64_t number, Buffer* buffer) { buffer->append(Digits(number).view()); }

void append_bulk_header(std::size_t size, Buffer* buffer) { buffer->append(Digits(size).header()); }

// Each part of each call is written here. So the buffer is extended once, and lengths of two digits, the most
// frequent ones, have a fast path.
char* append_bulk_room(std::size_t size, Buffer* buffer) {
    if (size >= 10 && size < 100) {
        char* at = buffer->extend(5 + size + 2);
        if (at == nullptr) {
            return nullptr;
        }
        at[0] = '$';
        at[1] = static_cast<char>('0' + size / 10);
        at[2] = static_cast<char>('0' + size % 10);
        end_line(at + 3);
        end_line(at + 5 + size);
        return at + 5;
    }
    const Digits digits(size);
    const std::string_view header = digits.header();
    char* at = buffer->extend(header.size() + size + 2);
    if (at == nullptr) {
        return nullptr;
    }
    std::memcpy(at, header.data(), header.size());
    at += header.size();
    end_line(at + size);
    return at;
}

void append_bulk(std::string_view text, Buffer* buffer) {
    char* at = append_bulk_room(text.size(), buffer);
    if (at != nullptr && !text.empty()) {
        std::memcpy(at, text.data(), text.size());
    }
}

void append_bulk_number(std::uint64_t number, Buffer* buffer) { append_bulk(Digits(number).view(), buffer); }

}  // namespace rate_limit::redis
