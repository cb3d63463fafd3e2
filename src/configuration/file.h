// Files that directives name. nginx reads them when it starts or reloads.
#pragma once

#include <string>

#include "configuration/configuration.h"

namespace rate_limit {

// Reads the whole file `name`, which is relative to the directory of nginx.conf. The file must be regular and
// have at most `most` bytes. Returns null, or NGX_CONF_ERROR after an error was logged, in which `word` names
// the file and `accepted` completes "it must be". Never blocks, as opening a pipe without a writer would.
char* read_conf_file(ngx_conf_t* cf, const ngx_command_t* cmd, const ngx_str_t& word, const ngx_str_t& name,
                     std::size_t most, const char* accepted, std::string* content, ngx_file_info_t* info);

}  // namespace rate_limit
