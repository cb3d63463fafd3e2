// Names of clients by address and network.
#include "identity/address.h"

#include <arpa/inet.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "test.h"

namespace rate_limit::identity {
namespace {

using Bytes = std::vector<unsigned char>;

// Of an address in usual notation.
Bytes bytes_of(const std::string& text) {
    Bytes bytes(text.find(':') != std::string::npos ? 16 : 4);
    assert_int_equal(inet_pton(bytes.size() == 16 ? AF_INET6 : AF_INET, text.c_str(), bytes.data()), 1);
    return bytes;
}

// Between two guards, which must stay as they are.
std::string printed(const Bytes& bytes, Prefixes prefixes = {}) {
    struct {
        char before[16];
        char name[kLongestAddress];
        char after[16];
    } memory;
    std::memset(&memory, 0x5a, sizeof(memory));
    const std::size_t size = print_address(bytes.data(), bytes.size(), prefixes, memory.name);
    assert_true(size <= sizeof(memory.name));
    for (std::size_t i = 0; i < sizeof(memory.before); i++) {
        assert_int_equal(memory.before[i], 0x5a);
        assert_int_equal(memory.after[i], 0x5a);
    }
    return {memory.name, size};
}

void assert_name(const char* address, Prefixes prefixes, const char* name) {
    const std::string given = printed(bytes_of(address), prefixes);
    if (given != name) {
        fail_msg("%s is %s, not %s", address, given.c_str(), name);
    }
}

void test_an_ipv4_address_is_whole(void**) {
    assert_name("192.0.2.7", {}, "ip:192.0.2.7");
    assert_name("0.0.0.0", {}, "ip:0.0.0.0");
    assert_name("255.255.255.255", {}, "ip:255.255.255.255");
}

void test_an_ipv6_address_is_its_64_bit_network(void**) {
    assert_name("2001:db8:0:1:2:3:4:5", {}, "ip:2001:db8:0:1::/64");
    assert_name("2001:db8:0:1::", {}, "ip:2001:db8:0:1::/64");
    assert_name("2001:db8:0:1:ffff:ffff:ffff:ffff", {}, "ip:2001:db8:0:1::/64");
    assert_name("2001:db8::", {}, "ip:2001:db8::/64");
    assert_name("::1", {}, "ip:::/64");
    assert_name("fe80::1", {}, "ip:fe80::/64");
}

void test_a_mapped_ipv4_address_is_the_ipv4_address(void**) {
    assert_name("::ffff:192.0.2.7", {}, "ip:192.0.2.7");
    assert_name("::ffff:192.0.2.7", {24, 48}, "ip:192.0.2.0/24");
    assert_name("::ffff:0.0.0.0", {32, 128}, "ip:0.0.0.0");
    assert_name("::ffff:255.255.255.255", {1, 1}, "ip:128.0.0.0/1");
}

void test_what_only_resembles_a_mapped_address_is_ipv6(void**) {
    assert_name("::fffe:c000:207", {32, 128}, "ip:::fffe:c000:207");
    assert_name("::feff:c000:207", {32, 128}, "ip:::feff:c000:207");
    assert_name("1::ffff:c000:207", {32, 128}, "ip:1::ffff:c000:207");
    assert_name("0:0:0:0:1:ffff:c000:207", {32, 128}, "ip:::1:ffff:c000:207");
    assert_name("0:0:0:0:100:ffff:c000:207", {32, 128}, "ip:::100:ffff:c000:207");
    assert_name("::ffff:0:c000:207", {32, 128}, "ip:::ffff:0:c000:207");
    assert_name("64:ff9b::c000:207", {32, 128}, "ip:64:ff9b::c000:207");
}

void test_prefix_lengths_name_networks(void**) {
    assert_name("192.0.2.7", {24, 48}, "ip:192.0.2.0/24");
    assert_name("2001:db8::1", {24, 48}, "ip:2001:db8::/48");
    assert_name("255.255.255.255", {1, 64}, "ip:128.0.0.0/1");
    assert_name("255.255.255.255", {31, 64}, "ip:255.255.255.254/31");
    assert_name("255.255.255.255", {9, 64}, "ip:255.128.0.0/9");
    assert_name("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", {32, 1}, "ip:8000::/1");
    assert_name("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", {32, 65}, "ip:ffff:ffff:ffff:ffff:8000::/65");
}

void test_a_full_length_has_no_suffix(void**) {
    assert_name("192.0.2.7", {32, 128}, "ip:192.0.2.7");
    assert_name("2001:db8::1", {32, 128}, "ip:2001:db8::1");
    assert_name("2001:db8::1", {32, 127}, "ip:2001:db8::/127");
    assert_name("192.0.2.7", {31, 128}, "ip:192.0.2.6/31");
}

void test_ipv6_is_written_as_rfc_5952_says(void**) {
    const struct {
        const char *address, *name;
    } cases[] = {
        {"2001:0db8:0000:0000:0001:0000:0000:0001", "ip:2001:db8::1:0:0:1"},
        {"2001:db8:0:1:1:1:1:1", "ip:2001:db8:0:1:1:1:1:1"},
        {"2001:0:0:1:0:0:0:1", "ip:2001:0:0:1::1"},
        {"2001:DB8::ABCD", "ip:2001:db8::abcd"},
        {"1:0:0:0:0:0:0:0", "ip:1::"},
        {"1:2:3:4:5:6:7:0", "ip:1:2:3:4:5:6:7:0"},
        {"1:2:3:4:5:6:0:0", "ip:1:2:3:4:5:6::"},
        {"0:2:3:4:5:6:7:8", "ip:0:2:3:4:5:6:7:8"},
        {"0:0:3:4:5:6:7:8", "ip:::3:4:5:6:7:8"},
        {"1:0:0:4:5:0:0:8", "ip:1::4:5:0:0:8"},
        {"::", "ip:::"},
        {"::1", "ip:::1"},
    };
    for (const auto& each : cases) {
        assert_name(each.address, {32, 128}, each.name);
    }
}

void test_the_longest_name_fits(void**) {
    assert_name("255.255.255.255", {32, 64}, "ip:255.255.255.255");
    assert_name("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", {32, 128},
                "ip:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    assert_name("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", {32, 127},
                "ip:ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127");
}

// The text of bytes, between guards as above; empty if they are no address.
std::string plain(const std::string& bytes) {
    struct {
        char before[16];
        char text[kLongestPlain];
        char after[16];
    } memory;
    std::memset(&memory, 0x5a, sizeof(memory));
    const std::size_t size = print_plain_address(bytes, memory.text);
    assert_true(size < sizeof(memory.text));
    for (std::size_t i = 0; i < sizeof(memory.before); i++) {
        assert_int_equal(memory.before[i], 0x5a);
        assert_int_equal(memory.after[i], 0x5a);
    }
    return {memory.text, size};
}

std::string parsed(std::string_view text) {
    char bytes[16];
    return {bytes, parse_plain_address(text, bytes)};
}

void test_a_plain_address_is_read_as_it_was_written(void**) {
    for (const char* text :
         {"192.0.2.7", "0.0.0.0", "255.255.255.255", "125.1.2.3", "2001:db8::1", "::", "::1", "::ff",
          "::ffff:192.0.2.7", "fe80::1:2", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}) {
        const Bytes bytes = bytes_of(text);
        const std::string packed(bytes.begin(), bytes.end());
        assert_string_equal(plain(packed).c_str(), text);
        assert_true(parsed(text) == packed);
    }
}

void test_what_is_no_plain_address_is_refused(void**) {
    for (const char* text : {"", "user", "192.0.2", "192.0.2.256", "192.0.2.7 ", "192.0.2.7/32", "0x7f.1",
                             "1", "[::1]", "fe80::1%lo", ":::", "2001:db8::12345", "unix:"}) {
        assert_true(parsed(text).empty());
    }
    assert_true(parsed(std::string_view("192.0.2.7\0", 10)).empty());
    assert_true(parsed(std::string(1000, '1')).empty());
    for (const std::size_t size : {0, 1, 3, 5, 15, 17, 1000}) {
        assert_true(plain(std::string(size, 'x')).empty());
    }
}

// Another way to name an IPv6 address: groups as text, and the longest run of zeros found by trying each.
std::string rfc5952(const Bytes& bytes) {
    std::array<std::string, 8> groups;
    for (std::size_t i = 0; i < 8; i++) {
        char text[8];
        std::snprintf(text, sizeof(text), "%x", static_cast<unsigned>(bytes[2 * i] << 8 | bytes[2 * i + 1]));
        groups[i] = text;
    }
    const auto joined = [&](std::size_t from, std::size_t to) {
        std::string text;
        for (std::size_t i = from; i < to; i++) {
            text += (i == from ? "" : ":") + groups[i];
        }
        return text;
    };
    for (std::size_t length = 8; length >= 2; length--) {
        for (std::size_t start = 0; start + length <= 8; start++) {
            if (std::all_of(groups.begin() + start, groups.begin() + start + length,
                            [](const std::string& group) { return group == "0"; })) {
                return joined(0, start) + "::" + joined(start + length, 8);
            }
        }
    }
    return joined(0, 8);
}

// Bit by bit.
Bytes network(Bytes bytes, unsigned length) {
    for (unsigned bit = length; bit < bytes.size() * 8; bit++) {
        bytes[bit / 8] &= static_cast<unsigned char>(~(0x80U >> bit % 8));
    }
    return bytes;
}

bool is_mapped(const Bytes& bytes) {
    return bytes.size() == 16 && std::count(bytes.begin(), bytes.begin() + 10, 0) == 10 &&
           bytes[10] == 0xff && bytes[11] == 0xff;
}

std::string expected_name(Bytes bytes, const Prefixes& prefixes) {
    if (is_mapped(bytes)) {
        bytes.erase(bytes.begin(), bytes.begin() + 12);
    }
    const unsigned length = bytes.size() == 4 ? prefixes.v4 : prefixes.v6;
    const std::string suffix = length == bytes.size() * 8 ? "" : "/" + std::to_string(length);
    bytes = network(bytes, length);
    if (bytes.size() == 16) {
        return "ip:" + rfc5952(bytes) + suffix;
    }
    std::string text = "ip:";
    for (const unsigned char byte : bytes) {
        text += (text == "ip:" ? "" : ".") + std::to_string(byte);
    }
    return text + suffix;
}

// Zeros and ones in long runs, as addresses have them.
rc::Gen<Bytes> any_address(std::size_t size) {
    using Byte = unsigned char;
    const auto byte = rc::gen::weightedOneOf<Byte>(
        {{4, rc::gen::just(Byte{0})}, {1, rc::gen::just(Byte{0xff})}, {3, rc::gen::arbitrary<Byte>()}});
    return rc::gen::container<Bytes>(size, byte);
}

// The low 32 bits below 96 zeros: some write these with dots.
bool may_have_dots(const Bytes& bytes) {
    return bytes.size() == 16 && std::count(bytes.begin(), bytes.begin() + 12, 0) == 12;
}

void test_every_address_has_the_name_of_its_network_for_all_lengths(void**) {
    setenv("RC_PARAMS", "max_success=500", 0);
    const bool kept = rc::check("a name is that of the network", [] {
        const Bytes bytes = *any_address(*rc::gen::element<std::size_t>(4, 16));
        RC_PRE(!may_have_dots(bytes));
        for (unsigned length = 1; length <= bytes.size() * 8; length++) {
            const Prefixes prefixes = {static_cast<std::uint8_t>(length > 32 ? 32 : length),
                                       static_cast<std::uint8_t>(length)};
            RC_ASSERT(printed(bytes, prefixes) == expected_name(bytes, prefixes));
        }
    });
    assert_true(kept);
}

void test_a_name_reads_back_as_its_network(void**) {
    setenv("RC_PARAMS", "max_success=500", 0);
    const bool kept = rc::check("a name reads back", [] {
        Bytes bytes = *any_address(16);
        if (*rc::gen::arbitrary<bool>()) {
            std::fill(bytes.begin(), bytes.begin() + 12, 0);
        }
        RC_PRE(!is_mapped(bytes));
        const auto length = static_cast<std::uint8_t>(*rc::gen::inRange(1, 129));
        std::string name = printed(bytes, {32, length});
        RC_ASSERT(name.compare(0, 3, "ip:") == 0);
        name.erase(0, 3);
        Bytes read(16);
        RC_ASSERT(inet_pton(AF_INET6, name.substr(0, name.find('/')).c_str(), read.data()) == 1);
        RC_ASSERT(read == network(bytes, length));
        RC_ASSERT((name.find('/') == std::string::npos) == (length == 128));
    });
    assert_true(kept);
}

void test_every_plain_address_is_read_back(void**) {
    setenv("RC_PARAMS", "max_success=500", 0);
    const bool kept = rc::check("an address reads back", [] {
        const Bytes bytes = *any_address(*rc::gen::element<std::size_t>(4, 16));
        const std::string packed(bytes.begin(), bytes.end());
        RC_ASSERT(parsed(plain(packed)) == packed);
    });
    assert_true(kept);
}

void test_clients_of_one_network_share_a_name_and_others_do_not(void**) {
    setenv("RC_PARAMS", "max_success=500", 0);
    const bool kept = rc::check("one name for one network", [] {
        const Bytes bytes = *any_address(*rc::gen::element<std::size_t>(4, 16));
        RC_PRE(bytes.size() == 4 || bytes[0] != 0);
        const auto most = static_cast<unsigned>(bytes.size() * 8);
        const auto length = *rc::gen::inRange(1U, most + 1);
        const auto bit = *rc::gen::inRange(0U, most);
        RC_PRE(bytes.size() == 4 || bit >= 8);
        const Prefixes prefixes = {static_cast<std::uint8_t>(bytes.size() == 4 ? length : 32),
                                   static_cast<std::uint8_t>(length)};
        Bytes other = bytes;
        other[bit / 8] ^= static_cast<unsigned char>(0x80U >> bit % 8);
        RC_ASSERT((printed(bytes, prefixes) == printed(other, prefixes)) == (bit >= length));
    });
    assert_true(kept);
}

void test_prefix_lengths_are_read(void**) {
    Prefixes prefixes;
    assert_true(parse_prefixes("", &prefixes));
    assert_int_equal(prefixes.v4, 32);
    assert_int_equal(prefixes.v6, 64);
    for (unsigned v4 = 1; v4 <= 32; v4++) {
        for (unsigned v6 = 1; v6 <= 128; v6++) {
            Prefixes read;
            assert_true(parse_prefixes("/" + std::to_string(v4) + "," + std::to_string(v6), &read));
            assert_int_equal(read.v4, v4);
            assert_int_equal(read.v6, v6);
        }
    }
}

void test_other_prefix_lengths_are_refused(void**) {
    const std::string_view cases[] = {
        "/",
        "/24",
        "/24,",
        "/,48",
        "/,",
        "24,48",
        ",",
        "/0,64",
        "/33,64",
        "/24,0",
        "/24,129",
        "/24,48,",
        "/24,48 ",
        "/ 24,48",
        "/24, 48",
        "/24 ,48",
        "/+24,48",
        "/24,+48",
        "/-1,48",
        "/24,-1",
        "/256,48",
        "/288,48",
        "/24,320",
        "/24;48",
        "/24/48",
        "//24,48",
        "/0x8,48",
        "/2.4,48",
        "/a,b",
        "/24,48a",
        "/24,48/",
        "/4294967328,64",
        "/24,4294967360",
        "/18446744073709551648,64",
        "/24,48,56",
        " ",
        "x",
        ":",
        "/99999999999999999999,1",
    };
    for (const std::string_view text : cases) {
        Prefixes prefixes;
        if (parse_prefixes(text, &prefixes)) {
            fail_msg("%s is accepted", std::string(text).c_str());
        }
    }
    Prefixes prefixes;
    assert_false(parse_prefixes(std::string_view("/24,48\0", 7), &prefixes));
    assert_false(parse_prefixes(std::string_view("/24\0,48", 7), &prefixes));
}

void test_prefix_lengths_are_read_no_further_than_they_reach(void**) {
    Prefixes prefixes;
    assert_true(parse_prefixes(std::string_view("/24,48").substr(0, 5), &prefixes));
    assert_int_equal(prefixes.v6, 4);
    assert_false(parse_prefixes(std::string_view("/24,48").substr(0, 4), &prefixes));
}

}  // namespace
}  // namespace rate_limit::identity

