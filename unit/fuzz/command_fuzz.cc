// Fuzzes the commands of rate_limit.so, without a server: their arguments, and the values of their keys.
//
// An input is a sequence of pieces, each with its size in two bytes: two values of keys, POLICIES, and GROUPS
// or ENTRIES. The first byte of the input chooses the command, the second one how many keys the call has, of
// which some are the same. Each rule that is broken aborts.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "lua/native.h"
#include "protocol/wire.h"

namespace rate_limit {
namespace {

constexpr Micros kNow = 1'700'000'000'000'000;

void must(bool rule, const char* words) {
    if (!rule) {
        std::fprintf(stderr, "broken: %s\n", words);
        std::abort();
    }
}

std::string take(std::string_view* input) {
    if (input->size() < 2) {
        return "";
    }
    const auto low = static_cast<unsigned char>((*input)[0]);
    const auto high = static_cast<unsigned char>((*input)[1]);
    input->remove_prefix(2);
    const std::string piece(input->substr(0, low + high * 256U));
    input->remove_prefix(piece.size());
    return piece;
}

// A reply to a check begins with the time, and whole decisions follow.
void must_be_whole(std::string_view reply) {
    Micros time = 0;
    must(decode_time(&reply, &time) && time == kNow, "a reply has the time");
    while (!reply.empty()) {
        must(skip_decision(&reply), "a decision is whole");
    }
}

void must_be_charged(std::string_view reply, std::size_t clients) {
    Micros time = 0;
    must(decode_time(&reply, &time) && time == kNow, "a reply has the time");
    for (std::size_t i = 0; i < clients; i++) {
        std::uint64_t overshoot = 0;
        std::string_view value;
        must(decode_entry(&reply, &overshoot, &value), "an entry is whole");
    }
    must(reply.empty(), "nothing follows the entries");
}

void run(bool sync, std::size_t keys, std::string_view input) {
    static NativeServer server;
    server.stored().clear();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < keys; i++) {
        names.push_back(std::to_string(i % 5));
    }
    server.stored()["0"] = {take(&input), kNow + kSecond};
    server.stored()["1"] = {take(&input), kNow + kSecond};
    const std::string policies = take(&input);
    const std::string rest = take(&input);
    for (int times = 0; times < 2; times++) {
        std::string reply;
        if (sync) {
            names.resize(std::max<std::size_t>(keys, 1));
            names.back() = "guard";
            reply = server.sync(names, {policies, rest, times == 0 ? "7" : "8", "1000"}, kNow);
        } else {
            reply = server.check(names, policies, rest, kNow);
        }
        if (reply.substr(0, 4) == "ERR ") {
            must(server.stored().size() == 2, "a refused call changes nothing");
            continue;
        }
        sync ? must_be_charged(reply, names.size() - 1) : must_be_whole(reply);
        for (const auto& [name, key] : server.stored()) {
            must(key.expires > kNow, "a key that is kept is needed");
        }
    }
}

}  // namespace
}  // namespace rate_limit

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) {
        return 0;
    }
    const std::string_view input(reinterpret_cast<const char*>(data) + 2, size - 2);
    rate_limit::run(data[0] % 2 != 0, data[1] % 40, input);
    return 0;
}
