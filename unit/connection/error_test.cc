// Classifying the error replies of Redis 5 to 8 and Valkey.
#include "connection/error.h"

#include <set>
#include <string>

#include "test.h"

namespace rate_limit::redis {
namespace {

struct Case {
    Error error;
    std::string_view text;
};

void assert_all(const Case* cases, std::size_t count) {
    for (std::size_t i = 0; i < count; i++) {
        const Error error = classify(cases[i].text);
        if (error != cases[i].error) {
            fail_msg("\"%s\" is taken for %s", std::string(cases[i].text).c_str(), error_name(error));
        }
    }
}

template <std::size_t kCount>
void assert_all(const Case (&cases)[kCount]) {
    assert_all(cases, kCount);
}

void test_errors_of_commands_are_recognized_by_their_first_word(void**) {
    assert_all({
        {Error::kNoScript, "NOSCRIPT No matching script. Please use EVAL."},
        {Error::kNoScript, "NOSCRIPT No matching script."},
        {Error::kLoading, "LOADING Redis is loading the dataset in memory"},
        {Error::kLoading, "LOADING Valkey is loading the dataset in memory"},
        {Error::kBusy,
         "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."},
        {Error::kBusy,
         "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."},
        {Error::kBusy,
         "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."},
        {Error::kReadOnly, "READONLY You can't write against a read only slave."},
        {Error::kReadOnly, "READONLY You can't write against a read only replica."},
        {Error::kOutOfMemory, "OOM command not allowed when used memory > 'maxmemory'."},
        {Error::kMoved, "MOVED 3999 127.0.0.1:6381"},
        {Error::kMoved, "MOVED 866 [2001:db8::7]:6379"},
        {Error::kMoved, "MOVED 866 :6379"},
        {Error::kAsk, "ASK 3999 127.0.0.1:6381"},
        {Error::kTryAgain, "TRYAGAIN Multiple keys request during rehashing of slot"},
        {Error::kClusterDown, "CLUSTERDOWN Hash slot not served"},
        {Error::kClusterDown, "CLUSTERDOWN The cluster is down"},
    });
}

void test_wrong_or_missing_passwords_and_missing_permissions_are_one_error(void**) {
    assert_all({
        {Error::kDenied, "NOAUTH Authentication required."},
        {Error::kDenied, "WRONGPASS invalid username-password pair"},
        {Error::kDenied, "WRONGPASS invalid username-password pair or user is disabled."},
        {Error::kDenied, "ERR invalid password"},
        {Error::kDenied, "ERR Client sent AUTH, but no password is set"},
        {Error::kDenied,
         "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
         "configuration is correct?"},
        {Error::kDenied,
         "NOPERM this user has no permissions to run the 'evalsha' command or its subcommand"},
        {Error::kDenied, "NOPERM this user has no permissions to run the 'script|load' command"},
        {Error::kDenied, "NOPERM this user has no permissions to access one of the keys used as arguments"},
        {Error::kDenied, "NOPERM User bob has no permissions to run the 'evalsha' command"},
        {Error::kDenied, "NOPERM No permissions to access a key"},
    });
}

void test_missing_permissions_of_the_script_are_recognized(void**) {
    assert_all({
        {Error::kDenied,
         "ERR Error running script (call to f_948fb05a800633cd285d7440e4d64ca534f7c396): @user_script:1: "
         "@user_script: "
         "1: The user executing the script can't run this command or subcommand "},
        {Error::kDenied,
         "ERR The user executing the script can't run this command or subcommand script: "
         "948fb05a800633cd285d7440e4d64ca534f7c396, on @user_script:1."},
        {Error::kDenied,
         "ERR ACL failure in script: User bob has no permissions to run the 'set' command script: "
         "948fb05a800633cd285d7440e4d64ca534f7c396, on @user_script:1."},
    });
}

void test_missing_permissions_differ_from_a_wrong_or_missing_password(void**) {
    for (const char* text :
         {"NOPERM this user has no permissions to run the 'eval' command or its subcommand", "NOPERM",
          "NOPERM User bob has no permissions to run the 'hmget' command",
          "ERR Error running script (call to f_9): @user_script:1: -NOPERM No permissions to access a key",
          "ERR Error running script (call to f_9): @user_script:1: @user_script: 1: The user executing the "
          "script can't run this command or subcommand ",
          "ERR ACL failure in script: User bob has no permissions to run the 'hmget' command script: 9"}) {
        assert_true(lacks_rights(text));
    }
    for (const char* text :
         {"", "NOAUTH Authentication required.",
          "WRONGPASS invalid username-password pair or user is disabled.", "ERR invalid password",
          "ERR Client sent AUTH, but no password is set", "DENIED Redis is running in protected mode",
          "ERR Protocol error: unauthenticated bulk length", "READONLY NOPERM", "ERR NOPERM"}) {
        assert_false(lacks_rights(text));
    }
}

void test_a_wrapped_error_of_redis_5_and_6_is_recognized_by_the_inner_error(void**) {
    assert_all({
        {Error::kReadOnly,
         "ERR Error running script (call to f_948fb05a800633cd285d7440e4d64ca534f7c396): @user_script:1: "
         "@user_script: "
         "1: -READONLY You can't write against a read only replica. "},
        {Error::kOutOfMemory,
         "ERR Error running script (call to f_948fb05a800633cd285d7440e4d64ca534f7c396): @user_script:12: "
         "@user_script: 12: -OOM command not allowed when used memory > 'maxmemory'. "},
        {Error::kOther,
         "ERR Error running script (call to f_948fb05a800633cd285d7440e4d64ca534f7c396): @user_script:1: "
         "@user_script: "
         "1: -MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on "
         "disk. "},
        {Error::kOther,
         "ERR Error running script (call to f_948fb05a800633cd285d7440e4d64ca534f7c396): @user_script:1: "
         "WRONGTYPE "
         "Operation against a key holding the wrong kind of value "},
        {Error::kOther,
         "ERR Error running script (call to f_948fb05a800633cd285d7440e4d64ca534f7c396): @user_script:1: "
         "@user_script: 1: Lua script attempted to access a non local key in a cluster node "},
        {Error::kOther,
         "ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'"},
    });
}

void test_an_error_of_a_script_in_redis_7_is_recognized_by_its_first_word(void**) {
    assert_all({
        {Error::kReadOnly,
         "READONLY You can't write against a read only replica. script: "
         "948fb05a800633cd285d7440e4d64ca534f7c396, on "
         "@user_script:1."},
        {Error::kOutOfMemory,
         "OOM command not allowed when used memory > 'maxmemory'. script: "
         "948fb05a800633cd285d7440e4d64ca534f7c396, "
         "on @user_script:1."},
        {Error::kOther,
         "WRONGTYPE Operation against a key holding the wrong kind of value script: "
         "620cd258c2c9c88c9d10db67812ccf663d96bdc6, on @user_script:1."},
        {Error::kOther,
         "ERR user_script:1: x script: 9851144f39f03a0d597a980c5aa79c80cb696891, on @user_script:1."},
    });
}

void test_all_other_errors_are_other(void**) {
    assert_all({
        {Error::kOther, ""},
        {Error::kOther, " "},
        {Error::kOther, "ERR"},
        {Error::kOther, "ERR "},
        {Error::kOther, "ERR Error"},
        {Error::kOther, "ERR Error running script -"},
        {Error::kOther, "ERR Error running script - "},
        {Error::kOther, "ERR Error running script (call to f_x): the READONLY OOM BUSY"},
        {Error::kOther, "BUSYKEY Target key name already exists."},
        {Error::kOther, "BUSYGROUP Consumer Group name already exists"},
        {Error::kOther, "NOSCRIPTS are here"},
        {Error::kOther, "OOMPH"},
        {Error::kOther, "oom command not allowed"},
        {Error::kOther, "the server is BUSY"},
        {Error::kOther, "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."},
        {Error::kOther, "MISCONF Redis is configured to save RDB snapshots"},
        {Error::kOther, "NOREPLICAS Not enough good replicas to write."},
        {Error::kOther, "CROSSSLOT Keys in request don't hash to the same slot"},
        {Error::kOther, "ERR max number of clients reached"},
        {Error::kOther, "ERR DB index is out of range"},
        {Error::kOther, "ERR unknown command `EVALSHA`, with args beginning with: "},
        {Error::kOther, "ERR Protocol error: invalid bulk length"},
    });
}

void test_an_error_may_be_one_word(void**) {
    assert_all({
        {Error::kNoScript, "NOSCRIPT"},
        {Error::kLoading, "LOADING"},
        {Error::kBusy, "BUSY"},
        {Error::kReadOnly, "READONLY"},
        {Error::kOutOfMemory, "OOM"},
        {Error::kDenied, "NOAUTH"},
        {Error::kDenied, "NOPERM"},
        {Error::kMoved, "MOVED"},
    });
}

void test_each_error_has_its_own_name(void**) {
    std::set<std::string> names;
    for (unsigned i = 0; i < kErrors; i++) {
        const std::string name = error_name(static_cast<Error>(i));
        assert_true(!name.empty() &&
                    name.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos);
        names.insert(name);
    }
    assert_int_equal(names.size(), kErrors);
    assert_int_equal(static_cast<unsigned>(Error::kOther), kErrors - 1);
    const struct {
        Error error;
        const char* name;
    } documented[] = {
        {Error::kUnavailable, "unavailable"},
        {Error::kRefused, "refused"},
        {Error::kTimedOut, "timeout"},
        {Error::kClosed, "closed"},
        {Error::kNoScript, "noscript"},
        {Error::kLoading, "loading"},
        {Error::kBusy, "busy"},
        {Error::kReadOnly, "readonly"},
        {Error::kOutOfMemory, "oom"},
        {Error::kDenied, "auth"},
        {Error::kMoved, "moved"},
        {Error::kProtocol, "protocol"},
        {Error::kShape, "shape"},
        {Error::kTls, "tls"},
        {Error::kUnresolved, "unresolved"},
        {Error::kOther, "other"},
    };
    for (const auto& each : documented) {
        assert_string_equal(error_name(each.error), each.name);
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_of_commands_are_recognized_by_their_first_word),
        cmocka_unit_test(test_wrong_or_missing_passwords_and_missing_permissions_are_one_error),
        cmocka_unit_test(test_missing_permissions_of_the_script_are_recognized),
        cmocka_unit_test(test_missing_permissions_differ_from_a_wrong_or_missing_password),
        cmocka_unit_test(test_a_wrapped_error_of_redis_5_and_6_is_recognized_by_the_inner_error),
        cmocka_unit_test(test_an_error_of_a_script_in_redis_7_is_recognized_by_its_first_word),
        cmocka_unit_test(test_all_other_errors_are_other),
        cmocka_unit_test(test_an_error_may_be_one_word),
        cmocka_unit_test(test_each_error_has_its_own_name),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
