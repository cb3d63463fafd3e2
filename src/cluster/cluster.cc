// Keeps the slot map up to date, follows redirections, and drops nodes without slots.
#include "cluster/cluster.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include "connection/command.h"
#include "connection/log_limit.h"
#include "redis/named_endpoint.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kAskAgain = 100;   // least interval between loads of the map
constexpr Milliseconds kLookAgain = 200;  // the same, while a slot has no node that answers
constexpr Milliseconds kLookEvery = 2;    // interval for polling a lookup
constexpr Milliseconds kLongestPause = 1000;
constexpr std::size_t kMostNodes = 1024;
constexpr std::size_t kMostUnlisted = 64;     // nodes that only redirections have named
constexpr unsigned kMostTags = 1U << 16;      // tried as keys of probes
constexpr std::size_t kMapReply = 64U << 20;  // bytes; enough for 16384 ranges with three replicas
constexpr std::size_t kMostOpened = 32;       // nodes that open() connects to

// Splits "host:port" at its last colon: IPv6 addresses have no brackets here.
bool split_host_port(std::string_view text, std::string* host, std::uint16_t* port) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) {
        return false;
    }
    const std::string_view digits = text.substr(colon + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), *port);
    *host = text.substr(0, colon);
    return parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size() && *port != 0;
}

// The key of a node in indices_.
std::string address_key(const std::string& host, std::uint16_t port) {
    return host + " " + std::to_string(port);
}

}  // namespace

// The endpoint of a node: the host and port in the map. A host name is looked up before the first connection,
// and calls wait for the lookup. If the node does not answer, the map is loaded again.
class Cluster::Member final : public Endpoint {
  public:
    Member(const Address& address, Cluster* cluster)
        : host_(address, is_numeric(address.host) ? std::vector<std::string>{address.host}
                                                  : std::vector<std::string>()),
          cluster_(cluster),
          timer_(cluster->loop_->make_timer(
              [](void* self) { static_cast<Member*>(self)->owner_->on_moved(); }, this, false)) {}
    ~Member() override { delete timer_; }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    void set_owner(Owner* owner) override { owner_ = owner; }
    Target target() override {
        Target target = host_.target();
        if (target.address.empty() && !looked_) {
            host_.look_up();
        }
        looked_ = true;
        if (target.address.empty() && host_.looking()) {
            target.trouble = nullptr;
            timer_->arm(kLookEvery);
        } else {
            timer_->disarm();
        }
        return target;
    }
    void suspect() override {
        host_.suspect();
        cluster_->on_trouble();
    }
    bool wants_primary() const override { return false; }

    // The address as known now.
    Target known() { return host_.target(); }

  private:
    NamedEndpoint host_;
    Cluster* cluster_;
    Owner* owner_ = nullptr;
    Alarm* timer_;         // polls the lookup
    bool looked_ = false;  // the lookup has begun
};

// The endpoint of the placeholder: without an address, so calls wait until the map is loaded or cannot be
// loaded.
class Cluster::Placeholder final : public Endpoint {
  public:
    explicit Placeholder(Cluster* cluster) : cluster_(cluster) {}

    void set_owner(Owner* owner) override { owner_ = owner; }
    Target target() override { return {"", 0, trouble_, "", error_}; }
    void suspect() override { cluster_->on_trouble(); }
    bool wants_primary() const override { return false; }

    // The map could not be loaded: calls in the placeholder fail.
    void tell(Error error, const char* trouble) {
        error_ = error;
        trouble_ = trouble;
        owner_->on_moved();
    }

  private:
    Cluster* cluster_;
    Owner* owner_ = nullptr;
    const char* trouble_ = nullptr;
    Error error_ = Error::kNone;
};

// The loop of the clients of nodes, with a limit for their log lines. Each client logs little, but a
// misbehaving server may name new nodes again and again.
class Cluster::NodeLoop final : public Loop {
  public:
    explicit NodeLoop(Loop* loop) : loop_(loop) {}

