# The rate limit headers: their names, the responses that have them, and their numbers.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use Test::More;
use Time::HiRes qw(time);

my @legacy = qw(X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset);
my @ietf   = qw(RateLimit-Policy RateLimit);
my @every  = (@legacy, @ietf, 'Retry-After');

# The clock of nginx is frozen.
my $nginx = start_nginx(
    clock => 1,
    http => <<'HTTP',
rate_limit_zone $http_x_client zone=one:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=ten:1m rate=10r/h algorithm=token_bucket;
rate_limit_zone $http_x_client zone=hundred:1m rate=100r/m algorithm=token_bucket;
rate_limit_zone $http_x_client zone=bucket:1m rate=1r/s algorithm=token_bucket capacity=20;
rate_limit_zone $http_x_client zone=first:1m rate=1r/90s algorithm=fixed_window align=first;
rate_limit_zone $http_x_client zone=clock:1m rate=1r/d algorithm=fixed_window;
rate_limit_zone $http_x_client zone=several:1m rate=5r/h,50r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=interval:1m rate=50r/m algorithm=token_bucket min_interval=2500ms;
HTTP
    server => <<'SERVER',
location = /off     { rate_limit zone=one; rate_limit_headers off; empty_gif; }
location = /legacy  { rate_limit zone=one; rate_limit_headers legacy; empty_gif; }
location = /ietf    { rate_limit zone=one; rate_limit_headers ietf; empty_gif; }
location = /all     { rate_limit zone=one; rate_limit_headers all; empty_gif; }
rate_limit_headers all;
location = /several { rate_limit zone=several; empty_gif; }
location = /zones   { rate_limit zone=hundred; rate_limit zone=ten; empty_gif; }
location = /bucket  { rate_limit zone=bucket cost=$arg_n; empty_gif; }
location = /first   { rate_limit zone=first; empty_gif; }
location = /clock   { rate_limit zone=clock; empty_gif; }
location = /interval { rate_limit zone=interval; empty_gif; }
location /files/    { rate_limit zone=ten; }
location /page/     { rate_limit zone=one; error_page 429 /429.html; empty_gif; }
location /ok/       { rate_limit zone=one; error_page 429 =200 /429.html; empty_gif; }
location /named/    { rate_limit zone=one; error_page 429 @named; empty_gif; }
location /absent/   { rate_limit zone=ten; error_page 404 /404.html; }
location @named     { default_type text/plain; return 429 named; }
location /429.html  { }
location /404.html  { }
location /own/      { rate_limit zone=ten; add_header X-Own $rate_limit_remaining always; empty_gif; }
location /app/      { rate_limit zone=ten; proxy_pass http://127.0.0.1:%PORT1%/; }
location /limited/  { rate_limit zone=one; proxy_pass http://127.0.0.1:%PORT1%/; }
location /quiet/    { rate_limit zone=ten; rate_limit_headers off; proxy_pass http://127.0.0.1:%PORT1%/; }
location /free/     { proxy_pass http://127.0.0.1:%PORT1%/; }
SERVER
    servers => <<'SERVERS',
server {
    listen 127.0.0.1:%PORT%;
    server_name plain;
    location = /default { rate_limit zone=one; empty_gif; }
}
server {
    listen 127.0.0.1:%PORT1%;
    add_header X-RateLimit-Limit 7777 always;
    add_header x-ratelimit-remaining 7777 always;
    add_header X-RATELIMIT-RESET 7777 always;
    add_header RateLimit '"up";r=7777;t=1' always;
    add_header RateLimit '"up2";r=7777;t=1' always;
    add_header RateLimit-Policy '"up";q=7777;w=1' always;
    add_header Retry-After 7777 always;
    add_header X-Other kept always;
    location / { return 200 upstream; }
    location /busy { return 503 busy; }
}
SERVERS
);
$nginx->write_file('429.html',         "own page\n");
$nginx->write_file('404.html',         "not here\n");
$nginx->write_file('files/index.html', "hello\n");
$nginx->write_file('files/folder/x',   "hello\n");

my $clients = 0;

# Sends $times requests of a new client. Returns the last response.
sub ask {
    my ($path, $times, @headers) = @_;
    my @client = ('X-Client' => 'client' . $clients++);
    my $last;
    $last = $nginx->request(path => $path, headers => [ @client, @headers ]) for 1 .. $times // 1;
    return $last;
}

sub names {
    my ($response) = @_;
    return join ' ', grep { $response->count($_) } @every;
}

my %shown = (
    default => "@legacy",
    off     => '',
    legacy  => "@legacy",
    ietf    => "@ietf",
    all     => "@legacy @ietf",
);
for my $which (sort keys %shown) {
    my @host     = (Host => $which eq 'default' ? 'plain' : 'localhost');
    my $response = ask("/$which", 1, @host);
    is $response->{status}, 200, "$which: admitted";
    is names($response), $shown{$which}, "$which: headers of an admitted request";
    $response = ask("/$which", 2, @host);
    is $response->{status}, 429, "$which: rejected";
    my $retry = $shown{$which} eq '' ? '' : "$shown{$which} Retry-After";
    is names($response), $retry, "$which: headers of a rejected request";
    is_deeply [ grep { $response->count($_) > 1 } @every ], [], "$which: once each";
}

# The numbers in the headers.
{
    my $now      = $nginx->now;
    my $response = ask('/all', 2);
    is $response->header('X-RateLimit-Limit'),     1, 'legacy: the limit';
    is $response->header('X-RateLimit-Remaining'), 0, 'legacy: what remains';
    my $reset = $response->header('X-RateLimit-Reset');
    ok abs($reset - $now - 86_400) <= 1, 'legacy: the reset is a Unix time' or diag "$reset at $now";
    is $response->header('Retry-After'), 86_400, 'Retry-After is in seconds';
    is $response->header('RateLimit-Policy'), '"one";q=1;w=86400', 'ietf: the policy';
    is $response->header('RateLimit'), '"one";r=0;t=86400', 'ietf: what remains';
}
{
    my $response = ask('/bucket?n=5');
    is $response->header('RateLimit-Policy'), '"bucket";q=20;w=20',
        'the window w is as long as the quota needs at its rate';
    is $response->header('RateLimit'), '"bucket";r=15;t=5', 'the used quota is back in t seconds';
    $response = ask('/interval', 2);
    is $response->header('Retry-After'), 3, 'Retry-After rounds up';
    $response = ask('/first', 2);
    is $response->header('Retry-After'), 90, 'Retry-After is the time to the end of the window';
    $response = ask('/clock');
    is $response->header('X-RateLimit-Reset') % 86_400, 0, 'a window aligned to the clock is reset on the clock';
}
# Draft 11, section 6: Retry-After should not be earlier than the end of the effective window.
{
    my $cost = sub { return $nginx->get("/bucket?n=$_[0]", 'X-Client' => 'draft') };
    is $cost->(5)->header('RateLimit'), '"bucket";r=15;t=5', 'an admitted client: until the whole quota is back';
    my $response = $cost->(18);
    is $response->{status}, 429, 'a rejected client';
    is $response->header('Retry-After'), 3, 'waits for three requests';
    is $response->header('RateLimit'), '"bucket";r=15;t=3', 't is not longer than Retry-After';
    $response = $cost->(21);
    is $response->header('Retry-After'), undef, 'a cost above the limit never fits';
    is $response->header('RateLimit'), '"bucket";r=15;t=5', 't is then the time until the whole quota is back';
}
{
    my $response = ask('/several');
    is $response->header('RateLimit-Policy'), '"several-1h";q=5;w=3600, "several-1d";q=50;w=86400',
        'several rates are several policies';
    like $response->header('RateLimit'), qr/^"several-1h";r=4;t=\d+$/, 'the tightest rate is shown';
    $response = ask('/zones');
    is $response->header('RateLimit-Policy'), '"hundred";q=100;w=60, "ten";q=10;w=3600',
        'several zones are several policies, in order';
    like $response->header('RateLimit'), qr/^"ten";r=9;t=\d+$/, 'the tightest zone is shown';
    is $response->header('X-RateLimit-Limit'), 10, 'the tightest zone is shown in the legacy headers';
}

# All kinds of responses.
my @kinds = (
    [ 'a file',                          '/files/index.html',  1, 200, "@legacy @ietf" ],
    [ 'an index',                        '/files/',            1, 200, "@legacy @ietf" ],
    [ 'a redirect of nginx',             '/files/folder',      1, 301, "@legacy @ietf" ],
    [ 'a missing file',                  '/files/absent',      1, 404, "@legacy @ietf" ],
    [ 'an error page of a missing file', '/absent/x',          1, 404, "@legacy @ietf" ],
    [ 'an error page of a rejection',    '/page/x',            2, 429, "@legacy @ietf Retry-After" ],
    [ 'an error page with =200',         '/ok/x',              2, 200, "@legacy @ietf Retry-After" ],
    [ 'a named location for rejections', '/named/x',           2, 429, "@legacy @ietf Retry-After" ],
    [ 'an upstream',                     '/app/',              1, 200, "@legacy @ietf Retry-After" ],
    [ 'a rejection before an upstream',  '/limited/',          2, 429, "@legacy @ietf Retry-After" ],
);
for my $row (@kinds) {
    my ($title, $path, $times, $status, $names) = @{$row};
    my $response = ask($path, $times);
    is $response->{status}, $status, "$title: status";
    is names($response), $names, "$title: headers";
    is_deeply [ grep { $response->count($_) > 1 } @every ], [], "$title: once each";
}
{
    my $etag = ask('/files/index.html')->header('ETag');
    my $response = ask('/files/index.html', 1, 'If-None-Match' => $etag);
    is $response->{status} . ' ' . names($response), "304 @legacy @ietf", 'a 304 has the headers';
    $response = ask('/files/index.html', 1, Range => 'bytes=0-1');
    is $response->{status} . ' ' . names($response), "206 @legacy @ietf", 'a part of a file has the headers';
    is ask('/page/x', 2)->{body}, "own page\n", 'an error page has its own body';
}

# Headers of an upstream.
{
    my $response = ask('/app/');
    is $response->{body}, 'upstream', 'the upstream answers';
    is $response->header('X-RateLimit-Limit'),     10,                  'ours wins: limit';
    is $response->header('X-RateLimit-Remaining'), 9,                   'ours wins: remaining';
    isnt $response->header('X-RateLimit-Reset'),   7777,                'ours wins: reset';
    like $response->header('RateLimit'),           qr/^"ten";r=9;t=\d+$/, 'ours wins: RateLimit';
    is $response->header('RateLimit-Policy'),      '"ten";q=10;w=3600', 'ours wins: RateLimit-Policy';
    is $response->header('Retry-After'), 7777,   'Retry-After of an upstream is kept on an admitted request';
    is $response->header('X-Other'),     'kept', 'other headers of an upstream are kept';
    $response = ask('/app/busy');
    is "$response->{status} " . $response->header('Retry-After'), '503 7777',
        'Retry-After of an overloaded upstream is kept';
    isnt ask('/limited/', 2)->header('Retry-After'), 7777, 'a rejected request has Retry-After of the module';
    is ask('/quiet/')->header('X-RateLimit-Limit'), 7777, 'headers off: headers of an upstream are kept';
    is ask('/free/')->header('X-RateLimit-Limit'),  7777, 'no limit: headers of an upstream are kept';
    is ask('/own/')->header('X-Own'), 9, 'add_header can use the variables of the module';
}

done_testing;
