# A rejected client receives the configured status, and a body for people or for programs.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx decode_json format_request);
use Test::More;

my $nginx = start_nginx(
    http => <<'HTTP',
rate_limit_zone $http_x_client zone=api:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=other:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=wide:1m rate=100r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=rates:1m rate=100r/m,1r/d algorithm=token_bucket;
rate_limit_zone $http_x_client "zone=a.b/c'd<e>&f:1m" rate=1r/d algorithm=token_bucket;
server_tokens off;
HTTP
    server => <<'SERVER',
rate_limit zone=api;
location /auto/    { empty_gif; }
location /absent-page/ { rate_limit off; error_page 404 /auto/; }
location /problem/ { rate_limit_body problem; empty_gif; }
location /off/     { rate_limit_body off; empty_gif; }
location /two/     { rate_limit zone=api; rate_limit zone=wide; rate_limit zone=other; empty_gif; }
location /rates/   { rate_limit zone=rates; empty_gif; }
location /odd/     { rate_limit "zone=a.b/c'd<e>&f"; empty_gif; }
location /400/     { rate_limit_status 400; empty_gif; }
location /403/     { rate_limit_status 403; empty_gif; }
location /401/     { rate_limit_status 401; empty_gif; }
location /407/     { rate_limit_status 407; empty_gif; }
location /444/     { rate_limit_status 444; empty_gif; }
location /503/     { rate_limit_status 503; empty_gif; }
location /599/     { rate_limit_status 599; empty_gif; }
location /any/429/ { satisfy any; allow all; empty_gif; }
location /any/401/ { satisfy any; allow all; rate_limit_status 401; empty_gif; }
location /any/403/ { satisfy any; allow all; rate_limit_status 403; empty_gif; }
location /any/407/ { satisfy any; allow all; rate_limit_status 407; empty_gif; }
location /any/403-page/ { satisfy any; allow all; rate_limit_status 403; error_page 403 /page.html; empty_gif; }
location /deny/    { deny all; empty_gif; }
location /page/    { error_page 429 /page.html; empty_gif; }
location /page-503/ { rate_limit_status 503; error_page 503 /page.html; empty_gif; }
location /other-page/ { error_page 503 /page.html; empty_gif; }
location /proxy/   { proxy_pass http://127.0.0.1:%PORT1%; }
location = /page.html { }
SERVER
    servers => 'server { listen 127.0.0.1:%PORT1%; location / { return 200 $request_length; } }',
);
$nginx->write_file('page.html', "own page\n");

my $clients = 0;

# Returns the response to the second request of a client whose limit is one request.
sub reject {
    my ($path, %request) = @_;
    my @headers = ('X-Client' => 'client' . $clients++, @{ $request{headers} // [] });
    my $first = $nginx->request(path => $path, headers => \@headers);
    BAIL_OUT("$path: $first->{status}") if $first->{status} != 200 && $path !~ /deny/;
    return $nginx->request(%request, path => $path, headers => \@headers);
}

sub type_of {
    my ($response) = @_;
    return $response->header('Content-Type') =~ /^([^;]*)/ ? $1 : '';
}

# Statuses.
is reject('/auto/')->{status}, 429, '429 by default';
is reject("/$_/")->{status}, $_, "rate_limit_status $_" for 400, 401, 403, 407, 503, 599;
is reject("/$_/", headers => [ Accept => 'application/json' ])->{status}, $_, "rate_limit_status $_ with a problem"
    for 400, 401, 403, 407, 503, 599;
for my $accept ('text/html', 'application/json') {
    my $connection = $nginx->connect;
    my @request = (path => '/444/', headers => [ 'X-Client' => "close $accept", Accept => $accept ]);
    is $nginx->request(@request)->{status}, 200, "rate_limit_status 444: the first is answered ($accept)";
    $connection->send(format_request(@request));
    ok $connection->at_end, "rate_limit_status 444 closes the connection without an answer ($accept)";
}

# With `satisfy any`, a client needs the consent of one access module only. A rejection by the module must still hold.
for my $path ('/any/429/', '/any/401/', '/any/403/', '/any/407/') {
    my ($status) = $path =~ /(\d+)/;
    is reject($path)->{status}, $status, "satisfy any does not override a $status";
    is reject($path, headers => [ Accept => 'application/json' ])->{status}, $status,
        "satisfy any does not override a $status with a problem document";
}
is reject('/any/403-page/')->{body}, "own page\n", 'satisfy any: the page of a 403 is shown';
is reject('/deny/')->{status}, 429, 'the limit is checked before access rules';

# Bodies.
my @accepts = (
    [ 'application/json'                     => 'application/problem+json' ],
    [ 'application/problem+json'             => 'application/problem+json' ],
    [ 'application/vnd.x+json'               => 'application/problem+json' ],
    [ 'Application/JSON'                     => 'application/problem+json' ],
    [ 'application/json;charset=utf-8'       => 'application/problem+json' ],
    [ 'application/json; q=0.1'              => 'application/problem+json' ],
    [ 'application/json;q=1.000'             => 'application/problem+json' ],
    [ 'text/html,application/json;q=0.9'     => 'application/problem+json' ],
    [ 'text/html , application/json'         => 'application/problem+json' ],
    [ 'application/json;q=0'                 => 'text/html' ],
    [ 'application/json; q=0.000'            => 'text/html' ],
    [ 'application/json;v=1;q=0.0, */*'      => 'text/html' ],
    [ 'application/json ; Q=0'               => 'text/html' ],
    [ '*/*'                                  => 'text/html' ],
    [ 'application/*'                        => 'text/html' ],
    [ 'text/html'                            => 'text/html' ],
    [ 'application/jsonp'                    => 'text/html' ],
    [ 'application/x-json-not'               => 'text/html' ],
    [ 'text/plain;x=application/json'        => 'text/html' ],
    [ ''                                     => 'text/html' ],
    [ ',,;;='                                => 'text/html' ],
);
for my $row (@accepts) {
    my ($accept, $type) = @{$row};
    my $response = reject('/auto/', headers => [ Accept => $accept ]);
    is type_of($response), $type, "auto, Accept: $accept";
    is $response->header('Content-Length'), length $response->{body}, "auto, Accept: $accept: length";
}
is type_of(reject('/auto/')), 'text/html', 'auto without Accept';
is type_of(reject('/auto/', headers => [ Accept => 'text/html', Accept => 'application/json' ])),
    'application/problem+json', 'auto with JSON in a second Accept';
is type_of(reject('/problem/')), 'application/problem+json', 'problem without Accept';
is type_of(reject('/problem/', headers => [ Accept => 'text/html' ])), 'application/problem+json', 'problem for all';
is type_of(reject('/off/', headers => [ Accept => 'application/json' ])), 'text/html', 'off for all';
like reject('/off/')->{body}, qr{<center><h1>429 Too Many Requests</h1></center>}, q(off: nginx's own page);
is type_of($nginx->get('/problem/', 'X-Client' => 'new')), 'image/gif', 'an admitted request keeps its own body';

sub problem {
    my ($path) = @_;
    return decode_json(reject($path, headers => [ Accept => 'application/json' ])->{body});
}
my %problem = (
    type   => 'https://iana.org/assignments/http-problem-types#quota-exceeded',
    title  => 'Too Many Requests',
    status => 429,
);
is_deeply problem('/auto/'),  { %problem, 'violated-policies' => ['api'] },           'the document of one zone';
is_deeply problem('/two/'),   { %problem, 'violated-policies' => [ 'api', 'other' ] },
    'the document lists only the zones that reject';
is_deeply problem('/rates/'), { %problem, 'violated-policies' => ['rates-1d'] },      'the rate that rejects';
is_deeply problem('/odd/'),   { %problem, 'violated-policies' => [q(a.b/c'd<e>&f)] }, 'an odd name';
is problem('/503/')->{status}, 503, 'the status member equals the response status';
like reject('/auto/', headers => [ Accept => 'application/json' ])->{body}, qr/"status":429,/, 'the status is a number';

# error_page.
my @json = (headers => [ Accept => 'application/json' ]);
is reject('/page/')->{body}, "own page\n", 'error_page wins';
is reject('/page/', @json)->{body}, "own page\n", 'error_page replaces the problem document';
is reject('/page-503/', @json)->{body}, "own page\n", 'error_page for another rejection status';
is type_of(reject('/other-page/', @json)), 'application/problem+json',
    'error_page of another status does not replace the problem document';

# HEAD, and further requests on the same connection.
for my $accept ('text/html', 'application/json') {
    my $response = reject('/auto/', method => 'HEAD', headers => [ Accept => $accept ]);
    is "$response->{status} $response->{body}", '429 ', "HEAD has no body ($accept)";
    is $response->header('X-RateLimit-Limit'), 1, "HEAD has the headers ($accept)";

    for my $size (10, 100_000) {
        my @headers = (Accept => $accept, 'X-Client' => "post $accept $size", Connection => 'keep-alive');
        my $connection = $nginx->connect;
        my @statuses;
        for (1 .. 3) {
            $connection->send(
                format_request(method => 'POST', path => '/proxy/', headers => \@headers, body => 'x' x $size));
            push @statuses, $connection->receive->{status};
        }
        is "@statuses", '200 429 429', "a connection stays open after a rejected POST of $size bytes ($accept)";
        $connection->send(format_request(path => '/page.html', headers => [ 'X-Client' => "after $accept $size" ]));
        is $connection->receive->{body}, "own page\n",
            "the next request on the connection is parsed correctly ($accept, $size)";
    }
}

# A rejection during the error page of another error has its own status.
{
    my @seen = map { $nginx->get('/absent-page/x', 'X-Client' => 'absent', Accept => 'application/json') } 1 .. 2;
    is "$seen[0]{status} $seen[1]{status}", '404 429', 'the error page of a 404 is rejected with 429';
    is decode_json($seen[1]{body})->{status}, 429, 'the body has the same status';
}

# A client that sends Expect: 100-continue gets the rejection as the first response line, and is not asked for its body.
{
    $nginx->get('/auto/', 'X-Client' => 'expect');
    my $connection = $nginx->connect;
    $connection->send(join "\r\n", 'POST /auto/ HTTP/1.1', 'Content-Length: 5', 'Host: h', 'X-Client: expect',
        'Accept: application/json', 'Expect: 100-continue', '', '');
    like $connection->take_line, qr/429/, 'no 100 Continue before a rejection';
}

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';

done_testing;
