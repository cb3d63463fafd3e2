// The module rate_limit.so for Redis and Valkey: registers the commands, and reads, writes and replicates
// their keys.
//
// The keys of a call stay open while the call is decided. A value is changed where it is, in the memory of
// the server. What was written is replicated as SET and DEL, never as the command: a replica may have no
// module, and its clock is another one.
#include <redismodule.h>
#include <sys/time.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/version_text.h"
#include "server/check_command.h"
#include "server/keys.h"
#include "server/sync_command.h"

namespace rate_limit {
namespace {

constexpr std::size_t kTable = 2 * kMostKeys;  // of positions by key; a power of two
constexpr std::string_view kNothing;           // the reply of a node that does not serve all slots
constexpr int kKeyFlags = REDISMODULE_CMD_KEY_RW | REDISMODULE_CMD_KEY_ACCESS | REDISMODULE_CMD_KEY_UPDATE;
constexpr char kNoMemory[] = "ERR the module is out of memory";

// The commands run one at a time, so all calls share this memory.
CheckCommand check_command;
SyncCommand sync_command;
std::uint64_t hash_seed;

std::string_view text_of(const RedisModuleString* string) {
    std::size_t size = 0;
    const char* at = RedisModule_StringPtrLen(string, &size);
    return {at, size};
}

// The time that TIME returns.
Micros server_time() {
    timeval time;
    gettimeofday(&time, nullptr);
    return static_cast<Micros>(time.tv_sec) * kSecond + static_cast<Micros>(time.tv_usec);
}

long long to_millis(Micros expires) { return (expires + 999) / 1000; }

std::uint64_t hash_of(std::string_view text) {
    std::uint64_t hash = hash_seed ^ text.size();
    while (!text.empty()) {
        std::uint64_t part = 0;
        const std::size_t taken = text.size() < sizeof(part) ? text.size() : sizeof(part);
        std::memcpy(&part, text.data(), taken);
        text.remove_prefix(taken);
        hash = (hash ^ part) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 29;
    }
    return hash;
}

// Finds the keys that occur twice in a call.
class Positions {
  public:
    // Sets the position of each key to that of its first occurrence. Returns whether a key occurs twice.
    bool find(RedisModuleString** names, std::size_t count) {
        first_[0] = 0;
        if (count < 2) {
            return false;
        }
        std::size_t size = 4;
        while (size < 2 * count) {
            size *= 2;
        }
        std::memset(table_, 0, size * sizeof(table_[0]));
        bool twice = false;
        for (std::size_t i = 0; i < count; i++) {
            const std::string_view name = text_of(names[i]);
            std::size_t at = hash_of(name) & (size - 1);
            while (table_[at] != 0 && text_of(names[table_[at] - 1]) != name) {
                at = (at + 1) & (size - 1);
            }
            twice = twice || table_[at] != 0;
            table_[at] = table_[at] != 0 ? table_[at] : static_cast<std::uint16_t>(i + 1);
            first_[i] = static_cast<std::uint16_t>(table_[at] - 1);
        }
        return twice;
    }

    std::size_t operator[](std::size_t position) const { return first_[position]; }

  private:
    std::uint16_t table_[kTable];  // by hash, position plus 1
    std::uint16_t first_[kMostKeys];
};

Positions positions;

// Keys that the command declares: the server has checked the slot, and that the user may write them.
class DeclaredKeys final : public CommandKeys {
  public:
    void open(RedisModuleCtx* context, RedisModuleString** names, std::size_t count) {
        context_ = context;
        names_ = names;
        count_ = count;
        repeated_ = positions.find(names, count);
        for (std::size_t i = 0; i < count; i++) {
            const bool first = positions[i] == i || !repeated_;
            entries_[i] = {first ? open_key(names[i]) : nullptr, kKeepExpiry, false};
        }
    }

    // Replicates what was written, and closes the keys.
    void close() {
        for (std::size_t i = 0; i < count_; i++) {
            if (entries_[i].changed) {
                replicate(entries_[i], names_[i]);
            }
            if (entries_[i].key != nullptr) {
                RedisModule_CloseKey(entries_[i].key);
            }
        }
    }

