// Names of the algorithms.
#include "core/algorithm_table.h"

namespace rate_limit {
namespace {

constexpr std::string_view kLongestSeparator = " or ";

constexpr std::size_t size_of_all_names() {
    std::size_t size = 1;
    for (const AlgorithmTraits& traits : kAlgorithmTraits) {
        size += traits.name.size() + kLongestSeparator.size();
    }
    return size;
}

static_assert(size_of_all_names() <= AlgorithmNames::kSize, "all names fit");

template <class Wanted>
AlgorithmNames join_names(std::string_view last_separator, Wanted wanted) {
    AlgorithmNames names = {};
    unsigned left = 0;
    for (const AlgorithmTraits& traits : kAlgorithmTraits) {
        left += wanted(traits) ? 1 : 0;
    }
    char* at = names.text;
    for (const AlgorithmTraits& traits : kAlgorithmTraits) {
        if (!wanted(traits)) {
            continue;
        }
        at += traits.name.copy(at, traits.name.size());
        left--;
        const std::string_view separator = left > 1 ? ", " : left == 1 ? last_separator : "";
        at += separator.copy(at, separator.size());
    }
    return names;
}

}  // namespace

const char* algorithm_name(Algorithm algorithm) {
    return kAlgorithmTraits[static_cast<unsigned>(algorithm)].name.data();
}

bool parse_algorithm(std::string_view name, Algorithm* algorithm) {
    for (unsigned i = 0; i < kAlgorithms; i++) {
        if (name == kAlgorithmTraits[i].name) {
            *algorithm = static_cast<Algorithm>(i);
            return true;
        }
    }
    return false;
}

AlgorithmNames all_algorithm_names() {
    return join_names(" or ", [](const AlgorithmTraits&) { return true; });
}

AlgorithmNames names_of_algorithms_taking(AlgorithmOption option) {
    return join_names(" or ",
                      [option](const AlgorithmTraits& traits) { return (traits.options & option) != 0; });
}

}  // namespace rate_limit