    Alarm* make_timer(Handler handler, void* self, bool holds) override {
        return loop_->make_timer(handler, self, holds);
    }
    Alarm* make_task(Handler handler, void* self) override { return loop_->make_task(handler, self); }
    bool attach(redisAsyncContext* context) override { return loop_->attach(context); }
    Milliseconds now() const override { return loop_->now(); }
    std::uint32_t random() override { return loop_->random(); }
    void log(Severity severity, std::string_view line) override {
        std::string text(line);
        if (limit_.admit(loop_->now(), &text)) {
            loop_->log(severity, text);
        }
    }

  private:
    Loop* loop_;
    LogLimit limit_;
};

struct Cluster::Node {
    bool available() const { return client == nullptr || client->available(); }

    // The numeric address as known now; else empty.
    std::string address() const {
        return member != nullptr ? member->known().address : is_numeric(host) ? host : std::string();
    }

    Settings settings;  // of the client; the probe is set before the client is created
    std::string host;   // as in the map
    std::uint16_t port = 0;
    std::string name;                // in the certificate of a TLS server
    std::unique_ptr<Client> client;  // null until the first call
    Member* member = nullptr;        // the endpoint of the client, which owns it
    unsigned slots = 0;              // how many slots it has
    bool probes = false;             // settings.probe is set
    HashSlot probed = 0;             // the slot of the key of the probe, if `probes`
};

Cluster::Cluster(const Settings& settings, const std::vector<Seed>& seeds, Loop* loop)
    : settings_(settings),
      topology_settings_(settings),
      seeds_(seeds),
      loop_(loop),
      timer_(loop->make_timer([](void* self) { static_cast<Cluster*>(self)->on_timer(); }, this, false)),
      node_loop_(std::make_unique<NodeLoop>(loop)) {
    topology_settings_.script = {};
    topology_settings_.most_elements = kHashSlots;
    topology_settings_.most_reply = kMapReply;
    topology_.reset(new Topology(topology_settings_, loop, this));
    auto placeholder = std::make_unique<Placeholder>(this);
    placeholder_endpoint_ = placeholder.get();
    placeholder_.reset(Client::make_with(settings, std::move(placeholder), loop));
    owners_.fill(kNoNode);
}

Cluster::~Cluster() {
    placeholder_.reset();
    nodes_.clear();
    topology_.reset();
    delete timer_;
}

Client* Cluster::client_of(HashSlot slot) {
    if (!known()) {
        refresh(0);
        return placeholder_.get();
    }
    return owners_[slot] != kNoNode ? client_at(owners_[slot]) : nullptr;
}

void Cluster::open() {
    warm_ = true;
    refresh(0);
}

bool Cluster::opening() const {
    return warm_ && failures_ == 0 &&
           (!known() || std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
               return node != nullptr && node->client != nullptr && node->client->opening();
           }));
}

std::size_t Cluster::nodes() const {
    return static_cast<std::size_t>(std::count_if(
        nodes_.begin(), nodes_.end(), [](const auto& node) { return node != nullptr && node->slots != 0; }));
}

// Loads the map after this time, or later: at most once in kAskAgain.
void Cluster::refresh(Milliseconds after) {
    if (topology_ == nullptr || topology_->asking() || timer_->armed()) {
        return;
    }
    const Milliseconds now = loop_->now();
    const Milliseconds soonest =
        asked_at_ == 0 || now >= asked_at_ + kAskAgain ? 0 : asked_at_ + kAskAgain - now;
    timer_->arm(std::max(after, soonest));
}

void Cluster::on_timer() {
    if (!topology_->asking()) {
        asked_at_ = loop_->now();
        topology_->ask(nodes_to_ask());
    }
}

// The nodes that answer, then the seeds, each in an order that differs between workers.
std::vector<Endpoint::Target> Cluster::nodes_to_ask() {
    std::vector<Endpoint::Target> targets;
    for (const auto& node : nodes_) {
        const std::string address = node != nullptr && node->available() ? node->address() : std::string();
        if (!address.empty()) {
            targets.push_back({address, node->port, nullptr, node->name});
        }
    }
    const auto rotate = [&](std::size_t from) {
        if (targets.size() > from) {
            std::rotate(targets.begin() + static_cast<std::ptrdiff_t>(from),
                        targets.begin() +
                            static_cast<std::ptrdiff_t>(from + loop_->random() % (targets.size() - from)),
                        targets.end());
        }
    };
    rotate(0);
    const std::size_t known = targets.size();
    for (const Seed& seed : seeds_.all()) {
        for (const std::string& address : seed.addresses) {
            targets.push_back({address, seed.port, nullptr, seed.host});
        }
    }
    rotate(known);
    return targets;
}