    std::string_view value(std::size_t position) override {
        RedisModuleKey* key = entry(position).key;
        if (key == nullptr || RedisModule_KeyType(key) != REDISMODULE_KEYTYPE_STRING) {
            return {};
        }
        std::size_t size = 0;
        const char* at = RedisModule_StringDMA(key, &size, REDISMODULE_READ);
        return {at, size};
    }

    void write(std::size_t position, std::string_view value, Micros expires) override {
        Entry& to = entry(position);
        if (RedisModule_KeyType(to.key) != REDISMODULE_KEYTYPE_STRING) {
            RedisModule_DeleteKey(to.key);
        }
        // Creates a string if there is no key.
        if (RedisModule_ValueLength(to.key) != value.size()) {
            RedisModule_StringTruncate(to.key, value.size());
        }
        std::size_t size = 0;
        char* at = RedisModule_StringDMA(to.key, &size, REDISMODULE_WRITE);
        value.copy(at, size);
        if (expires != kKeepExpiry) {
            RedisModule_SetAbsExpire(to.key, to_millis(expires));
            to.expires = expires;
        }
        to.changed = true;
    }

    void remove(std::size_t position) override {
        Entry& to = entry(position);
        RedisModule_DeleteKey(to.key);
        to.changed = true;
    }

    bool repeated() const override { return repeated_; }

  private:
    struct Entry {
        RedisModuleKey* key;  // null if an earlier key is the same one
        Micros expires;       // that this call has set; kKeepExpiry if none
        bool changed;
    };

    Entry& entry(std::size_t position) { return entries_[repeated_ ? positions[position] : position]; }

    RedisModuleKey* open_key(RedisModuleString* name) {
        return static_cast<RedisModuleKey*>(
            RedisModule_OpenKey(context_, name, REDISMODULE_READ | REDISMODULE_WRITE));
    }

    void replicate(const Entry& entry, RedisModuleString* name) {
        if (RedisModule_KeyType(entry.key) == REDISMODULE_KEYTYPE_EMPTY) {
            RedisModule_Replicate(context_, "DEL", "s", name);
            RedisModule_NotifyKeyspaceEvent(context_, REDISMODULE_NOTIFY_GENERIC, "del", name);
            return;
        }
        std::size_t size = 0;
        const char* at = RedisModule_StringDMA(entry.key, &size, REDISMODULE_READ);
        if (entry.expires == kKeepExpiry) {
            RedisModule_Replicate(context_, "SET", "sbc", name, at, size, "KEEPTTL");
        } else {
            RedisModule_Replicate(context_, "SET", "sbcl", name, at, size, "PXAT", to_millis(entry.expires));
        }
        RedisModule_NotifyKeyspaceEvent(context_, REDISMODULE_NOTIFY_STRING, "set", name);
        if (entry.expires != kKeepExpiry) {
            RedisModule_NotifyKeyspaceEvent(context_, REDISMODULE_NOTIFY_GENERIC, "expire", name);
        }
    }

    RedisModuleCtx* context_ = nullptr;
    RedisModuleString** names_ = nullptr;
    std::size_t count_ = 0;
    bool repeated_ = false;
    Entry entries_[kMostKeys];
};

// Keys that the command does not declare, because their slots differ. They are read and written by commands
// of the same user, which the server checks as it checks those of a script.
class UndeclaredKeys final : public CommandKeys {
  public:
    // Reads all keys. False if one cannot be read, since this node does not serve its slot or the user may
    // not read it.
    bool open(RedisModuleCtx* context, RedisModuleString** names, std::size_t count) {
        context_ = context;
        names_ = names;
        count_ = count;
        failed_ = false;
        repeated_ = positions.find(names, count);
        for (std::size_t i = 0; i < count; i++) {
            entries_[i] = {nullptr, false};
        }
        bool readable = true;
        for (std::size_t i = 0; i < count && readable; i++) {
            readable = (repeated_ && positions[i] != i) || read(i);
        }
        return readable;
    }

