# rate_limit is inherited like limit_req: a level that has the directive ignores the levels above.
use strict;
use warnings;
use Test::Nginx::Socket;

repeat_each(1);
no_shuffle();
plan tests => 74;

our $Zones = <<'CONF';
rate_limit_zone $binary_remote_addr zone=five:1m rate=5r/d algorithm=token_bucket;
rate_limit_zone $binary_remote_addr zone=nine:1m rate=9r/d algorithm=token_bucket;
rate_limit_zone $binary_remote_addr zone=one:1m rate=1r/d algorithm=token_bucket;
CONF

run_tests();

__DATA__

=== TEST 1: a limit of http applies in every server and location
--- http_config eval
"$main::Zones rate_limit zone=five;"
--- config
location /a { empty_gif; }
location /b { empty_gif; location /b/c { empty_gif; } }
--- request eval
["GET /a", "GET /b", "GET /b/c"]
--- response_headers eval
[map { "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: $_" } 4, 3, 2]
--- error_code eval
[200, 200, 200]



=== TEST 2: a limit of a server replaces the limit of http
--- http_config eval
"$main::Zones rate_limit zone=five;"
--- config
rate_limit zone=nine;
location /a { empty_gif; }
--- request eval
["GET /a"]
--- response_headers
X-RateLimit-Limit: 9
X-RateLimit-Remaining: 8



=== TEST 3: a limit of a location replaces the limits of its server
--- http_config eval
$main::Zones
--- config
rate_limit zone=one;
rate_limit zone=five;
location /a { rate_limit zone=nine; empty_gif; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 8", "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 7"]



=== TEST 4: all limits of a level are inherited together
--- http_config eval
$main::Zones
--- config
rate_limit zone=nine;
rate_limit zone=five;
location /a { empty_gif; }
location /nine { rate_limit zone=nine; empty_gif; }
--- request eval
["GET /a", "GET /nine"]
--- error_code eval
[200, 200]
--- response_headers eval
["X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4", "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 7"]



=== TEST 5: off ends inheritance, also for nested locations
--- http_config eval
"$main::Zones rate_limit zone=one;"
--- config
location /off { rate_limit off; empty_gif; location /off/in { empty_gif; } }
location /on { empty_gif; }
--- request eval
["GET /off", "GET /off", "GET /off/in", "GET /on", "GET /on"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_headers eval
["!X-RateLimit-Limit", "!X-RateLimit-Limit", "!X-RateLimit-Limit", "X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1"]



=== TEST 6: below off, a limit can be set again
--- http_config eval
$main::Zones
--- config
rate_limit off;
location /a { rate_limit zone=one; empty_gif; }
location /b { empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b"]
--- error_code eval
[200, 429, 200]



=== TEST 7: off in a server disables a limit of http
--- http_config eval
"$main::Zones rate_limit zone=one;"
--- config
rate_limit off;
location /a { empty_gif; }
--- request eval
["GET /a", "GET /a"]
--- error_code eval
[200, 200]



=== TEST 8: a limit in an if applies where the condition is true
--- http_config eval
$main::Zones
--- config
location /a {
    if ($arg_limited) { rate_limit zone=one; }
    empty_gif;
}
--- request eval
["GET /a", "GET /a?limited=1", "GET /a?limited=1", "GET /a"]
--- error_code eval
[200, 200, 429, 200]
--- response_headers eval
["!X-RateLimit-Limit", "X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1", "!X-RateLimit-Limit"]



=== TEST 9: an if inherits the directives that it does not set
--- http_config eval
$main::Zones
--- config
location /a {
    rate_limit zone=five;
    rate_limit_headers ietf;
    if ($arg_x) { set $y 1; }
    if ($arg_off) { rate_limit off; }
    if ($arg_nine) { rate_limit zone=nine; }
    empty_gif;
}
--- request eval
["GET /a", "GET /a?x=1", "GET /a?off=1", "GET /a?nine=1"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers_like eval
["RateLimit: \"five\";r=4;t=\\d+", "RateLimit: \"five\";r=3;t=\\d+", "RateLimit: ", "RateLimit: \"nine\";r=8;t=\\d+"]



=== TEST 10: two locations with the same zone share one count
--- http_config eval
$main::Zones
--- config
location /a { rate_limit zone=one; empty_gif; }
location /b { rate_limit zone=one; empty_gif; }
--- request eval
["GET /a", "GET /b"]
--- error_code eval
[200, 429]



=== TEST 11: an if may set another cost for the same zone
--- http_config eval
$main::Zones
--- config
location /a {
    rate_limit zone=nine;
    if ($arg_dear) { rate_limit zone=nine cost=4; }
    empty_gif;
}
--- request eval
["GET /a", "GET /a?dear=1", "GET /a", "GET /a?dear=1"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 8", "X-RateLimit-Remaining: 4", ("X-RateLimit-Remaining: 3") x 2]



=== TEST 12: status, headers, body and log level are inherited independently
--- http_config eval
"$main::Zones rate_limit zone=one; rate_limit_status 503; rate_limit_body problem;"
--- config
rate_limit_headers all;
rate_limit_log_level notice;
location /a { rate_limit_body off; empty_gif; }
location /b { rate_limit_status 430; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b"]
--- error_code eval
[200, 503, 430]
--- response_headers_like eval
["RateLimit-Policy: \"one\";q=1;w=86400", "Content-Type: text/html", "Content-Type: application/problem\\+json"]



=== TEST 13: dry run is inherited, and can be turned off in a nested level
--- http_config eval
"$main::Zones rate_limit zone=one; rate_limit_dry_run on;"
--- config
location /a { empty_gif; }
location /b { rate_limit_dry_run off; empty_gif; }
--- request eval
["GET /a", "GET /a", "GET /b"]
--- error_code eval
[200, 200, 429]
