// Commands in RESP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "redis/buffer.h"

namespace rate_limit::redis {

std::string format_command(std::initializer_list<std::string_view> words);

// Parts of a command that is written where it stays: a number as text, and words with the length before them.
void append_decimal(std::uint64_t number, Buffer* buffer);
void append_bulk_header(std::size_t size, Buffer* buffer);
void append_bulk(std::string_view text, Buffer* buffer);
// A word that whoever calls writes where this says; null if there is no memory.
char* append_bulk_room(std::size_t size, Buffer* buffer);
void append_bulk_number(std::uint64_t number, Buffer* buffer);

}  // namespace rate_limit::redis
