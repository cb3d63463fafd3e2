# A rejected gRPC or gRPC-Web request gets a gRPC status that @grpc/grpc-js understands, with the time to retry.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(format_request slurp start_nginx wait_for);
use RateLimit::Grpc qw(decode_status grpc_call grpc_server);
use RateLimit::HTTP2;
use RateLimit::Redis qw(start_redis);
use Test::More;

my ($port, $h2_port, $closed_port) = split ' ', $ENV{RL_PORTS};
my $upstream = grpc_server();
my $redis    = start_redis();
my $calls    = "grpc_pass grpc://127.0.0.1:$upstream;";

# Each location /NAME/… of the server, and what it has besides the zone and grpc_pass. A gRPC client calls its method
# through the header x-place, which `rewrite` turns into the location.
my %places = (
    plain    => '',
    off      => 'rate_limit_grpc_status off;',
    fourteen => 'rate_limit_grpc_status 14;',
    never    => 'rate_limit zone=api cost=3;',
    odd      => 'rate_limit "zone=100%25";',
    second   => 'rate_limit zone=second;',
    redis    => 'rate_limit zone=redis;',
    several  => 'rate_limit zone=second; rate_limit zone=api;',
    dry      => 'rate_limit_dry_run on;',
    ietf     => 'rate_limit_headers ietf;',
    silent   => 'rate_limit_headers off;',
    page     => 'error_page 429 503 /page.html; rate_limit_status 503;',
    problem  => 'rate_limit_body problem;',
    any      => 'satisfy any; allow all;',
    close    => 'rate_limit_status 444;',
    bad      => 'rate_limit zone=rated;',
    bad_off  => 'rate_limit zone=rated; rate_limit_grpc_status off;',
    bad_dry  => 'rate_limit zone=rated; rate_limit_dry_run on;',
    bad_page => 'rate_limit zone=rated; error_page 503 /page.html;',
    gone     => 'rate_limit zone=gone;',
);
my $locations = join '', map {"location /$_/ { rewrite ^/\\w+(/.*) \$1 break; $places{$_} $calls }\n"} sort keys %places;
my $server    = <<"SERVER";
rate_limit zone=api;
if (\$http_x_place) { rewrite ^ /\$http_x_place\$uri; }
location = /page.html { }
location /absent/ { rate_limit off; error_page 404 /plain/page; }
$locations
SERVER
my %conf = (
    port => $port,
    http => <<"HTTP",
log_format codes '\$uri \$status \$rate_limit_status \$sent_http_grpc_status';
access_log %DIR%/codes.log codes;
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_redis away redis://127.0.0.1:$closed_port;
rate_limit_zone \$http_x_client zone=api:1m rate=2r/m;
rate_limit_zone \$http_x_client zone=100%25:1m rate=1r/m;
rate_limit_zone \$http_x_client zone=second:1m rate=1r/s,1r/3s algorithm=gcra;
rate_limit_zone \$http_x_client zone=redis:1m rate=1r/d redis=fleet deny_cache=off;
rate_limit_zone \$http_x_client zone=rated:1m rate=\$http_x_rate on_error=closed;
rate_limit_zone \$http_x_client zone=gone:1m rate=1r/d redis=away on_error=closed;
HTTP
    server  => $server,
    servers => "server { listen 127.0.0.1:$h2_port http2; root html; $server }",
);
my $nginx = start_nginx(%conf, clock => 'day');
$nginx->write_file('page.html', "own page\n");

my $clients = 0;

# Makes calls of one new client in a place, and returns the outcome of the last.
sub last_call {
    my ($place, $times, $method, @messages) = @_;
    my $client = 'client' . $clients++;
    my $last;
    for (1 .. $times) {
        $last = grpc_call($h2_port, $method // 'unary', @messages ? \@messages : ['x'], 'x-place' => $place,
            'x-client' => $client);
    }
    return $last;
}

