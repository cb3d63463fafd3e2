# Each algorithm admits exactly its limit at once, reports how much remains, and rejects the next request.
use strict;
use warnings;
use Test::Nginx::Socket;

repeat_each(1);
no_shuffle();
plan tests => 163;
run_tests();

__DATA__

=== TEST 1: token_bucket starts full and admits as many requests as the rate counts
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=3r/d algorithm=token_bucket;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 5]
--- error_code eval
[200, 200, 200, 429, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 3]



=== TEST 2: token_bucket holds capacity= tokens, above the rate
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=1r/d algorithm=token_bucket capacity=3;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 3: token_bucket holds capacity= tokens, below the rate
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=100r/d algorithm=token_bucket capacity=2;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1", ("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0") x 2]



=== TEST 4: leaky_bucket without burst admits one request
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=10r/d algorithm=leaky_bucket;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 429, 429]
--- response_headers eval
[("X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0") x 3]



=== TEST 5: leaky_bucket with burst and nodelay admits burst + 1 at once
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=10r/d algorithm=leaky_bucket burst=2;
--- config
location /t { rate_limit zone=a nodelay; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 6: the burst of rate_limit overrides the burst of the zone
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=10r/d algorithm=leaky_bucket burst=9;
--- config
location /t { rate_limit zone=a burst=1 nodelay; empty_gif; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1", ("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0") x 2]



=== TEST 7: gcra without burst admits one request
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=10r/d algorithm=gcra;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 2]
--- error_code eval
[200, 429]
--- response_headers eval
[("X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0") x 2]



=== TEST 8: gcra admits burst + 1 at once
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=10r/d algorithm=gcra burst=2;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 9: gcra accepts a burst of rate_limit too
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=10r/d algorithm=gcra;
--- config
location /t { rate_limit zone=a burst=1; empty_gif; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1", ("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0") x 2]



=== TEST 10: fixed_window counts within a window aligned to the clock
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=3r/52w algorithm=fixed_window;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 11: fixed_window counts within a window that starts with the first request
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=3r/d algorithm=fixed_window align=first;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 12: sliding_window admits as many requests as the rate counts
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=3r/52w algorithm=sliding_window;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 13: the default algorithm is sliding_window
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=1r/52w;
--- config
location /t { rate_limit zone=a cost=2; empty_gif; }
--- request
GET /t
--- error_code: 429
--- error_log
algorithm sliding_window



=== TEST 14: sliding_buckets admits as many requests as the rate counts
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=3r/52w algorithm=sliding_buckets buckets=4;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 15: sliding_log admits as many requests as the rate counts
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=3r/d algorithm=sliding_log;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1",
 ("X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0") x 2]



=== TEST 16: rate=off limits no client
--- http_config
rate_limit_zone $binary_remote_addr zone=a:1m rate=off;
--- config
location /t { rate_limit zone=a; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
[("!X-RateLimit-Limit") x 4]
