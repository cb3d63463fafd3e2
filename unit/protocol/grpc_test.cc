// gRPC: which content types are gRPC, and the bytes of a google.rpc.Status.
#include "protocol/grpc.h"

#include <rapidcheck.h>

#include <string>
#include <vector>

#include "test.h"

namespace rate_limit {
namespace {

void assert_type(std::string_view content_type, std::string_view expected) {
    assert_string_equal(std::string(grpc_media_type(content_type)).c_str(), std::string(expected).c_str());
}

void test_types_of_grpc_are_echoed(void**) {
    for (const char* base : {"application/grpc", "application/grpc-web", "application/grpc-web-text"}) {
        const std::string type = base;
        assert_type(type, type);
        assert_type(type + "+proto", type + "+proto");
        assert_type(type + "+x.v1-a_b+c", type + "+x.v1-a_b+c");
        assert_type(type + ";charset=utf-8", type);
        assert_type(type + "+json ; a=b", type + "+json");
        assert_type(type + "\t", type);
    }
    assert_type("Application/GRPC+Proto", "Application/GRPC+Proto");
}

void test_a_suffix_that_is_no_token_is_left_out(void**) {
    assert_type("application/grpc+", "application/grpc");
    assert_type("application/grpc+a<b>", "application/grpc");
    assert_type("application/grpc+a\"b", "application/grpc");
    assert_type("application/grpc-web+a,b", "application/grpc-web");
    assert_type("application/grpc+\xc3\xa9", "application/grpc");
}

void test_other_types_are_not_grpc(void**) {
    for (const char* type : {"", "application/", "application/grp", "application/grpcx", "application/grpc-",
                             "application/grpc-webby", "application/grpc-web-textual", "application/grpc/x",
                             "application/json", "text/application/grpc", " application/grpc", "+proto"}) {
        assert_type(type, "");
    }
}

// The room has exactly the size that the contract requires.
std::string retry_status(unsigned code, std::string_view message, Micros retry_after) {
    std::vector<char> room(message.size() + kLongestRetryStatus + 1, 0x5a);
    const char* end = write_retry_status(code, message, retry_after, room.data());
    assert_int_equal(room.back(), 0x5a);
    return {room.data(), static_cast<std::size_t>(end - room.data())};
}

void test_the_bytes_of_a_status(void**) {
    const std::string type = "type.googleapis.com/google.rpc.RetryInfo";
    assert_int_equal(type.size(), 0x28);
    // 41.204 seconds: 41 seconds and 204,000,000 = 0x61 a3 23 80 in groups of seven bits, nanoseconds.
    const std::string duration = "\x08\x29\x10\x80\x96\xa3\x61";
    const std::string expected = "\x08\x08\x12\x02no\x1a\x35\x0a\x28" + type + "\x12\x09\x0a\x07" + duration;
    assert_true(retry_status(8, "no", 41'204'000) == expected);
}

void test_fields_that_are_zero_are_left_out(void**) {
    const std::string whole = retry_status(14, "", 2'000'000);
    assert_true(whole.substr(whole.size() - 6) == std::string("\x12\x04\x0a\x02\x08\x02"));
    const std::string least = retry_status(14, "", 1);
    assert_true(least.substr(least.size() - 7) == std::string("\x12\x05\x0a\x03\x10\xe8\x07"));
}

// A message in protobuf's encoding: its fields, each a number or bytes.
struct Field {
    std::uint64_t number;
    std::uint64_t varint;
    std::string bytes;
};

std::uint64_t take_varint(std::string_view* rest) {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        RC_ASSERT(!rest->empty());
        const auto byte = static_cast<unsigned char>(rest->front());
        rest->remove_prefix(1);
        value |= std::uint64_t{byte & 0x7fU} << shift;
        if (byte < 0x80) {
            return value;
        }
    }
}

std::vector<Field> fields_of(std::string_view message) {
    std::vector<Field> fields;
    while (!message.empty()) {
        const std::uint64_t tag = take_varint(&message);
        Field field = {tag >> 3, take_varint(&message), ""};
        if ((tag & 7) == 2) {
            RC_ASSERT(field.varint <= message.size());
            field.bytes = message.substr(0, field.varint);
            message.remove_prefix(field.varint);
        }
        fields.push_back(field);
    }
    return fields;
}

void test_any_status_is_read_back(void**) {
    const bool ok = rc::check([] {
        const auto code = *rc::gen::inRange(1U, 17U);
        const std::string message(*rc::gen::inRange<std::size_t>(0, 20'000), 'x');
        const auto wait = *rc::gen::inRange<Micros>(1, Micros{1} << 56);
        const auto status = fields_of(retry_status(code, message, wait));
        RC_ASSERT(status.size() == 3U);
        RC_ASSERT(status[0].number == 1U && status[0].varint == code);
        RC_ASSERT(status[1].number == 2U && status[1].bytes == message);
        const auto any = fields_of(status[2].bytes);
        RC_ASSERT(status[2].number == 3U && any.size() == 2U && any[1].number == 2U);
        const auto info = fields_of(any[1].bytes);
        RC_ASSERT(info.size() == 1U && info[0].number == 1U);
        std::uint64_t microseconds = 0;
        for (const Field& field : fields_of(info[0].bytes)) {
            microseconds += field.number == 1 ? field.varint * 1'000'000 : field.varint / 1000;
        }
        RC_ASSERT(microseconds == static_cast<std::uint64_t>(wait));
    });
    assert_true(ok);
}

}  // namespace
}  // namespace rate_limit

int main() {
    using namespace rate_limit;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_types_of_grpc_are_echoed),
        cmocka_unit_test(test_a_suffix_that_is_no_token_is_left_out),
        cmocka_unit_test(test_other_types_are_not_grpc),
        cmocka_unit_test(test_the_bytes_of_a_status),
        cmocka_unit_test(test_fields_that_are_zero_are_left_out),
        cmocka_unit_test(test_any_status_is_read_back),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
