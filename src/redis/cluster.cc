// Keeps the map of slots, follows redirections, and drops nodes that have left.
#include "redis/cluster.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <utility>

#include "redis/command.h"
#include "redis/log_limit.h"
#include "redis/named_endpoint.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kAskAgain = 100;   // the least time between two questions
constexpr Milliseconds kLookAgain = 200;  // while a slot has no node that answers
constexpr Milliseconds kLookEvery = 2;    // whether a name was found
constexpr Milliseconds kLongestPause = 1000;
constexpr std::size_t kMostNodes = 1024;
constexpr std::size_t kMostStrangers = 64;    // nodes that only redirections name
constexpr unsigned kMostTags = 1U << 16;      // that are tried for keys of probes
constexpr std::size_t kMapReply = 64U << 20;  // a map of 16384 ranges with three replicas has less
constexpr std::size_t kMostOpened = 32;       // nodes that are connected to before a call needs them

// Splits "host:port" at its last colon, since addresses of IPv6 stand without brackets.
bool split_place(std::string_view text, std::string* host, std::uint16_t* port) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) {
        return false;
    }
    const std::string_view digits = text.substr(colon + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), *port);
    *host = text.substr(0, colon);
    return parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size() && *port != 0;
}

// What tells a node from others.
std::string address_key(const std::string& host, std::uint16_t port) {
    return host + " " + std::to_string(port);
}

}  // namespace

// Where a node is: where it was said to be. If nobody is there, the cluster may know better. A name is looked
// up when the node is first asked, and its calls wait for that.
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

    bool whole() const { return timer_ != nullptr; }

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

    // Where it is as far as that is known now.
    Target known() { return host_.target(); }

  private:
    NamedEndpoint host_;
    Cluster* cluster_;
    Owner* owner_ = nullptr;
    Alarm* timer_;         // until it is seen whether the name was found
    bool looked_ = false;  // the name was looked up
};

// Nowhere: calls wait for the map, or for the news that there is none.
class Cluster::Lobby final : public Endpoint {
  public:
    explicit Lobby(Cluster* cluster) : cluster_(cluster) {}

    void set_owner(Owner* owner) override { owner_ = owner; }
    Target target() override { return {"", 0, trouble_, "", error_}; }
    void suspect() override { cluster_->on_trouble(); }
    bool wants_primary() const override { return false; }

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

// The loop as nodes' clients have it. Each client logs little, but there may be many: whoever answers for
// the cluster can name new ones all the time.
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

    // Its address as far as that is known now; else empty.
    std::string address() const {
        return member != nullptr ? member->known().address : is_numeric(host) ? host : std::string();
    }

    Settings settings;  // the client's, but for the probe's as soon as it has slots
    std::string host;   // as the cluster says it
    std::uint16_t port = 0;
    std::string name;                // that a TLS server must prove to be
    std::unique_ptr<Client> client;  // null until the node is asked
    Member* member = nullptr;        // the client's
    unsigned slots = 0;              // that it has
    bool probes = false;
    Slot probed = 0;  // the slot of its probe's key, if it probes
};

Cluster::Cluster(const Settings& settings, const std::vector<Seed>& seeds, Loop* loop)
    : settings_(settings), topology_settings_(settings), seeds_(seeds), loop_(loop) {
    topology_settings_.script = {};
    topology_settings_.most_elements = kSlots;
    topology_settings_.most_reply = kMapReply;
    owners_.fill(kNobody);
}

Cluster* Cluster::make(const Settings& settings, const std::vector<Seed>& seeds, Loop* loop) {
    auto* cluster = new (std::nothrow) Cluster(settings, seeds, loop);
    if (cluster != nullptr && !cluster->prepare()) {
        delete cluster;
        return nullptr;
    }
    return cluster;
}

bool Cluster::prepare() {
    timer_ = loop_->make_timer([](void* self) { static_cast<Cluster*>(self)->on_timer(); }, this, false);
    node_loop_.reset(new (std::nothrow) NodeLoop(loop_));
    topology_.reset(Topology::make(topology_settings_, loop_, this));
    auto* lobby = new (std::nothrow) Lobby(this);
    lobby_place_ = lobby;
    if (lobby != nullptr) {
        lobby_.reset(Client::make_with(settings_, std::unique_ptr<Endpoint>(lobby), loop_));
    }
    return timer_ != nullptr && node_loop_ != nullptr && topology_ != nullptr && lobby_ != nullptr;
}

Cluster::~Cluster() {
    lobby_.reset();
    nodes_.clear();
    topology_.reset();
    delete timer_;
}

Client* Cluster::client_of(Slot slot) {
    if (!known()) {
        refresh(0);
        return lobby_.get();
    }
    return owners_[slot] != kNobody ? client_at(owners_[slot]) : nullptr;
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

// Asks for the map, but not more often than is of use.
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
        topology_->ask(whom_to_ask());
    }
}