    void close() {
        for (std::size_t i = 0; i < count_; i++) {
            forget(&entries_[i]);
        }
    }

    // Whether a key could not be written, or not read again. Nothing has been written after that.
    bool failed() const { return failed_; }

    std::string_view value(std::size_t position) override {
        Entry& from = entry(position);
        if (from.stale) {
            from.stale = false;
            failed_ = !read(repeated_ ? positions[position] : position) || failed_;
        }
        std::size_t size = 0;
        const char* at =
            from.reply != nullptr && RedisModule_CallReplyType(from.reply) == REDISMODULE_REPLY_STRING
                ? RedisModule_CallReplyStringPtr(from.reply, &size)
                : nullptr;
        return at != nullptr ? std::string_view(at, size) : std::string_view();
    }

    void write(std::size_t position, std::string_view value, Micros expires) override {
        if (failed_) {
            return;
        }
        RedisModuleString* name = names_[repeated_ ? positions[position] : position];
        finish(expires == kKeepExpiry
                   ? RedisModule_Call(context_, "SET", "!CEsbc", name, value.data(), value.size(), "KEEPTTL")
                   : RedisModule_Call(context_, "SET", "!CEsbcl", name, value.data(), value.size(), "PXAT",
                                      to_millis(expires)));
        forget(&entry(position));
    }

    void remove(std::size_t position) override {
        if (failed_) {
            return;
        }
        finish(RedisModule_Call(context_, "DEL", "!CEs", names_[repeated_ ? positions[position] : position]));
        forget(&entry(position));
    }

    bool repeated() const override { return repeated_; }

  private:
    struct Entry {
        RedisModuleCallReply* reply;  // of GET
        bool stale;                   // written since GET
    };

    Entry& entry(std::size_t position) { return entries_[repeated_ ? positions[position] : position]; }

    bool read(std::size_t position) {
        RedisModuleCallReply* reply = RedisModule_Call(context_, "GET", "CEs", names_[position]);
        entries_[position].reply = reply;
        if (reply == nullptr) {
            return false;
        }
        std::size_t size = 0;
        constexpr std::string_view kNoString = "WRONGTYPE";
        const bool error = RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ERROR;
        const char* text = error ? RedisModule_CallReplyStringPtr(reply, &size) : nullptr;
        return !error || std::string_view(text, size).substr(0, kNoString.size()) == kNoString;
    }

    static void forget(Entry* entry) {
        if (entry->reply != nullptr) {
            RedisModule_FreeCallReply(entry->reply);
        }
        *entry = {nullptr, true};
    }

    void finish(RedisModuleCallReply* reply) {
        failed_ = failed_ || reply == nullptr || RedisModule_CallReplyType(reply) == REDISMODULE_REPLY_ERROR;
        if (reply != nullptr) {
            RedisModule_FreeCallReply(reply);
        }
    }

