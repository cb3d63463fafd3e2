// Keeps the map of slots, follows redirections, and drops nodes that have left.
#include "redis/cluster.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <utility>

#include "redis/command.h"
#include "redis/host.h"

namespace rate_limit::redis {
namespace {

constexpr Milliseconds kAskAgain = 100;   // the least time between two questions
constexpr Milliseconds kLookAgain = 200;  // while a slot has no node that answers
constexpr Milliseconds kLookEvery = 2;    // whether a name was found
constexpr Milliseconds kLongestPause = 1000;
constexpr std::size_t kMostNodes = 1024;
constexpr Milliseconds kComplainEvery = 10'000;

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

}  // namespace

// Where a node is: where it was said to be. If nobody is there, the cluster may know better. A name is looked
// up when the node is first asked, and its calls wait for that.
class Cluster::Member final : public Locator {
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
    Place place() override {
        Place place = host_.place();
        if (place.address.empty() && !looked_) {
            host_.look_up();
        }
        looked_ = true;
        if (place.address.empty() && host_.looking()) {
            place.trouble = nullptr;
            timer_->arm(kLookEvery);
        } else {
            timer_->disarm();
        }
        return place;
    }
    void doubt() override {
        host_.doubt();
        cluster_->on_trouble();
    }
    bool wants_primary() const override { return false; }

    // Where it is as far as that is known now.
    Place known() { return host_.place(); }

  private:
    Host host_;
    Cluster* cluster_;
    Owner* owner_ = nullptr;
    Alarm* timer_;         // until it is seen whether the name was found
    bool looked_ = false;  // the name was looked up
};

// Nowhere: calls wait for the map, or for the news that there is none.
class Cluster::Lobby final : public Locator {
  public:
    explicit Lobby(Cluster* cluster) : cluster_(cluster) {}