// Nodes that answer, then the seeds; each worker begins with another.
std::vector<Endpoint::Target> Cluster::whom_to_ask() {
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

// A node's client, which is made when it is first needed; null if there is no memory.
Client* Cluster::client_at(std::uint16_t index) {
    Node* node = nodes_[index].get();
    return node->client != nullptr || make_client(node) ? node->client.get() : nullptr;
}

bool Cluster::make_client(Node* node) {
    std::string probe = std::move(node->settings.probe);
    node->settings = settings_;
    if (node->probes) {
        node->settings.probe = std::move(probe);
    }
    node->settings.node = print_target(node->host, node->port);
    node->settings.address.host = node->host;
    node->settings.address.port = node->port;
    node->settings.server_name = node->name;
    std::unique_ptr<Member> member(new (std::nothrow) Member(node->settings.address, this));
    Member* const added = member.get();
    if (member != nullptr && member->whole()) {
        node->client.reset(Client::make_with(node->settings, std::move(member), node_loop_.get()));
    }
    if (node->client == nullptr) {
        return false;
    }
    node->member = added;
    node->client->set_redirector(this);
    return true;
}

// The target of a node in nodes_, which it is given if it has none; kNobody if there is no memory, or too
// many are named.
std::uint16_t Cluster::node_at(const std::string& host, std::uint16_t port, const std::string& name) {
    const std::string key = address_key(host, port);
    const auto known = indices_.find(key);
    if (known != indices_.end()) {
        return known->second;
    }
    if (free_.empty() && nodes_.size() == kMostNodes) {
        return kNobody;
    }
    std::unique_ptr<Node> node(new (std::nothrow) Node);
    if (node == nullptr) {
        return kNobody;
    }
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

void Cluster::adopt(const std::vector<SlotRange>& ranges) {
    for (const auto& node : nodes_) {
        if (node != nullptr) {
            node->slots = 0;
        }
    }
    owners_.fill(kNobody);
    for (const SlotRange& range : ranges) {
        const std::uint16_t owner = node_at(range.host, range.port, range.name);
        std::fill(owners_.begin() + range.first, owners_.begin() + range.last + 1, owner);
    }
    for (const std::uint16_t owner : owners_) {
        if (owner != kNobody) {
            nodes_[owner]->slots++;
        }
    }
    set_probes();
    std::size_t opened = 0;
    for (std::size_t i = 0; warm_ && i < nodes_.size(); i++) {
        const bool serves = nodes_[i] != nullptr && nodes_[i]->slots != 0;
        if (serves && opened++ < kMostOpened) {
            Client* client = client_at(static_cast<std::uint16_t>(i));
            if (client != nullptr) {
                client->open();
            }
        }
    }
}

// A probe writes a key of a slot that the node has. Keys are found by trying, for all nodes at once: any will
// do, and the fewer slots a node has, the more tries it takes. A node for which none is found is probed with
// a key of another node, and its refusal is an answer, too.
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
        const Slot slot = slot_of(tag);
        Node* node = owners_[slot] != kNobody ? nodes_[owners_[slot]].get() : nullptr;
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
    leave_lobby();
    looks_ = settled() ? 0 : looks_ + 1;
    if (looks_ != 0) {
        refresh(look_after());
    }
}

// A node that is lost is most often replaced within seconds, or not soon.
Milliseconds Cluster::look_after() const {
    constexpr unsigned kEagerLooks = 50;
    return looks_ < kEagerLooks ? kLookAgain : kLongestPause;
}

void Cluster::leave_lobby() {
    const std::unique_ptr<Client> lobby = std::move(lobby_);
    Call* call = nullptr;
    while (lobby != nullptr && (call = lobby->first_unsent()) != nullptr) {
        lobby->pass_on(call, client_of(call->slot), false);
    }
}

// A node without slots goes as soon as nobody waits for it.
void Cluster::drop_idle_nodes() {
    strangers_ = 0;
    for (std::size_t i = 0; i < nodes_.size(); i++) {
        Node* node = nodes_[i].get();
        if (node == nullptr || node->slots != 0) {
            continue;
        }
        if (node->client != nullptr && node->client->busy()) {
            strangers_++;
            continue;
        }
        indices_.erase(address_key(node->host, node->port));
        nodes_[i].reset();
        free_.push_back(static_cast<std::uint16_t>(i));
    }
}

// Whether each slot has a node that answers.
bool Cluster::settled() const {
    return std::all_of(owners_.begin(), owners_.end(),
                       [&](std::uint16_t owner) { return owner != kNobody && nodes_[owner]->available(); });
}

void Cluster::on_no_ranges(const std::string& where, Error error, std::string_view line) {
    complain(where, error, line);
    if (!known()) {
        lobby_place_->tell(error, "no node of the cluster answers");
    }
    // Their names may have other addresses by now.
    seeds_.look_up();
    const Milliseconds pause = std::min(kAskAgain << std::min(failures_, 4U), kLongestPause);
    failures_++;
    timer_->arm(pause - loop_->random() % (pause / 2));
}

Client* Cluster::redirect(const Client& from, Error error, std::string_view text) {
    // MOVED 3999 127.0.0.1:6381
    const std::size_t first = text.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : text.find(' ', first + 1);
    unsigned slot = kSlots;
    std::string host;
    std::uint16_t port = 0;
    if (second == std::string_view::npos) {
        return nullptr;
    }
    const auto parsed = std::from_chars(text.data() + first + 1, text.data() + second, slot);
    if (parsed.ptr != text.data() + second || slot >= kSlots ||
        !split_place(text.substr(second + 1), &host, &port)) {
        return nullptr;
    }
    const std::string name = host.empty() ? from.settings().server_name : host;
    if (host.empty()) {
        host = from.settings().address.host;
    }
    const std::size_t before = indices_.size();
    const bool may = is_host(host) && (strangers_ < kMostStrangers || is_known(host, port));
    const std::uint16_t owner = may ? node_at(host, port, name) : kNobody;
    if (owner == kNobody) {
        return nullptr;
    }
    strangers_ += indices_.size() - before;
    if (error == Error::kMoved) {
        owners_[slot] = owner;
        refresh(0);
    }
    return client_at(owner);
}

// As long as a map is known, requests go by that map.
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