    RedisModuleCtx* context_ = nullptr;
    RedisModuleString** names_ = nullptr;
    std::size_t count_ = 0;
    bool repeated_ = false;
    bool failed_ = false;
    Entry entries_[kMostKeys];
};

DeclaredKeys declared_keys;
UndeclaredKeys undeclared_keys;

// The number of keys that a call declares. False if it is no number, or too large for these arguments.
bool read_count(RedisModuleString* text, int arguments, int others, long long* count) {
    return RedisModule_StringToLongLong(text, count) == REDISMODULE_OK && *count >= 0 &&
           *count <= arguments - others && *count <= static_cast<long long>(kMostKeys);
}

// Tells the server the positions of the declared keys. A cluster redirects by these, not by the key spec.
int tell_keys(RedisModuleCtx* context, RedisModuleString** words, int count, int others) {
    constexpr int kFirstKey = 2;
    long long keys = 0;
    if (count >= others && read_count(words[1], count, others, &keys)) {
        for (int i = 0; i < keys; i++) {
            RedisModule_KeyAtPosWithFlags(context, kFirstKey + i, kKeyFlags);
        }
    }
    return REDISMODULE_OK;
}

int reply_with(RedisModuleCtx* context, std::string_view text) {
    return RedisModule_ReplyWithStringBuffer(context, text.data(), text.size());
}

// RATELIMIT.CHECK 0 POLICIES GROUPS key…
int check_undeclared(RedisModuleCtx* context, RedisModuleString** words, int count) {
    constexpr int kFirstKey = 4;
    const auto keys = static_cast<std::size_t>(count - kFirstKey);
    if (keys > kMostKeys) {
        return RedisModule_ReplyWithError(context, "ERR too many keys");
    }
    const char* wrong = check_command.read(text_of(words[2]), text_of(words[3]), keys);
    if (wrong != nullptr) {
        return RedisModule_ReplyWithError(context, wrong);
    }
    const bool readable = undeclared_keys.open(context, words + kFirstKey, keys);
    const std::string_view reply = readable ? check_command.run(&undeclared_keys, server_time()) : kNothing;
    undeclared_keys.close();
    if (readable && undeclared_keys.failed()) {
        return RedisModule_ReplyWithError(context, "WRITE a key cannot be written");
    }
    return reply_with(context, reply);
}

// RATELIMIT.CHECK N key1 … keyN POLICIES GROUPS
int check(RedisModuleCtx* context, RedisModuleString** words, int count) {
    constexpr int kOthers = 4;  // command, N, POLICIES, GROUPS
    if (RedisModule_IsKeysPositionRequest(context) != 0) {
        return tell_keys(context, words, count, kOthers);
    }
    long long keys = 0;
    if (count < kOthers) {
        return RedisModule_WrongArity(context);
    }
    if (!read_count(words[1], count, kOthers, &keys) || (keys != 0 && keys != count - kOthers)) {
        return RedisModule_ReplyWithError(context, "ERR the number of keys is wrong");
    }
    if (keys == 0) {
        return check_undeclared(context, words, count);
    }
    const char* wrong = check_command.read(text_of(words[count - 2]), text_of(words[count - 1]),
                                           static_cast<std::size_t>(keys));
    if (wrong != nullptr) {
        return RedisModule_ReplyWithError(context, wrong);
    }
    declared_keys.open(context, words + 2, static_cast<std::size_t>(keys));
    const std::string_view reply = check_command.run(&declared_keys, server_time());
    declared_keys.close();
    return reply_with(context, reply);
}

// RATELIMIT.SYNC N key1 … keyN-1 GUARD POLICIES ENTRIES SEQUENCE AGE
int sync(RedisModuleCtx* context, RedisModuleString** words, int count) {
    constexpr int kOthers = 6;  // command, N, POLICIES, ENTRIES, SEQUENCE, AGE
    if (RedisModule_IsKeysPositionRequest(context) != 0) {
        return tell_keys(context, words, count, kOthers);
    }
    long long keys = 0;
    if (count < kOthers) {
        return RedisModule_WrongArity(context);
    }
    if (!read_count(words[1], count, kOthers, &keys) || keys == 0 || keys != count - kOthers ||
        keys - 1 > static_cast<long long>(SyncCommand::kMostClients)) {
        return RedisModule_ReplyWithError(context, "ERR the number of keys is wrong");
    }
    const auto clients = static_cast<std::size_t>(keys - 1);
    const SyncCommand::Arguments arguments = {text_of(words[count - 4]), text_of(words[count - 3]),
                                              text_of(words[count - 2]), text_of(words[count - 1])};
    const char* wrong = sync_command.read(arguments, clients);
    if (wrong != nullptr) {
        return RedisModule_ReplyWithError(context, wrong);
    }
    auto* reply = static_cast<char*>(RedisModule_TryAlloc(sync_command.reply_room()));
    if (reply == nullptr) {
        return RedisModule_ReplyWithError(context, kNoMemory);
    }
    declared_keys.open(context, words + 2, static_cast<std::size_t>(keys));
    const std::size_t size = sync_command.run(&declared_keys, text_of(words[1 + keys]), server_time(), reply);
    declared_keys.close();
    reply_with(context, {reply, size});
    RedisModule_Free(reply);
    return REDISMODULE_OK;
}

// Adds the ACL categories of a command that writes. Redis 7.0 knows no categories for commands of modules,
// and its redismodule.h does not declare the function.
bool add_categories(RedisModuleCommand* command) {
    int (*set_categories)(RedisModuleCommand*, const char*) = nullptr;
    RedisModule_GetApi("RedisModule_SetCommandACLCategories", &set_categories);
    return set_categories == nullptr || set_categories(command, "write fast") == REDISMODULE_OK;
}

// Registers a command whose keys follow their number, as those of EVALSHA do.
bool add_command(RedisModuleCtx* context, const char* name, RedisModuleCmdFunc run, const char* summary,
                 int arity) {
    constexpr char kFlags[] = "write deny-oom fast no-mandatory-keys getkeys-api";
    if (RedisModule_CreateCommand(context, name, run, kFlags, 0, 0, 0) != REDISMODULE_OK) {
        return false;
    }
    RedisModuleCommandKeySpec specs[2] = {};
    specs[0].flags = kKeyFlags;
    specs[0].begin_search_type = REDISMODULE_KSPEC_BS_INDEX;
    specs[0].bs.index.pos = 1;
    specs[0].find_keys_type = REDISMODULE_KSPEC_FK_KEYNUM;
    specs[0].fk.keynum.keynumidx = 0;
    specs[0].fk.keynum.firstkey = 1;
    specs[0].fk.keynum.keystep = 1;
    RedisModuleCommandInfo info = {};
    info.version = REDISMODULE_COMMAND_INFO_VERSION;
    info.summary = summary;
    info.complexity = "O(N) with N being the number of limits";
    info.since = "1.0.0";
    info.arity = arity;
    info.key_specs = specs;
    RedisModuleCommand* command = RedisModule_GetCommand(context, name);
    return RedisModule_SetCommandInfo(command, &info) == REDISMODULE_OK && add_categories(command);
}

}  // namespace
// Redis 8 remembers the last command of each connection, also after the module of the command is unloaded.
// The next call of the command on this connection then crashes Redis.
bool survives_unloading(RedisModuleCtx* context) {
    constexpr int kRedis8 = 0x080000;
    if (RedisModule_GetServerVersion() < kRedis8) {
        return true;
    }
    RedisModuleServerInfoData* info = RedisModule_GetServerInfo(context, "server");
    const bool is_valkey = RedisModule_ServerInfoGetFieldC(info, "valkey_version") != nullptr;
    RedisModule_FreeServerInfo(context, info);
    return is_valkey;
}

}  // namespace rate_limit

