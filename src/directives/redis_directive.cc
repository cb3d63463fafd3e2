// The directive rate_limit_redis.
#include "directives/redis_directive.h"

#include <algorithm>

#include "configuration/file.h"
#include "configuration/options.h"
#include "connection/command.h"
#include "connection/resolver.h"
#include "connection/tls.h"
#include "nginx/collections.h"
#include "nginx/shared_state.h"
#include "protocol/script_text.h"
#include "protocol/wire.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kMostBatch = 1024;
constexpr std::uint64_t kMostDatabase = 65535;
constexpr std::size_t kLongestPassword = 4096;
constexpr redis::Milliseconds kBackgroundTimeout = 1000;
constexpr std::size_t kReply = 1U << 20;  // bytes; the reply to the largest call, 1024 limits, has 32 KB
constexpr std::size_t kBackgroundReply =
    16U << 20;  // bytes; room for many thousand clients that were reset in a minute
constexpr char kRedisForm[] = "NAME URL [option=value ...]";

// A URL without "@" for the log, with "***" for a port that may be a password: redis://user:password lacks
// "@host".
std::string masked_port(std::string_view text) {
    constexpr std::size_t kNone = std::string_view::npos;
    const std::size_t start = text.find("//") + 2;
    if (start == kNone + 2) {
        return std::string(text);
    }
    const std::string_view authority = text.substr(start, text.find_first_of("/,", start) - start);
    const std::string_view host = authority.substr(0, authority.find(':'));
    const bool has_port = authority.find_first_not_of("0123456789", host.size() + 1) == kNone;
    if (host == authority || host == "localhost" || host.find_first_of(".[") != kNone ||
        (has_port && !host.empty())) {
        return std::string(text);
    }
    return std::string(text.substr(0, start + host.size() + 1)) + "***";
}

// A URL for the log, with "***" for what may be a password.
std::string masked(const ngx_str_t& url) {
    const std::string_view text = view(url);
    const std::size_t slashes = text.find("//");
    const std::size_t at = text.rfind('@');
    if (at == std::string_view::npos) {
        return masked_port(text);
    }
    const std::size_t start = slashes != std::string_view::npos && slashes < at ? slashes + 2 : 0;
    return std::string(text.substr(0, start)) + "***" + std::string(text.substr(at));
}

// A rate_limit_redis while it is being read.
struct RedisReader : DirectiveReader {
    RedisServer* server;
    redis::TlsFiles files = {};

    static std::string shown(const ngx_str_t& word);
    Parsed read_file_name(const OptionValue& value, std::string* name) const;
    Parsed read_password(const OptionValue& value, std::string* password) const;
    void warn_of_timeout() const;
    void find_hosts() const;
    char* finish(const ngx_str_t& url) const;
    char* make_tls() const;
    char* check(const redis::Address& address) const;
    char* check_tls(const redis::Address& address) const;
};

// Sets a text that must not be empty.
Parsed set_text(const OptionValue& value, std::string* text) {
    *text = view(value.text);
    return value.text.len != 0 ? Parsed::kOk : Parsed::kInvalid;
}

// Makes the name of a file absolute.
Parsed RedisReader::read_file_name(const OptionValue& value, std::string* name) const {
    ngx_str_t path = value.text;
    if (path.len == 0) {
        return Parsed::kInvalid;
    }
    if (ngx_conf_full_name(cf->cycle, &path, 1) != NGX_OK) {
        return Parsed::kRefused;
    }
    *name = view(path);
    return Parsed::kOk;
}

Parsed RedisReader::read_password(const OptionValue& value, std::string* password) const {
    constexpr char kAccepted[] = "a file with the password in its first line";
    if (value.text.len == 0) {
        return Parsed::kInvalid;
    }
    std::string content;
    ngx_file_info_t info;
    if (read_conf_file(cf, cmd, value.word, value.text, kLongestPassword, kAccepted, &content, &info) !=
        nullptr) {
        return Parsed::kRefused;
    }
    const std::string_view line = std::string_view(content).substr(0, content.find_first_of("\r\n"));
    if (line.empty()) {
        refuse(cf, cmd, "\"%V\" has no password, it must be %s", &value.word, kAccepted);
        return Parsed::kRefused;
    }
    if ((ngx_file_access(&info) & S_IROTH) != 0) {
        warn(cf, cmd, "every user may read the password in \"%V\"; give the file mode 600", &value.word);
    }
    *password = line;
    explicit_bzero(content.data(), content.size());
    return Parsed::kOk;
}

