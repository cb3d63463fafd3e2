// cmocka for all test programs, without the macros that collide with the standard library.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#undef mock
#undef skip
#undef stop

// In place of fail(), which collides with the streams'; fail_msg() needs it no more.
#undef fail
#undef fail_msg
#define fail_msg(...) (print_error("ERROR: " __VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

// cmocka 2 has one macro for each signedness and deprecates the old one, which took unsigned numbers.
#ifdef assert_uint_in_range
#undef assert_in_range
#define assert_in_range(value, least, most) assert_uint_in_range(value, least, most)
#endif
