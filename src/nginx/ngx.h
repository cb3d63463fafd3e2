/* nginx for C++: the one header of the module that includes nginx's own. */
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

// Whether two texts are the same but for the case of their letters.
inline bool same_letters(std::string_view a, std::string_view b) {
    return a.size() == b.size() && ngx_strncasecmp(ngx_str(a).data, ngx_str(b).data, a.size()) == 0;
}

// A number as text in the pool; without data if there is no memory.
inline ngx_str_t pool_number(ngx_pool_t* pool, int64_t number) {
    auto* text = static_cast<u_char*>(ngx_pnalloc(pool, NGX_INT64_LEN));
    u_char* end = text != nullptr ? ngx_snprintf(text, NGX_INT64_LEN, "%L", number) : nullptr;
    return {static_cast<std::size_t>(end - text), text};
}

// Makes a T that lives as long as the pool; null if there is no memory. Nothing destroys it, so T must not
// need it.
template <class T>
T* pool_new(ngx_pool_t* pool) {
    static_assert(std::is_trivially_destructible<T>::value, "a pool runs no destructors");
    void* memory = ngx_pcalloc(pool, sizeof(T));
    return memory != nullptr ? new (memory) T() : nullptr;
}

}  // namespace rate_limit
