// Keys, and the short form of long client names.
#include "protocol/key_writer.h"

#include <string>

#include "core/client_name.h"
#include "redis/router.h"
#include "test.h"

namespace rate_limit {
namespace {

std::string shortened(const std::string& name) {
    NameRoom room;
    return std::string(short_name(name, &room));
}

void test_a_short_name_stands_for_itself(void**) {
    NameRoom room;
    for (const std::string& name :
         {std::string(), std::string("ip:192.0.2.7"), std::string(128, 'x'), std::string("\0\n{}", 4),
          std::string("sha256"), std::string("{}"), std::string("a}")}) {
        const std::string_view same = short_name(name, &room);
        assert_ptr_equal(same.data(), name.data());
        assert_int_equal(same.size(), name.size());
    }
}

void test_a_long_name_becomes_its_digest(void**) {
    assert_string_equal(shortened(std::string(129, 'a')).c_str(),
                        "sha256:c12cb024a2e5551cca0e08fce8f1c5e314555cc3fef6329ee994a3db752166ae");
    assert_true(shortened(std::string(129, 'b')) != shortened(std::string(129, 'a')));
    assert_true(shortened(std::string(1 << 16, 'a')).size() == NameRoom::kSize);
}

void test_a_name_that_looks_like_a_digest_is_not_taken_for_one(void**) {
    const std::string digest = shortened(std::string(129, 'a'));
    const std::string other = shortened(digest);
    assert_true(other != digest);
    assert_int_equal(other.size(), digest.size());
    assert_true(shortened("sha256:") != "sha256:");
}

// The hash tag, which is the text in the first braces if not empty, puts all keys of a client into one slot.
void test_every_name_leaves_its_key_a_tag(void**) {
    for (const std::string& name :
         {std::string("}"), std::string("}x"), std::string("}{}"), std::string("\x7d\x01\x02\x03")}) {
        assert_int_equal(shortened(name).substr(0, 7).compare("sha256:"), 0);
        assert_true(shortened(name) != shortened(name + "}"));
    }
    for (const std::string_view name : {"}", "}x", "{", "a}b", "alice", "{}"}) {
        NameRoom room;
        const std::string_view client = short_name(name, &room);
        redis::Buffer keys[2];
        append_key_text("p:", "one", Algorithm::kGcra, client, &keys[0]);
        append_key_text("p:", "another", Algorithm::kSlidingLog, client, &keys[1]);
        assert_int_equal(redis::hash_slot_of(keys[0].view()), redis::hash_slot_of(keys[1].view()));
    }
}

void test_operators_see_a_name_or_its_digest_and_can_tell_them_apart(void**) {
    NameRoom room;
    const std::string digest(short_name(std::string(200, 'x'), &room));
    assert_true(is_digest(digest));
    assert_string_equal(std::string(shown_name(std::string(200, 'x'), &room)).c_str(), digest.c_str());
    for (const std::string& name : {std::string("alice"), std::string(), std::string("}"),
                                    std::string("sha256:abc"), std::string(128, 's'), digest.substr(1),
                                    digest.substr(0, 70), digest.substr(0, 70) + "G", digest + "0"}) {
        assert_false(is_digest(name));
        assert_string_equal(std::string(shown_name(name, &room)).c_str(), name.c_str());
    }
    // A name that looks like a digest differs from the name that has this digest.
    const std::string other(shown_name(digest, &room));
    assert_true(is_digest(other));
    assert_string_not_equal(other.c_str(), digest.c_str());
    assert_string_equal(std::string(short_name(digest, true, &room)).c_str(), digest.c_str());
    assert_string_equal(std::string(short_name(digest, false, &room)).c_str(), other.c_str());
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_short_name_stands_for_itself),
        cmocka_unit_test(test_operators_see_a_name_or_its_digest_and_can_tell_them_apart),
        cmocka_unit_test(test_a_long_name_becomes_its_digest),
        cmocka_unit_test(test_a_name_that_looks_like_a_digest_is_not_taken_for_one),
        cmocka_unit_test(test_every_name_leaves_its_key_a_tag),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
