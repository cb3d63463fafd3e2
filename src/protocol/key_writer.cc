// Builds keys from a prefix, a zone, an algorithm and a client.
#include "protocol/key_writer.h"

#include <algorithm>
#include <cstring>

#include "connection/command.h"
#include "core/client_name.h"

namespace rate_limit {

void append_key_text(std::string_view prefix, std::string_view zone, Algorithm algorithm,
                     std::string_view client, redis::Buffer* buffer) {
    buffer->append(prefix);
    buffer->append(zone);
    buffer->append(":");
    buffer->append(algorithm_name(algorithm));
    buffer->append(":{");
    buffer->append(client);
    buffer->append("}");
}

void append_key(std::string_view prefix, std::string_view zone, Algorithm algorithm, std::string_view client,
                redis::Buffer* buffer, bool is_short) {
    NameRoom room;
    client = short_name(client, is_short, &room);
    const std::size_t name_size = std::strlen(algorithm_name(algorithm));
    redis::append_bulk_header(prefix.size() + zone.size() + name_size + client.size() + 4, buffer);
    append_key_text(prefix, zone, algorithm, client, buffer);
    buffer->append("\r\n");
}

std::string print_id(std::uint64_t id) {
    static const char kHex[] = "0123456789abcdef";
    std::string text;
    for (unsigned shift = 64; shift != 0; shift -= 4) {
        text += kHex[id >> (shift - 4) & 15];
    }
    return text;
}

// The head of the keys of a zone; null if it is longer than Head::kRoom. Each request may pass the zone's
// name at another address, so heads are compared by their text.
const KeyWriter::Head* KeyWriter::head_of(std::string_view zone, Algorithm algorithm) {
    for (const Head& head : heads_) {
        if (head.size != 0 && head.algorithm == algorithm &&
            std::string_view(head.text + prefix_.size(), head.zone_size) == zone) {
            return &head;
        }
    }
    const std::string_view name = algorithm_name(algorithm);
    const std::size_t size = prefix_.size() + zone.size() + name.size() + 3;
    if (size > Head::kRoom) {
        return nullptr;
    }
    Head* head = &heads_[next_++ % kHeads];
    char* at = head->text;
    for (const std::string_view part :
         {std::string_view(prefix_), zone, std::string_view(":"), name, std::string_view(":{")}) {
        at = std::copy(part.begin(), part.end(), at);
    }
    head->size = static_cast<std::uint8_t>(size);
    head->zone_size = static_cast<std::uint8_t>(zone.size());
    head->algorithm = algorithm;
    return head;
}

void KeyWriter::append(std::string_view zone, Algorithm algorithm, std::string_view client, bool is_short,
                       redis::Buffer* buffer) {
    const Head* head = head_of(zone, algorithm);
    if (head == nullptr) {
        append_key(prefix_, zone, algorithm, client, buffer, is_short);
        return;
    }
    NameRoom room;
    const std::string_view name = short_name(client, is_short, &room);
    char* at = redis::append_bulk_room(head->size + name.size() + 1, buffer);
    if (at != nullptr) {
        std::memcpy(at, head->text, head->size);
        std::copy(name.begin(), name.end(), at + head->size);
        at[head->size + name.size()] = '}';
    }
}

}  // namespace rate_limit