extern "C" [[gnu::visibility("default")]] int RedisModule_OnUnload(RedisModuleCtx* context) {
    if (rate_limit::survives_unloading(context)) {
        return REDISMODULE_OK;
    }
    RedisModule_Log(context, "warning",
                    "rate_limit.so stays, because this version of Redis would crash without it");
    return REDISMODULE_ERR;
}

extern "C" [[gnu::visibility("default")]] int RedisModule_OnLoad(RedisModuleCtx* context, RedisModuleString**,
                                                                 int) {
    using namespace rate_limit;
    if (RedisModule_Init(context, "ratelimit", kVersionNumber, REDISMODULE_APIVER_1) != REDISMODULE_OK) {
        return REDISMODULE_ERR;
    }
    if (RedisModule_SetCommandInfo == nullptr || RedisModule_TryAlloc == nullptr) {
        RedisModule_Log(context, "warning", "rate_limit.so requires Redis 7.0 or Valkey");
        return REDISMODULE_ERR;
    }
    RedisModule_GetRandomBytes(reinterpret_cast<unsigned char*>(&hash_seed), sizeof(hash_seed));
    const bool added = add_command(context, "ratelimit.check", check,
                                   "Decides and charges requests of ngx_http_rate_limit_module", -4) &&
                       add_command(context, "ratelimit.sync", sync,
                                   "Charges requests that ngx_http_rate_limit_module has admitted", -7);
    if (added) {
        RedisModule_Log(context, "notice", "rate_limit.so of %s", kNameAndVersion);
    }
    return added ? REDISMODULE_OK : REDISMODULE_ERR;
}
