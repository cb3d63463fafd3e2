// nginx for C++: the only C++ header of the module that includes nginx's headers.
#pragma once

extern "C" {
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
}

#include <new>
#include <string_view>
#include <type_traits>

namespace rate_limit {

inline std::string_view view(const ngx_str_t& text) {
    return {reinterpret_cast<const char*>(text.data), text.len};
}

inline ngx_str_t ngx_str(std::string_view text) {
    return {text.size(), reinterpret_cast<u_char*>(const_cast<char*>(text.data()))};
}

// Whether two texts are equal, without regard to the case of ASCII letters.
inline bool same_letters(std::string_view a, std::string_view b) {
    return a.size() == b.size() && ngx_strncasecmp(ngx_str(a).data, ngx_str(b).data, a.size()) == 0;
}

// The value of a variable; empty if the variable is not set. A variable that may have changed is evaluated
// again.
inline std::string_view variable_value(ngx_http_request_t* r, ngx_int_t index) {
    const auto number = static_cast<ngx_uint_t>(index);
    const ngx_http_variable_value_t* value = &r->variables[index];
    value = value->valid || value->not_found ? ngx_http_get_flushed_variable(r, number)
                                             : ngx_http_get_indexed_variable(r, number);
    return value == nullptr || value->not_found
               ? std::string_view()
               : std::string_view(reinterpret_cast<const char*>(value->data), value->len);
}

// Creates a T that lives as long as the pool; null if memory is exhausted. The pool does not call
// destructors, so T must not need one.
template <class T>
T* pool_new(ngx_pool_t* pool) {
    static_assert(std::is_trivially_destructible<T>::value, "a pool runs no destructors");
    void* memory = ngx_pcalloc(pool, sizeof(T));
    return memory != nullptr ? new (memory) T() : nullptr;
}

}  // namespace rate_limit