    void set_owner(Owner* owner) override { owner_ = owner; }
    Place place() override { return {"", 0, trouble_, "", error_}; }
    void doubt() override { cluster_->on_trouble(); }
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

struct Cluster::Node {
    Settings settings;
    std::string host;  // as the cluster says it
    std::uint16_t port = 0;
    std::unique_ptr<Client> client;
    Member* member = nullptr;  // the client's
    unsigned slots = 0;        // that it has
    bool probes = false;
    Slot probed = 0;  // the slot of its probe's key, if it probes
};

Cluster::Cluster(const Settings& settings, const std::vector<Seed>& seeds, Loop* loop)
    : settings_(settings), topology_settings_(settings), seeds_(seeds), loop_(loop) {
    topology_settings_.script = {};
    topology_settings_.most_elements = kSlots;
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
    topology_.reset(Topology::make(topology_settings_, loop_, this));
    auto* lobby = new (std::nothrow) Lobby(this);
    lobby_place_ = lobby;
    if (lobby != nullptr) {
        lobby_.reset(Client::make_with(settings_, std::unique_ptr<Locator>(lobby), loop_));
    }
    return timer_ != nullptr && topology_ != nullptr && lobby_ != nullptr;
}

Cluster::~Cluster() {
    lobby_.reset();
    nodes_.clear();
    topology_.reset();
    delete timer_;
}

Client* Cluster::client_of(Slot slot) {
    if (!known_) {
        refresh(0);
        return lobby_.get();
    }
    return owners_[slot] != kNobody ? nodes_[owners_[slot]]->client.get() : nullptr;
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
std::vector<Locator::Place> Cluster::whom_to_ask() {
    std::vector<Locator::Place> places;
    for (const auto& node : nodes_) {
        if (node != nullptr && node->client->available()) {
            const std::string address = node->member->known().address;
            if (!address.empty()) {
                places.push_back({address, node->port, nullptr, node->settings.server_name});
            }
        }
    }
    const auto rotate = [&](std::size_t from) {
        if (places.size() > from) {
            std::rotate(
                places.begin() + static_cast<std::ptrdiff_t>(from),
                places.begin() + static_cast<std::ptrdiff_t>(from + loop_->random() % (places.size() - from)),
                places.end());
        }
    };
    rotate(0);
    const std::size_t known = places.size();
    for (const Seed& seed : seeds_.all()) {
        for (const std::string& address : seed.addresses) {
            places.push_back({address, seed.port, nullptr, seed.host});
        }
    }
    rotate(known);
    return places;
}

std::unique_ptr<Cluster::Node> Cluster::make_node(const std::string& host, std::uint16_t port,
                                                  const std::string& name) {
    std::unique_ptr<Node> node(new (std::nothrow) Node);
    if (node == nullptr) {
        return nullptr;
    }
    node->host = host;
    node->port = port;
    node->settings = settings_;
    node->settings.name += " " + host + ":" + std::to_string(port);
    node->settings.address.host = host;
    node->settings.address.port = port;
    if (node->settings.server_name.empty()) {
        node->settings.server_name = name;
    }
    std::unique_ptr<Member> member(new (std::nothrow) Member(node->settings.address, this));
    node->member = member.get();
    if (member != nullptr && member->whole()) {
        node->client.reset(Client::make_with(node->settings, std::move(member), loop_));
    }
    if (node->client == nullptr) {
        return nullptr;
    }
    node->client->set_redirector(this);
    return node;
}

// The place of a node in nodes_, which it is given if it has none; kNobody if there is no memory, or too many
// are named.
std::uint16_t Cluster::node_at(const std::string& host, std::uint16_t port, const std::string& name) {
    std::size_t free = nodes_.size();
    for (std::size_t i = 0; i < nodes_.size(); i++) {
        if (nodes_[i] == nullptr) {
            free = i;
        } else if (nodes_[i]->port == port && nodes_[i]->host == host) {
            return static_cast<std::uint16_t>(i);
        }
    }
    std::unique_ptr<Node> node = free < kMostNodes ? make_node(host, port, name) : nullptr;
    if (node == nullptr) {
        return kNobody;
    }
    if (free == nodes_.size()) {
        nodes_.emplace_back();
    }
    nodes_[free] = std::move(node);
    return static_cast<std::uint16_t>(free);
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
    for (std::size_t i = 0; i < nodes_.size(); i++) {
        if (nodes_[i] != nullptr && nodes_[i]->slots != 0) {
            set_probe(nodes_[i].get(), static_cast<std::uint16_t>(i));
        }
    }
}

// A probe writes a key of a slot that the node has. One is found by trying: any will do, and the fewer slots
// each node has, the more tries it takes.
void Cluster::set_probe(Node* node, std::uint16_t place) const {
    if (node->probes && owners_[node->probed] == place) {
        return;
    }
    std::string tag;
    for (unsigned number = 0; tag.empty() || owners_[node->probed] != place; number++) {
        tag = std::to_string(number);
        node->probed = slot_of(tag);
    }
    node->probes = true;
    node->settings.probe = format_command({"SET", settings_.probe_key + "{" + tag + "}", "1", "PX", "1"});
}

void Cluster::on_ranges(const std::vector<SlotRange>& ranges) {
    failures_ = 0;
    adopt(ranges);
    drop_idle_nodes();
    if (!known_) {
        known_ = true;
        leave_lobby();
    }
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
    while (Call* call = lobby_->first_unsent()) {
        lobby_->pass_on(call, client_of(call->slot), false);
    }
    lobby_.reset();
}

// A node without slots goes as soon as nobody waits for it.
void Cluster::drop_idle_nodes() {
    for (auto& node : nodes_) {
        if (node != nullptr && node->slots == 0 && !node->client->busy()) {
            node.reset();
        }
    }
}

// Whether each slot has a node that answers.
bool Cluster::settled() const {
    return std::all_of(owners_.begin(), owners_.end(), [&](std::uint16_t owner) {
        return owner != kNobody && nodes_[owner]->client->available();
    });
}

void Cluster::on_no_ranges(Error error, std::string_view line) {
    complain(line);
    if (!known_) {
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
    const std::uint16_t owner = is_host(host) ? node_at(host, port, name) : kNobody;
    if (owner == kNobody) {
        return nullptr;
    }
    if (error == Error::kMoved) {
        owners_[slot] = owner;
        refresh(0);
    }
    return nodes_[owner]->client.get();
}

void Cluster::complain(std::string_view line) {
    const Milliseconds now = loop_->now();
    if (settings_.quiet || (complained_at_ != 0 && now < complained_at_ + kComplainEvery)) {
        return;
    }
    complained_at_ = now;
    std::string text =
        "redis \"" + settings_.name + "\": no node tells of the cluster's slots: " + std::string(line);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    loop_->log(Severity::kError, text);
}

}  // namespace rate_limit::redis
