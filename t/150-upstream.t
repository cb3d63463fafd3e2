# Limits in front of an application: which requests the application receives, and how its responses look.
use strict;
use warnings;

use lib 't/lib';
use MIME::Base64 qw(encode_base64);
use RateLimit qw(start_nginx);
use RateLimit::Async qw(statuses);
use RateLimit::Upstream;
use Test::More;

sub answer {
    my ($status, $body, @headers) = @_;
    return join "\r\n", "HTTP/1.1 $status Text", 'Content-Length: ' . length $body, @headers, '', $body;
}

my $big     = join '', map { sprintf "%09d\n", $_ } 1 .. 300_000;
my @foreign = (
    'X-RateLimit-Limit: 9999', 'x-ratelimit-remaining: 9998', 'X-RATELIMIT-RESET: 1',
    'RateLimit: "up";r=1;t=1', 'RateLimit-Policy: "up";q=1;w=1', 'ratelimit-policy: "again";q=1;w=1',
);
my ($app_port, $dead_port) = (split ' ', $ENV{RL_PORTS})[ -1, -2 ];
my $app = RateLimit::Upstream->start(
    $app_port,
    '/accel'    => answer(200, 'not this', 'X-Accel-Redirect: /protected/file.txt'),
    '/error'    => answer(500, 'broken'),
    '/busy'     => answer(503, 'busy', 'Retry-After: 120'),
    '/big'      => answer(200, $big),
    '/text'     => answer(200, 'x' x 5000, 'Content-Type: text/html', 'ETag: "1"', 'Accept-Ranges: bytes'),
    '/unchanged' => "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n",
    '/foreign'  => answer(200, 'mine', @foreign),
    '/cached'   => answer(200, 'cached', 'Cache-Control: max-age=60'),
    '/upgrade'  => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n",
    '/refuses'  => answer(403, 'no'),
    '/unknown'  => answer(401, 'who', 'WWW-Authenticate: Basic realm="app"'),
);
my $proxy = "proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection '';";
# The clock of nginx is frozen unless the test advances it.
my $nginx = start_nginx(
    clock => 1,
    http => <<"CONF",
    upstream app { server 127.0.0.1:$app_port; keepalive 8; }
    rate_limit_zone \$arg_k zone=z:1m rate=4r/d;
    rate_limit_zone \$arg_k zone=shaped:1m rate=4r/s algorithm=leaky_bucket burst=9;
    proxy_cache_path %DIR%/cache keys_zone=cache:1m;
    rate_limit zone=z;
    rate_limit_headers all;
CONF
    server => <<"CONF",
    location / { $proxy }
    location = /protected/file.txt { internal; }
    location = /static.txt { }
    location = /sorry.txt { }
    location = /direct { proxy_buffering off; proxy_pass http://app/big; }
    location = /dead { proxy_pass http://127.0.0.1:$dead_port; }
    location = /dead-page { proxy_pass http://127.0.0.1:$dead_port; error_page 502 /sorry.txt; }
    location = /error-page { proxy_pass http://app/error; proxy_intercept_errors on; error_page 500 =200 \@other; }
    location \@other { proxy_pass http://app; }
    location = /zip { gzip on; gzip_min_length 1; gzip_types *; gzip_proxied any; proxy_pass http://app/text; }
    location = /ranges { proxy_force_ranges on; proxy_pass http://app/text; }
    location = /cached { proxy_cache cache; add_header X-Cache \$upstream_cache_status; $proxy }
    location = /upgrade { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Upgrade \$http_upgrade;
        proxy_set_header Connection upgrade; }
    location = /upgrade-late { rate_limit zone=shaped; proxy_pass http://app/upgrade; proxy_http_version 1.1;
        proxy_set_header Upgrade \$http_upgrade; proxy_set_header Connection upgrade; }
    location = /foreign-off { rate_limit_headers off; proxy_pass http://app/foreign; }
    location = /foreign-legacy { rate_limit_headers legacy; proxy_pass http://app/foreign; }
    location = /any { satisfy any; allow 127.0.0.2; deny all; auth_basic a;
        auth_basic_user_file %DIR%/html/users; $proxy }
    location = /any-address { satisfy any; allow 127.0.0.1; deny all; auth_basic a;
        auth_basic_user_file %DIR%/html/users; $proxy }
    location = /any-forbidden { satisfy any; allow 127.0.0.1; deny all; rate_limit_status 403; $proxy }
    location = /checked { auth_request /ask; $proxy }
    location = /ask { internal; proxy_pass http://app/asked; }
    location = /refused { auth_request /ask-refused; $proxy }
    location = /ask-refused { internal; proxy_pass http://app/refuses; }
    location = /unknown-user { auth_request /ask-unknown; $proxy }
    location = /ask-unknown { internal; proxy_pass http://app/unknown; }
CONF
);
$nginx->write_file('protected/file.txt', 'protected');
$nginx->write_file('sorry.txt',          'sorry');
$nginx->write_file('static.txt',         'static' x 100);
$nginx->write_file('users',              "user:{PLAIN}secret\n");

my @names = qw(X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset RateLimit RateLimit-Policy);

# Asserts a status, and that each header of the module occurs once, with the given remaining count.
sub carries {
    my ($what, $answer, $status, $remaining) = @_;
    is($answer->{status}, $status, "$what: status $status");
    is(join(' ', map { $answer->count($_) } @names), '1 1 1 1 1', "$what: each header once");
    is($answer->header('X-RateLimit-Remaining'), $remaining, "$what: $remaining left");
    like($answer->header('RateLimit') // '', qr/^"z";r=$remaining;t=\d+$/, "$what: the same numbers in RateLimit");
    return;
}

sub reached {
    my ($path) = @_;
    return scalar $app->requests(qr{ \Q$path\E\?});
}

subtest 'rejected requests never reach the application' => sub {
    is(statuses(map { $nginx->get('/app?k=count') } 1 .. 10), '200 200 200 200' . ' 429' x 6,
        'four of ten requests are admitted');
    is(reached('/app'), 4, 'the application received four requests');
    my $answer = $nginx->request(method => 'POST', path => '/app?k=count', body => 'x' x 100_000);
    is($answer->{status}, 429, 'a rejected POST with a body gets a response');
    is(reached('/app'), 4, 'a rejected POST is not passed to the application');
};

subtest 'kept connections' => sub {
    my $client = $nginx->connect;
    my @seen;
    for (1 .. 6) {
        $client->send("GET /kept?k=kept HTTP/1.1\r\nHost: a\r\n\r\n");
        push @seen, $client->receive->{status};
    }
    is("@seen", '200 200 200 200 429 429', 'the connection of a client survives rejections');
    my %connections = map { (split)[0] => 1 } $app->requests(qr{/kept});
    is(scalar keys %connections, 1, 'the connection to the application survives rejections');
    $client->send("POST /kept?k=kept HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde"
            . "GET /kept?k=k2 HTTP/1.1\r\nHost: a\r\n\r\n");
    is($client->receive->{status}, 429, 'the body of a rejected request');
    is($client->receive->{status}, 200, 'the body of a rejected request is not read as the next request');
};

subtest 'responses of every kind have the headers once' => sub {
    my @ask = (
        [ '/accel',       200, 'protected' ],
        [ '/error',       500, 'broken' ],
        [ '/big',         200, $big ],
        [ '/direct',      200, $big ],
        [ '/dead',        502, undef ],
        [ '/dead-page',   502, 'sorry' ],
        [ '/foreign',     200, 'mine' ],
        [ '/missing.txt', 200, undef ],
        [ '/unchanged',   304, '' ],
    );
    for (@ask) {
        my ($path, $status, $body) = @$_;
        my $answer = $nginx->get("$path?k=$path");
        carries($path, $answer, $status, 3);
        ok($answer->{body} eq $body, "$path: the body is that of the application") if defined $body;
    }
    my $redirected = $nginx->get('/error-page?k=error-page');
    carries('the application responds to the error page', $redirected, 200, 3);
    like($redirected->{body}, qr{^GET /error-page\?k=error-page 0}, 'the application responds to the error page');
};

subtest 'responses that filters change' => sub {
    my $ask = sub {
        my ($path, %headers) = @_;
        my $method = delete $headers{method} // 'GET';
        return $nginx->request(method => $method, path => "$path?k=" . join('', $path, $method, %headers) =~ s/\W/_/gr,
            headers => [%headers]);
    };
    my $head = $ask->('/text', method => 'HEAD');
    carries('HEAD', $head, 200, 3);
    is($head->{body}, '', 'HEAD: no body');
    my $zip = $ask->('/zip', 'Accept-Encoding' => 'gzip');
    carries('gzip', $zip, 200, 3);
    is($zip->header('Content-Encoding'), 'gzip', 'gzip: it is');
    my $part = $ask->('/ranges', Range => 'bytes=10-19');
    carries('a range', $part, 206, 3);
    is($part->{body}, 'x' x 10, 'a range: ten bytes');
    carries('a range beyond the end', $ask->('/ranges', Range => 'bytes=9000-'), 416, 3);
    carries('a file not modified',    $ask->('/static.txt', 'If-None-Match' => '*'),   304, 3);
    carries('a file that differs',    $ask->('/static.txt', 'If-Match'      => '"2"'), 412, 3);
    carries('a part of no file',      $ask->('/static.txt', Range => 'bytes=9000-'),   416, 3);
};

subtest "rate limit headers of the application" => sub {
    my $off = $nginx->get('/foreign-off?k=off');
    is($off->header('X-RateLimit-Limit'), 9999,             'headers of the application are kept if headers are off');
    is($off->header('RateLimit'),         '"up";r=1;t=1', 'all headers of the application are kept if headers are off');
    my $legacy = $nginx->get('/foreign-legacy?k=legacy');
    is($legacy->header('X-RateLimit-Remaining'), 3,                'the module replaces headers of the same name');
    is($legacy->header('RateLimit'),             '"up";r=1;t=1', 'other headers of the application are kept');
    is($nginx->get('/busy?k=busy')->header('Retry-After'), 120,
        'Retry-After of an admitted request is that of the application');
};

subtest 'a cache' => sub {
    my @answers = map { $nginx->get('/cached?k=cached') } 1 .. 5;
    is(statuses(@answers), '200 200 200 200 429', 'responses from the cache are limited too');
    is($answers[2]->header('X-Cache'), 'HIT', 'the response comes from the cache');
    carries('from the cache', $answers[2], 200, 1);
    is(reached('/cached'), 1, 'the application received one request');
};

subtest 'an upgraded connection' => sub {
    for ([ '/upgrade', 0 ], [ '/upgrade-late', 0 ], [ '/upgrade-late', 1 ]) {
        my ($path, $delayed) = @$_;
        my $seen   = length $nginx->error_log;
        my $client = $nginx->connect;
        $client->send("GET $path?k=up HTTP/1.1\r\nHost: a\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n");
        $nginx->pass_delay($seen) if $delayed;
        my $head = '';
        $head .= $client->take_line . "\n" until $head =~ /\n\n/;
        like($head, qr{^HTTP/1.1 101 },             "$path: 101 is passed on");
        like($head, qr{^X-RateLimit-Remaining: }mi, "$path: 101 has the headers");
        $client->send('hello');
        is($client->take(5), 'hello', "$path: the tunnel works in both directions");
        $client->close;
    }
    like($nginx->error_log, qr{delaying.*/upgrade-late}, 'the last request was delayed');
    is(statuses(map { $nginx->get('/app?k=up') } 1 .. 3), '200 200 200', 'an upgrade counts as one request');
    is($nginx->get('/upgrade?k=up', Upgrade => 'echo')->{status}, 429, 'an upgrade is rejected like any other request');
};

subtest 'satisfy any' => sub {
    my %right = (Authorization => 'Basic ' . encode_base64('user:secret', ''));
    my %wrong = (Authorization => 'Basic ' . encode_base64('user:guess',  ''));
    is(statuses(map { $nginx->get('/any?k=right', %right) } 1 .. 5), '200 200 200 200 429', 'a right password');
    is(statuses(map { $nginx->get('/any?k=wrong', %wrong) } 1 .. 5), '401 401 401 401 429', 'a wrong one');
    is($nginx->get('/any?k=wrong', %right)->{status}, 429, 'after wrong passwords, the right one is rejected too');
    is(statuses(map { $nginx->get('/any-address?k=address') } 1 .. 5), '200 200 200 200 429', 'a known address');
    is(statuses(map { $nginx->get('/any-forbidden?k=f') } 1 .. 5), '200 200 200 200 403',
        'rate_limit_status 403 for a rejection');
    is(reached('/any') + reached('/any-address') + reached('/any-forbidden'), 12,
        'the application received the admitted requests');
};

subtest 'auth_request' => sub {
    is(statuses(map { $nginx->get('/checked?k=checked') } 1 .. 6), '200 200 200 200 429 429',
        'each request counts once');
    is(reached('/checked'), 4, 'the application received four requests');
    is(scalar $app->requests(qr{GET /asked }), 4, 'the application received four authentication subrequests');
    carries('a refused request', $nginx->get('/refused?k=refused'),      403, 3);
    carries('an unknown user',   $nginx->get('/unknown-user?k=unknown'), 401, 3);
    is($nginx->get('/unknown-user?k=unknown')->header('WWW-Authenticate'), 'Basic realm="app"',
        'the client is asked for a password');
};

done_testing;