int main() {
    using namespace rate_limit::identity;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_an_ipv4_address_is_whole),
        cmocka_unit_test(test_an_ipv6_address_is_its_64_bit_network),
        cmocka_unit_test(test_a_mapped_ipv4_address_is_the_ipv4_address),
        cmocka_unit_test(test_what_only_resembles_a_mapped_address_is_ipv6),
        cmocka_unit_test(test_prefix_lengths_name_networks),
        cmocka_unit_test(test_a_full_length_has_no_suffix),
        cmocka_unit_test(test_ipv6_is_written_as_rfc_5952_says),
        cmocka_unit_test(test_the_longest_name_fits),
        cmocka_unit_test(test_a_plain_address_is_read_as_it_was_written),
        cmocka_unit_test(test_every_plain_address_is_read_back),
        cmocka_unit_test(test_what_is_no_plain_address_is_refused),
        cmocka_unit_test(test_every_address_has_the_name_of_its_network_for_all_lengths),
        cmocka_unit_test(test_a_name_reads_back_as_its_network),
        cmocka_unit_test(test_clients_of_one_network_share_a_name_and_others_do_not),
        cmocka_unit_test(test_prefix_lengths_are_read),
        cmocka_unit_test(test_other_prefix_lengths_are_refused),
        cmocka_unit_test(test_prefix_lengths_are_read_no_further_than_they_reach),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
