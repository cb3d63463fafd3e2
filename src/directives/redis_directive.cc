// The directive rate_limit_redis.
#include <algorithm>
#include <cerrno>

#include "directives/configuration.h"
#include "directives/file.h"
#include "nginx/shared_state.h"
#include "protocol/script_text.h"
#include "redis/command.h"
#include "redis/resolver.h"
#include "redis/tls.h"

namespace rate_limit {
namespace {

constexpr std::uint64_t kMostBatch = 1024;
constexpr std::size_t kLongestPassword = 4096;
constexpr redis::Milliseconds kBackgroundTimeout = 1000;
constexpr std::size_t kReply = 1U << 20;             // of 1024 limits, the most in a call, it has 32 KB
constexpr std::size_t kBackgroundReply = 16U << 20;  // many thousand clients that were reset in a minute
constexpr char kRedisForm[] = "NAME URL [option=value ...]";
constexpr char kRedisOptions[] =
    "timeout=, connect_timeout=, prefix=, batch=, user=, db=, password_file=, sentinel_user=, "
    "sentinel_password_file=, ca=, cert=, key=, sni= and verify=";

// A URL without "@" for the log. Who forgets the host and its "@" has written a password where a port should
// be.
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

// A URL for the log, without what may be a password.
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

// An unknown word for the log: it may be a password, or have one behind its "=". Shown are the name of what
// looks like an option, a word that is an option without its "=", and a URL.
std::string shown_word(std::string_view word) {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
    const std::string_view name = word.substr(0, word.find('='));
    const std::string_view value = word.substr(name.size());  // with its "="
    // What is encoded in base 64 may end with one or two of them.
    if (value.size() > 1 && value != "==" && std::all_of(name.begin(), name.end(), is_letter)) {
        return "\"" + std::string(name) + "=\"";
    }
    const bool is_url = word.find("://") != std::string_view::npos;
    const bool is_option =
        value.empty() &&
        (", " + std::string(kRedisOptions)).find(" " + std::string(name) + "=") != std::string::npos;
    return word.empty() || is_url || is_option ? "\"" + masked(ngx_str(word)) + "\""
                                               : "a word that is not shown, since it may be a password,";
}

// A rate_limit_redis while it is being read.
struct RedisReader {
    ngx_conf_t* cf;
    ngx_command_t* cmd;
    RedisServer* server;
    redis::TlsFiles files = {};
    ngx_str_t tls_word = {};  // an option that only TLS has
    ngx_str_t user_word = {}, db_word = {}, password_word = {}, sentinel_word = {}, timeout_word = {};

