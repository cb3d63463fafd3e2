// Requests that end before they are decided, because the client disconnects: each is still charged to all its
// limits or to none.
#include <map>

#include "property.h"
#include "redis/real_server.h"
#include "sharded_router.h"

namespace rate_limit {
namespace {

// The decided checks of requests that had ended, by result.
std::map<Progress, unsigned> ended;

unsigned ended_in_all() {
    unsigned sum = 0;
    for (const auto& [progress, count] : ended) {
        sum += count;
    }
    return sum;
}

unsigned errors = 0;  // checks that ended with an error

void count_end(const RequestCheck& check) {
    ended[check.progress()]++;
    errors += check.outcome().error != Error::kNone ? 1 : 0;
}

void test_an_aborted_request_is_charged_to_all_limits(void**) {
    for (unsigned turns = 0; turns < 6; turns++) {
        Scene scene;
        ended.clear();
        auto request = std::make_unique<Request>(
            std::vector<TestLimit>{scene.in_first(), scene.in_second(), scene.in_memory()});
        assert_int_equal(request->at_once(), Progress::kWaiting);
        for (unsigned i = 0; i < turns && !request->answered(); i++) {
            scene.loop.turn(0);
        }
        const bool in_time = request->answered();
        if (!in_time) {
            request->leave(count_end);
        }
        request.reset();
        assert_true(scene.loop.run_until([&] { return scene.zone->clients() != 0; }));
        assert_int_equal(used(scene.zone), 1);
        assert_int_equal(scene.first_server.groups(), 1);
        assert_int_equal(scene.second_server.groups(), 1);
        assert_int_equal(ended[Progress::kAdmitted], in_time ? 0 : 1);
    }
}

void test_an_aborted_request_that_is_rejected_is_refunded(void**) {
    Scene scene;
    ended.clear();
    always_reject(&scene.second_server);
    auto request = std::make_unique<Request>(
        std::vector<TestLimit>{scene.in_first(), scene.in_second(), scene.in_memory()});
    request->leave(count_end);
    request.reset();
    assert_true(scene.loop.run_until([&] { return scene.first_server.refunds().size() == 1; }));
    assert_int_equal(ended[Progress::kRejected], 1);
    assert_int_equal(scene.zone->clients(), 0);
}

void test_the_rejection_of_an_aborted_request_is_remembered(void**) {
    Scene scene;
    ended.clear();
    steady_clock += 10 * kSecond;
    always_reject(&scene.first_server);
    auto request = std::make_unique<Request>(std::vector<TestLimit>{scene.cached()});
    request->leave(count_end);
    request.reset();
    assert_true(scene.loop.run_until([&] { return ended_in_all() == 1; }));
    const Request next({scene.cached()});
    assert_int_equal(next.at_once(), Progress::kRejected);
    assert_int_equal(next.decided_by(0), DecidedBy::kCache);
}

void test_on_error_applies_to_an_aborted_request(void**) {
    for (const OnError on_error : {OnError::kOpen, OnError::kClosed, OnError::kLocal}) {
        Scene scene;
        const Zone local(kPolicy);
        ended.clear();
        Scene::fail(&scene.second_server);
        auto request = std::make_unique<Request>(std::vector<TestLimit>{
            scene.in_first(), scene.in_second(on_error, on_error == OnError::kLocal ? &local : nullptr),
            scene.in_memory()});
        request->leave(count_end);
        request.reset();
        const bool closed = on_error == OnError::kClosed;
        assert_true(scene.loop.run_until([&] { return ended_in_all() == 1; }));
        scene.loop.run_for(10);
        assert_int_equal(ended[closed ? Progress::kRefused : Progress::kAdmitted], 1);
        assert_int_equal(scene.first_server.refunds().size(), closed ? 1 : 0);
        assert_int_equal(scene.zone->clients(), closed ? 0 : 1);
        assert_int_equal(local->clients(), on_error == OnError::kLocal ? 1 : 0);
    }
}

void test_an_aborted_request_needs_no_callback(void**) {
    Scene scene;
    auto request = std::make_unique<Request>(std::vector<TestLimit>{scene.in_first(), scene.in_memory()});
    request->leave(nullptr);
    request.reset();
    assert_true(scene.loop.run_until([&] { return scene.zone->clients() == 1; }));
}

void test_the_exit_of_the_worker_drops_aborted_requests(void**) {
    for (const bool sent : {false, true}) {
        Scene scene;
        ended.clear();
        scene.first_server.server.answers = false;
        auto request = std::make_unique<Request>(std::vector<TestLimit>{scene.in_first(), scene.in_memory()});
        if (sent) {
            scene.loop.turn(0);
        }
        request->leave(count_end);
        request.reset();
        scene.first.end();
        assert_int_equal(ended_in_all(), 0);
    }
}

constexpr redis::Milliseconds kLong = 3'600'000;  // longer than a busy machine takes

// Two servers, and two more that share the slots as in a cluster.
struct Servers {
    Servers()
        : first(&loop, real[0].path(), 64, kLong),
          second(&loop, real[1].path(), 64, kLong),
          cluster(new CheckBatcher(new ShardedRouter(&loop, real[2].path(), real[3].path(), kLong),
                                   {"rate_limit:", 64}, &loop)) {
        for (CheckBatcher* batcher : {first.get(), second.get(), cluster.get()}) {
            for (const bool left : {true, false}) {
                connect(batcher, name_where([&](const std::string& name) { return is_left(name) == left; }));
            }
        }
    }

