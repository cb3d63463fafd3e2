// TLS to a real Redis: which certificates are trusted, which is sent, and the messages about failures.
#include "connection/tls.h"

#include "cluster/fake_cluster.h"
#include "redis/calls.h"
#include "redis/real_server.h"

namespace rate_limit::redis {
namespace {

// Certificates, created once by openssl.
struct Certificates {
    Certificates() {
        make_authority("ca");
        make_authority("other");
        make("server", "ca", "DNS:redis.test,DNS:*.wild.test,IP:127.0.0.1");
        make("client", "ca", "DNS:client.test");
        make("stranger", "other", "DNS:client.test");
        make("node", "ca", "DNS:redis.test");
        make("address", "ca", "IP:127.0.0.1");
    }

    static std::string file(const std::string& name) { return Folder::own().file(name); }

    static void run(const std::string& command) {
        assert_int_equal(std::system(("openssl " + command + " 2>>" + file("openssl.log")).c_str()), 0);
    }

    static void make_authority(const std::string& name) {
        run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" + name +
            " -keyout " + file(name + ".key") + " -out " + file(name + ".crt"));
    }

    static void make(const std::string& name, const std::string& authority, const std::string& names) {
        run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
            " -addext subjectAltName=" + names + " -keyout " + file(name + ".key") + " -out " +
            file(name + ".csr"));
        run("x509 -req -days 2 -copy_extensions copyall -in " + file(name + ".csr") + " -CA " +
            file(authority + ".crt") + " -CAkey " + file(authority + ".key") + " -CAcreateserial -out " +
            file(name + ".crt"));
    }

    static const Certificates& made() {
        static const Certificates certificates;
        return certificates;
    }
};

struct TlsServer {
    std::uint16_t port = free_port();
    RealServer server;

    explicit TlsServer(const char* clients = "no")
        : server({"--tls-port", std::to_string(port), "--bind", "127.0.0.1", "--tls-cert-file",
                  Certificates::made().file("server.crt"), "--tls-key-file", Certificates::file("server.key"),
                  "--tls-ca-cert-file", Certificates::file("ca.crt"), "--tls-auth-clients", clients}) {}
};

// The settings of a client, which own the TLS context.
struct TlsSettings : Settings {
    TlsSettings(const TlsServer& server, const TlsFiles& files, const std::string& name)
        : Settings(settings_for("", 3000)) {
        address.host = "127.0.0.1";
        address.port = server.port;
        address.tls = true;
        server_name = name;
        std::string wrong;
        tls = make_tls(files, &wrong);
        assert_string_equal(wrong.c_str(), "");
        assert_non_null(tls);
    }
    TlsSettings(const TlsSettings&) = delete;
    TlsSettings& operator=(const TlsSettings&) = delete;
    ~TlsSettings() { free_tls(tls); }
};

TlsFiles believing(const std::string& authority) {
    TlsFiles files;
    files.ca = Certificates::made().file(authority + ".crt");
    return files;
}

TlsFiles showing(const std::string& certificate) {
    TlsFiles files = believing("ca");
    files.certificate = Certificates::file(certificate + ".crt");
    files.key = Certificates::file(certificate + ".key");
    return files;
}

Error ask_once(const TlsSettings& settings, TestLoop* loop) {
    Calls calls(settings, loop, {"127.0.0.1"});
    const Asked& asked = calls.ask_echo("x");
    assert_int_equal(calls->available(), asked.error == Error::kNone);
    return asked.error;
}

void test_a_server_with_the_right_name_is_trusted(void**) {
    const TlsServer server;
    for (const char* name : {"redis.test", "a.wild.test", "127.0.0.1"}) {
        TestLoop loop;
        assert_int_equal(ask_once(TlsSettings(server, believing("ca"), name), &loop), Error::kNone);
        assert_int_equal(loop.lines.size(), 0);
    }
}

