// A periodic task: its timer, its leader, its end.
#include "fleet/periodic_task.h"

#include <memory>
#include <string>

#include "memory/processes.h"
#include "redis/test_loop.h"

namespace rate_limit {
namespace {

constexpr redis::Milliseconds kEvery = 100;

const Process kFirst = made_up_process(1);
const Process kSecondProcess = made_up_process(2);

class NoRouter final : public redis::Router {
  public:
    bool sharded() const override { return false; }
    redis::Client* client_of(redis::HashSlot) override { return nullptr; }
};

NoRouter no_router;

class CountingTask final : public PeriodicTask {
  public:
    CountingTask(Leader* leader, redis::TestLoop* loop, const Process& process = kFirst,
                 redis::Milliseconds after = 0)
        : PeriodicTask(leader, kEvery, &no_router, loop, process) {
        start(after);
    }

    bool has_router() const { return router() == &no_router; }
    void give_up_lead() { resign(); }

    std::string seen;  // t for on_timer, r for run, e for on_end
    unsigned runs = 0;
    redis::Milliseconds again = 0;  // what run() passes to run_again(); 0 for no call
    bool keeps_lead = false;        // when it ends

  private:
    void on_timer() override { seen += 't'; }
    void run() override {
        seen += 'r';
        runs++;
        if (again != 0) {
            run_again(again);
        }
    }
    void on_end() override {
        seen += 'e';
        if (!keeps_lead) {
            PeriodicTask::on_end();
        }
    }
};

void test_a_task_runs_first_after_a_while_and_then_periodically(void**) {
    redis::TestLoop loop;
    Leader leader;
    const CountingTask task(&leader, &loop, kFirst, 30);
    loop.run_for(25);
    assert_int_equal(task.runs, 0);
    loop.run_for(10);
    assert_int_equal(task.runs, 1);
    loop.run_for(kEvery - 15);
    assert_int_equal(task.runs, 1);
    loop.run_for(20);
    assert_int_equal(task.runs, 2);
    assert_string_equal(task.seen.c_str(), "trtr");
}

void test_a_run_may_ask_for_an_earlier_next_run(void**) {
    redis::TestLoop loop;
    Leader leader;
    CountingTask task(&leader, &loop);
    task.again = kEvery / 10;
    loop.run_for(kEvery / 2);
    assert_in_range(task.runs, 4, 6);
    task.again = 0;
    const unsigned runs = task.runs;
    loop.run_for(kEvery / 2);
    assert_int_equal(task.runs, runs + 1);
}

void test_of_several_processes_one_runs_the_task(void**) {
    redis::TestLoop loop;
    Leader leader;
    const CountingTask first(&leader, &loop);
    const CountingTask second(&leader, &loop, kSecondProcess, 5);
    loop.run_for(kEvery * 2 + 10);
    assert_string_equal(first.seen.c_str(), "trtrtr");
    assert_string_equal(second.seen.c_str(), "ttt");
}

void test_another_process_runs_the_task_once_the_leader_ends_or_is_destroyed(void**) {
    for (const bool ends : {true, false}) {
        redis::TestLoop loop;
        Leader leader;
        auto first = std::make_unique<CountingTask>(&leader, &loop);
        const CountingTask second(&leader, &loop, kSecondProcess, 5);
        loop.run_for(10);
        assert_int_equal(first->runs, 1);
        if (ends) {
            first->end();
            first->end();
            assert_string_equal(first->seen.c_str(), "tre");
        } else {
            first.reset();
        }
        loop.run_for(kEvery);
        assert_int_equal(second.runs, 1);
        assert_true(first == nullptr || first->runs == 1);
    }
}

void test_a_task_that_ends_may_keep_the_lead_for_a_while(void**) {
    redis::TestLoop loop;
    Leader leader;
    CountingTask first(&leader, &loop);
    const CountingTask second(&leader, &loop, kSecondProcess, 5);
    first.keeps_lead = true;
    loop.run_for(10);
    first.end();
    loop.run_for(kEvery);
    assert_int_equal(second.runs, 0);
    first.give_up_lead();
    loop.run_for(kEvery);
    assert_int_equal(second.runs, 1);
    assert_int_equal(first.runs, 1);
}

void test_a_stopped_task_does_nothing_more(void**) {
    redis::TestLoop loop;
    Leader leader;
    CountingTask task(&leader, &loop);
    assert_true(task.has_router());
    loop.run_for(10);
    task.stop();
    assert_false(task.has_router());
    task.end();
    loop.run_for(kEvery * 2);
    assert_string_equal(task.seen.c_str(), "tr");
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_task_runs_first_after_a_while_and_then_periodically),
        cmocka_unit_test(test_a_run_may_ask_for_an_earlier_next_run),
        cmocka_unit_test(test_of_several_processes_one_runs_the_task),
        cmocka_unit_test(test_another_process_runs_the_task_once_the_leader_ends_or_is_destroyed),
        cmocka_unit_test(test_a_task_that_ends_may_keep_the_lead_for_a_while),
        cmocka_unit_test(test_a_stopped_task_does_nothing_more),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
