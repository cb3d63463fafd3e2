# The variables $rate_limit_*, in headers and in the access log.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use Test::More;
use Time::HiRes qw(time);

# The clock of nginx is frozen unless the test advances it.
my $nginx = start_nginx(
    clock => 1,
    http => <<'HTTP',
rate_limit_zone $arg_key zone=two:1m rate=2r/d algorithm=token_bucket;
rate_limit_zone $arg_key zone=ten:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone $arg_key zone=queue:1m rate=3r/s algorithm=leaky_bucket burst=1;
rate_limit_zone $arg_key zone=plan:1m rate=$arg_rate algorithm=token_bucket;
rate_limit_zone $arg_key zone=strict:1m rate=$arg_rate algorithm=token_bucket on_error=closed;
log_format limits '$request_uri status=$status/$rate_limit_status zone=$rate_limit_zone limit=$rate_limit_limit '
                  'remaining=$rate_limit_remaining reset=$rate_limit_reset retry=$rate_limit_retry_after '
                  'store=$rate_limit_store';
access_log access.log limits;
map $rate_limit_status $verdict { default other; PASSED good; REJECTED bad; }
HTTP
    server => <<'SERVER',
error_page 418 /page.html;
location = /page.html { internal; }
location /two/    { rate_limit zone=two; empty_gif; }
location /both/   { rate_limit zone=ten; rate_limit zone=two; empty_gif; }
location /cost/   { rate_limit zone=two cost=3; empty_gif; }
location /look/   { rate_limit zone=two cost=0; empty_gif; }
location /queue/  { rate_limit zone=queue; empty_gif; }
location /plan/   { rate_limit zone=plan; empty_gif; }
location /strict/ { rate_limit zone=strict; empty_gif; }
location /mixed/  { rate_limit zone=plan; rate_limit zone=two; empty_gif; }
location /dry/    { rate_limit zone=two; rate_limit_dry_run on; empty_gif; }
location /drip/   { rate_limit zone=queue; rate_limit_dry_run on; empty_gif; }
location /off/    { rate_limit off; empty_gif; }
location /none/   { empty_gif; }
location /return/ { rate_limit zone=two; return 200 early; }
location /page/   { rate_limit zone=two; rate_limit_status 418; empty_gif; }
location /quiet/  { rate_limit zone=two; rate_limit_headers off; empty_gif; }
location /added/  {
    rate_limit zone=two;
    add_header X-All "$rate_limit_status $rate_limit_zone $rate_limit_limit $rate_limit_remaining" always;
    add_header X-Reset $rate_limit_reset always;
    add_header X-Retry $rate_limit_retry_after always;
    add_header X-Store $rate_limit_store always;
    add_header X-Verdict $verdict always;
    empty_gif;
}
location /proxied/ {
    rate_limit zone=two;
    proxy_set_header X-Seen "$rate_limit_status $rate_limit_remaining";
    proxy_pass http://127.0.0.1:%PORT1%;
}
location /early/  { set $early "<$rate_limit_status>"; rate_limit zone=two; add_header X-Early $early; empty_gif; }
SERVER
    servers => 'server { listen 127.0.0.1:%PORT1%; location / { return 200 $http_x_seen; } }',
);
$nginx->write_file('page.html', "page\n");

# Returns the access log lines of $times requests for a path.
sub logged {
    my ($path, $times) = @_;
    my $delayed = $path =~ m{^/queue} ? $times - 1 : 0;
    $nginx->request(path => $path) for 1 .. $times - $delayed;
    $nginx->delayed_request(path => $path) for 1 .. $delayed;
    my @lines;
    wait_for("$times lines of $path", sub { (@lines = $nginx->access_log =~ /^\Q$path\E (.*)$/mg) == $times });
    return map {s/reset=\d{10}/reset=TIME/r} @lines;
}

my $none  = 'zone=- limit=- remaining=- reset=- retry=- store=-';
my $shown = 'zone=two limit=2 remaining';

