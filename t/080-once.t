# A request is charged once to a zone, also after internal redirects and in subrequests.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx format_request slurp wait_for);
use Test::More;

# The clock of nginx is frozen unless the test advances it.
my $nginx = start_nginx(
    clock => 1,
    http => <<'HTTP',
rate_limit_zone $http_x_client zone=ten:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=other:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=one:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=queue:1m rate=3r/s algorithm=leaky_bucket burst=1;
recursive_error_pages on;
HTTP
    server => <<'SERVER',
rate_limit zone=ten;
rate_limit_headers all;
add_header X-Status $rate_limit_status always;
location = /look/ten   { rate_limit zone=ten cost=0; empty_gif; }
location = /look/other { rate_limit zone=other cost=0; empty_gif; }
location = /look/one   { rate_limit zone=one cost=0; empty_gif; }
location = /404.html   { }
location = /page.html  { }
location /plain/       { empty_gif; }
location /error-page/  { error_page 404 /404.html; }
location /error-page-named/ { error_page 404 @named; }
location @named        { empty_gif; }
location /error-page-twice/ { error_page 404 /first-page/absent; }
location /first-page/  { error_page 404 /404.html; }
location /error-page-200/ { error_page 404 =200 /plain/x; }
location /error-page-other/ { error_page 404 /other-page/x; }
location /other-page/  { rate_limit zone=other; empty_gif; }
location /error-page-both/ { error_page 404 /both-page/x; }
location /both-page/   { rate_limit zone=other; rate_limit zone=ten cost=5; empty_gif; }
location /error-page-one/ { error_page 404 /one-page/x; }
location /one-page/    { rate_limit zone=one; empty_gif; }
location /try-files/   { try_files /absent /plain/x; }
location /try-named/   { try_files /absent @named; }
location /folder/      { index page.html; }
location /look-first/  { rate_limit zone=ten cost=0; try_files /absent /both-page/x; }
location /rehearsed/   { rate_limit zone=one; rate_limit_dry_run on; try_files /absent /one-page/x; }
location /half-tried/  { rate_limit zone=ten; rate_limit zone=one phase=precontent; rate_limit_dry_run on;
    try_files /absent /plain/x; }
location /rewrite/     { rewrite ^ /plain/x last; }
location /rewrite-redirect/ { rewrite ^ /plain/x redirect; }
location /accel/       { proxy_pass http://127.0.0.1:%PORT1%; }
location /accel-named/ { proxy_pass http://127.0.0.1:%PORT1%; }
location /internal/    { internal; empty_gif; }
location /intercept/   { proxy_pass http://127.0.0.1:%PORT1%; proxy_intercept_errors on; error_page 502 = @named; }
location /auth/        { auth_request /auth-check; empty_gif; }
location = /auth-check { internal; proxy_pass http://127.0.0.1:%PORT1%/ok; }
location /auth-other/  { auth_request /auth-check-other; empty_gif; }
location = /auth-check-other {
    internal;
    rate_limit zone=ten;
    rate_limit zone=other;
    proxy_pass http://127.0.0.1:%PORT1%/ok;
}
location /ssi/         { ssi on; }
location /addition/    { addition_types *; add_before_body /page.html; add_after_body /page.html; }
location /mirror/      { mirror /mirrored; empty_gif; }
location = /mirrored   { internal; proxy_pass http://127.0.0.1:%PORT1%/mirrored; }
location /rejected/    { rate_limit zone=one; error_page 429 /rejected-page/page.html; empty_gif; }
location /rejected-page/ { rate_limit zone=one; rate_limit zone=ten; }
location /rejected-named/ { rate_limit zone=one; error_page 429 = @rejected; empty_gif; }
location @rejected     { rate_limit zone=one; rate_limit zone=ten; proxy_pass http://127.0.0.1:%PORT1%; }
location /slow/        { rate_limit zone=queue; error_page 404 /slow-page/x; }
location /slow-page/   { rate_limit zone=queue; empty_gif; }
SERVER
    servers => <<'SERVERS',
server {
    listen 127.0.0.1:%PORT1%;
    access_log %DIR%/upstream.log;
    location /accel/       { add_header X-Accel-Redirect /internal/x; return 200; }
    location /accel-named/ { add_header X-Accel-Redirect @named; return 200; }
    location /intercept/   { return 502; }
    location /ok           { return 200 ok; }
    location /mirrored     { return 200; }
    location /rejected-named/ { return 200 ok; }
}
SERVERS
);
my $text = "page\n";
$nginx->write_file($_, $text) for qw(404.html page.html folder/page.html rejected-page/page.html addition/x.txt);
$nginx->write_file('ssi/x.html', '<!--#include virtual="/page.html" --><!--#include virtual="/page.html" -->');

my $clients = 0;

# Returns the remaining requests of a client in a zone of ten.
sub left {
    my ($zone, $client) = @_;
    return $nginx->get("/look/$zone", 'X-Client' => $client)->header('X-RateLimit-Remaining');
}

# Sends one request of a new client. Returns its status, and what remains in the zones ten and other.
sub ask {
    my ($path) = @_;
    my $client = 'client' . $clients++;
    my $response = $nginx->get($path, 'X-Client' => $client);
    return join ' ', $response->{status}, left('ten', $client), left('other', $client);
}

my @rows = (
    [ 'a plain request',                                '/plain/x',                '200 9 10' ],
    [ 'an error page',                                  '/error-page/absent',      '404 9 10' ],
    [ 'an error page in a named location',              '/error-page-named/absent', '404 9 10' ],
    [ 'an error page of an error page',                 '/error-page-twice/absent', '404 9 10' ],
    [ 'an error page with =200',                        '/error-page-200/absent',  '200 9 10' ],
    [ 'an error page with a zone of its own',           '/error-page-other/absent', '404 9 9' ],
    [ 'an error page with both zones',                  '/error-page-both/absent', '404 9 9' ],
    [ 'try_files',                                      '/try-files/x',            '200 9 10' ],
    [ 'try_files to a named location',                  '/try-named/x',            '200 9 10' ],
    [ 'an index',                                       '/folder/',                '200 9 10' ],
    [ 'a rewrite',                                      '/rewrite/x',              '200 9 10' ],
    [ 'a redirect before the access phase',             '/rewrite-redirect/x',     '302 10 10' ],
    [ 'X-Accel-Redirect',                               '/accel/x',                '200 9 10' ],
    [ 'X-Accel-Redirect to a named location',           '/accel-named/x',          '200 9 10' ],
    [ 'an error of an upstream, intercepted',           '/intercept/x',            '200 9 10' ],
    [ 'auth_request',                                   '/auth/x',                 '200 9 10' ],
    [ 'auth_request to a location with other zones',    '/auth-other/x',           '200 9 10' ],
    [ 'SSI includes',                                   '/ssi/x.html',             '200 9 10' ],
    [ 'text added before and after',                    '/addition/x.txt',         '200 9 10' ],
    [ 'mirror',                                         '/mirror/x',               '200 9 10' ],
);
for my $row (@rows) {
    my ($title, $path, $expected) = @{$row};
    is ask($path), $expected, "$title is charged once";
}
is $nginx->get('/ssi/x.html', 'X-Client' => 's')->{body},      "$text$text",      'both includes were processed';
is $nginx->get('/addition/x.txt', 'X-Client' => 'a')->{body},  "$text$text$text", 'both additions were processed';
my $upstream = $nginx->dir . '/upstream.log';
ok wait_for('the mirror', sub { slurp($upstream) =~ m{/mirrored} }), 'the mirror received the request';

# A rejected request and its error page.
for my $path ('/rejected/x', '/rejected-named/x') {
    my @seen = map { $nginx->get($path, 'X-Client' => $path) } 1 .. 3;
    is $seen[0]{status}, 200, "$path: admitted";
    for my $response (@seen[ 1, 2 ]) {
        is $response->{body}, $path =~ /named/ ? 'ok' : $text,
            "$path: the error page of a rejected request is not limited";
        is $response->header('X-Status'), 'REJECTED', "$path: the request remains rejected";
        is $response->header('X-RateLimit-Limit'), 1, "$path: the headers show the limit that rejected the request";
    }
    is left('ten', $path), 10, "$path: the error page's other zone is not charged";
}

# An error page with its own zone can be rejected by that zone.
{
    my @seen = map { $nginx->get('/error-page-one/absent', 'X-Client' => 'p') } 1 .. 2;
    is "$seen[0]{status} $seen[1]{status}", '404 429', 'an error page with its own zone is limited by it';
    is left('ten', 'p'), 8, 'the zone of the request was charged for both requests';
    is $seen[0]->header('X-RateLimit-Limit'), 1, 'the tightest of both zones is shown';
    like $seen[0]->header('RateLimit-Policy'), qr/^"ten";q=10;w=86400, "one";q=1;w=86400$/, 'both are policies';
}

# A cost of 0 charges nothing, and a dry run rejects nothing. Neither prevents a charge after an internal redirect.
{
    my $response = $nginx->get('/look-first/x', 'X-Client' => 'l');
    is left('ten', 'l'), 5, 'after a location with cost=0, the next location charges';
    my $policies = () = $response->header('RateLimit-Policy') =~ /"ten"/g;
    is $policies, 1, 'the zone is listed as one policy';
    my @seen = map { $nginx->get('/rehearsed/x', 'X-Client' => 'l')->{status} } 1 .. 2;
    is "@seen", '200 429', 'after a dry run that would reject, a location without dry run rejects';
    $nginx->get('/half-tried/x', 'X-Client' => 'h') for 1 .. 3;
    is left('ten', 'h'), 7, 'what another limit of the dry run has charged is not charged again';
}

# A delayed request is delayed once.
{
    $nginx->get('/slow/absent', 'X-Client' => 'd');
    my $response = $nginx->delayed_request(path => '/slow/absent', headers => [ 'X-Client' => 'd' ]);
    is "$response->{status} " . $response->header('X-Status'), '404 DELAYED',
        'the error page of a delayed request is sent';
}

# Each request on a connection is charged.
{
    my $connection = $nginx->connect;
    my @left;
    for my $path ('/plain/x', '/error-page/absent', '/accel/x', '/plain/x') {
        $connection->send(format_request(path => $path, headers => [ 'X-Client' => 'k', Connection => 'keep-alive' ]));
        push @left, $connection->receive->header('X-RateLimit-Remaining');
    }
    is "@left", '9 8 7 6', 'each request of a connection is charged';
}

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';

done_testing;
