// Files that the configuration names and the module reads when nginx starts.
#pragma once

#include <string>

#include "nginx/ngx.h"

namespace rate_limit {

// Reads a regular file of at most `most` bytes whole. Returns 0 or an error of the system, EFBIG for a longer
// file. Never waits, as opening a pipe without a writer would.
ngx_err_t read_file(const ngx_str_t& name, std::size_t most, std::string* content, ngx_file_info_t* info);

}  // namespace rate_limit
