// Writes commands in RESP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "connection/buffer.h"

namespace rate_limit::redis {

// A complete command.
std::string format_command(std::initializer_list<std::string_view> words);

// EVAL with the whole text of a script.
std::string format_eval(std::string_view script, const std::vector<std::string_view>& keys,
                        const std::vector<std::string_view>& arguments);

// The following append parts of a command. If memory is exhausted, buffer->failed() becomes true.

// The beginning of EVALSHA. The caller appends `keys` keys, and then `arguments` arguments.
void append_evalsha(std::string_view sha1, std::size_t keys, std::size_t arguments, Buffer* buffer);

// While it exists, a complete command that append_evalsha() has begun calls a native command instead: NAME
// takes the place of EVALSHA and the digest.
class NativeCommand {
  public:
    NativeCommand(std::string_view name, Buffer* command);
    ~NativeCommand();
    NativeCommand(const NativeCommand&) = delete;
    NativeCommand& operator=(const NativeCommand&) = delete;

    std::string_view view() const { return command_->view().substr(at_); }

  private:
    static constexpr std::size_t kMost = 64;

    Buffer* command_;
    std::size_t at_ = 0;    // where the native command begins
    std::size_t size_ = 0;  // of the text that it has replaced
    char replaced_[kMost];
};

// The digits of a number.
void append_decimal(std::uint64_t number, Buffer* buffer);

// "$SIZE\r\n", which precedes a bulk string.
void append_bulk_header(std::size_t size, Buffer* buffer);

// A complete bulk string.
void append_bulk(std::string_view text, Buffer* buffer);
void append_bulk_number(std::uint64_t number, Buffer* buffer);

// A bulk string of `size` bytes whose content the caller writes to the returned address; null if there is no
// memory.
char* append_bulk_room(std::size_t size, Buffer* buffer);

}  // namespace rate_limit::redis
