# rate_limit_request reads numbers out of JSON request bodies, before limits are checked.
use strict;
use warnings;

use lib 't/lib';
use Digest::MD5 qw(md5_hex);
use RateLimit qw(start_nginx wait_for slurp format_request);
use RateLimit::HTTP2;
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Redis qw(start_redis);
use RateLimit::Upstream;
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};
my ($app_port, $h2_port) = @ports[ -1, -2 ];
my $app    = RateLimit::Upstream->start($app_port);
my $redis  = start_redis();
my $server = <<"CONF";
rate_limit_request \$estimate json:max_tokens max=8k;
client_body_buffer_size 2k;
proxy_http_version 1.1;
proxy_set_header Connection '';
location / { rate_limit zone=tokens cost=\$estimate; proxy_pass http://app; }
location /direct { rate_limit zone=tokens cost=\$estimate; proxy_request_buffering off; proxy_pass http://app; }
location /remote { rate_limit zone=remote cost=\$estimate; proxy_pass http://app; }
location /shaped { rate_limit zone=shaped cost=\$estimate; proxy_pass http://app; }
location /shadow { rate_limit_shadow zone=candidate cost=\$estimate; proxy_pass http://app; }
location /nested { rate_limit_request \$deep json:options.0.n; rate_limit zone=tokens cost=\$deep; proxy_pass http://app; }
location /free { proxy_pass http://app; }
location /page { error_page 413 /large.html; rate_limit zone=tokens cost=\$estimate; proxy_pass http://app; }
location /large.html { internal; rate_limit zone=tokens cost=\$estimate; }
location /early { if (\$estimate = 7) { return 500; } rate_limit zone=tokens cost=\$estimate; proxy_pass http://app; }
location /moved { error_page 404 = \@other; rate_limit zone=tokens cost=\$estimate; root /nowhere; }
location \@other { rate_limit_request \$deep json:n; rate_limit zone=second cost=\$deep; proxy_pass http://app; }
location /metrics { rate_limit_metrics; }
CONF
my %conf = (
    clock => 1,
    http  => <<"CONF",
upstream app { server 127.0.0.1:$app_port; keepalive 4; }
rate_limit_redis main @{[ $redis->url ]} timeout=10s;
rate_limit_zone \$http_x_client zone=tokens:1m rate=1000r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=second:1m rate=1000r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=remote:1m rate=1000r/d algorithm=token_bucket redis=main;
rate_limit_zone \$http_x_client zone=candidate:1m rate=50r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=shaped:1m rate=10r/s algorithm=leaky_bucket burst=100;
CONF
    server  => $server,
    servers => "server { listen 127.0.0.1:$h2_port http2; $server }",
);
my $nginx = start_nginx(%conf);
$nginx->write_file('large.html', 'too large, sorry');

# Posts a body. Returns the status, the remaining quota, and whether the upstream got the same body.
my $client = 0;
sub post {
    my ($path, $body, @headers) = @_;
    my %given = @headers;
    unshift @headers, 'Content-Type' => 'application/json' if !exists $given{'Content-Type'};
    unshift @headers, 'X-Client' => ++$client if !exists $given{'X-Client'};
    return told($nginx->request(method => 'POST', path => $path, headers => \@headers, body => $body), $path, $body);
}

sub told {
    my ($response, $path, $body) = @_;
    my $same = $response->{body} =~ /^POST \Q$path\E @{[ length $body ]} @{[ md5_hex($body) ]}$/;
    return join ' ', $response->{status}, $response->header('X-RateLimit-Remaining') // '-',
        $response->{status} == 200 && !$same ? "changed: $response->{body}" : ();
}

sub body_of {
    my ($tokens, $size) = @_;
    my $text = qq({"model":"m","messages":["\\n"],"max_tokens":$tokens,"text":""});
    return $text =~ s/""/'"' . 'x' x ($size - length $text) . '"'/er;
}

for my $path ('/', '/direct', '/remote') {
    is post($path, '{"max_tokens":300}'), '200 700', "$path: the number is the cost";
    is post($path, body_of(10, $_)), '200 990', "$path: a body of $_ bytes" for 100, 1500, 2100, 5000, 8192;
    is post($path, body_of(10, 8193)), '413 -', "$path: a body beyond max= is refused";
    is post($path, '{"max_tokens":1001}'), '429 1000', "$path: more than the limit is rejected";
    is post($path, '{"max_tokens":20}', 'X-Client' => "again$path"), '200 980', "$path: first";
    is post($path, '{"max_tokens":20}', 'X-Client' => "again$path"), '200 960', "$path: then";
}
is post('/', '{"x":1}'), '200 999', 'without the number, the cost is 1';
is post('/', '{"max_tokens":'), '200 999', 'a malformed body has no number';
is post('/', 'max_tokens=5', 'Content-Type' => 'application/x-www-form-urlencoded'), '200 999', 'another type';
is post('/', 'x' x 9000,     'Content-Type' => 'text/plain'), '200 999', 'another type may be larger than max=';
is post('/', '{"max_tokens":5}', 'Content-Type' => 'application/x+json; a=b'), '200 995', 'a type with +json';
is post('/', '{"max_tokens":5}', 'Content-Encoding' => 'gzip'), '200 999', 'a compressed body is not read';
is post('/', ''), '200 999', 'an empty body';
is $nginx->get('/', 'X-Client' => 'get', 'Content-Type' => 'application/json')->{status}, 200, 'a request without a body';
is post('/nested', '{"options":[{"n":15}],"max_tokens":9}'), '200 985', 'a location with another path';
is post('/free', body_of(10, 9000)), '200 -', 'a location without limits reads no body, whatever its size';
is post('/early', '{"max_tokens":7}'), '200 993', 'a variable that was evaluated before the body';
my $large = $nginx->request(method => 'POST', path => '/page', body => body_of(1, 9000),
    headers => [ 'Content-Type' => 'application/json', 'X-Client' => 'page' ]);
is "$large->{status} $large->{body}", '413 too large, sorry', 'error_page of 413';
like $nginx->error_log, qr/\[error\].* the request body is larger than "max=" of "rate_limit_request": 8192 bytes.*"POST \/page /,
    'the log has the reason';

is post('/shadow', '{"max_tokens":60}'), '200 -', 'a shadow';
my $metrics = metrics($nginx);
is sum_of($metrics, 'rate_limiter_shadow_total', zone => 'candidate', shadow => 'rejected'), 1,
    'a shadow decides by the number';
my %counts = map { $_ => sum_of($metrics, 'rate_limiter_bodies_total', body => 'request', result => $_) }
    qw(missing malformed too_large compressed not_json);
is_deeply \%counts, { missing => 1, malformed => 1, too_large => 4, compressed => 1, not_json => 2 },
    'bodies are counted by the result';

# An internal redirect reads the body again, for the paths of the new location.
my $moved = $nginx->request(method => 'POST', path => '/moved', body => '{"max_tokens":10,"n":4}',
    headers => [ 'Content-Type' => 'application/json', 'X-Client' => 'moved' ]);
is $moved->{status}, 200, 'a redirect to a location with another path';
is $nginx->request(method => 'POST', path => '/', body => '{"max_tokens":0}',
    headers => [ 'Content-Type' => 'application/json', 'X-Client' => 'moved' ])->header('X-RateLimit-Remaining'), 990,
    'the first location charged its number';

# The body comes later than the header, in parts.
my @json = ('Content-Type' => 'application/json', Connection => 'keep-alive');
my $connection = $nginx->connect;
for my $path ('/', '/direct', '/remote') {
    my $body = body_of(10, 6000);
    $connection->send(format_request(method => 'POST', path => $path,
        headers => [ @json, 'X-Client' => "parts$path", 'Content-Length' => length $body ]));
    for my $part (unpack '(a1000)*', $body) {
        $connection->send($part);
        $nginx->get('/free');    # nginx has had a turn
    }
    is told($connection->receive, $path, $body), '200 990', "$path: a body in parts";
    my $chunks = join('', map { sprintf "%x\r\n%s\r\n", length $_, $_ } unpack '(a7)*', $body) . "0\r\n\r\n";
    $connection->send(format_request(method => 'POST', path => $path,
        headers => [ @json, 'X-Client' => "chunks$path", 'Transfer-Encoding' => 'chunked' ]) . $chunks);
    is told($connection->receive, $path, $body), '200 990', "$path: a body in chunks";
    $connection->send(format_request(method => 'POST', path => $path, version => '1.1',
        headers => [ @json, 'X-Client' => "expect$path", 'Content-Length' => length $body, Expect => '100-continue' ]));
    like $connection->take_line, qr{^HTTP/1.1 100 }, "$path: 100 Continue";
    $connection->take_line;
    $connection->send($body);
    is told($connection->receive, $path, $body), '200 990', "$path: the body after it";
}
# Pipelined requests.
my $pipelined = join '', map {
    format_request(method => 'POST', path => '/', headers => [ @json, 'X-Client' => 'pipe' ], body => qq({"max_tokens":$_}))
} 100, 200, 300, 500;
$connection->send($pipelined);
is join(' ', map { my $r = $connection->receive; "$r->{status}/" . $r->header('X-RateLimit-Remaining') } 1 .. 4),
    '200/900 200/700 200/400 429/400', 'pipelined requests';
$connection->close;

# Chunks beyond max= are refused, too, and a refusal sends no 100 Continue.
$connection = $nginx->connect;
my $body = body_of(10, 9000);
$connection->send(format_request(method => 'POST', path => '/',
    headers => [ @json, 'X-Client' => 'large', 'Transfer-Encoding' => 'chunked' ])
    . sprintf("%x\r\n%s\r\n0\r\n\r\n", length $body, $body));
is $connection->receive->{status}, 413, 'chunks beyond max=';
$connection->close;
$connection = $nginx->connect;
$connection->send(format_request(method => 'POST', path => '/',
    headers => [ @json, 'X-Client' => 'large', 'Content-Length' => 9000, Expect => '100-continue' ]));
like $connection->take_line, qr/ 413 /, 'a Content-Length beyond max= is refused before the body is sent';
$connection->close;

# A client that leaves before its body has come is not charged.
$connection = $nginx->connect;
$connection->send(format_request(method => 'POST', path => '/',
    headers => [ @json, 'X-Client' => 'gone', 'Content-Length' => 100 ]) . '{"max_tokens":');
$nginx->get('/free');
$connection->close;
is post('/', '{"max_tokens":1}', 'X-Client' => 'gone'), '200 999', 'a client that leaves is not charged';

# The delay of leaky_bucket comes after the body.
is $nginx->delayed_request(method => 'POST', path => '/shaped', headers => [ @json[ 0, 1 ], 'X-Client' => 'd' ],
    body => '{"max_tokens":5}')->{status}, 200, 'a delayed request';

my $h2 = RateLimit::HTTP2->new($h2_port);
for my $path ('/', '/direct', '/remote') {
    my $text = body_of(10, 6000);
    my $stream = $h2->request('POST', $path, open => 1, body => substr($text, 0, 10),
        headers => [ 'content-type' => 'application/json', 'x-client' => "h2$path" ]);
    $h2->send->ping;
    $h2->data($stream, substr($text, 10), 1);
    ok $h2->send->await(60, $stream), "$path: HTTP/2";
    is $h2->stream($stream)->{status}, 200, 'the status';
    is post($path, '{"max_tokens":0}', 'X-Client' => "h2$path"), '200 990', 'and the cost';
}
$h2->close;

$metrics = metrics($nginx);
$nginx->reload(%conf);
my @labels = ('rate_limiter_bodies_total', body => 'request');
is sum_of(metrics($nginx), @labels), sum_of($metrics, @labels), 'a reload keeps the counts';
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no unexpected errors';

done_testing;