bool Cluster::is_known(const std::string& host, std::uint16_t port) const {
    return indices_.find(address_key(host, port)) != indices_.end();
}

// The client of a node, which is created at the first call.
Client* Cluster::client_at(std::uint16_t index) {
    Node* node = nodes_[index].get();
    if (node->client == nullptr) {
        make_client(node);
    }
    return node->client.get();
}

void Cluster::make_client(Node* node) {
    std::string probe = std::move(node->settings.probe);
    node->settings = settings_;
    if (node->probes) {
        node->settings.probe = std::move(probe);
    }
    node->settings.node = print_target(node->host, node->port);
    node->settings.address.host = node->host;
    node->settings.address.port = node->port;
    node->settings.server_name = node->name;
    auto member = std::make_unique<Member>(node->settings.address, this);
    node->member = member.get();
    node->client.reset(Client::make_with(node->settings, std::move(member), node_loop_.get()));
    node->client->set_redirector(this);
}

// The index of a node in nodes_; a new node is added. kNoNode if there are too many nodes.
std::uint16_t Cluster::node_at(const std::string& host, std::uint16_t port, const std::string& name) {
    const std::string key = address_key(host, port);
    const auto known = indices_.find(key);
    if (known != indices_.end()) {
        return known->second;
    }
    if (free_.empty() && nodes_.size() == kMostNodes) {
        return kNoNode;
    }
    auto node = std::make_unique<Node>();
    node->host = host;
    node->port = port;
    node->name = settings_.server_name.empty() ? name : settings_.server_name;
    if (free_.empty()) {
        free_.push_back(static_cast<std::uint16_t>(nodes_.size()));
        nodes_.emplace_back();
    }
    const std::uint16_t index = free_.back();
    free_.pop_back();
    nodes_[index] = std::move(node);
    indices_.emplace(key, index);
    return index;
}

// Replaces the map.
void Cluster::adopt(const std::vector<SlotRange>& ranges) {
    for (const auto& node : nodes_) {
        if (node != nullptr) {
            node->slots = 0;
        }
    }
    owners_.fill(kNoNode);
    for (const SlotRange& range : ranges) {
        const std::uint16_t owner = node_at(range.host, range.port, range.name);
        std::fill(owners_.begin() + range.first, owners_.begin() + range.last + 1, owner);
    }
    for (const std::uint16_t owner : owners_) {
        if (owner != kNoNode) {
            nodes_[owner]->slots++;
        }
    }
    set_probes();
    std::size_t opened = 0;
    for (std::size_t i = 0; warm_ && i < nodes_.size(); i++) {
        const bool serves = nodes_[i] != nullptr && nodes_[i]->slots != 0;
        if (serves && opened++ < kMostOpened) {
            client_at(static_cast<std::uint16_t>(i))->open();
        }
    }
}

// Finds a key for the probe of each node: one in a slot of the node. Tries numbers as hash tags, for all
// nodes in one pass. A node for which no tag is found is probed with a key of another node; it answers by
// MOVED, which shows that it answers.
void Cluster::set_probes() {
    std::size_t missing = 0;
    for (std::size_t i = 0; i < nodes_.size(); i++) {
        Node* node = nodes_[i].get();
        if (node != nullptr && node->slots != 0) {
            node->probes = node->probes && owners_[node->probed] == i;
            missing += node->probes ? 0 : 1;
        }
    }
    for (unsigned number = 0; missing != 0 && number < kMostTags; number++) {
        const std::string tag = std::to_string(number);
        const HashSlot slot = hash_slot_of(tag);
        Node* node = owners_[slot] != kNoNode ? nodes_[owners_[slot]].get() : nullptr;
        if (node != nullptr && !node->probes) {
            node->probes = true;
            node->probed = slot;
            node->settings.probe =
                format_command({"SET", settings_.probe_key + "{" + tag + "}", "1", "PX", "1"});
            missing--;
        }
    }
}