Parsed read_timeout(RedisReader* reader, const OptionValue& value) {
    return value.read_milliseconds(&reader->server->settings.timeout);
}

Parsed read_connect_timeout(RedisReader* reader, const OptionValue& value) {
    return value.read_milliseconds(&reader->server->settings.connect_timeout);
}

Parsed read_prefix(RedisReader* reader, const OptionValue& value) {
    const std::string_view text = view(value.text);
    const auto is_wrong = [](char c) { return c <= ' ' || c > '~' || c == '{' || c == '}'; };
    reader->server->options.prefix = text;
    return text.size() > value.most || std::any_of(text.begin(), text.end(), is_wrong) ? Parsed::kInvalid
                                                                                       : Parsed::kOk;
}

Parsed read_batch(RedisReader* reader, const OptionValue& value) {
    return value.read_number(&reader->server->options.batch);
}

Parsed read_native(RedisReader* reader, const OptionValue& value) {
    const std::string_view text = view(value.text);
    redis::Settings& settings = reader->server->settings;
    settings.native_probe = text == "off" ? std::string_view() : kNativeProbe;
    settings.native_expected = text == "on";
    return text == "auto" || text == "on" || text == "off" ? Parsed::kOk : Parsed::kInvalid;
}

Parsed read_user(RedisReader* reader, const OptionValue& value) {
    return set_text(value, &reader->server->settings.address.user);
}

Parsed read_database(RedisReader* reader, const OptionValue& value) {
    return value.read_number(&reader->server->settings.address.database);
}

Parsed read_password_file(RedisReader* reader, const OptionValue& value) {
    return reader->read_password(value, &reader->server->settings.address.password);
}

Parsed read_sentinel_user(RedisReader* reader, const OptionValue& value) {
    return set_text(value, &reader->server->sentinels.address.user);
}

Parsed read_sentinel_password_file(RedisReader* reader, const OptionValue& value) {
    return reader->read_password(value, &reader->server->sentinels.address.password);
}

Parsed read_ca(RedisReader* reader, const OptionValue& value) {
    return reader->read_file_name(value, &reader->files.ca);
}

Parsed read_certificate(RedisReader* reader, const OptionValue& value) {
    return reader->read_file_name(value, &reader->files.certificate);
}

Parsed read_key(RedisReader* reader, const OptionValue& value) {
    return reader->read_file_name(value, &reader->files.key);
}

Parsed read_server_name(RedisReader* reader, const OptionValue& value) {
    const Parsed parsed = set_text(value, &reader->server->settings.server_name);
    return value.text.len > value.most ? Parsed::kInvalid : parsed;
}

Parsed read_verify(RedisReader* reader, const OptionValue& value) {
    return value.read_switch(&reader->files.verify);
}

constexpr char kTime[] = "a time from 1ms to 1h";
constexpr char kFile[] = "the name of a file";