void test_a_server_with_another_name_is_rejected(void**) {
    const TlsServer server;
    for (const char* name :
         {"other.test", "test", "a.redis.test", "wild.test", "a.b.wild.test", "127.0.0.2", "::1"}) {
        TestLoop loop;
        assert_int_equal(ask_once(TlsSettings(server, believing("ca"), name), &loop), Error::kTls);
        assert_int_equal(loop.said("mismatch"), 1);
    }
}

void test_without_a_name_only_the_authority_is_verified(void**) {
    const TlsServer server;
    TestLoop loop;
    assert_int_equal(ask_once(TlsSettings(server, believing("ca"), ""), &loop), Error::kNone);
    assert_int_equal(ask_once(TlsSettings(server, believing("other"), ""), &loop), Error::kTls);
}

void test_an_impossible_name_is_rejected(void**) {
    const TlsServer server;
    TestLoop loop;
    assert_int_equal(ask_once(TlsSettings(server, believing("ca"), "fe80::1%lo"), &loop), Error::kTls);
}

void test_an_unknown_authority_is_rejected(void**) {
    const TlsServer server;
    TlsFiles system;
    for (const TlsFiles& files : {believing("other"), system}) {
        TestLoop loop;
        assert_int_equal(ask_once(TlsSettings(server, files, "redis.test"), &loop), Error::kTls);
        assert_int_equal(loop.said(": tls ("), 1);
        if (loop.said("issuer certificate") + loop.said("self-signed") +
                loop.said("verify the first certificate") ==
            0) {
            fail_msg("it says \"%s\"", loop.lines[0].text.c_str());
        }
    }
}

void test_without_verification_any_server_is_trusted(void**) {
    const TlsServer server;
    TlsFiles files = believing("other");
    files.verify = false;
    TestLoop loop;
    assert_int_equal(ask_once(TlsSettings(server, files, "other.test"), &loop), Error::kNone);
}

void test_a_client_certificate_is_sent(void**) {
    const TlsServer server("yes");
    TestLoop loop;
    assert_int_equal(ask_once(TlsSettings(server, showing("client"), "redis.test"), &loop), Error::kNone);
    assert_int_equal(ask_once(TlsSettings(server, showing("stranger"), "redis.test"), &loop), Error::kTls);
    assert_int_equal(ask_once(TlsSettings(server, believing("ca"), "redis.test"), &loop), Error::kTls);
}

void test_without_verification_the_error_is_not_the_certificate(void**) {
    const TlsServer server("yes");
    TlsFiles files = believing("other");
    files.verify = false;
    TestLoop loop;
    assert_int_equal(ask_once(TlsSettings(server, files, "other.test"), &loop), Error::kTls);
    if (loop.said("certificate") != 0 && loop.said("certificate required") == 0) {
        fail_msg("it says \"%s\"", loop.lines[0].text.c_str());
    }
}

void test_unusable_files_are_named(void**) {
    Certificates::made();
    const std::string nowhere = Certificates::file("nowhere");
    const struct {
        std::string ca, certificate, key, word;
    } cases[] = {
        {nowhere, "", "", "ca="},
        {Certificates::file("ca.key"), "", "", "ca="},
        {"", nowhere, Certificates::file("client.key"), "cert="},
        {"", Certificates::file("client.key"), Certificates::file("client.key"), "cert="},
        {"", Certificates::file("client.crt"), nowhere, "key="},
        {"", Certificates::file("client.crt"), Certificates::file("client.crt"), "key="},
        {"", Certificates::file("client.crt"), Certificates::file("server.key"), "key="},
    };
    for (const auto& each : cases) {
        TlsFiles files;
        files.ca = each.ca;
        files.certificate = each.certificate;
        files.key = each.key;
        std::string wrong;
        assert_null(make_tls(files, &wrong));
        assert_true(wrong.find(each.word) != std::string::npos);
        const bool missing = each.ca == nowhere || each.certificate == nowhere || each.key == nowhere;
        assert_int_equal(wrong.find("No such file or directory") != std::string::npos, missing);
        assert_true(wrong.find(each.word == "ca="    ? each.ca
                               : each.word == "key=" ? each.key
                                                     : each.certificate) != std::string::npos);
    }
}

