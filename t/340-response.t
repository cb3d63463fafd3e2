# rate_limit_response reads numbers out of JSON responses and streams of events, and the bytes pass unchanged.
use strict;
use warnings;

use lib 't/lib';
use Compress::Zlib ();
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for slurp);
use RateLimit::HTTP2;
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Upstream;
use Test::More;

sub answer {
    my ($type, $body, @headers) = @_;
    return join "\r\n", 'HTTP/1.1 200 OK', "Content-Type: $type", 'Content-Length: ' . length $body, @headers, '', $body;
}

# The same with each byte in a chunk of its own.
sub in_bytes {
    my ($type, $body) = @_;
    return join("\r\n", 'HTTP/1.1 200 OK', "Content-Type: $type", 'Transfer-Encoding: chunked', '', '')
        . join('', map {"1\r\n$_\r\n"} split //, $body) . "0\r\n\r\n";
}

my $json   = '{"id":"c-1","choices":[{"message":{"content":"a \"b\" \u00e9"}}],"usage":{"prompt_tokens":9,"total_tokens":42}}';
my $stream = join '', map {"data: $_\n\n"} '{"choices":[{"delta":{"content":"Hi\n"}}],"usage":null}',
    '{"choices":[{"delta":{"content":" there"}}]}', '{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":43}}', '[DONE]';
(my $windows = $stream) =~ s/\n/\r\n/g;
(my $mac     = $stream) =~ s/\n/\r/g;
my $long    = '{"text":"' . ('lorem ipsum \n' x 100_000) . '","usage":{"total_tokens":44,"prompt_tokens":1}}';
my %bodies  = (
    '/json'      => [ 'application/json',                $json,   '42 9' ],
    '/charset'   => [ 'application/json; charset=utf-8', $json,   '42 9' ],
    '/suffix'    => [ 'application/vnd.api+json',        $json,   '42 9' ],
    '/stream'    => [ 'text/event-stream',               $stream, '43 9' ],
    '/windows'   => [ 'text/event-stream',               $windows, '43 9' ],
    '/mac'       => [ 'text/event-stream',               $mac,    '43 9' ],
    '/long'      => [ 'application/json',                $long,   '44 1' ],
    '/exact'     => [ 'application/json', '{"usage":{"total_tokens":9007199254740991,"prompt_tokens":0.125}}', '9007199254740991 0.125' ],
    '/twice'     => [ 'application/json', '{"usage":{"total_tokens":1,"total_tokens":2}}', '2 -' ],
    '/none'      => [ 'application/json', '{"usage":{"total":1}}',                         '- -', 'missing' ],
    '/text'      => [ 'application/json', '{"usage":{"total_tokens":"12"}}',               '- -', 'missing' ],
    '/no-events' => [ 'text/event-stream', "data: {\"a\":1}\n\n",                          '- -', 'missing' ],
    '/cut'       => [ 'application/json', substr($json, 0, -1),                            '- -', 'malformed' ],
    '/garbage'   => [ 'application/json', "<html>$json</html>",                            '- -', 'malformed' ],
    '/deep'      => [ 'application/json', '[' x 300 . ']' x 300,                           '- -', 'too_large' ],
    '/deeper'    => [ 'application/json', '{"a":' x 1_000_000,                             '- -', 'too_large' ],
    '/html'      => [ 'text/html',        $json,                                           '- -', 'not_json' ],
);
my %answers = map { ($_ => answer(@{ $bodies{$_} }[ 0, 1 ]), "/bytes$_" => in_bytes(@{ $bodies{$_} }[ 0, 1 ])) }
    grep { length $bodies{$_}[1] < 10_000 } keys %bodies;
$answers{$_} //= answer(@{ $bodies{$_} }[ 0, 1 ]) for keys %bodies;
$answers{'/gzip'} = answer('application/json', Compress::Zlib::memGzip($json), 'Content-Encoding: gzip');
$answers{'/identity'} = answer('application/json', $json, 'Content-Encoding: identity');
$answers{'/empty'}  = "HTTP/1.1 204 No Content\r\nContent-Type: application/json\r\n\r\n";
$answers{'/accel'}  = answer('application/json', '', 'X-Accel-Redirect: /static.json');
$answers{'/auth'}   = answer('application/json', '{"usage":{"total_tokens":999}}');
# A stream that does not end.
$answers{'/aborted'} = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n$stream" . 'data: {"usage"';

my @ports = split ' ', $ENV{RL_PORTS};
my ($app_port, $h2_port) = @ports[ -1, -2 ];
my $app    = RateLimit::Upstream->start($app_port, %answers);
my $server = <<"CONF";
rate_limit_response \$tokens json:usage.total_tokens;
rate_limit_response \$prompt json:usage.prompt_tokens;
proxy_http_version 1.1;
proxy_set_header Connection '';
location / { proxy_pass http://app; }
location /direct/ { proxy_buffering off; proxy_pass http://app/; }
location /small/ { proxy_buffers 8 1k; proxy_buffer_size 1k; proxy_pass http://app/; }
location /zip/ { gzip on; gzip_min_length 1; gzip_types *; gzip_proxied any; proxy_pass http://app/; }
location /cached/ { proxy_cache cache; proxy_cache_valid 1h; proxy_pass http://app/; }
location /other/ { rate_limit_response \$tokens json:usage.prompt_tokens; proxy_pass http://app/; }
location /off/ { rate_limit_response \$unused json:nothing.here; proxy_pass http://app/; }
location /trailer/ { add_trailer X-Tokens \$tokens; add_trailer X-Prompt \$prompt; proxy_pass http://app/; }
location /early/ { add_header X-Tokens "early-\$tokens"; proxy_pass http://app/; }
location /checked/ { auth_request /auth; proxy_pass http://app/; }
location /auth { internal; proxy_pass http://app; }
location /included { ssi on; ssi_types application/json; default_type application/json; }
location /static.sse { default_type text/event-stream; }
location /static.json { sendfile on; default_type application/json; }
location /post/ { post_action /done; proxy_pass http://app/; }
location /done { empty_gif; }
location /refused/ { rate_limit zone=none; rate_limit_body problem; proxy_pass http://app/; }
location /metrics { rate_limit_metrics; }
CONF
my $nginx = start_nginx(
    http => <<"CONF",
upstream app { server 127.0.0.1:$app_port; keepalive 4; }
proxy_cache_path %DIR%/cache keys_zone=cache:1m;
rate_limit_zone \$server_name zone=none:1m rate=1r/d;
log_format tokens '\$uri \$status \$tokens \$prompt';
access_log %DIR%/tokens.log tokens;
CONF
    server  => $server,
    servers => "server { listen 127.0.0.1:$h2_port http2; $server }",
);
$nginx->write_file('static.json', $json);
$nginx->write_file('static.sse',  $stream);
$nginx->write_file('included-stream', '{"text":"<!--# include virtual="/static.sse" -->"}');
$nginx->write_file('included',    '{"usage":{"total_tokens":5,"x":<!--# include virtual="/static.json" -->}}');

# Waits for the line of a request in the log, and returns the values of the variables.
my $seen = 0;
sub values_of {
    my ($get) = @_;
    my $response = $get->();
    my $line = wait_for('a line in the log', sub {
        my @lines = split /\n/, slurp($nginx->dir . '/tokens.log');
        return @lines > $seen ? $lines[ $seen ] : undef;
    });
    $seen++;
    my ($values) = $line =~ /^\S+ \d+ (.*)$/;
    return wantarray ? ($values, $response) : $values;
}

sub reads {
    my ($path, $expected, $what, %headers) = @_;
    my ($values, $response) = values_of(sub { $nginx->get($path, %headers) });
    is $values, $expected, "$path: $what";
    return $response;
}

my %counted;
sub counted {
    my ($expected, $path) = @_;
    my $metrics = metrics($nginx);
    $seen++;    # the line of /metrics
    my %now = map { $_ => sum_of($metrics, 'rate_limiter_bodies_total', body => 'response', result => $_) }
        qw(read missing malformed too_large compressed not_json);
    my @more = grep { $now{$_} != ($counted{$_} // 0) } sort keys %now;
    %counted = %now;
    return is "@more", $expected, "$path is counted as $expected";
}
metrics($nginx);
$seen++;
wait_for('a line in the log', sub { slurp($nginx->dir . '/tokens.log') =~ /\n/ });
counted('not_json', '/metrics itself');

for my $path (sort keys %bodies) {
    my ($type, $body, $values, $result) = @{ $bodies{$path} };
    for my $way ($path, "/small$path", "/direct$path", $answers{"/bytes$path"} ? "/bytes$path" : (), "/zip$path") {
        my $response = reads($way, $values, 'the values');
        is $response->{status}, 200, "$way: the status";
        ok $way =~ /^.bytes/ || $response->{body} eq $body, "$way: the body passes unchanged";
    }
    my $zipped = reads("/zip$path", $values, 'compressed by nginx after it was read', 'Accept-Encoding' => 'gzip');
    is $zipped->header('Content-Encoding'), 'gzip', "/zip$path: the client gets gzip";
    my $before = metrics($nginx);
    $seen++;
    reads($path, $values, 'once more');
    my $after = metrics($nginx);
    $seen++;
    $result //= 'read';
    my @labels = ('rate_limiter_bodies_total', body => 'response', result => $result);
    my $more = sum_of($after, @labels) - sum_of($before, @labels);
    # /metrics itself is a response that is not JSON.
    is $more, $result eq 'not_json' ? 2 : 1, "$path is counted as $result";
}

for my $path ('/json', '/stream', '/long') {
    reads("/cached$path", $bodies{$path}[2], 'first, from the upstream');
    is reads("/cached$path", $bodies{$path}[2], 'then, from a file of the cache')->{body}, $bodies{$path}[1],
        'the body of the file';
}
my $gzip = reads('/gzip', '- -', 'a compressed response is not read');
is $gzip->{body}, Compress::Zlib::memGzip($json), 'and passes';
cmp_ok sum_of(metrics($nginx), 'rate_limiter_bodies_total', body => 'response', result => 'compressed'), '==', 1,
    'and is counted';
$seen++;
reads('/identity', '42 9', 'Content-Encoding: identity');
reads('/empty',    '- -',  'no body');
is scalar values_of(sub {
    my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nginx->port) or die "connect: $@\n";
    $client->syswrite("GET /direct/aborted HTTP/1.1\r\nHost: a\r\n\r\n");
    my $got = '';
    sysread $client, $got, 65536, length $got or die "no stream\n" while $got !~ /DONE/;
    return close $client;
}), '43 9', 'the events of a stream that the client cuts off';
reads('/other/json', '9 -', 'a location with its own paths does not inherit those of the server');
reads('/off/json',   '- -', 'a location without these variables');
reads('/early/json', '42 9', 'a variable that was evaluated before the body');
reads('/accel',      '42 9', 'a file after X-Accel-Redirect');
reads('/static.json', '42 9', 'a file with sendfile');
reads('/included',   '- -', 'the parts of SSI are not one document');
reads('/included-stream', '- -', 'a part of SSI is not read');
reads('/checked/json', '42 9', 'the response of auth_request is not read');
reads('/post/json',    '42 9', 'post_action keeps the values');
is $nginx->request(path => '/json', method => 'HEAD')->{status}, 200, 'HEAD';
$seen++;
is scalar values_of(sub { $nginx->get('/refused/json') }), '42 9', 'an admitted request';
my ($values, $response) = values_of(sub { $nginx->get('/refused/json') });
is "$values $response->{status}", '- - 429', 'the problem document of a rejected request is not read';

# Trailers come after the last byte.
my $all = '';
is scalar values_of(sub {
    my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nginx->port) or die "connect: $@\n";
    $client->syswrite("GET /trailer/bytes/json HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    1 while sysread $client, $all, 65536, length $all;
    return close $client;
}), '42 9', 'a response with trailers';
like $all, qr/\r\n0\r\nX-Tokens: 42\r\nX-Prompt: 9\r\n\r\n\z/, 'a trailer has the value';

my $h2 = RateLimit::HTTP2->new($h2_port);
for my $path ('/json', '/stream', '/long', '/bytes/stream') {
    (my $plain = $path) =~ s{^/bytes}{};
    is scalar values_of(sub {
        my $stream = $h2->request('GET', $path);
        return $h2->send->await(60, $stream);
    }), $bodies{$plain}[2], "$path over HTTP/2";
}
$h2->close;

# Requests over one connection have values of their own.
my $connection = $nginx->connect;
for my $path ('/json', '/none', '/stream', '/html', '/json') {
    is scalar values_of(sub {
        $connection->send("GET $path HTTP/1.1\r\nHost: a\r\n\r\n");
        $connection->receive;
    }), $bodies{$path}[2], "$path over a connection that stays open";
}
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no unexpected errors';

done_testing;