constexpr Option<RedisReader> kRedisOptions[] = {
    {"timeout", "TIME", "total time budget of a check", kTime, read_timeout, 1, kHourMilliseconds},
    {"connect_timeout", "TIME", "maximum time until a new connection is ready", kTime, read_connect_timeout,
     1, kHourMilliseconds},
    {"prefix", "TEXT", "prefix of every key in Redis", "up to 64 visible ASCII characters without braces",
     read_prefix, 0, 64},
    {"batch", "N", "maximum number of requests that one script call decides", kNumberAccepted, read_batch, 1,
     kMostBatch},
    {"native", "auto|on|off", "whether the native module of Redis decides, where it is loaded",
     "auto, on or off", read_native},
    {"user", "NAME", "the same as in the URL", "the name of a user", read_user},
    {"db", "N", "the same as in the URL", kNumberAccepted, read_database, 0, kMostDatabase},
    {"password_file", "FILE", "a file with the password in its first line", kFile, read_password_file},
    {"sentinel_user", "NAME", "the credentials for the Sentinels themselves", "the name of a user",
     read_sentinel_user},
    {"sentinel_password_file", "FILE", "the credentials for the Sentinels themselves", kFile,
     read_sentinel_password_file},
    {"ca", "FILE", "with TLS: the certificate authorities for the server's certificate", kFile, read_ca},
    {"cert", "FILE", "with TLS: the certificate and the key that nginx presents", kFile, read_certificate},
    {"key", "FILE", "with TLS: the certificate and the key that nginx presents", kFile, read_key},
    {"sni", "NAME", "with TLS: the name that the server's certificate must have",
     "the name in the server's certificate", read_server_name, 1, 253},
    {"verify", "on|off", "with TLS: whether the certificate is verified", "on or off", read_verify},
};

// Shows the name of what looks like an option, an option without its "=", and a URL. Any other word may be a
// password, and so may the value of an unknown option.
std::string RedisReader::shown(const ngx_str_t& word) {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
    const std::string_view name = option_name(word);
    const std::string_view value = view(word).substr(name.size());  // with its "="
    // Text in base 64 may end with one or two "=".
    if (value.size() > 1 && value != "==" && std::all_of(name.begin(), name.end(), is_letter)) {
        return "\"" + std::string(name) + "=\"";
    }
    const bool is_url = view(word).find("://") != std::string_view::npos;
    const auto has_name = [&](const Option<RedisReader>& option) { return option.name == name; };
    const bool is_option =
        value.empty() && std::any_of(std::begin(kRedisOptions), std::end(kRedisOptions), has_name);
    return word.len == 0 || is_url || is_option ? "\"" + masked(word) + "\""
                                                : "that is not shown, since it may be a password";
}

void RedisReader::warn_of_timeout() const {
    constexpr redis::Milliseconds kLong = 1000;
    const redis::Milliseconds timeout = server->settings.timeout;
    if (timeout >= kLong) {
        const ngx_str_t word = given("timeout");
        warn(cf, cmd,
             "\"%V\" lets each request wait for Redis for up to %uLms; a time without a unit is in seconds",
             &word, timeout);
    }
}

// Refuses options that contradict the URL or another option.
char* RedisReader::check(const redis::Address& address) const {
    for (const char* option : {"sentinel_user", "sentinel_password_file"}) {
        const ngx_str_t word = given(option);
        if (address.primary.empty() && word.len != 0) {
            return refuse(cf, cmd, "\"%V\" requires redis+sentinel://", &word);
        }
    }
    const ngx_str_t database = given("db");
    if (!address.seeds.empty() && address.primary.empty() && database.len != 0) {
        return refuse(cf, cmd, "\"%V\" cannot be used with redis+cluster://, a cluster has no databases",
                      &database);
    }
    const struct {
        const char* option;
        bool is_in_url;
    } options[] = {{"user", !address.user.empty()},
                   {"password_file", !address.password.empty()},
                   {"db", address.database != 0}};
    for (const auto& row : options) {
        const ngx_str_t word = given(row.option);
        if (row.is_in_url && word.len != 0) {
            return refuse(cf, cmd, "\"%V\" is duplicate, the URL has the same", &word);
        }
    }
    return check_tls(address);
}

char* RedisReader::check_tls(const redis::Address& address) const {
    for (const char* option : {"ca", "cert", "key", "sni", "verify"}) {
        const ngx_str_t word = given(option);
        if (!address.tls && word.len != 0) {
            return refuse(cf, cmd, "\"%V\" requires TLS, a URL with rediss", &word);
        }
    }
    if (!files.verify && is_given("ca")) {
        return refuse(cf, cmd, "\"verify=off\" cannot be used with \"ca=\"");
    }
    if (is_given("cert") != is_given("key")) {
        const bool has_key = is_given("key");
        return refuse(cf, cmd, "\"%s=\" requires \"%s=\"", has_key ? "key" : "cert",
                      has_key ? "cert" : "key");
    }
    return nullptr;
}