void test_a_server_without_tls_is_recognized(void**) {
    TestLoop loop;
    FakeServer plain(&loop);
    const TlsServer server;
    TlsSettings settings(server, believing("ca"), "redis.test");
    settings.address.path = plain.path();
    Calls calls(settings, &loop);
    calls.echo("x");
    assert_true(loop.run_until([&] { return plain.received > 0; }));
    plain.say("-ERR Protocol error: unbalanced quotes in request\r\n");
    assert_true(calls.await());
    assert_int_equal(calls.all()[0].error, Error::kTls);
    assert_int_equal(loop.said(": tls (the answer is not TLS: this port requires redis://)"), 1);
}

void test_a_silent_server_does_not_block_the_loop(void**) {
    TestLoop loop;
    FakeServer silent(&loop);
    silent.answers = false;
    const TlsServer server;
    TlsSettings settings(server, believing("ca"), "redis.test");
    settings.address.path = silent.path();
    settings.timeout = 50;
    settings.connect_timeout = 100;
    Calls calls(settings, &loop);
    assert_int_equal(calls.ask_echo("x").error, Error::kTimedOut);
    assert_false(calls->available());
    assert_int_equal(
        loop.said(": timeout (the TLS handshake was not answered: does this port require redis://?)"), 1);
    assert_true(loop.run_until([&] { return silent.accepted == 3; }));
}

void test_a_server_that_requires_tls_rejects_a_client_without(void**) {
    TestLoop loop;
    const TlsServer server;
    Settings settings = settings_for("", 1000);
    settings.address.host = "127.0.0.1";
    settings.address.port = server.port;
    Calls calls(settings, &loop, {"127.0.0.1"});
    assert_int_not_equal(calls.ask_echo("x").error, Error::kNone);
    assert_false(calls->available());
    assert_int_equal(loop.said("rediss://"), 1);
}

