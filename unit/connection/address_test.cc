// Parsing URLs of Redis servers: all forms, and those that are rejected.
#include "connection/address.h"

#include <string>

#include "test.h"

namespace rate_limit::redis {
namespace {

Address parsed(std::string_view text) {
    Address address;
    const char* wrong = parse_address(text, &address);
    if (wrong != nullptr) {
        fail_msg("%s: %s", std::string(text).c_str(), wrong);
    }
    return address;
}

void assert_refused(std::string_view text, std::string_view word) {
    Address address;
    const char* wrong = parse_address(text, &address);
    if (wrong == nullptr || std::string_view(wrong).find(word) == std::string_view::npos) {
        fail_msg("%s: %s", std::string(text).c_str(), wrong != nullptr ? wrong : "accepted");
    }
    assert_int_not_equal(std::string_view(wrong).back(), '.');
}

void test_a_host_alone_has_the_default_port_database_and_user(void**) {
    const Address address = parsed("redis://cache.example.com");
    assert_string_equal(address.host.c_str(), "cache.example.com");
    assert_int_equal(address.port, 6379);
    assert_int_equal(address.database, 0);
    assert_true(address.user.empty() && address.password.empty() && address.path.empty());
    assert_false(address.tls);
}

void test_rediss_is_redis_with_tls(void**) {
    const Address address = parsed("rediss://cache:6380/3");
    assert_true(address.tls);
    assert_string_equal(address.host.c_str(), "cache");
    assert_int_equal(address.port, 6380);
    assert_int_equal(address.database, 3);
}

void test_a_url_with_all_parts_is_parsed(void**) {
    const Address address = parsed("redis://alice:secret@10.0.0.7:7001/15");
    assert_string_equal(address.user.c_str(), "alice");
    assert_string_equal(address.password.c_str(), "secret");
    assert_string_equal(address.host.c_str(), "10.0.0.7");
    assert_int_equal(address.port, 7001);
    assert_int_equal(address.database, 15);
}

void test_a_password_needs_no_user(void**) {
    const Address address = parsed("redis://:secret@cache");
    assert_string_equal(address.user.c_str(), "");
    assert_string_equal(address.password.c_str(), "secret");
    assert_string_equal(address.host.c_str(), "cache");
}

void test_a_user_needs_no_password(void**) {
    for (const char* text : {"redis://alice@cache", "redis://alice:@cache"}) {
        const Address address = parsed(text);
        assert_string_equal(address.user.c_str(), "alice");
        assert_string_equal(address.password.c_str(), "");
        assert_string_equal(address.host.c_str(), "cache");
    }
}

void test_credentials_may_be_empty(void**) {
    for (const char* text : {"redis://@cache", "redis://:@cache"}) {
        const Address address = parsed(text);
        assert_true(address.user.empty() && address.password.empty());
        assert_string_equal(address.host.c_str(), "cache");
    }
}

void test_a_password_may_have_colons_slashes_brackets_and_at_signs(void**) {
    const Address address = parsed("redis://alice:a:b@c/d[e]?f#g@cache:1/2");
    assert_string_equal(address.user.c_str(), "alice");
    assert_string_equal(address.password.c_str(), "a:b@c/d[e]?f#g");
    assert_string_equal(address.host.c_str(), "cache");
    assert_int_equal(address.port, 1);
    assert_int_equal(address.database, 2);
}

void test_percent_encoded_bytes_are_decoded_in_user_and_password(void**) {
    const Address address = parsed("redis://al%3aice%40:%40%3A%2f%25%c3%A9%41@cache");
    assert_string_equal(address.user.c_str(), "al:ice@");
    assert_string_equal(address.password.c_str(),
                        "@:/%\xc3\xa9"
                        "A");
    assert_string_equal(address.host.c_str(), "cache");
    assert_true(parsed("redis://:a%00b@cache").password == std::string("a\0b", 3));
    assert_string_equal(parsed("redis://:a+b@cache").password.c_str(), "a+b");
}

void test_a_percent_sign_without_two_digits_is_rejected(void**) {
    for (const char* credentials :
         {"%", "%4", "%4g:x", "a:%", "a:%2", "a:%zz", "a:b%%41", "a:% 1", "a:%-1"}) {
        assert_refused("redis://" + std::string(credentials) + "@cache", "%");
    }
}

void test_an_ipv6_address_requires_brackets(void**) {
    assert_string_equal(parsed("redis://[::1]").host.c_str(), "::1");
    assert_int_equal(parsed("redis://[::1]").port, 6379);
    const Address address = parsed("rediss://a:b@[2001:db8::7]:7000/1");
    assert_string_equal(address.host.c_str(), "2001:db8::7");
    assert_int_equal(address.port, 7000);
    assert_int_equal(address.database, 1);
    assert_string_equal(parsed("redis://[fe80::1%eth0]:1").host.c_str(), "fe80::1%eth0");
    for (const char* text : {"redis://::1", "redis://2001:db8::7:6379", "redis://a:1:2"}) {
        assert_refused(text, "brackets");
    }
    assert_refused("redis://[::1", "bracket");
    assert_refused("redis://[::1:6379/0", "bracket");
    assert_refused("redis://[::1]6379", "colon");
    assert_refused("redis://[::1]]:6379", "colon");
    for (const char* host : {"", "cache", "127.0.0.1", "::g", "1:2:3", ":::1"}) {
        assert_refused("redis://[" + std::string(host) + "]", "brackets");
        assert_refused("redis://[" + std::string(host) + "]:6379", "brackets");
    }
}

void test_ports_are_1_to_65535(void**) {
    assert_int_equal(parsed("redis://h:1").port, 1);
    assert_int_equal(parsed("redis://h:65535").port, 65535);
    for (const char* port : {"", "0", "65536", "99999", "100000", "4294967297", "-1", "+1", " 1", "1 ", "1a",
                             "0x10", "a", "18446744073709551617", "6379,6380"}) {
        assert_refused("redis://h:" + std::string(port), "port");
        assert_refused("redis://h:" + std::string(port) + "/0", "port");
        assert_refused("redis://[::1]:" + std::string(port), "port");
    }
}

void test_databases_are_numbers(void**) {
    assert_int_equal(parsed("redis://h/").database, 0);
    assert_int_equal(parsed("redis://h/0").database, 0);
    assert_int_equal(parsed("redis://h/65535").database, 65535);
    for (const char* database :
         {"65536", "-1", "a", "1a", "1/", "/1", "1/2", " 1", "1?x=y", "99999999999", "1#"}) {
        assert_refused("redis://h/" + std::string(database), "database");
    }
}

void test_a_host_is_required(void**) {
    for (const char* text : {"redis://", "rediss://", "redis:///0", "redis://:6379", "redis://a:b@",
                             "redis://a:b@/0", "redis://a:b@:6379/0"}) {
        assert_refused(text, "host");
    }
}

void test_a_host_is_an_address_or_a_valid_name(void**) {
    const std::string label(63, 'x');
    for (const std::string& host : {std::string("a"), std::string("cache-1.example.com"), std::string("a_b"),
                                    std::string("127.1"), std::string("nowhere.invalid."), label,
                                    label + "." + label + "." + label + "." + std::string(61, 'x')}) {
        assert_string_equal(parsed("redis://" + host + ":1/2").host.c_str(), host.c_str());
    }
    for (const std::string& host :
         {std::string("a b"), std::string("a?db=1"), std::string("a#1"), std::string("a,b"), std::string("."),
          std::string("a..b"), std::string(".a"), std::string("a.."), std::string("127.0.0.1%lo"),
          std::string("a%62"), std::string("\xc3\xa4"), std::string("a\n"), label + "x", label + "x.test",
          label + "." + label + "." + label + "." + std::string(62, 'x')}) {
        assert_refused("redis://" + host, "the host");
        assert_refused("redis+sentinel://b," + (host == "a,b" ? "a;b" : host) + "/limits", "the host");
    }
}

void test_a_unix_socket_is_an_absolute_path(void**) {
    const Address address = parsed("unix:/run/redis/a@b:c?d%20.sock");
    assert_string_equal(address.path.c_str(), "/run/redis/a@b:c?d%20.sock");
    assert_true(address.host.empty());
    assert_false(address.tls);
    assert_int_equal(parsed("unix:/" + std::string(106, 'x')).path.size(), 107);
    assert_refused("unix:/" + std::string(107, 'x'), "107");
    for (const char* text : {"unix:", "unix:run/redis.sock", "unix:./redis.sock"}) {
        assert_refused(text, "/");
    }
}

void test_other_schemes_are_rejected(void**) {
    for (const char* text :
         {"", "cache", "cache:6379", "redis:", "redis:/", "redis:cache", "redis:/cache", "http://cache",
          "REDIS://cache", " redis://cache", "redis ://cache", "redisss://cache", "127.0.0.1:6379"}) {
        assert_refused(text, "redis://");
    }
}

void test_sentinels_and_the_name_of_their_primary(void**) {
    Address address;
    assert_null(parse_address("redis+sentinel://us%65r:p%40ss@a,b:26380,[::1]:5/limits/3", &address));
    assert_int_equal(address.seeds.size(), 3);
    assert_string_equal(address.seeds[0].host.c_str(), "a");
    assert_int_equal(address.seeds[0].port, 26379);
    assert_string_equal(address.seeds[1].host.c_str(), "b");
    assert_int_equal(address.seeds[1].port, 26380);
    assert_string_equal(address.seeds[2].host.c_str(), "::1");
    assert_int_equal(address.seeds[2].port, 5);
    assert_string_equal(address.primary.c_str(), "limits");
    assert_int_equal(address.database, 3);
    assert_string_equal(address.user.c_str(), "user");
    assert_string_equal(address.password.c_str(), "p@ss");
    for (const char* text : {"redis+sentinel://a/limits", "redis+sentinel://a/limits/"}) {
        Address one;
        assert_null(parse_address(text, &one));
        assert_int_equal(one.seeds.size(), 1);
        assert_int_equal(one.database, 0);
    }
    for (const char* text : {"redis+sentinel://", "redis+sentinel:///limits", "redis+sentinel://a,/limits",
                             "redis+sentinel://,a/limits", "redis+sentinel://a,,b/limits"}) {
        assert_refused(text, "the host is missing");
    }
    for (const char* text : {"redis+sentinel://a", "redis+sentinel://a/", "redis+sentinel://a//0"}) {
        assert_refused(text, "the name of the primary is missing");
    }
    assert_refused("redis+sentinel://a/limits/x", "the database");
    assert_refused("redis+sentinel://a:0/limits", "the port");
    assert_refused("redis+sentinels://a/limits", "redis+sentinel://");
}

void test_the_nodes_of_a_cluster(void**) {
    const Address address = parsed("redis+cluster://us%65r:p%40s%2Cs@a,10.0.0.7:7001,[::1]:5,[2001:db8::7]");
    assert_int_equal(address.seeds.size(), 4);
    const struct {
        const char* host;
        std::uint16_t port;
    } seeds[] = {{"a", 6379}, {"10.0.0.7", 7001}, {"::1", 5}, {"2001:db8::7", 6379}};
    for (unsigned i = 0; i < 4; i++) {
        assert_string_equal(address.seeds[i].host.c_str(), seeds[i].host);
        assert_int_equal(address.seeds[i].port, seeds[i].port);
        assert_true(address.seeds[i].addresses.empty());
    }
    assert_string_equal(address.user.c_str(), "user");
    assert_string_equal(address.password.c_str(), "p@s,s");
    assert_true(address.primary.empty() && address.host.empty() && address.path.empty());
    assert_int_equal(address.database, 0);
    assert_false(address.tls);
    for (const char* text : {"redis+cluster://a", "redis+cluster://a/"}) {
        assert_int_equal(parsed(text).seeds.size(), 1);
    }
    for (const char* text :
         {"redis+cluster://", "redis+cluster:///", "redis+cluster://a,", "redis+cluster://,a",
          "redis+cluster://a,,b", "redis+cluster://:6379", "redis+cluster://u:p@"}) {
        assert_refused(text, "the host is missing");
    }
    for (const char* text : {"redis+cluster://a:0", "redis+cluster://a,b:65536", "redis+cluster://a:x,b",
                             "redis+cluster://a:,b"}) {
        assert_refused(text, "the port");
    }
    assert_refused("redis+cluster://::1", "brackets");
    assert_refused("redis+cluster://a,[::1", "bracket");
    assert_refused("redis+cluster://%zz@a", "%");
}

void test_a_cluster_has_no_databases(void**) {
    for (const char* text : {"redis+cluster://a/0", "redis+cluster://a/1", "redis+cluster://a,b/limits",
                             "redis+cluster://a//", "rediss+cluster://a/0"}) {
        assert_refused(text, "a cluster has no databases");
    }
}

void test_sentinels_and_clusters_may_have_tls(void**) {
    const Address cluster = parsed("rediss+cluster://:secret@a,b:7000");
    assert_true(cluster.tls);
    assert_int_equal(cluster.seeds.size(), 2);
    assert_int_equal(cluster.seeds[0].port, 6379);
    assert_string_equal(cluster.password.c_str(), "secret");
    assert_true(cluster.primary.empty());
    const Address sentinels = parsed("rediss+sentinel://u:p@a,b:5/limits/3");
    assert_true(sentinels.tls);
    assert_int_equal(sentinels.seeds.size(), 2);
    assert_int_equal(sentinels.seeds[0].port, 26379);
    assert_int_equal(sentinels.seeds[1].port, 5);
    assert_string_equal(sentinels.primary.c_str(), "limits");
    assert_int_equal(sentinels.database, 3);
    assert_false(parsed("redis+sentinel://a/limits").tls);
}

void test_one_server_has_no_seeds(void**) {
    for (const char* text : {"redis://a", "rediss://a:1/2", "unix:/a"}) {
        assert_true(parsed(text).seeds.empty() && parsed(text).primary.empty());
    }
    // A list of hosts is not a host.
    assert_refused("redis://a:1,b:2", "brackets");
    assert_refused("redis://a:1,b", "the port");
}

void test_schemes_that_are_almost_right_are_rejected(void**) {
    for (const char* text :
         {"redis+cluster", "redis+cluster:", "redis+cluster:/a", "redis+clusters://a", "redis+Cluster://a",
          "redis+sentinel+cluster://a", "redis+cluster+sentinel://a/b", "redis+://a", "rediss+://a",
          "redis+tls://a", "redissentinel://a/b", "rediscluster://a", "redisss+cluster://a",
          "unix+cluster://a", "cluster://a", "+cluster://a", "redis+cluster //a"}) {
        assert_refused(text, "redis+cluster://");
    }
}

void test_the_accepted_forms_are_listed(void**) {
    const std::string_view accepted = kAddressAccepted;
    for (const char* form : {"redis://", "redis+sentinel://", "redis+cluster://", "rediss", "unix:"}) {
        assert_true(accepted.find(form) != std::string_view::npos);
    }
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_host_alone_has_the_default_port_database_and_user),
        cmocka_unit_test(test_rediss_is_redis_with_tls),
        cmocka_unit_test(test_a_url_with_all_parts_is_parsed),
        cmocka_unit_test(test_a_password_needs_no_user),
        cmocka_unit_test(test_a_user_needs_no_password),
        cmocka_unit_test(test_credentials_may_be_empty),
        cmocka_unit_test(test_a_password_may_have_colons_slashes_brackets_and_at_signs),
        cmocka_unit_test(test_percent_encoded_bytes_are_decoded_in_user_and_password),
        cmocka_unit_test(test_a_percent_sign_without_two_digits_is_rejected),
        cmocka_unit_test(test_an_ipv6_address_requires_brackets),
        cmocka_unit_test(test_ports_are_1_to_65535),
        cmocka_unit_test(test_databases_are_numbers),
        cmocka_unit_test(test_a_host_is_required),
        cmocka_unit_test(test_a_host_is_an_address_or_a_valid_name),
        cmocka_unit_test(test_a_unix_socket_is_an_absolute_path),
        cmocka_unit_test(test_other_schemes_are_rejected),
        cmocka_unit_test(test_sentinels_and_the_name_of_their_primary),
        cmocka_unit_test(test_the_nodes_of_a_cluster),
        cmocka_unit_test(test_a_cluster_has_no_databases),
        cmocka_unit_test(test_sentinels_and_clusters_may_have_tls),
        cmocka_unit_test(test_one_server_has_no_seeds),
        cmocka_unit_test(test_schemes_that_are_almost_right_are_rejected),
        cmocka_unit_test(test_the_accepted_forms_are_listed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
