// The directives rate_limit and rate_limit_shadow.
#include <algorithm>

#include "configuration/options.h"
#include "memory/table_check.h"
#include "nginx/collections.h"

namespace rate_limit {
namespace {

constexpr char kLimitForm[] =
    "zone=NAME [cost=N] [burst=N] [nodelay | delay=N] [phase=access|precontent] [headers=on|off] "
    "[settle=$VARIABLE] [debt=N], or off";

// A rate_limit or rate_limit_shadow while it is being read.
struct LimitReader : DirectiveReader {
    AppliedLimit* limit;
};

Parsed read_zone(LimitReader* reader, const OptionValue& value) {
    reader->limit->zone_name = value.text;
    return value.text.len != 0 ? Parsed::kOk : Parsed::kInvalid;
}

Parsed read_cost(LimitReader* reader, const OptionValue& value) {
    ngx_str_t text = value.text;
    if (view(text).find('$') == std::string_view::npos) {
        return value.read_number(&reader->limit->fixed_cost);
    }
    reader->limit->cost = pool_new<ngx_http_complex_value_t>(reader->cf->pool);
    return reader->limit->cost != nullptr &&
                   compile_value(reader->cf, reader->cmd, &text, reader->limit->cost)
               ? Parsed::kOk
               : Parsed::kRefused;
}

Parsed read_settle(LimitReader* reader, const OptionValue& value) {
    ngx_str_t text = value.text;
    if (view(text).find('$') == std::string_view::npos) {
        return Parsed::kInvalid;
    }
    reader->limit->settle = pool_new<ngx_http_complex_value_t>(reader->cf->pool);
    main_conf_of(reader->cf)->has_settle = 1;
    return reader->limit->settle != nullptr &&
                   compile_value(reader->cf, reader->cmd, &text, reader->limit->settle)
               ? Parsed::kOk
               : Parsed::kRefused;
}

Parsed read_debt(LimitReader* reader, const OptionValue& value) {
    reader->limit->has_debt = true;
    return value.read_number(&reader->limit->debt);
}

Parsed read_burst(LimitReader* reader, const OptionValue& value) {
    reader->limit->has_burst = true;
    return value.read_number(&reader->limit->burst);
}

Parsed read_nodelay(LimitReader* reader, const OptionValue&) {
    if (reader->limit->has_delay) {
        return Parsed::kInvalid;
    }
    reader->limit->has_delay = true;
    reader->limit->delay = kNoDelay;
    return Parsed::kOk;
}

Parsed read_delay(LimitReader* reader, const OptionValue& value) {
    if (reader->limit->has_delay) {
        return Parsed::kInvalid;
    }
    reader->limit->has_delay = true;
    return value.read_number(&reader->limit->delay);
}

Parsed read_phase(LimitReader* reader, const OptionValue& value) {
    bool precontent = false;
    const Parsed parsed = value.read_choice("access", "precontent", &precontent);
    if (precontent) {
        reader->limit->phase = NGX_HTTP_PRECONTENT_PHASE;
        main_conf_of(reader->cf)->has_precontent = 1;
    }
    return parsed;
}

Parsed read_headers(LimitReader* reader, const OptionValue& value) {
    return value.read_choice("on", "off", &reader->limit->hidden);
}

// Called only if there are other parameters: read_limit() handles a lone "off".
Parsed read_off(LimitReader*, const OptionValue&) { return Parsed::kInvalid; }

constexpr Option<LimitReader> kLimitOptions[] = {
    {"zone", "NAME", "the zone of rate_limit_zone to apply", "the name of a zone", read_zone},
    {"cost", "N", "the number of requests that a request counts as", "a number from %uL to %uL or a variable",
     read_cost, 0, kMaxCost},
    {"burst", "N", "for leaky_bucket and gcra, overrides burst= of the zone", kNumberAccepted, read_burst, 0,
     kMaxBurst},
    {"nodelay", "", "no request is delayed", "without delay=", read_nodelay},
    {"delay", "N", "the first N requests of the burst are not delayed",
     "a number from %uL to %uL without nodelay", read_delay, 0, kMaxBurst},
    {"phase", "access|precontent", "checked before authentication, or after it", "access or precontent",
     read_phase},
    {"headers", "on|off", "whether clients are told of the limit", "on or off", read_headers},
    {"settle", "$VARIABLE", "what the request turned out to cost, once its response has ended", "a variable",
     read_settle},
    {"debt", "N", "the most that a client may owe beyond the limit", kNumberAccepted, read_debt, 0,
     kMaxCount},
    {"off", "", "cancels the inherited limits", "the only parameter", read_off},
};

// Makes the limit of the directive that is being read; null after an error was logged.
AppliedLimit* make_limit(ngx_conf_t* cf, ngx_command_t* cmd, bool shadow) {
    auto* limit = pool_new<AppliedLimit>(cf->pool);
    if (limit == nullptr) {
        return nullptr;
    }
    limit->fixed_cost = 1;
    limit->debt = kOneMore;
    limit->shadow = shadow;
    limit->phase = NGX_HTTP_ACCESS_PHASE;
    limit->context = static_cast<ngx_http_conf_ctx_t*>(cf->ctx)->loc_conf;
    set_position(cf, limit);
    LimitReader reader = {{cf, cmd, 1}, limit};
    if (read_options(&reader, kLimitOptions) != nullptr) {
        return nullptr;
    }
    if (limit->zone_name.len == 0) {
        refuse(cf, cmd, "requires \"zone=\": %s", kLimitForm);
        return nullptr;
    }
    if (limit->can_owe() && shadow) {
        refuse(cf, cmd, "\"%s=\" is not for shadows: a shadow charges the cost of the request",
               limit->settle != nullptr ? "settle" : "debt");
        return nullptr;
    }
    return limit;
}

char* add_limit(ngx_conf_t* cf, ngx_command_t* cmd, AppliedLimit* limit, ngx_array_t* limits) {
    const auto here = pointers<AppliedLimit>(*limits);
    const auto is_same = [&](const AppliedLimit* other) {
        return view(other->zone_name) == view(limit->zone_name);
    };
    if (std::any_of(here.begin(), here.end(), is_same)) {
        return refuse(cf, cmd, "zone \"%V\" is duplicate here", &limit->zone_name);
    }
    if (limits->nelts == kMaxLimits) {
        return refuse(cf, cmd, "zone \"%V\" is one zone too many here, there must be at most %uz",
                      &limit->zone_name, kMaxLimits);
    }
    auto** slot = static_cast<AppliedLimit**>(ngx_array_push(limits));
    auto** every = static_cast<AppliedLimit**>(ngx_array_push(&main_conf_of(cf)->limits));
    if (slot == nullptr || every == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    *slot = *every = limit;
    return NGX_CONF_OK;
}

char* read_limit(ngx_conf_t* cf, ngx_command_t* cmd, ngx_array_t** limits, bool shadow) {
    const ngx_str_t* words = words_of(cf);
    const bool first = *limits == nullptr;
    const bool off = cf->args->nelts == 2 && view(words[1]) == "off";
    if (!first && (off || (*limits)->nelts == 0)) {
        return refuse(cf, cmd, "\"%V\" contradicts an earlier %V here, it must be either off or zones",
                      &words[1], &cmd->name);
    }
    if (first) {
        *limits = ngx_array_create(cf->pool, 2, sizeof(AppliedLimit*));
    }
    if (*limits == nullptr) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    if (off) {
        return NGX_CONF_OK;
    }
    AppliedLimit* limit = make_limit(cf, cmd, shadow);
    return limit != nullptr ? add_limit(cf, cmd, limit, *limits) : static_cast<char*>(NGX_CONF_ERROR);
}

}  // namespace
}  // namespace rate_limit

extern "C" char* ngx_http_rate_limit(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_limit(cf, cmd, &static_cast<ngx_http_rate_limit_loc_conf_t*>(conf)->limits,
                                  false);
}

extern "C" char* ngx_http_rate_limit_shadow(ngx_conf_t* cf, ngx_command_t* cmd, void* conf) {
    return rate_limit::read_limit(cf, cmd, &static_cast<ngx_http_rate_limit_loc_conf_t*>(conf)->shadows,
                                  true);
}
