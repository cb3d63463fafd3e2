// Limits log lines by node and kind of error, and composes their text.
#include "connection/journal.h"

#include <algorithm>

namespace rate_limit::redis {
namespace {

constexpr std::size_t kLongestDetail = 400;  // bytes; nginx truncates a line at 2048

}  // namespace

// The entry of a node; null if kMostNodes other nodes have logged lines within kEvery.
Journal::Entry* Journal::find(std::string_view node, Milliseconds now) {
    for (Entry& entry : entries_) {
        if (entry.node == node) {
            return &entry;
        }
    }
    if (entries_.size() < kMostNodes) {
        entries_.emplace_back();
        entries_.back().node = node;
        return &entries_.back();
    }
    const auto oldest =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.used_at < b.used_at; });
    if (now < oldest->used_at + kEvery) {
        return nullptr;
    }
    *oldest = {};
    oldest->node = node;
    return &*oldest;
}

bool Journal::may_complain(std::string_view node, Subject subject, Error error, Milliseconds now,
                           std::uint64_t* left_out) {
    Entry* entry = find(node, now);
    if (entry == nullptr) {
        return false;
    }
    const auto index = static_cast<unsigned>(error);
    Milliseconds& at = entry->complained_at[subject][index];
    std::uint64_t& count = entry->left_out[subject][index];
    const Milliseconds latest = std::max(at, entry->complained_at[kRequests][index]);
    if (latest != 0 && now < latest + kEvery) {
        count++;
        return false;
    }
    entry->used_at = at = now;
    *left_out = count;
    count = 0;
    return true;
}

bool Journal::may_report_recovery(std::string_view node, Milliseconds now) {
    Entry* entry = find(node, now);
    if (entry == nullptr || (entry->recovered_at != 0 && now < entry->recovered_at + kEvery)) {
        return false;
    }
    entry->used_at = now;
    entry->recovered_at = now;
    return true;
}

void Journal::complain(const Complaint& complaint, Loop* loop) {
    std::uint64_t left_out = 0;
    if (may_complain(complaint.node, complaint.subject, complaint.error, loop->now(), &left_out)) {
        loop->log(Severity::kError,
                  log_line(complaint.name, complaint.where,
                           describe(complaint.error, complaint.detail, left_out), complaint.consequence));
    }
}

std::string print_target(const std::string& host, std::uint16_t port) {
    const bool six = host.find(':') != std::string::npos;
    return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string describe(Error error, std::string_view detail, std::uint64_t left_out) {
    std::string text = std::string(error_name(error)) + " (" + std::string(detail.substr(0, kLongestDetail)) +
                       (detail.size() > kLongestDetail ? "...)" : ")");
    if (left_out != 0) {
        text += ", " + std::to_string(left_out) +
                (left_out == 1 ? " more time since the last line" : " more times since the last line");
    }
    return text;
}

std::string log_line(std::string_view name, std::string_view where, std::string_view what,
                     std::string_view consequence) {
    std::string text = "redis \"" + std::string(name) + "\" " + std::string(where) + ": " + std::string(what);
    // The text may contain bytes that a server has sent.
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return consequence.empty() ? text : text + "; " + std::string(consequence);
}

}  // namespace rate_limit::redis