    char* read_word(const ngx_str_t& word);
    char* read_time(const ngx_str_t& word, const ngx_str_t& value, redis::Milliseconds* time) const;
    char* read_timeout(const ngx_str_t& word, const ngx_str_t& value);
    void warn_of_timeout() const;
    char* read_password(const ngx_str_t& word, ngx_str_t value, std::string* password) const;
    char* read_user(const ngx_str_t& word, const ngx_str_t& value, std::string* user) const;
    char* read_file_name(const ngx_str_t& word, ngx_str_t value, std::string* name) const;
    char* read_prefix(const ngx_str_t& word, const ngx_str_t& value) const;
    char* read_tls_word(const ngx_str_t& word, bool* taken);
    void find_hosts() const;
    char* finish(const ngx_str_t& url) const;
    char* check(const ngx_str_t& url) const;
};

char* RedisReader::read_time(const ngx_str_t& word, const ngx_str_t& value, redis::Milliseconds* time) const {
    constexpr ngx_int_t kMost = 3'600'000;
    ngx_str_t text = value;
    const ngx_int_t milliseconds = ngx_parse_time(&text, 0);
    if (milliseconds == NGX_ERROR || milliseconds < 1 || milliseconds > kMost) {
        return refuse(cf, cmd, "\"%V\" is not a time; accepted are times from 1ms to 1h", &word);
    }
    *time = static_cast<redis::Milliseconds>(milliseconds);
    return nullptr;
}

char* RedisReader::read_timeout(const ngx_str_t& word, const ngx_str_t& value) {
    timeout_word = word;
    return read_time(word, value, &server->settings.timeout);
}

void RedisReader::warn_of_timeout() const {
    constexpr redis::Milliseconds kLong = 1000;
    const redis::Milliseconds timeout = server->settings.timeout;
    if (timeout >= kLong) {
        warn(
            cf, cmd,
            "\"%V\" is %uLms, for which each request may wait for Redis; a time without a unit is in seconds",
            &timeout_word, timeout);
    }
}

char* RedisReader::read_file_name(const ngx_str_t& word, ngx_str_t value, std::string* name) const {
    if (value.len == 0) {
        return refuse(cf, cmd, "\"%V\" names no file; accepted is the name of a file", &word);
    }
    if (ngx_conf_full_name(cf->cycle, &value, 1) != NGX_OK) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *name = view(value);
    return nullptr;
}

char* RedisReader::read_user(const ngx_str_t& word, const ngx_str_t& value, std::string* user) const {
    *user = view(value);
    return value.len != 0 ? nullptr : refuse(cf, cmd, "\"%V\" names nobody; accepted is a user", &word);
}

char* RedisReader::read_password(const ngx_str_t& word, ngx_str_t value, std::string* password) const {
    std::string name;
    if (char* wrong = read_file_name(word, value, &name)) {
        return wrong;
    }
    const ngx_str_t file = ngx_str(name);
    std::string content;
    ngx_file_info_t info;
    const ngx_err_t error = read_file(file, kLongestPassword, &content, &info);
    if (error != 0 && error != EFBIG) {
        ngx_conf_log_error(
            NGX_LOG_EMERG, cf, error,
            "\"%V\": \"%V\" cannot be read; accepted is a file with the password in its first line",
            &cmd->name, &word);
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    const std::string_view line = std::string_view(content).substr(0, content.find_first_of("\r\n"));
    if (line.empty() || error == EFBIG) {
        return refuse(cf, cmd,
                      "\"%V\" has no password; accepted is a file with the password in its first line, of at "
                      "most %uz bytes",
                      &word, kLongestPassword);
    }
    if ((ngx_file_access(&info) & S_IROTH) != 0) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"%V\": every user may read the password in \"%V\"; give the "
                           "file mode 600",
                           &cmd->name, &word);
    }
    *password = line;
    explicit_bzero(content.data(), content.size());
    return nullptr;
}

char* RedisReader::read_prefix(const ngx_str_t& word, const ngx_str_t& value) const {
    const std::string_view text = view(value);
    const auto is_wrong = [](char c) { return c <= ' ' || c > '~' || c == '{' || c == '}'; };
    if (text.size() > 64 || std::any_of(text.begin(), text.end(), is_wrong)) {
        return refuse(cf, cmd,
                      "\"%V\" is not a prefix; accepted are up to 64 visible ASCII characters without braces",
                      &word);
    }
    server->options.prefix = text;
    return nullptr;
}

// The options that only a connection with TLS has.
char* RedisReader::read_tls_word(const ngx_str_t& word, bool* taken) {
    ngx_str_t value = {};
    *taken = true;
    tls_word = word;
    if (option(word, "ca", &value)) {
        return read_file_name(word, value, &files.ca);
    }
    if (option(word, "cert", &value)) {
        return read_file_name(word, value, &files.certificate);
    }
    if (option(word, "key", &value)) {
        return read_file_name(word, value, &files.key);
    }
    if (option(word, "sni", &value)) {
        if (value.len == 0 || value.len > 253) {
            return refuse(cf, cmd, "\"%V\" is not a name; accepted is the name in the server's certificate",
                          &word);
        }
        server->settings.server_name = view(value);
        return nullptr;
    }
    if (option(word, "verify", &value)) {
        files.verify = view(value) == "on";
        return files.verify || view(value) == "off"
                   ? nullptr
                   : refuse(cf, cmd, "\"%V\" is not known; accepted are on or off", &word);
    }
    tls_word = {};
    *taken = false;
    return nullptr;
}

char* RedisReader::read_word(const ngx_str_t& word) {
    ngx_str_t value = {};
    std::uint64_t number = 0;
    if (option(word, "timeout", &value)) {
        return read_timeout(word, value);
    }
    if (option(word, "connect_timeout", &value)) {
        return read_time(word, value, &server->settings.connect_timeout);
    }
    if (option(word, "prefix", &value)) {
        return read_prefix(word, value);
    }
    if (option(word, "password_file", &value)) {
        password_word = word;
        return read_password(word, value, &server->settings.address.password);
    }
    if (option(word, "user", &value)) {
        user_word = word;
        return read_user(word, value, &server->settings.address.user);
    }
    if (option(word, "sentinel_password_file", &value)) {
        sentinel_word = word;
        return read_password(word, value, &server->sentinels.address.password);
    }
    if (option(word, "sentinel_user", &value)) {
        sentinel_word = word;
        return read_user(word, value, &server->sentinels.address.user);
    }
    if (option(word, "batch", &value)) {
        if (!parse_number(view(value), kMostBatch, &number) || number == 0) {
            return refuse(cf, cmd, "\"%V\" is out of range; accepted are numbers from 1 to %uL", &word,
                          kMostBatch);
        }
        server->options.batch = static_cast<std::uint32_t>(number);
        return nullptr;
    }
    if (option(word, "db", &value)) {
        if (!parse_number(view(value), 65535, &number)) {
            return refuse(cf, cmd, "\"%V\" is out of range; accepted are numbers from 0 to 65535", &word);
        }
        db_word = word;
        server->settings.address.database = static_cast<std::uint32_t>(number);
        return nullptr;
    }
    bool taken = false;
    char* wrong = read_tls_word(word, &taken);
    if (taken) {
        return wrong;
    }
    const std::string shown = shown_word(view(word));
    return refuse(cf, cmd, "%s is not known; accepted are %s", shown.c_str(), kRedisOptions);
}

// What contradicts the URL or another option.
char* RedisReader::check(const ngx_str_t& url) const {
    redis::Address address;
    if (const char* wrong = redis::parse_address(view(url), &address)) {
        return refuse(cf, cmd, "\"%s\" is not a URL: %s; %s", masked(url).c_str(), wrong,
                      redis::kAddressAccepted);
    }
    if (address.primary.empty() && sentinel_word.len != 0) {
        return refuse(cf, cmd, "\"%V\" is for Sentinels; it is accepted with redis+sentinel://",
                      &sentinel_word);
    }
    if (!address.seeds.empty() && address.primary.empty() && db_word.len != 0) {
        return refuse(cf, cmd, "\"%V\" contradicts the URL: a cluster has no databases; accepted is none",
                      &db_word);
    }
    const bool user = !address.user.empty() && user_word.len != 0;
    const bool password = !address.password.empty() && password_word.len != 0;
    const bool database = address.database != 0 && db_word.len != 0;
    if (user || password || database) {
        return refuse(cf, cmd, "\"%V\" repeats what the URL says; accepted is one of them",
                      user       ? &user_word
                      : password ? &password_word
                                 : &db_word);
    }
    if (!address.tls && tls_word.len != 0) {
        return refuse(cf, cmd, "\"%V\" is an option of TLS; it is accepted with rediss://", &tls_word);
    }
    if (!files.verify && !files.ca.empty()) {
        return refuse(cf, cmd, "\"verify=off\" contradicts ca=; accepted is one of them");
    }
    if (files.certificate.empty() != files.key.empty()) {
        return refuse(cf, cmd, "\"%s\" is missing; accepted are cert= and key= together",
                      files.key.empty() ? "key=" : "cert=");
    }
    return nullptr;
}

// The module's part of the configuration that is being replaced; null if there is none.
const ngx_http_rate_limit_main_conf_t* replaced_conf(ngx_conf_t* cf) {
    const ngx_cycle_t* old = cf->cycle->old_cycle;
    const bool had_module = old != nullptr && old->conf_ctx != nullptr && old->modules != nullptr &&
                            std::find(old->modules, old->modules + old->modules_n,
                                      &ngx_http_rate_limit_module) != old->modules + old->modules_n;
    return had_module ? static_cast<ngx_http_rate_limit_main_conf_t*>(
                            ngx_http_cycle_get_module_main_conf(old, ngx_http_rate_limit_module))
                      : nullptr;
}

// The addresses that a host had in the configuration that is being replaced; empty if it was not in there.
std::vector<std::string> addresses_before(ngx_conf_t* cf, const std::string& host) {
    const ngx_http_rate_limit_main_conf_t* conf = replaced_conf(cf);
    auto** servers = conf != nullptr ? static_cast<RedisServer**>(conf->servers.elts) : nullptr;
    for (ngx_uint_t i = 0; conf != nullptr && i < conf->servers.nelts; i++) {
        if (servers[i]->settings.address.host == host) {
            return servers[i]->addresses;
        }
        for (const redis::Seed& seed : servers[i]->settings.address.seeds) {
            if (seed.host == host) {
                return seed.addresses;
            }
        }
    }
    return {};
}

// Looks up the hosts of the URL. Whether nginx starts without the address of one is for
// check_redis_hosts() to say, once the zones are known.
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

char* RedisReader::finish(const ngx_str_t& url) const {
    if (char* wrong = check(url)) {
        return wrong;
    }
    redis::Settings& settings = server->settings;
    redis::parse_address(view(url), &settings.address);
    find_hosts();
    if (settings.address.tls) {
        std::string wrong;
        settings.tls = redis::make_tls(files, &wrong);
        if (settings.tls == nullptr) {
            return refuse(cf, cmd, "%s; accepted are files in PEM", wrong.c_str());
        }
        if (settings.server_name.empty()) {
            settings.server_name = settings.address.host;
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
    server->background = settings;
    settings.spare = true;
    server->background.consequence = &server->background_consequence;
    server->background.script = kSyncScript;
    server->background.background = true;
    server->background.quiet = true;
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
    return nullptr;
}

bool is_name(std::string_view text) {
    const auto fits = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-' || c == '.';
    };
    return !text.empty() && std::all_of(text.begin(), text.end(), fits);
}

void destroy_server(void* server) { delete static_cast<RedisServer*>(server); }

// Makes a server that lives as long as the configuration; null if there is no memory.
RedisServer* make_server(ngx_conf_t* cf) {
    ngx_pool_cleanup_t* cleanup = ngx_pool_cleanup_add(cf->pool, 0);
    auto* server = cleanup != nullptr ? new (std::nothrow) RedisServer : nullptr;
    if (server != nullptr) {
        cleanup->handler = destroy_server;
        cleanup->data = server;
    }
    return server;
}

char* read_redis(ngx_conf_t* cf, ngx_command_t* cmd, ngx_http_rate_limit_main_conf_t* conf) {
    ngx_str_t* words = words_of(cf);
    if (cf->args->nelts < 3) {
        return refuse(cf, cmd, "a name or a URL is missing; accepted is %s", kRedisForm);
    }
    if (!is_name(view(words[1]))) {
        return refuse(cf, cmd,
                      "\"%s\" is not a name of letters, digits, \"_\", \"-\" and \".\"; accepted is %s",
                      masked(words[1]).c_str(), kRedisForm);
    }
    if (find_redis(conf, words[1]) != nullptr) {
        return refuse(cf, cmd, "\"%V\" is defined twice; accepted is each name once", &words[1]);
    }
    RedisServer* server = make_server(cf);
    auto** slot = static_cast<RedisServer**>(ngx_array_push(&conf->servers));
    if (server == nullptr || slot == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = server;
    server->name = words[1];
    server->file = cf->conf_file->file.name;
    server->line = cf->conf_file->line;
    server->options.prefix = "rate_limit:";
    RedisReader reader = {cf, cmd, server};
    for (ngx_uint_t i = 3; i < cf->args->nelts; i++) {
        if (char* wrong = reader.read_word(words[i])) {
            return wrong;
        }
    }
    // After unknown words, since this shows words whole.
    if (char* wrong = refuse_repeated(cf, cmd, 3)) {
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
    auto** zones = static_cast<Zone**>(conf.zones.elts);
    bool used = false;
    bool closed = true;  // every zone that uses the server fails closed
    for (ngx_uint_t i = 0; i < conf.zones.nelts; i++) {
        if (zones[i]->redis == &server) {
            used = true;
            closed = closed && zones[i]->on_error == OnError::kClosed && !zones[i]->shadow;
        }
    }
    const bool refused = used && closed && !server.has_address;
    for (const std::string& host : server.unresolved) {
        if (refused) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"rate_limit_redis\": host \"%s\" of \"%V\" has no address, and every zone that "
                          "uses \"%V\" has on_error=closed; accepted are names that resolve in %V:%ui",
                          host.c_str(), &server.name, &server.name, &server.file, server.line);
            return false;
        }
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"rate_limit_redis\": host \"%s\" of \"%V\" has no address now; it is looked up again "
                      "while nginx runs%s in %V:%ui",
                      host.c_str(), &server.name,
                      server.has_address ? "" : ", and until then its zones go by on_error", &server.file,
                      server.line);
    }
    return true;
}

}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit_redis(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_redis(cf, cmd, static_cast<ngx_http_rate_limit_main_conf_t*>(conf));
}
