# The recipe for browsers in docs/headers.md: in Chromium, a script of another origin reads the headers about limits.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(slurp start_nginx);
use RateLimit::Browser qw(open_page);
use Test::More;

my ($port, $app_port) = split ' ', $ENV{RL_PORTS};

# The configuration of the page. Its origin and its application are those of this test.
my ($recipe) = slurp('docs/headers.md') =~ /^## Browsers\n.*?^```nginx\n(.*?)^```$/ms or die "no recipe\n";
my ($http, $server) = $recipe =~ /^(.*)^server \{\n(.*)^\}\n/ms or die "no server\n";
my $origin = "http://app.test:$app_port";
for ($http, $server) {
    s{https://app\.example\.com}{$origin}g;
    s{http://127\.0\.0\.1:8081}{http://127.0.0.1:%PORT1%}g;
    s{^ *listen .*\n}{}gm;
}
my $nginx = start_nginx(
    port    => $port,
    clock   => 'day',
    http    => "rate_limit_zone \$arg_client zone=api:1m rate=2r/m;\n$http",
    server  => "$server location /bare/ { rate_limit zone=api; empty_gif; }",
    servers => <<"SERVERS",
server { listen 127.0.0.1:%PORT1%; location / { return 200 "here\\n"; } }
server { listen 127.0.0.1:$app_port; location / { default_type text/html; return 200 "<!doctype html>"; } }
SERVERS
);
my $page = open_page("$origin/");
is $page->status, 200, 'a page of another origin';

my @names = qw(X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset Retry-After Server);

# What a script of the page sees of a response: status, body and the headers that it may read; or an error.
sub fetch {
    my ($path, %request) = @_;
    my $seen = $page->evaluate(<<'SCRIPT', { url => "http://api.test:$port$path", request => \%request, names => \@names });
async ({ url, request, names }) => {
    try {
        const response = await fetch(url, request);
        const headers = Object.fromEntries(names.map(name => [name, response.headers.get(name)]));
        return { status: response.status, body: await response.text(), headers };
    } catch (error) {
        return { error: error.name };
    }
}
SCRIPT
    note "not readable: $_" for $page->failures;
    return $seen;
}

subtest 'a script reads the headers of an admitted and of a rejected response' => sub {
    my @seen = map { fetch('/api/x?client=alice') } 1 .. 3;
    is join(' ', map { $_->{status} } @seen), '200 200 429', 'statuses';
    is $seen[0]{body}, "here\n", 'the body';
    is join(' ', map { $_->{headers}{'X-RateLimit-Limit'} } @seen), '2 2 2', 'X-RateLimit-Limit';
    is join(' ', map { $_->{headers}{'X-RateLimit-Remaining'} } @seen), '1 0 0', 'X-RateLimit-Remaining';
    like $_->{headers}{'X-RateLimit-Reset'}, qr/^\d{10}$/, 'X-RateLimit-Reset' for @seen;
    is $seen[0]{headers}{'Retry-After'}, undef, 'no Retry-After of an admitted request';
    like $seen[2]{headers}{'Retry-After'}, qr/^\d+$/, 'Retry-After of a rejected request';
    is $seen[0]{headers}{Server}, undef, 'a header that the recipe does not name is not readable';
};

subtest 'preflights are not limited' => sub {
    my @options = (method => 'PUT', body => '{}', headers => { 'Content-Type' => 'application/json', Authorization => 'x' });
    my @seen = map { fetch("/api/y$_?client=bob", @options) } 1 .. 3;
    is join(' ', map { $_->{status} } @seen), '200 200 429', 'two requests are admitted, each after a preflight';
    my @preflights = $nginx->access_log =~ m{"OPTIONS /api/y\d\?client=bob HTTP/1.1" (\d+)}g;
    is "@preflights", '204 204 204', 'the browser has sent preflights';
    my $preflight = $nginx->request(method => 'OPTIONS', path => '/api/y?client=bob',
        headers => [ Origin => $origin, 'Access-Control-Request-Method' => 'PUT' ]);
    is $preflight->header('X-RateLimit-Limit'), undef, 'a preflight has no limit';
    is $preflight->header('Access-Control-Max-Age'), 3600, 'Access-Control-Max-Age';
    is $nginx->get('/api/y?client=new')->header('Access-Control-Max-Age'), undef, 'only a preflight has it';
};

subtest 'without the recipe' => sub {
    is fetch('/bare/?client=carol')->{error}, 'TypeError', 'a script cannot read the response';
    like $nginx->access_log, qr{"GET /bare/\?client=carol HTTP/1.1" 200}, 'which nginx has sent';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';

done_testing;
