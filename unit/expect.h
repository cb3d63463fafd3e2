// Asserts all fields of a decision in one line.
#pragma once

#include "client.h"
#include "test.h"

#define assert_admitted(expression, left, reset)             \
    do {                                                     \
        const rate_limit::Decision decision_ = (expression); \
        assert_true(decision_.allowed);                      \
        assert_int_equal(decision_.remaining, (left));       \
        assert_int_equal(decision_.reset_after, (reset));    \
        assert_int_equal(decision_.retry_after, 0);          \
    } while (0)

#define assert_rejected(expression, left, reset, retry)      \
    do {                                                     \
        const rate_limit::Decision decision_ = (expression); \
        assert_false(decision_.allowed);                     \
        assert_int_equal(decision_.remaining, (left));       \
        assert_int_equal(decision_.reset_after, (reset));    \
        assert_int_equal(decision_.retry_after, (retry));    \
        assert_int_equal(decision_.delay, 0);                \
    } while (0)
