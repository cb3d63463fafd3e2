// A worker's clients of a cluster, one for each node, and the map from slots to nodes.
//
// Belongs to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cluster/seeds.h"
#include "cluster/topology.h"
#include "connection/address.h"
#include "connection/endpoint.h"
#include "connection/loop.h"
#include "redis/client.h"
#include "redis/router.h"

namespace rate_limit::redis {

// Until the map is loaded, calls wait in a client without a connection, the placeholder. The map is loaded
// again when a node answers that a slot has moved, when a node fails, and while a slot has no node that
// answers.
class Cluster final : public Router, private Topology::Owner, private Redirector {
  public:
    // `settings` apply to each node, except for the address, and must outlive this object.
    Cluster(const Settings& settings, const std::vector<Seed>& seeds, Loop* loop);
    ~Cluster() override;
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    bool sharded() const override { return true; }
    Client* client_of(HashSlot slot) override;
    void open() override;
    bool opening() const override;

    // The number of nodes with slots.
    std::size_t nodes() const;

  private:
    class Member;
    class Placeholder;
    class NodeLoop;
    struct Node;

    static constexpr std::uint16_t kNoNode = 0xffff;  // a slot without a node

    void on_ranges(const std::vector<SlotRange>& ranges) override;
    void on_no_ranges(const std::string& where, Error error, std::string_view line) override;
    Client* redirect(const Client& from, Error error, std::string_view text) override;
    void on_trouble() override { refresh(0); }
    void on_timer();

    // Whether a map was loaded. Until then, calls wait in the placeholder.
    bool known() const { return placeholder_ == nullptr; }
    void refresh(Milliseconds after);
    Milliseconds reload_after() const;
    std::vector<Endpoint::Target> nodes_to_ask();
    std::uint16_t node_at(const std::string& host, std::uint16_t port, const std::string& name);
    bool is_known(const std::string& host, std::uint16_t port) const;
    Client* client_at(std::uint16_t index);
    void make_client(Node* node);
    void set_probes();
    void adopt(const std::vector<SlotRange>& ranges);
    void leave_placeholder();
    void drop_idle_nodes();
    bool is_complete() const;
    void complain(const std::string& where, Error error, std::string_view line);

    const Settings& settings_;
    Settings topology_settings_;
    Seeds seeds_;
    Loop* loop_;
    std::unique_ptr<Topology> topology_;
    Alarm* timer_;                                 // until the map is loaded again
    Placeholder* placeholder_endpoint_ = nullptr;  // of placeholder_, which owns it
    std::unique_ptr<Client> placeholder_;          // null once a map was loaded
    bool warm_ = false;                            // connects to nodes before the first call
    unsigned failures_ = 0;                        // to load the map, in a row
    unsigned incomplete_ = 0;                      // maps in a row in which a slot had no node that answers
    Milliseconds asked_at_ = 0;                    // when the map was last requested; 0 for never
    Journal own_journal_;                          // unless the settings have one
    std::unique_ptr<NodeLoop> node_loop_;
    std::vector<std::unique_ptr<Node>> nodes_;                // null for an index in free_
    std::vector<std::uint16_t> free_;                         // indices in nodes_
    std::unordered_map<std::string, std::uint16_t> indices_;  // in nodes_, by address_key()
    std::size_t unlisted_ = 0;                      // nodes without slots, which only redirections have named
    std::array<std::uint16_t, kHashSlots> owners_;  // indices in nodes_, or kNoNode
};

}  // namespace rate_limit::redis