// The module's configuration that a reload replaces; null if there is none.
const ngx_http_rate_limit_main_conf_t* replaced_conf(ngx_conf_t* cf) {
    const ngx_cycle_t* old = cf->cycle->old_cycle;
    const bool had_module = old != nullptr && old->conf_ctx != nullptr && old->modules != nullptr &&
                            std::find(old->modules, old->modules + old->modules_n,
                                      &ngx_http_rate_limit_module) != old->modules + old->modules_n;
    return had_module ? static_cast<ngx_http_rate_limit_main_conf_t*>(
                            ngx_http_cycle_get_module_main_conf(old, ngx_http_rate_limit_module))
                      : nullptr;
}

// The addresses that a host had in the configuration that a reload replaces; empty if it was not in there.
std::vector<std::string> addresses_before(ngx_conf_t* cf, const std::string& host) {
    const ngx_http_rate_limit_main_conf_t* conf = replaced_conf(cf);
    if (conf == nullptr) {
        return {};
    }
    for (const RedisServer* server : pointers<RedisServer>(conf->servers)) {
        if (server->settings.address.host == host) {
            return server->addresses;
        }
        for (const redis::Seed& seed : server->settings.address.seeds) {
            if (seed.host == host) {
                return seed.addresses;
            }
        }
    }
    return {};
}

// Resolves the hosts of the URL. A host without an address is no error yet: see check_redis_hosts().
void RedisReader::find_hosts() const {
    redis::Address& address = server->settings.address;
    const auto find = [&](const std::string& host, std::vector<std::string>* addresses) {
        std::vector<std::string>& unresolved = server->unresolved;
        const bool asked = std::find(unresolved.begin(), unresolved.end(), host) != unresolved.end();
        *addresses = asked ? std::vector<std::string>() : redis::resolve(host);
        if (addresses->empty()) {
            *addresses = addresses_before(cf, host);
            if (!asked) {
                unresolved.push_back(host);
            }
        }
        server->has_address = server->has_address || !addresses->empty();
    };
    for (redis::Seed& seed : address.seeds) {
        find(seed.host, &seed.addresses);
    }
    if (address.path.empty() && address.seeds.empty()) {
        find(address.host, &server->addresses);
    }
}

char* RedisReader::make_tls() const {
    redis::Settings& settings = server->settings;
    std::string wrong;
    settings.tls = redis::make_tls(files, &wrong);
    if (settings.tls == nullptr) {
        return refuse(cf, cmd, "%s; files must be in PEM", wrong.c_str());
    }
    if (settings.server_name.empty()) {
        settings.server_name = settings.address.host;
    }
    return nullptr;
}

// Sets what the connections for background calls and to Sentinels share with the connections for requests.
void derive_settings(RedisServer* server) {
    redis::Settings& settings = server->settings;
    server->background = settings;
    settings.spare = true;
    server->background.consequence = &server->background_consequence;
    server->background.script = kSyncScript;
    server->background.background = true;
    server->background.quiet = true;
    server->background.native_expected = false;
    server->background.most_reply = kBackgroundReply;
    server->background.timeout = std::max(settings.timeout, kBackgroundTimeout);
    redis::Settings& sentinels = server->sentinels;
    sentinels.name = settings.name;
    sentinels.connect_timeout = settings.connect_timeout;
    sentinels.most_reply = kReply;
    sentinels.address.tls = settings.address.tls;
    sentinels.tls = settings.tls;
    sentinels.server_name = settings.server_name;
    sentinels.consequence = settings.consequence;
    sentinels.journal = settings.journal;
    server->background_sentinels = sentinels;
    server->background_sentinels.quiet = true;
}

