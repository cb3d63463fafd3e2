// The options of a directive, NAME=VALUE or a lone NAME. A directive lists its options in one table, and
// read_options() reads them: a new option is a row and its parser.
#pragma once

#include <string>

#include "configuration/configuration.h"

namespace rate_limit {

enum class Parsed {
    kOk,
    kInvalid,  // read_options() logs what is accepted
    kRefused,  // the parser has logged an error
};

// What a parser gets: an option as it is written, and the bounds of its row.
struct OptionValue {
    ngx_str_t word;  // NAME=VALUE
    ngx_str_t text;  // VALUE; empty for a lone NAME
    std::uint64_t least;
    std::uint64_t most;

    // Each returns kInvalid, and sets nothing, if the text is not of the type or out of bounds.
    Parsed read_number(std::uint64_t* number) const;
    Parsed read_number(std::uint32_t* number) const;
    Parsed read_milliseconds(std::uint64_t* milliseconds) const;  // from a time of nginx, such as 20ms
    Parsed read_choice(std::string_view no, std::string_view yes, bool* is_yes) const;
    Parsed read_switch(bool* is_on) const { return read_choice("off", "on", is_on); }
};

// A row of a table. t/013-options.t compares `name`, `form` and `meaning` with docs/directives.md, and relies
// on the order of these members.
template <class Reader>
struct Option {
    std::string_view name;
    std::string_view form;  // of the value, such as "N"; empty for a lone NAME
    const char* meaning;    // one line of documentation
    // Completes "it must be"; each %uL stands for a bound, the least first. Null if the parser logs it.
    const char* accepted;
    Parsed (*parse)(Reader* reader, const OptionValue& value);
    std::uint64_t least = 0;
    std::uint64_t most = 0;
};

// Values of `accepted` and of the bounds that several options share.
constexpr char kNumberAccepted[] = "a number from %uL to %uL";
constexpr std::uint64_t kHourMilliseconds = 3'600'000;

// A directive that is being read. The reader of a directive inherits it and adds what the parsers set.
struct DirectiveReader {
    ngx_conf_t* cf;
    const ngx_command_t* cmd;
    ngx_uint_t first;  // the index of the first word that is an option

    // The option of this name as it is written; empty if it is not given.
    ngx_str_t given(std::string_view name) const;
    bool is_given(std::string_view name) const { return given(name).len != 0; }

    // An unknown word for the log. A reader hides it if a word may be a secret.
    static std::string shown(const ngx_str_t& word) { return "\"" + std::string(view(word)) + "\""; }

    // Logs that the option at this index is given before, if so, and returns NGX_CONF_ERROR; else null.
    char* refuse_duplicate(ngx_uint_t index) const;
    char* refuse_value(const OptionValue& value, const char* accepted) const;
};

// The name in NAME=VALUE or a lone NAME.
inline std::string_view option_name(const ngx_str_t& word) {
    return view(word).substr(0, view(word).find('='));
}

// The row of a word; null if the word is not an option.
template <class Reader, std::size_t kCount>
const Option<Reader>* find_option(const Option<Reader> (&table)[kCount], const ngx_str_t& word) {
    const std::string_view name = option_name(word);
    for (const Option<Reader>& option : table) {
        if (option.name == name && option.form.empty() == (name.size() == word.len)) {
            return &option;
        }
    }
    return nullptr;
}

// All options of a table as "a=N, b=TIME or c".
template <class Reader, std::size_t kCount>
std::string option_forms(const Option<Reader> (&table)[kCount]) {
    std::string forms;
    for (const Option<Reader>& option : table) {
        const bool is_first = &option == table;
        forms += is_first ? "" : &option == table + kCount - 1 ? " or " : ", ";
        forms.append(option.name).append(option.form.empty() ? "" : "=").append(option.form);
    }
    return forms;
}

// Reads all options of a directive. Returns null, or NGX_CONF_ERROR after an error was logged.
template <class Reader, std::size_t kCount>
char* read_options(Reader* reader, const Option<Reader> (&table)[kCount]) {
    const ngx_str_t* words = words_of(reader->cf);
    for (ngx_uint_t i = reader->first; i < reader->cf->args->nelts; i++) {
        const ngx_str_t& word = words[i];
        const Option<Reader>* option = find_option(table, word);
        if (option == nullptr) {
            return refuse(reader->cf, reader->cmd, "unknown parameter %s, it must be %s",
                          reader->shown(word).c_str(), option_forms(table).c_str());
        }
        if (char* wrong = reader->refuse_duplicate(i)) {
            return wrong;
        }
        const std::size_t before = option->name.size() + (option->form.empty() ? 0 : 1);
        const OptionValue value = {word, ngx_str(view(word).substr(before)), option->least, option->most};
        const Parsed parsed = option->parse(reader, value);
        if (parsed != Parsed::kOk) {
            return parsed == Parsed::kInvalid ? reader->refuse_value(value, option->accepted)
                                              : static_cast<char*>(NGX_CONF_ERROR);
        }
    }
    return nullptr;
}

}  // namespace rate_limit