void Cluster::on_ranges(const std::vector<SlotRange>& ranges) {
    failures_ = 0;
    adopt(ranges);
    drop_idle_nodes();
    leave_placeholder();
    incomplete_ = is_complete() ? 0 : incomplete_ + 1;
    if (incomplete_ != 0) {
        refresh(reload_after());
    }
}

// A failed node is usually replaced within seconds. After that, the map is loaded less often.
Milliseconds Cluster::reload_after() const {
    constexpr unsigned kEagerLoads = 50;
    return incomplete_ < kEagerLoads ? kLookAgain : kLongestPause;
}

// Passes the calls that wait in the placeholder on to their nodes.
void Cluster::leave_placeholder() {
    const std::unique_ptr<Client> placeholder = std::move(placeholder_);
    Call* call = nullptr;
    while (placeholder != nullptr && (call = placeholder->first_unsent()) != nullptr) {
        placeholder->pass_on(call, client_of(call->slot), false);
    }
}

// Drops nodes without slots and without unanswered calls.
void Cluster::drop_idle_nodes() {
    unlisted_ = 0;
    for (std::size_t i = 0; i < nodes_.size(); i++) {
        Node* node = nodes_[i].get();
        if (node == nullptr || node->slots != 0) {
            continue;
        }
        if (node->client != nullptr && node->client->busy()) {
            unlisted_++;
            continue;
        }
        indices_.erase(address_key(node->host, node->port));
        nodes_[i].reset();
        free_.push_back(static_cast<std::uint16_t>(i));
    }
}

// Whether each slot has a node that answers.
bool Cluster::is_complete() const {
    return std::all_of(owners_.begin(), owners_.end(),
                       [&](std::uint16_t owner) { return owner != kNoNode && nodes_[owner]->available(); });
}

void Cluster::on_no_ranges(const std::string& where, Error error, std::string_view line) {
    complain(where, error, line);
    if (!known()) {
        placeholder_endpoint_->tell(error, "no node of the cluster answers");
    }
    // The addresses of the seeds may have changed.
    seeds_.look_up();
    const Milliseconds pause = std::min(kAskAgain << std::min(failures_, 4U), kLongestPause);
    failures_++;
    timer_->arm(pause - loop_->random() % (pause / 2));
}

Client* Cluster::redirect(const Client& from, Error error, std::string_view text) {
    // MOVED 3999 127.0.0.1:6381
    const std::size_t first = text.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : text.find(' ', first + 1);
    unsigned slot = kHashSlots;
    std::string host;
    std::uint16_t port = 0;
    if (second == std::string_view::npos) {
        return nullptr;
    }
    const auto parsed = std::from_chars(text.data() + first + 1, text.data() + second, slot);
    if (parsed.ptr != text.data() + second || slot >= kHashSlots ||
        !split_host_port(text.substr(second + 1), &host, &port)) {
        return nullptr;
    }
    const std::string name = host.empty() ? from.settings().server_name : host;
    if (host.empty()) {
        host = from.settings().address.host;
    }
    const std::size_t before = indices_.size();
    const bool may = is_host(host) && (unlisted_ < kMostUnlisted || is_known(host, port));
    const std::uint16_t owner = may ? node_at(host, port, name) : kNoNode;
    if (owner == kNoNode) {
        return nullptr;
    }
    unlisted_ += indices_.size() - before;
    if (error == Error::kMoved) {
        owners_[slot] = owner;
        refresh(0);
    }
    return client_at(owner);
}

// While a map is loaded, requests use it.
void Cluster::complain(const std::string& where, Error error, std::string_view line) {
    Journal& journal = settings_.journal != nullptr ? *settings_.journal : own_journal_;
    std::string_view consequence;
    if (known()) {
        consequence = "requests still go to the known nodes";
    } else if (settings_.consequence != nullptr) {
        consequence = settings_.consequence->unreachable;
    }
    const std::string what = "no node returned the slot map: " + std::string(line);
    journal.complain({settings_.name, where, "", Journal::kRequests, error, what, consequence}, loop_);
}

}  // namespace rate_limit::redis