// Reads the URL, and completes the settings with it.
char* RedisReader::finish(const ngx_str_t& url) const {
    redis::Address address;
    if (const char* wrong = redis::parse_address(view(url), &address)) {
        return refuse(cf, cmd, "invalid URL \"%s\": %s; it must be %s", masked(url).c_str(), wrong,
                      redis::kAddressAccepted);
    }
    if (char* wrong = check(address)) {
        return wrong;
    }
    redis::Settings& settings = server->settings;
    redis::parse_address(view(url), &settings.address);
    find_hosts();
    if (settings.address.tls) {
        if (char* wrong = make_tls()) {
            return wrong;
        }
    }
    warn_of_timeout();
    server->options.budget = static_cast<Micros>(settings.timeout) * 1000;
    settings.probe_key = server->options.prefix + "probe";
    settings.name = view(server->name);
    settings.script = kScript;
    settings.most_reply = kReply;
    settings.probe = redis::format_command({"SET", settings.probe_key, "1", "PX", "1"});
    settings.probe_in_handshake = !settings.address.primary.empty();
    settings.consequence = &server->consequence;
    settings.journal = &server->journal;
    derive_settings(server);
    return nullptr;
}

bool is_name(std::string_view text) {
    const auto fits = [](char c) { return is_letter_or_digit(c) || c == '_' || c == '-' || c == '.'; };
    return !text.empty() && std::all_of(text.begin(), text.end(), fits);
}

void destroy_server(void* server) { delete static_cast<RedisServer*>(server); }

// Makes a server that lives as long as the configuration; null if the pool is exhausted.
RedisServer* make_server(ngx_conf_t* cf) {
    ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(cf->pool, 0);
    if (cleanup == nullptr) {
        return nullptr;
    }
    auto* server = new RedisServer;
    cleanup->handler = destroy_server;
    cleanup->data = server;
    return server;
}

char* read_redis(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_main_conf_t* conf) {
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts < 3) {
        return refuse(cf, cmd, "requires a name and a URL: %s", kRedisForm);
    }
    if (!is_name(view(words[1]))) {
        return refuse(cf, cmd, "invalid name \"%s\", it must be letters, digits, \"_\", \"-\" and \".\": %s",
                      masked(words[1]).c_str(), kRedisForm);
    }
    if (find_redis(conf, words[1]) != nullptr) {
        return refuse(cf, cmd, "name \"%V\" is duplicate", &words[1]);
    }
    RedisServer* server = make_server(cf);
    auto** slot = static_cast<RedisServer**>(ngx_array_push(&conf->servers));
    if (server == nullptr || slot == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = server;
    server->name = words[1];
    set_position(cf, server);
    server->options.prefix = "rate_limit:";
    server->settings.native_probe = kNativeProbe;
    RedisReader reader = {{cf, cmd, 3}, server};
    if (char* wrong = read_options(&reader, kRedisOptions)) {
        return wrong;
    }
    if (char* wrong = reader.finish(words[2])) {
        return wrong;
    }
    return add_shared_state(cf, server) ? NGX_CONF_OK : static_cast<char*>(NGX_CONF_ERROR);
}

}  // namespace

bool check_redis_hosts(ngx_conf_t* cf, const ngx_http_rate_limit_main_conf_t& conf,
                       const RedisServer& server) {
    bool used = false;
    bool closed = true;  // every zone that uses the server fails closed
    for (const Zone* zone : pointers<Zone>(conf.zones)) {
        if (zone->redis == &server) {
            used = true;
            closed = closed && zone->on_error == OnError::kClosed && !zone->shadow;
        }
    }
    const bool refused = used && closed && !server.has_address;
    for (const std::string& host : server.unresolved) {
        if (refused) {
            return refuse_at(cf, "rate_limit_redis", server,
                             "host \"%s\" of \"%V\" has no address, it must be a name that resolves, since "
                             "every zone that uses \"%V\" has on_error=closed",
                             host.c_str(), &server.name, &server.name);
        }
        warn_at(cf, "rate_limit_redis", server,
                "host \"%s\" of \"%V\" has no address now; nginx resolves it again while it runs%s",
                host.c_str(), &server.name,
                server.has_address ? "" : ", and on_error decides requests until then");
    }
    return true;
}

}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_redis(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_redis(cf, cmd, static_cast<ngx_http_rate_limit_main_conf_t*>(conf));
}
