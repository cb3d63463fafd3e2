// Numbers in streams of events: lines and fields of the standard, pieces of any size, the last event.
#include "body/event_reader.h"

#include "documents.h"
#include "test.h"

namespace rate_limit::body {
namespace {

void assert_read(std::string_view stream, std::string_view expected, std::string_view path = "usage.total") {
    const Paths paths = paths_of({path});
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{17}, stream.size()}) {
        const Reading reading = read_pieces(paths, Format::kEvents, stream, {size});
        assert_string_equal(reading.numbers.c_str(), std::string(expected).c_str());
        assert_int_equal(static_cast<int>(reading.syntax), static_cast<int>(Syntax::kGood));
    }
}

void test_the_last_event_with_a_number_counts(void**) {
    assert_read("data: {\"usage\":{\"total\":5}}\n\n", "5");
    assert_read("data: {\"usage\":{\"total\":5}}\n\ndata: {\"usage\":{\"total\":7}}\n\n", "7");
    assert_read("data: {\"usage\":{\"total\":5}}\n\ndata: {\"usage\":null}\n\ndata: [DONE]\n\n", "5");
    assert_read("data: {\"x\":1}\n\n", "-");
    assert_read("", "-");
}

void test_line_ends_of_every_kind(void**) {
    for (const std::string end : {"\n", "\r\n", "\r"}) {
        const std::string event =
            "event: a" + end + "data: {\"usage\":{\"total\":5}}" + end + "id: 3" + end + end;
        assert_read(event, "5");
        assert_read("data: {\"a\":1}" + end + end + event + "data: [DONE]" + end + end, "5");
        assert_read("data: {\"usage\":" + end + "data: {\"total\":5}" + end + "data:}" + end + end, "5");
        assert_read(": comment" + end + end + event, "5");
    }
    assert_read("data: {\"usage\":{\"total\":5}}\r\n\n", "5");
    assert_read("data: {\"usage\":{\"total\":5}}\n\r\n", "5");
    assert_read("data: {\"usage\":{\"total\":5}}\n\r", "5");
    assert_read("data: {\"a\":1}\rdata: {\"usage\":1}\n\n", "-");
}

void test_fields(void**) {
    assert_read("data:{\"usage\":{\"total\":5}}\n\n", "5");
    assert_read("data:  {\"usage\":{\"total\":5}}\n\n", "5");
    assert_read(
        "\xEF\xBB\xBF"
        "data: {\"usage\":{\"total\":5}}\n\n",
        "5");
    assert_read(
        "\n\xEF\xBB\xBF"
        "data: {\"usage\":{\"total\":5}}\n\n",
        "-");
    assert_read("data\ndata: {\"usage\":{\"total\":5}}\n\n", "5");
    assert_read("data: {\"usage\":{\"total\":5}}\ndata\n\n", "5");
    for (const char* field : {"dat", "dataa", "Data", " data", ":data", "event", "dat a"}) {
        assert_read(std::string(field) + ": {\"usage\":{\"total\":5}}\n\n", "-");
    }
}

void test_events_that_are_not_json_are_ignored(void**) {
    const std::string good = "data: {\"usage\":{\"total\":5}}\n\n";
    for (const char* bad :
         {"data: [DONE]\n\n", "data: \"usage\" text\n\n", "data: {\"usage\":{\"total\":6}\n\n",
          "data: {\"usage\":{\"total\":6}}\ndata: x\n\n", "data\n\n", "data: {\"usage\":{\"total\":6}}}\n\n",
          "data: \\\n\n"}) {
        assert_read(bad, "-");
        assert_read(good + bad, "5");
        assert_read(bad + good, "5");
    }
}

void test_an_event_that_is_cut_off_is_ignored(void**) {
    assert_read("data: {\"usage\":{\"total\":5}}", "-");
    assert_read("data: {\"usage\":{\"total\":5}}\n", "-");
}

void test_escaped_names_are_found(void**) {
    assert_read("data: {\"\\u0075sage\":{\"t\\u006ftal\":5}}\n\n", "5");
}

void test_paths_of_indexes(void**) { assert_read("data: [1,[2,3]]\n\ndata: 4\n\n", "3", "1.1"); }

void test_each_path_has_its_last_event(void**) {
    const Paths paths = paths_of({"message.usage.input_tokens", "usage.output_tokens"});
    const std::string stream =
        "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n"
        "event: message_delta\ndata: {\"usage\":{\"output_tokens\":15}}\n\n"
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    for (const std::size_t size : {1, 10, 1000}) {
        assert_string_equal(read_pieces(paths, Format::kEvents, stream, {size}).numbers.c_str(), "25 15");
    }
}

// Pieces of any sizes give what the whole stream gives. A whole stream skips events; single bytes do not.
void test_pieces_do_not_matter(void**) {
    assert_true(rc::check("pieces are read like the whole", [] {
        const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
            "data: ", "data:", "data", "\n", "\r", "\r\n", "\n\n", "\r\n\r\n", "{\"a\":1}", "{\"a\":2}",
            "{\"b\":\"\\n\"}", "{\"a\":", "}", "[DONE]", ": x", "event: y\n", "id", "\xEF\xBB\xBF",
            "{\"text\":\"a \\\"a\\\" b\"}", "data: {\"a\":7}\n\n",
            "data: {\"content\":\"some longer text, that is skipped at once\"}\n\n"));
        std::string stream;
        for (const std::string& part : parts) {
            stream += part;
        }
        const auto sizes = *rc::gen::nonEmpty(
            rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(1, 60)));
        const Paths paths = paths_of({"a"});
        const Reading bytes = read_pieces(paths, Format::kEvents, stream, {1});
        RC_ASSERT(read_pieces(paths, Format::kEvents, stream, sizes) == bytes);
        RC_ASSERT(read_whole(paths, Format::kEvents, stream) == bytes);
    }));
}

void test_formats(void**) {
    const auto format = [](const char* type) { return static_cast<int>(format_of(type)); };
    for (const char* json :
         {"application/json", "Application/JSON", "application/json; charset=utf-8", " application/json ;x",
          "application/vnd.api+json", "application/problem+JSON"}) {
        assert_int_equal(format(json), static_cast<int>(Format::kJson));
    }
    for (const char* events : {"text/event-stream", "text/event-stream;charset=utf-8", "Text/Event-Stream"}) {
        assert_int_equal(format(events), static_cast<int>(Format::kEvents));
    }
    for (const char* other : {"", "text/html", "application/jsonp", "application/x-ndjson", "text/json",
                              "image/svg+json", "application/+json", "json"}) {
        assert_int_equal(format(other), static_cast<int>(Format::kOther));
    }
    assert_false(is_encoded(""));
    assert_false(is_encoded(" Identity "));
    for (const char* encoding : {"gzip", "br", "identity, gzip", "zstd"}) {
        assert_true(is_encoded(encoding));
    }
}

}  // namespace
}  // namespace rate_limit::body

int main() {
    using namespace rate_limit::body;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_event_with_a_number_counts),
        cmocka_unit_test(test_line_ends_of_every_kind),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_events_that_are_not_json_are_ignored),
        cmocka_unit_test(test_an_event_that_is_cut_off_is_ignored),
        cmocka_unit_test(test_escaped_names_are_found),
        cmocka_unit_test(test_paths_of_indexes),
        cmocka_unit_test(test_each_path_has_its_last_event),
        cmocka_unit_test(test_pieces_do_not_matter),
        cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