# Returns the answer to a POST over HTTP/1.1; a client has a quota of two requests.
sub post {
    my ($path, $type, %more) = @_;
    my $client = $more{client} // 'client' . $clients++;
    return $nginx->request(method => 'POST', path => $path, body => 'x', %more,
        headers => [ 'Content-Type' => $type, 'X-Client' => $client, @{ $more{headers} // [] } ]);
}

sub rejected_post {
    my ($path, $type, %more) = @_;
    my $client = 'client' . $clients++;
    post('/page.html', 'text/plain', method => 'GET', client => $client) for 1 .. 2;
    return post($path, $type, %more, client => $client);
}

subtest 'rate_limit_grpc_status off: the client sees the HTTP status only' => sub {
    is last_call('off', 2)->{status}, 'OK', 'an admitted call';
    my $outcome = last_call('off', 3);
    is $outcome->{status}, 'UNAVAILABLE', 'a rejected call';
    like $outcome->{details}, qr/429/, 'the message has the HTTP status';
    is_deeply $outcome->{info}, [], 'no RetryInfo';
};

subtest 'all kinds of calls' => sub {
    my %messages = (unary => ['hello'], collect => [ 'a', 'b', 'c' ], spread => ['abc'], chat => [ 'a', 'b' ]);
    my %answers  = (unary => ['hello'], collect => ['abc'], spread => [qw(a b c)], chat => [qw(a b)]);
    for my $method (sort keys %messages) {
        my $first = last_call('plain', 1, $method, @{ $messages{$method} });
        is $first->{status}, 'OK', "$method: admitted";
        is_deeply $first->{messages}, $answers{$method}, "$method: the answer of the server";
        my $outcome = last_call('plain', 3, $method, @{ $messages{$method} });
        is $outcome->{status}, 'RESOURCE_EXHAUSTED', "$method: rejected";
        is $outcome->{details}, 'Quota of policy api exceeded.', "$method: the message";
        is_deeply $outcome->{messages}, [], "$method: no messages";
        is scalar @{ $outcome->{info} }, 1, "$method: one status";
        is $outcome->{info}[0]{code}, 8, "$method: the code in the details";
        is $outcome->{info}[0]{message}, $outcome->{details}, "$method: the message in the details";
        is scalar @{ $outcome->{info}[0]{details} }, 1, "$method: one RetryInfo";
    }
    my $large = last_call('plain', 3, 'collect', ('x' x 60_000) x 20);
    is $large->{status}, 'RESOURCE_EXHAUSTED', 'a client that still sends a large stream';
    is last_call('plain', 1)->{status}, 'OK', 'the connection is still usable';
};

# Returns the wait of RetryInfo in seconds.
sub seconds_of {
    my ($outcome) = @_;
    my $delay = $outcome->{info}[0]{details}[0]{retry_delay};
    return ($delay->{seconds} // 0) + ($delay->{nanos} // 0) / 1e9;
}

subtest 'a client that waits as long as RetryInfo says is admitted' => sub {
    my @call = ($h2_port, 'unary', ['x'], 'x-place' => 'second', 'x-client' => 'patient');
    is grpc_call(@call)->{status}, 'OK', 'the first call';
    $nginx->advance(0.25);
    my $outcome = grpc_call(@call);
    is $outcome->{status}, 'RESOURCE_EXHAUSTED', 'the second call';
    is $outcome->{details}, 'Quota of policy second-3s exceeded.', 'the message names the rate that binds';
    my $wait = seconds_of($outcome);
    cmp_ok abs($wait - 2.75), '<', 0.001, "RetryInfo is exact: $wait";
    is $outcome->{metadata}{'retry-after'}, 3, 'Retry-After is rounded up';
    $nginx->advance($wait - 0.01);
    is grpc_call(@call)->{status}, 'RESOURCE_EXHAUSTED', 'a moment too early';
    $nginx->advance(0.011);
    is grpc_call(@call)->{status}, 'OK', 'after the wait';
};

subtest 'headers stay as configured' => sub {
    my $metadata = last_call('plain', 3)->{metadata};
    is $metadata->{'x-ratelimit-limit'}, 2, 'X-RateLimit-Limit';
    is $metadata->{'x-ratelimit-remaining'}, 0, 'X-RateLimit-Remaining';
    like $metadata->{'x-ratelimit-reset'}, qr/^\d+$/, 'X-RateLimit-Reset';
    like $metadata->{'retry-after'}, qr/^\d+$/, 'Retry-After';
    is $metadata->{'content-length'}, undef, 'no Content-Length';
    my $ietf = last_call('ietf', 3);
    is $ietf->{metadata}{'ratelimit-policy'}, '"api";q=2;w=60', 'rate_limit_headers ietf';
    is $ietf->{metadata}{'x-ratelimit-limit'}, undef, 'no legacy headers';
    is scalar @{ $ietf->{info} }, 1, 'RetryInfo';
    my $silent = last_call('silent', 3);
    is $silent->{status}, 'RESOURCE_EXHAUSTED', 'rate_limit_headers off';
    is join(' ', grep {/rate|retry/} keys %{ $silent->{metadata} }), '', 'no headers';
    is_deeply $silent->{info}, [], 'RetryInfo is absent like Retry-After';
};

subtest 'the code and the message' => sub {
    is last_call('fourteen', 3)->{code}, 14, 'rate_limit_grpc_status 14';
    is last_call('fourteen', 3)->{info}[0]{code}, 14, 'its details';
    my $never = last_call('never', 1);
    is $never->{status}, 'RESOURCE_EXHAUSTED', 'a cost above the limit';
    is $never->{details}, 'The cost of the request (3) is above the limit (2) of policy api.', 'the message says so';
    is_deeply $never->{info}, [], 'no RetryInfo, since no wait helps';
    is $never->{metadata}{'retry-after'}, undef, 'no Retry-After';
    is last_call('odd', 2)->{details}, 'Quota of policy 100%25 exceeded.', 'the client decodes a percent sign';
    post('/odd/', 'application/grpc-web', client => 'odd');
    is post('/odd/', 'application/grpc-web', client => 'odd')->header('grpc-message'),
        'Quota of policy 100%2525 exceeded.', 'a percent sign is encoded';
    is last_call('several', 2)->{details}, 'Quota of policy second-3s exceeded.', 'the zone that binds';
};

subtest 'a limit in Redis' => sub {
    is last_call('redis', 1)->{status}, 'OK', 'admitted';
    my $outcome = last_call('redis', 2);
    is $outcome->{status}, 'RESOURCE_EXHAUSTED', 'rejected';
    cmp_ok seconds_of($outcome), '>', 80_000, 'RetryInfo';
};

subtest 'limits that cannot be decided' => sub {
    for my $place (qw(bad gone bad_page)) {
        my $outcome = last_call($place, 1);
        is $outcome->{status}, 'UNAVAILABLE', "$place: on_error=closed";
        is $outcome->{details}, 'Rate limits are unavailable.', "$place: the message";
        is_deeply $outcome->{info}, [], "$place: no RetryInfo";
        my $post = post("/$place/", 'application/grpc-web');
        is "$post->{status} " . $post->header('grpc-status'), '200 14', "$place: trailers-only";
    }
    is post('/bad/',      'application/json')->{status}, 503, 'a request that is not gRPC';
    is post('/bad_off/',  'application/grpc')->{status}, 503, 'rate_limit_grpc_status off';
    is post('/bad_page/', 'text/plain')->{body}, "own page\n", 'error_page of a request that is not gRPC';
    is last_call('bad_dry', 1)->{status}, 'OK', 'a dry run lets the call pass';
};

subtest 'what does not replace the answer' => sub {
    is last_call($_, 3)->{status}, 'RESOURCE_EXHAUSTED', $_ for qw(page problem any);
    is last_call('dry', 3)->{status}, 'OK', 'a dry run lets calls pass';
    is rejected_post('/page/', 'text/plain')->{body}, "own page\n", 'error_page of a request that is not gRPC';
    my $absent = rejected_post('/absent/x', 'application/grpc-web');
    is "$absent->{status} " . $absent->header('grpc-status'), '200 8', 'a rejection in the error page of a 404';
    post('/page.html', 'text/plain', method => 'GET', client => 'closed') for 1 .. 2;
    my $connection = $nginx->connect;
    $connection->send(format_request(method => 'POST', path => '/close/', headers =>
        [ 'Content-Type' => 'application/grpc', 'X-Client' => 'closed' ]));
    ok $connection->at_end, 'rate_limit_status 444 closes the connection';
};

subtest 'HTTP/2: the frame of the headers ends the stream' => sub {
    my $http2  = RateLimit::HTTP2->new($h2_port);
    my @header = ('x-client' => 'frames', 'x-place' => 'plain', 'content-type' => 'application/grpc');
    my @ids = map { $http2->request('POST', '/test.Echo/unary', headers => \@header, body => "\0\0\0\0\1x") } 1 .. 3;
    $http2->send;
    ok $http2->await(20), 'answers';
    is_deeply [ map { $http2->stream($_)->{status} } @ids ], [ 200, 200, 200 ], 'statuses';
    # nginx resets a stream that the client has not ended before it got the answer.
    like join(' ', @{ $http2->stream($ids[2])->{frames} }), qr/^HEADERS\+(?: RST_STREAM)?$/, 'a rejection has one frame';
    my $open = $http2->request('POST', '/test.Echo/chat', headers => \@header, open => 1);
    $http2->send;
    ok $http2->await(20, $open), 'a client that keeps its stream open gets the answer';
    is $http2->stream($open)->{frames}[0], 'HEADERS+', 'one frame with the whole answer';
    # Without a body: curl 7.88 may fail if nginx answers before the body has come, whatever the answer is.
    my @curl = (qw(curl -sS -X POST --http2-prior-knowledge --max-time 60 -D - -H), 'content-type: application/grpc+proto',
        '-H', 'x-client: frames', '-H', 'x-place: plain', "http://127.0.0.1:$h2_port/test.Echo/unary");
    open my $out, '-|', @curl or die "curl: $!\n";
    my $text = do { local $/ = undef; <$out> };
    close $out;
    like $text, qr{^HTTP/2 200 \r\n}, 'the status';
    like $text, qr{^content-type: application/grpc\+proto\r$}m, 'Content-Type';
    like $text, qr{^grpc-status: 8\r$}m, 'grpc-status';
    unlike $text, qr{^content-length}m, 'no Content-Length';
    like $text, qr{\r\n\r\n\z}, 'no body';
};

subtest 'gRPC-Web over HTTP/1.1' => sub {
    my @types = qw(application/grpc application/grpc+proto application/grpc-web application/grpc-web+proto
        application/grpc-web-text application/grpc-web-text+proto);
    for my $type (@types, 'application/grpc-web+proto; charset=utf-8') {
        my $answer = rejected_post('/plain/', $type);
        is $answer->{status}, 200, "$type: status";
        is $answer->header('Content-Type'), $type =~ s/;.*//r, "$type: Content-Type";
        is $answer->header('grpc-status'), 8, "$type: grpc-status";
        is $answer->header('grpc-message'), 'Quota of policy api exceeded.', "$type: grpc-message";
        is $answer->header('Content-Length'), 0, "$type: Content-Length";
        is $answer->{body}, '', "$type: no body";
        my $details = $answer->header('grpc-status-details-bin');
        unlike $details, qr{[^A-Za-z0-9+/]}, "$type: base64 without padding";
        my $wait = decode_status($details)->{details}[0]{retry_delay}{seconds} // 0;
        cmp_ok $answer->header('Retry-After') - $wait, '<=', 1, "$type: RetryInfo and Retry-After agree";
    }
    for my $type (qw(application/grpcx application/grpc-x application/json text/plain), '') {
        is rejected_post('/plain/', $type)->{status}, 429, "\"$type\" is not gRPC";
    }
    my $head = rejected_post('/plain/', 'application/grpc', method => 'HEAD');
    is "$head->{status} " . $head->header('grpc-status'), '200 8', 'HEAD';
    my $old = rejected_post('/plain/', 'application/grpc', version => '1.0');
    is "$old->{status} " . $old->header('grpc-status'), '200 8', 'HTTP/1.0';
    for my $condition ('If-Unmodified-Since', 'If-Modified-Since') {
        my $answer = rejected_post('/plain/', 'application/grpc',
            headers => [ $condition => 'Thu, 01 Jan 1970 00:00:00 GMT' ]);
        is "$answer->{status} " . $answer->header('grpc-status'), '200 8', $condition;
    }
};

subtest 'a connection over HTTP/1.1 stays open' => sub {
    post('/page.html', 'text/plain', method => 'GET', client => 'stays') for 1 .. 2;
    my $connection = $nginx->connect;
    my @headers    = ('Content-Type' => 'application/grpc-web', 'X-Client' => 'stays', Connection => 'keep-alive');
    for my $size (0, 10, 100_000) {
        $connection->send(format_request(method => 'POST', path => '/plain/', headers => \@headers, body => 'x' x $size));
        is $connection->receive->header('grpc-status'), 8, "a rejected POST of $size bytes";
    }
    $connection->send(format_request(path => '/page.html', headers => [ 'X-Client' => 'fresh' ]));
    is $connection->receive->{body}, "own page\n", 'the next request on the connection';
    $connection = $nginx->connect;
    $connection->send(join "\r\n", 'POST /plain/ HTTP/1.1', 'Content-Length: 5', 'Host: h', 'X-Client: stays',
        'Content-Type: application/grpc', 'Expect: 100-continue', '', '');
    like $connection->take_line, qr{^HTTP/1.1 200}, 'no 100 Continue before a rejection';
};

subtest 'logs' => sub {
    my $log = wait_for('the access log', sub {
        my $text = slurp($nginx->dir . '/codes.log');
        $text =~ m{^/test.Echo/chat 200 REJECTED 8$}m && $text;
    });
    like $log, qr{^/test.Echo/unary 200 PASSED -$}m, 'an admitted call';
    like $log, qr{^/test.Echo/unary 200 REJECTED 14$}m, 'a rejected call with another code';
    like $log, qr{^/test.Echo/unary 200 ERROR 14$}m, 'a call whose limit cannot be decided';
    like $log, qr{^/test.Echo/unary 429 REJECTED -$}m, 'rate_limit_grpc_status off';
    like $nginx->error_log, qr{limiting requests, excess: .* by zone "api"}, 'the error log';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'no alert';
};

subtest 'the directive is inherited' => sub {
    $nginx->reload(%conf, http => "$conf{http} rate_limit_grpc_status 9;",
        server => 'rate_limit zone=api; location /a/ { } location /b/ { rate_limit_grpc_status 8; }');
    is rejected_post('/a/', 'application/grpc')->header('grpc-status'), 9, 'from http';
    is rejected_post('/b/', 'application/grpc')->header('grpc-status'), 8, 'a location overrides it';
};

done_testing;
