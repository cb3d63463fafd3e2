# A request under several zones is charged to all of them or to none.
use strict;
use warnings;
use Test::Nginx::Socket;

repeat_each(1);
no_shuffle();
plan tests => 66;
run_tests();

__DATA__

=== TEST 1: the tighter of two zones rejects, and the other zone is not charged
--- http_config
rate_limit_zone $binary_remote_addr zone=wide:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone $binary_remote_addr zone=tight:1m rate=2r/d algorithm=token_bucket;
--- config
location /both { rate_limit zone=wide; rate_limit zone=tight; empty_gif; }
location /wide { rate_limit zone=wide; empty_gif; }
--- request eval
[("GET /both") x 5, "GET /wide"]
--- error_code eval
[200, 200, 429, 429, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1", ("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0") x 4,
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 7"]



=== TEST 2: the order of the zones makes no difference
--- http_config
rate_limit_zone $binary_remote_addr zone=wide:1m rate=10r/d algorithm=sliding_log;
rate_limit_zone $binary_remote_addr zone=tight:1m rate=2r/d algorithm=gcra burst=1;
--- config
location /both { rate_limit zone=tight; rate_limit zone=wide; empty_gif; }
location /wide { rate_limit zone=wide; empty_gif; }
--- request eval
[("GET /both") x 4, "GET /wide"]
--- error_code eval
[200, 200, 429, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1", ("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0") x 3,
 "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 7"]



=== TEST 3: a zone with count=all is charged for rejected requests, the other zones are not
--- http_config
rate_limit_zone $binary_remote_addr zone=wide:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone $binary_remote_addr zone=all:1m rate=10r/d algorithm=token_bucket count=all;
rate_limit_zone $binary_remote_addr zone=tight:1m rate=2r/d algorithm=token_bucket;
--- config
location /every { rate_limit zone=wide; rate_limit zone=all; rate_limit zone=tight; empty_gif; }
location /wide { rate_limit zone=wide; empty_gif; }
location /all { rate_limit zone=all; empty_gif; }
--- request eval
[("GET /every") x 5, "GET /wide", "GET /all"]
--- error_code eval
[200, 200, 429, 429, 429, 200, 200]
--- response_headers eval
[("X-RateLimit-Limit: 2") x 5, "X-RateLimit-Remaining: 7", "X-RateLimit-Remaining: 4"]



=== TEST 4: if two zones reject, the headers show the zone with the longer wait
--- http_config
rate_limit_zone $binary_remote_addr zone=hour:1m rate=1r/h algorithm=token_bucket;
rate_limit_zone $binary_remote_addr zone=week:1m rate=1r/w algorithm=token_bucket;
--- config
location /t { rate_limit zone=hour; rate_limit zone=week; empty_gif; }
--- request eval
[("GET /t") x 2]
--- error_code eval
[200, 429]
--- raw_response_headers_like eval
["", "Retry-After: 60[0-9]{4}\r"]



=== TEST 5: a zone with an empty key does not affect the other zones
--- http_config
rate_limit_zone $http_x_user zone=user:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $binary_remote_addr zone=address:1m rate=3r/d algorithm=token_bucket;
--- config
location /t { rate_limit zone=user; rate_limit zone=address; empty_gif; }
--- request eval
[("GET /t") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1", ("X-RateLimit-Remaining: 0") x 2]



=== TEST 6: sixteen zones apply at once
--- http_config eval
CORE::join '', map { "rate_limit_zone \$remote_addr zone=z$_:64k rate=${_}r/d algorithm=token_bucket;\n" } 1 .. 16
--- config eval
"location /t { " . CORE::join('', map { "rate_limit zone=z$_;\n" } CORE::reverse 1 .. 16) . "empty_gif; }\n"
. "location /z16 { rate_limit zone=z16; empty_gif; }"
--- request eval
[("GET /t") x 2, "GET /z16"]
--- error_code eval
[200, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1", "X-RateLimit-Remaining: 14"]
