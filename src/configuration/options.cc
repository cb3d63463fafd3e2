// Reads values of options, and logs what is wrong with an option.
#include "configuration/options.h"

namespace rate_limit {

Parsed OptionValue::read_number(std::uint64_t* number) const {
    std::uint64_t value = 0;
    if (!parse_number(view(text), most, &value) || value < least) {
        return Parsed::kInvalid;
    }
    *number = value;
    return Parsed::kOk;
}

Parsed OptionValue::read_number(std::uint32_t* number) const {
    std::uint64_t value = *number;
    const Parsed parsed = read_number(&value);
    *number = static_cast<std::uint32_t>(value);
    return parsed;
}

Parsed OptionValue::read_milliseconds(std::uint64_t* milliseconds) const {
    ngx_str_t time = text;
    const ngx_int_t value = ngx_parse_time(&time, 0);
    if (value == NGX_ERROR || static_cast<std::uint64_t>(value) < least ||
        static_cast<std::uint64_t>(value) > most) {
        return Parsed::kInvalid;
    }
    *milliseconds = static_cast<std::uint64_t>(value);
    return Parsed::kOk;
}

Parsed OptionValue::read_choice(std::string_view no, std::string_view yes, bool* is_yes) const {
    if (view(text) != no && view(text) != yes) {
        return Parsed::kInvalid;
    }
    *is_yes = view(text) == yes;
    return Parsed::kOk;
}

ngx_str_t DirectiveReader::given(std::string_view name) const {
    const ngx_str_t* words = words_of(cf);
    for (ngx_uint_t i = first; i < cf->args->nelts; i++) {
        if (option_name(words[i]) == name) {
            return words[i];
        }
    }
    return {};
}

char* DirectiveReader::refuse_duplicate(ngx_uint_t index) const {
    const ngx_str_t* words = words_of(cf);
    for (ngx_uint_t i = first; i < index; i++) {
        if (option_name(words[i]) == option_name(words[index])) {
            return refuse(cf, cmd, "\"%V\" is duplicate, it follows \"%V\"", &words[index], &words[i]);
        }
    }
    return nullptr;
}

char* DirectiveReader::refuse_value(const OptionValue& value, const char* accepted) const {
    u_char text[NGX_MAX_CONF_ERRSTR];
    u_char* end = ngx_snprintf(text, sizeof(text), accepted, value.least, value.most);
    const ngx_str_t must_be = {static_cast<std::size_t>(end - text), text};
    return refuse(cf, cmd, "invalid value \"%V\", it must be %V", &value.word, &must_be);
}

}  // namespace rate_limit