    // Retries: on a busy machine, a handshake may time out.
    void connect(CheckBatcher* batcher, const std::string& client) {
        Error error = Error::kUnavailable;
        while (error != Error::kNone) {
            TestLimit limit = {nullptr, batcher};
            limit.client = client.c_str();
            const Request request({limit});
            error =
                request.at_once() == Progress::kWaiting && request.in_the_end(&loop) == Progress::kAdmitted
                    ? request.error()
                    : Error::kUnavailable;
            loop.turn(1);
        }
    }

    redis::TestLoop loop;
    const redis::RealServer real[4];
    const TestBatcher first;
    const TestBatcher second;
    std::unique_ptr<CheckBatcher> cluster;
};

// A limit of a trial; owns its policy, client name and zone.
struct TrialLimit {
    TrialLimit(const Policy& policy, CheckBatcher* batcher, const std::string& client)
        : policy(policy), batcher(batcher), client(client), zone(policy) {}

    TestLimit limit(std::uint64_t cost = 1) const {
        TestLimit limit = {batcher == nullptr ? &zone : nullptr, batcher};
        limit.policy = &policy;
        limit.client = client.c_str();
        limit.cost = cost;
        return limit;
    }

    Policy policy;
    CheckBatcher* batcher;
    std::string client;
    Zone zone;
};

// Random limits with different stores: two tables in memory, two servers, both halves of the cluster.
std::deque<TrialLimit> any_limits(const Servers& servers) {
    static unsigned trials = 0;
    const std::string name = "trial" + std::to_string(trials++) + "-";
    const auto of_left = [&](bool left) {
        unsigned number = 0;
        while (is_left(name + std::to_string(number)) != left) {
            number++;
        }
        return name + std::to_string(number);
    };
    std::vector<std::pair<CheckBatcher*, std::string>> choices = {{nullptr, name},
                                                                  {nullptr, name},
                                                                  {servers.first.get(), name},
                                                                  {servers.second.get(), name},
                                                                  {servers.cluster.get(), of_left(true)},
                                                                  {servers.cluster.get(), of_left(false)}};
    std::deque<TrialLimit> limits;
    const auto size = *rc::gen::inRange<std::size_t>(2, choices.size() + 1);
    while (limits.size() < size) {
        const auto index = *rc::gen::inRange<std::size_t>(0, choices.size());
        const Algorithm algorithm = kEveryAlgorithm[*rc::gen::inRange<unsigned>(0, kAlgorithms)];
        Policy policy = policy_of(algorithm, (std::to_string(*rc::gen::inRange(1, 30)) + "r/d").c_str());
        policy.burst = is_bucket(algorithm) && algorithm != Algorithm::kTokenBucket
                           ? *rc::gen::inRange<std::uint32_t>(0, 30)
                           : 0;
        limits.emplace_back(policy, choices[index].first, choices[index].second);
        choices.erase(choices.begin() + static_cast<std::ptrdiff_t>(index));
    }
    return limits;
}

std::vector<TestLimit> test_limits_of(const std::deque<TrialLimit>& limits, std::uint64_t cost = 1) {
    std::vector<TestLimit> made;
    for (const TrialLimit& limit : limits) {
        made.push_back(limit.limit(cost));
    }
    return made;
}

// How much each limit has been charged.
std::vector<std::uint32_t> charges(const std::deque<TrialLimit>& limits, Servers* servers) {
    const Request look(test_limits_of(limits, 0));
    if (look.at_once() == Progress::kWaiting) {
        look.in_the_end(&servers->loop);
    }
    RC_ASSERT(look.error() == Error::kNone);
    std::vector<std::uint32_t> list;
    for (std::size_t i = 0; i < limits.size(); i++) {
        RC_ASSERT(look.decided_by(i) != DecidedBy::kNobody);
        list.push_back(look.decision(i).limit - look.decision(i).remaining);
    }
    return list;
}

void test_a_request_aborted_at_any_time_is_charged_to_all_limits_or_to_none(void**) {
    setenv("RC_PARAMS", "max_success=150", 0);
    Servers servers;
    ended.clear();
    unsigned left_before = 0;
    const bool kept = rc::check("charged to all or to none", [&] {
        const std::deque<TrialLimit> limits = any_limits(servers);
        const auto turns = *rc::gen::container<std::vector<unsigned>>(rc::gen::inRange(0U, 12U));
        // Checks of a failed trial may still be in flight.
        RC_ASSERT(servers.loop.run_until([&] { return ended_in_all() == left_before; }, kLong));
        ended.clear();
        errors = 0;
        left_before = 0;
        unsigned left = 0;
        unsigned admitted = 0;
        std::deque<std::unique_ptr<Request>> staying;
        for (const unsigned most : turns) {
            staying.push_back(std::make_unique<Request>(test_limits_of(limits)));
            Request& request = *staying.back();
            for (unsigned i = 0; i < most; i++) {
                servers.loop.turn(0);
            }
            if (request.at_once() == Progress::kWaiting && !request.answered() && most % 3 != 0) {
                request.leave(count_end);
                staying.pop_back();
                left_before = ++left;
            }
        }
        for (const auto& request : staying) {
            const bool waited = request->at_once() == Progress::kWaiting;
            const Progress progress = waited ? request->in_the_end(&servers.loop) : request->at_once();
            admitted += progress == Progress::kAdmitted ? 1 : 0;
        }
        RC_ASSERT(servers.loop.run_until([&] { return ended_in_all() == left; }, kLong));
        RC_ASSERT(errors == 0U);
        // Refunds reach Redis before these reads.
        const std::vector<std::uint32_t> charged = charges(limits, &servers);
        std::size_t number = 0;
        for (const TrialLimit& limit : limits) {
            RC_LOG() << algorithm_name(limit.policy.algorithm) << " burst " << limit.policy.burst << ' '
                     << limit.policy.rates.rates[0].count << "r/d in "
                     << (limit.batcher == nullptr ? "memory" : "Redis") << ": " << charged[number++] << '\n';
        }
        for (const std::uint32_t one : charged) {
            RC_ASSERT(one == admitted + ended[Progress::kAdmitted]);
        }
        RC_CLASSIFY(left != 0, "some have left");
    });
    assert_true(kept);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_an_aborted_request_is_charged_to_all_limits),
        cmocka_unit_test(test_an_aborted_request_that_is_rejected_is_refunded),
        cmocka_unit_test(test_the_rejection_of_an_aborted_request_is_remembered),
        cmocka_unit_test(test_on_error_applies_to_an_aborted_request),
        cmocka_unit_test(test_an_aborted_request_needs_no_callback),
        cmocka_unit_test(test_the_exit_of_the_worker_drops_aborted_requests),
        cmocka_unit_test(test_a_request_aborted_at_any_time_is_charged_to_all_limits_or_to_none),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