{
    my @lines = logged('/two/?key=a', 3);
    is $lines[0], "status=200/PASSED $shown=1 reset=TIME retry=- store=memory", 'PASSED: all but retry_after are set';
    is $lines[1], "status=200/PASSED $shown=0 reset=TIME retry=- store=memory", 'PASSED: the numbers count down';
    like $lines[2], qr{^status=429/REJECTED $shown=0 reset=TIME retry=43[12]\d\d store=memory$},
        'REJECTED: all are set';
}
{
    my @lines = logged('/queue/?key=b', 2);
    is $lines[0], 'status=200/PASSED zone=queue limit=2 remaining=1 reset=TIME retry=- store=memory', 'PASSED at once';
    is $lines[1], 'status=200/DELAYED zone=queue limit=2 remaining=0 reset=TIME retry=- store=memory', 'DELAYED';
}
like +(logged('/both/?key=c', 3))[2], qr{/REJECTED zone=two limit=2 remaining=0 }, 'the tightest zone';
is +(logged('/cost/?key=d', 1))[0], "status=429/REJECTED $shown=2 reset=TIME retry=- store=memory",
    'no retry_after if the cost can never fit';
is +(logged('/look/?key=e', 1))[0], "status=200/PASSED $shown=2 reset=TIME retry=- store=memory", 'a look';
like +(logged('/dry/?key=f', 3))[2], qr{^status=200/REJECTED_DRY_RUN $shown=0 reset=TIME retry=43[12]\d\d store=},
    'REJECTED_DRY_RUN';
like +(logged('/drip/?key=g', 2))[1], qr{^status=200/DELAYED_DRY_RUN zone=queue }, 'DELAYED_DRY_RUN';

is +(logged('/two/', 1))[0],                 "status=200/BYPASSED $none", 'BYPASSED: an empty key';
is +(logged('/plan/?key=h&rate=off', 1))[0], "status=200/BYPASSED $none", 'BYPASSED: a rate that is off';
is +(logged('/plan/?key=i&rate=bad', 1))[0], "status=200/ERROR $none",    'ERROR: admitted with on_error=open';
is +(logged('/strict/?key=j&rate=bad', 1))[0], "status=503/ERROR $none",  'ERROR: rejected with on_error=closed';
{
    my @lines = logged('/mixed/?key=k&rate=bad', 3);
    is $lines[0], "status=200/ERROR $shown=1 reset=TIME retry=- store=memory", 'ERROR in one zone, PASSED in another';
    like $lines[2], qr{^status=429/REJECTED $shown=0 }, 'ERROR in one zone, REJECTED in another';
    is +(logged('/mixed/?key=l&rate=off', 1))[0], "status=200/PASSED $shown=1 reset=TIME retry=- store=memory",
        'off in one zone, PASSED in another';
}

is +(logged("$_?key=m", 1))[0], "status=200/- $none", "not set: $_" for '/off/', '/none/', '/return/';
is +(logged('/absent?key=n', 1))[0], "status=404/- $none", 'not set: a location without limits';

like +(logged('/page/?key=o', 3))[2], qr{^status=418/REJECTED $shown=0 reset=TIME retry=43}, 'set after an error page';
is +(logged('/quiet/?key=p', 1))[0], "status=200/PASSED $shown=1 reset=TIME retry=- store=memory",
    'set although headers are off';

# Variables in headers.
{
    my $before   = $nginx->now;
    my $response = $nginx->get('/added/?key=q');
    is $response->header('X-All'), 'PASSED two 2 1', 'add_header on an admitted request';
    is $response->header('X-Reset'), $response->header('X-RateLimit-Reset'),
        'add_header: the reset equals the header of the module';
    ok abs($response->header('X-Reset') - $before - 43_200) <= 1, 'add_header: the reset is a Unix time';
    is $response->count('X-Retry'), 0, 'add_header: no retry_after';
    is $response->header('X-Store'), 'memory', 'add_header: the store';
    is $response->header('X-Verdict'), 'good', 'a map of a variable';
    $nginx->get('/added/?key=q');
    $response = $nginx->get('/added/?key=q');
    is $response->header('X-All'), 'REJECTED two 2 0', 'add_header … always on a rejected request';
    is $response->header('X-Retry'), $response->header('Retry-After'),
        'add_header: retry_after equals the header of the module';
    is $response->header('X-Verdict'), 'bad', 'a map of a variable, rejected';
}
is $nginx->get('/proxied/?key=r')->{body}, 'PASSED 1', 'a header to an upstream';
is $nginx->get('/early/?key=s')->header('X-Early'), '<>', 'not set before the access phase';

done_testing;