void test_large_calls_and_replies_are_complete(void**) {
    TestLoop loop;
    const TlsServer server;
    TlsSettings settings(server, believing("ca"), "redis.test");
    settings.timeout = 20'000;
    Calls calls(settings, &loop, {"127.0.0.1"});
    calls.ask_echo("warm");
    server.server.signal(SIGSTOP);
    std::vector<std::string> texts;
    for (unsigned i = 0; i < 60; i++) {
        texts.emplace_back(i % 2 == 0 ? 300'000 + i : 10 + i, static_cast<char>('A' + i));
        calls.echo(texts.back());
        loop.turn();
    }
    server.server.signal(SIGCONT);
    assert_true(calls.await(20'000));
    for (unsigned i = 0; i < 60; i++) {
        assert_true(calls.all()[1 + i].reply == texts[i]);
    }
    assert_int_equal(loop.lines.size(), 0);
}

void test_a_loss_after_the_handshake_is_closed_and_not_a_tls_error(void**) {
    TestLoop loop;
    const TlsServer server;
    TlsSettings settings(server, believing("ca"), "redis.test");
    Calls calls(settings, &loop, {"127.0.0.1"});
    calls.ask_echo("warm");
    server.server.command({"CLIENT", "KILL", "TYPE", "normal"});
    assert_true(loop.run_until([&] { return loop.attached == 0; }));
    assert_true(calls->available());
    assert_int_equal(loop.lines.size(), 0);
    assert_int_equal(calls.ask_echo("again").error, Error::kNone);
}

// A node with all slots that accepts only TLS.
struct TlsNode {
    explicit TlsNode(const std::string& certificate, const Words& more = {})
        : server(with({"--tls-port", std::to_string(port), "--cluster-enabled", "yes", "--cluster-port",
                       std::to_string(free_port()), "--tls-cert-file",
                       Certificates::made().file(certificate + ".crt"), "--tls-key-file",
                       Certificates::file(certificate + ".key"), "--tls-ca-cert-file",
                       Certificates::file("ca.crt"), "--tls-auth-clients", "no", "--tls-cluster", "yes"},
                      more)) {
        server.command({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"});
        for (unsigned i = 0; i < 1000 && !up(); i++) {
            usleep(10'000);
        }
    }

    static Words with(Words options, const Words& more) {
        options.insert(options.end(), more.begin(), more.end());
        return options;
    }

    bool up() const {
        return server.command({"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos;
    }

    std::uint16_t port = free_port();
    RealServer server;
};

Error ask_node(const TlsNode& node, const std::string& seed, const std::string& name, TestLoop* loop) {
    Settings settings = cluster_settings(3000);
    settings.connect_timeout = 3000;
    settings.address.tls = true;
    settings.server_name = name;
    std::string wrong;
    settings.tls = make_tls(believing("ca"), &wrong);
    Error error = Error::kNone;
    {
        TestCluster cluster(loop, {{seed, node.port, {"127.0.0.1"}}}, settings);
        error = cluster.ask(1).error;
    }
    free_tls(settings.tls);
    return error;
}

// The node does not know its address, so the map has the address and name of the seed.
void test_a_node_without_an_address_has_the_name_of_the_seed(void**) {
    const TlsNode named("node");
    TestLoop loop;
    assert_int_equal(ask_node(named, "redis.test", "", &loop), Error::kNone);
    assert_int_equal(loop.lines.size(), 0);
    assert_int_equal(ask_node(named, "127.0.0.1", "", &loop), Error::kTls);
    assert_int_equal(loop.said("no node returned the slot map: IP address mismatch"), 1);
    assert_int_equal(ask_node(named, "127.0.0.1", "redis.test", &loop), Error::kNone);
}

void test_the_certificate_of_a_node_has_its_host_in_the_map(void**) {
    const TlsNode node("address", {"--cluster-announce-ip", "127.0.0.1"});
    TestLoop loop;
    assert_int_equal(ask_node(node, "127.0.0.1", "", &loop), Error::kNone);
    assert_int_equal(loop.lines.size(), 0);
    const TlsNode other("node", {"--cluster-announce-ip", "127.0.0.1"});
    assert_int_equal(ask_node(other, "redis.test", "", &loop), Error::kTls);
    assert_int_equal(loop.said("tls (IP address mismatch"), 1);
    assert_int_equal(ask_node(other, "redis.test", "redis.test", &loop), Error::kNone);
}

}  // namespace
}  // namespace rate_limit::redis

int main() {
    using namespace rate_limit::redis;
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_server_with_the_right_name_is_trusted),
        cmocka_unit_test(test_a_server_with_another_name_is_rejected),
        cmocka_unit_test(test_without_a_name_only_the_authority_is_verified),
        cmocka_unit_test(test_an_impossible_name_is_rejected),
        cmocka_unit_test(test_an_unknown_authority_is_rejected),
        cmocka_unit_test(test_without_verification_any_server_is_trusted),
        cmocka_unit_test(test_a_client_certificate_is_sent),
        cmocka_unit_test(test_without_verification_the_error_is_not_the_certificate),
        cmocka_unit_test(test_unusable_files_are_named),
        cmocka_unit_test(test_a_server_without_tls_is_recognized),
        cmocka_unit_test(test_a_silent_server_does_not_block_the_loop),
        cmocka_unit_test(test_a_server_that_requires_tls_rejects_a_client_without),
        cmocka_unit_test(test_large_calls_and_replies_are_complete),
        cmocka_unit_test(test_a_loss_after_the_handshake_is_closed_and_not_a_tls_error),
        cmocka_unit_test(test_a_node_without_an_address_has_the_name_of_the_seed),
        cmocka_unit_test(test_the_certificate_of_a_node_has_its_host_in_the_map),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
