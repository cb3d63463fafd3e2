// The header filter.
#pragma once

namespace rate_limit {

// Installs the filter in front of the other header filters.
void add_header_filter();

}  // namespace rate_limit
