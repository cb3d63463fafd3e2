// A client's state as its key in Redis holds it, for whoever takes it over into memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/state_layout.h"

namespace rate_limit {

// Reads what a key holds into `state`, which has the words_of(layout) words that a zone of `policy` and
// `layout` keeps for a client; the word of the weight is 0. As in Redis itself the value may be one that was
// left for another number of rates. False, with all words zero, for anything that the policy's algorithm
// could not have left, and for a log.
//
// lua/state.lua, and the first lines of each algorithm's file there, say what a value looks like.
bool decode_value(const Policy& policy, const StateLayout& layout, std::string_view value,
                  std::uint64_t* state);

}  // namespace rate_limit
