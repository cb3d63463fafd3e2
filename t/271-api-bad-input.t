# Each invalid API request gets a problem document with the reason, and has no effect.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx decode_json format_request);
use RateLimit::HTTP2;
use RateLimit::Redis qw(start_redis);
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis();
my $h2    = $ports[-1];
my $place = 'location /api/ { rate_limit_api write=on; } location /small/ { client_body_buffer_size 16; rate_limit_api write=on; } location /file/ { client_body_in_file_only clean; rate_limit_api write=on; }';
my $nginx = start_nginx(
    http => <<"HTTP",
large_client_header_buffers 4 64k;
rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;
rate_limit_zone \$http_x_client zone=one:1m rate=5r/m;
rate_limit_zone \$http_x_client zone=red:1m rate=5r/m redis=fleet;
rate_limit_zone \$http_x_client zone=log:1m rate=5r/m algorithm=sliding_log;
rate_limit_zone \$http_x_client zone=two:1m rate=5r/m,7r/h;
rate_limit_zone \$http_x_client zone=plan:1m rate=\$http_x_plan;
HTTP
    server  => $place,
    servers => "server { listen 127.0.0.1:$h2 http2; $place }",
);

# Asserts that a response is a complete problem document.
sub is_problem {
    my ($answer, $status, $detail, $title) = @_;
    my $json = eval { decode_json($answer->{body}) } // {};
    is $answer->{status}, $status, "$title: $status";
    is $answer->header('Content-Type'), 'application/problem+json', "$title: a problem";
    is_deeply [ sort keys %{$json} ], [qw(detail status title type)], "$title: a complete problem document";
    is "$json->{type} $json->{status}", "about:blank $status", "$title: the content type";
    like $json->{detail}, $detail, "$title: the reason";
    unlike $answer->{body}, qr/[^\x20-\x7e\n]/, "$title: in plain ASCII";
    return;
}

subtest 'arguments' => sub {
    my $percent = qr/% without two hexadecimal digits; it must be percent-encoded/;
    my $logged  = qr/\\x without two hexadecimal digits; it must be a key as it is logged/;
    my $permits = qr/^argument permits is ".*"; it must be a number from 1 to 9007199254740991/;
    my @wrong   = (
        [ '',                          400, qr/^argument zone is missing or empty; arguments must be zone, key, permits and rate, each once$/ ],
        [ '?',                         400, qr/zone is missing/ ],
        [ '?zone=one',                 400, qr/^argument key is missing or empty/ ],
        [ '?key=a',                    400, qr/zone is missing/ ],
        [ '?zone=&key=a',              400, qr/zone is missing or empty/ ],
        [ '?zone=one&key=',            400, qr/key is missing or empty/ ],
        [ '?zone&key',                 400, qr/zone is missing or empty/ ],
        [ '?zone=one&key=a&',          200 ],
        [ '?zone=one&&key=a',          400, qr/^argument "" is not known/ ],
        [ '?zone=one&key=a&x=1',       400, qr/^argument "x" is not known; arguments must be zone, key, permits and rate/ ],
        [ '?zone=one&key=a&Zone=one',  400, qr/"Zone" is not known/ ],
        [ '?zone=one&key=a&key=b',     400, qr/^argument "key" is given twice/ ],
        [ '?zone=one&zone=two&key=b',  400, qr/"zone" is given twice/ ],
        [ '?zone=one&%6Bey=a&key=b',   400, qr/"key" is given twice/ ],
        [ '?z%6Fne=o%6Ee&key=%61',     200 ],
        [ '?zone=one&key=%',           400, $percent ],
        [ '?zone=one&key=%4',          400, $percent ],
        [ '?zone=one&key=a%4',         400, $percent ],
        [ '?zone=one&key=%g0',         400, $percent ],
        [ '?zone=one&key=%0g',         400, $percent ],
        [ '?zone=one&key=%u0041',      400, $percent ],
        [ '?zone=%zz&key=a',           400, $percent ],
        [ '?%zz=1&zone=one&key=a',     400, $percent ],
        [ '?zone=one&key=%00',         200 ],
        [ '?zone=one%00&key=a',        404, qr/^there is no zone "one\\x00"/ ],
        [ '?zone=one&key=%5Cx',        400, $logged ],
        [ '?zone=one&key=%5Cx4',       400, $logged ],
        [ '?zone=one&key=a%5Cxag',     400, $logged ],
        [ '?zone=one&key=%5Cq',        200 ],
        [ '?zone=none&key=a',          404, qr/^there is no zone "none"; the call zones tells those that there are$/ ],
        [ '?zone=%22%3Cscript%3E&key=a', 404, qr/"\\x22<script>"/ ],
        [ '?zone=%F0%9F%92%A9&key=a',  404, qr/"\\xF0\\x9F\\x92\\xA9"/ ],
        [ '?zone=one&key=a&permits=',  400, $permits ],
        [ '?zone=one&key=a&permits',   400, $permits ],
        (map { [ "?zone=one&key=a&permits=$_", 400, $permits ] } qw(0 -1 +1 1.0 1e3 0x1 9007199254740992 99999999999999999999 x %201 %00 1%00), 'x' x 500),
        [ '?zone=one&key=many&permits=9007199254740991', 429 ],
        [ '?zone=one&key=' . 'k' x 60_000, 200 ],
        [ '?zone=one&key=' . '%ff' x 20_000, 200 ],
        [ '?zone=' . 'z' x 60_000 . '&key=a', 404, qr/there is no zone "zzz/ ],
        [ '?' . 'n' x 60_000 . '=1',   400, qr/^argument "n{128}" is not known/ ],
        [ '?' . 'a&' x 20_000,         400, qr/"a" is not known/ ],
    );
    for my $row (@wrong) {
        my ($query, $status, $detail) = @{$row};
        my $title = length $query > 60 ? substr($query, 0, 60) . '...' : $query;
        my $answer = $nginx->request(path => "/api/check$query", headers => [ 'X-Rate-Limit-Api' => 1 ]);
        if ($detail) {
            is_problem($answer, $status, $detail, "check$title");
        } else {
            is $answer->{status}, $status, "check$title";
            $nginx->request(method => 'DELETE', path => "/api/reset$query") if $query !~ /permits/;
        }
    }
    is_problem($nginx->get('/api/remaining?zone=one&key=a&permits=1'), 400, qr/"permits" is not known; arguments must be zone, key and rate, each once/,
        'inspect accepts no permits');
    is_problem($nginx->get("/api/$_?x=1"), 400, qr/"x" is not known; there must be no arguments/, "$_ takes nothing") for qw(zones health zones/one);
    is_problem($nginx->request(method => 'DELETE', path => '/api/reset?zone=one'), 400, qr/key is missing/, 'reset without a key');
    is_problem($nginx->request(method => 'DELETE', path => '/api/reset?zone=one&key=a&rate=1r/s'), 400, qr/"rate" is not known; arguments must be zone and key, each once/,
        'reset accepts no rate');
    for my $call (qw(check remaining)) {
        my $ask = sub { my ($query) = @_; return $nginx->get("/api/$call?$query", 'X-Rate-Limit-Api' => 1) };
        is_problem($ask->('zone=one&key=a&rate=1r/s'), 400, qr/^argument rate is for a zone whose rate is a variable; that of zone "one" is 5r\/m for every client$/,
            "$call accepts a rate only for a zone with a variable rate");
        is_problem($ask->('zone=plan&key=a&rate=1r/s&rate=2r/s'), 400, qr/^argument "rate" is given twice/,
            "$call accepts one rate parameter");
        is_problem($ask->("zone=plan&key=a&rate=$_"), 400, qr/^rate ".*" is wrong: .*; it must be a rate such as/, "$call: rate \"$_\"") for '', 'fast', '$plan', '0r/s', '%22%00';
        is_problem($ask->('zone=plan&key=a&rate=1r/s,2r/m,3r/h,4r/d,5r/w'), 400, qr/^rate ".*" does not fit: the zone has no room for so many rates/,
            "$call: more rates than the zone has room for");
    }
};

sub patch {
    my ($zone, $body, @more) = @_;
    return $nginx->request(method => 'PATCH', path => "/api/zones/$zone", headers => [ 'Content-Type' => 'application/json' ], body => $body, @more);
}

subtest 'bodies' => sub {
    my $form  = qr/the body must be an object such as/;
    my @wrong = (
        [ '',                               400, $form ],
        [ '{',                              400, $form ],
        [ '[]',                             400, $form ],
        [ '"5r/m"',                         400, $form ],
        [ 'null',                           400, $form ],
        [ '{"rate":"5r/m"',                 400, $form ],
        [ '{"rate":"5r/m"}x',               400, $form ],
        [ '{"rate":"5r/m"}{"rate":"5r/m"}', 400, $form ],
        [ '{"rate":"5r/m","rate":"6r/m"}',  400, $form ],
        [ "{\"rate\":\"5r/m\xff\"}",        400, $form ],
        [ '{"rate":"5r/m\\u0000"}',         400, $form ],
        [ "\x00",                           400, $form ],
        [ '{}',                             400, qr/^member rate is missing or not a string/ ],
        [ '{"rate":5}',                     400, qr/not a string/ ],
        [ '{"rate":null}',                  400, qr/not a string/ ],
        [ '{"rate":["5r/m"]}',              400, qr/not a string/ ],
        [ '{"rate":"5r/m","burst":1}',      400, qr/^member "burst" is not known/ ],
        [ '{"Rate":"5r/m"}',                400, qr/^member "Rate" is not known/ ],
        [ '{"r\u00e4te\\"":"5r/m"}',        400, qr/^member "r\\xC3\\xA4te\\x22" is not known/ ],
        [ '{"rate":""}',                    400, qr/^rate "" is wrong: it is not of the form COUNTr\/PERIOD; it must be a rate such as/ ],
        [ '{"rate":"$plan"}',               400, qr/is wrong/ ],
        [ '{"rate":"0r/s"}',                400, qr/the count is not a number from 1 to/ ],
        [ '{"rate":"1r/367d"}',             400, qr/the period is not from 1s to 366d/ ],
        [ '{"rate":"<b>\\"\u20ac"}',        400, qr/^rate "<b>\\x22\\xE2\\x82\\xAC" is wrong/ ],
        [ '{"rate":"5r/m,6r/h"}',           400, qr/^rate "5r\/m,6r\/h" does not fit: the zone has no room for so many rates/ ],
        [ '[' x 4000,                       400, $form ],
        [ '{"a":' x 600,                    400, $form ],
        [ '{"rate":"' . '5r/m,' x 700 . '5r/m"}', 400, qr/there are more than 8 rates/ ],
        [ ' ' x 4081 . '{"rate":"6r/m"}',   200 ],
        [ ' ' x 4082 . '{"rate":"6r/m"}',   413, qr/it must be at most 4096 bytes/ ],
        [ 'x' x 500_000,                    413, qr/it must be at most 4096 bytes/ ],
    );
    for my $zone (qw(one red)) {
        for my $row (@wrong) {
            my ($body, $status, $detail) = @{$row};
            my $title  = "$zone: " . (length $body > 40 ? length($body) . ' bytes of ' . substr $body, 0, 10 : $body =~ s/[^ -~]/?/gr);
            my $answer = patch($zone, $body);
            $detail ? is_problem($answer, $status, $detail, $title) : is $answer->{status}, $status, $title;
        }
        is decode_json($nginx->get("/api/zones/$zone")->{body})->{rate}, '6r/m',
            "$zone: only valid requests have an effect";
        is $nginx->request(method => 'DELETE', path => "/api/zones/$zone")->{status}, 200,
            "$zone: the live rate is deleted";
    }
    is_problem(patch('log', '{"rate":"6r/m"}'), 400, qr/log has no room/, 'more than the log has room for');
    is patch('log', '{"rate":"4r/m"}')->{status}, 200, 'a lower rate is accepted';
    is patch('two', '{"rate":"4r/s"}')->{status}, 200, 'fewer rates';
    is patch('none', 'x')->{status}, 404, 'an undefined zone';
};

subtest 'types' => sub {
    for my $type ('text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data', 'application/jsonp', 'application/json-patch+json', '', 'json') {
        my $answer = patch('one', '{"rate":"9r/m"}', headers => [ 'Content-Type' => $type ]);
        is_problem($answer, 415, qr/its type must be application\/json or application\/merge-patch\+json/, "\"$type\"");
        is $answer->header('Accept-Patch'), 'application/json, application/merge-patch+json', 'the Accept-Patch header';
    }
    is_problem(patch('one', '{"rate":"9r/m"}', headers => []), 415, qr/its type must be/, 'none at all');
    for my $type ('application/json', 'APPLICATION/JSON', 'application/merge-patch+json', 'application/json; charset=utf-8', 'application/json ;x') {
        is patch('one', '{"rate":"9r/m"}', headers => [ 'Content-Type' => $type ])->{status}, 200, $type;
    }
};

subtest 'bodies in chunks, in pieces, in files, and unexpected ones' => sub {
    my @chunked = ('Content-Type' => 'application/json', 'Transfer-Encoding' => 'chunked');
    is patch('one', "8\r\n{\"rate\":\r\n7\r\n\"8r/m\"}\r\n0\r\n\r\n", headers => \@chunked)->{status}, 200, 'chunks';
    is_problem(patch('one', join('', map {"400\r\n" . ' ' x 1024 . "\r\n"} 1 .. 5) . "0\r\n\r\n", headers => \@chunked), 413, qr/4096/, 'too many of them');
    is patch('one', "zz\r\n", headers => \@chunked)->{status}, 400, 'what are none';
    for my $place (qw(small file)) {
        is patch('one', '{"rate":"7r/m"}', path => "/$place/zones/one")->{status}, 200, "$place: a body that nginx puts into a file";
        is_problem(patch('one', ' ' x 5000, path => "/$place/zones/one", headers => \@chunked, body => "1388\r\n" . ' ' x 5000 . "\r\n0\r\n\r\n"), 413, qr/4096/, "$place: a large one");
    }
    my $slow = $nginx->connect;
    my $text = format_request(method => 'PATCH', path => '/api/zones/red', headers => [ 'Content-Type' => 'application/json' ], body => '{"rate":"6r/m"}');
    for my $byte (split //, $text) { $slow->send($byte) }
    is $slow->receive->{status}, 200, 'byte by byte';
    my $gone = $nginx->connect;
    $gone->send(substr $text, 0, -3);
    $gone->close;
    for my $call ([ GET => 'zones' ], [ GET => 'check?zone=red&key=body' ], [ DELETE => 'reset?zone=red&key=body' ], [ DELETE => 'zones/red' ]) {
        my ($method, $path) = @{$call};
        my $keep = $nginx->connect;
        my $body = 'x' x 30_000;
        $keep->send(format_request(method => $method, path => "/api/$path", headers => [ Connection => 'keep-alive', 'X-Rate-Limit-Api' => 1 ], body => $body));
        my $first = $keep->receive;
        cmp_ok $first->{status}, '<', 300, "$method $path: a body is ignored";
        $keep->send(format_request(path => '/api/health'));
        is $keep->receive->{status}, 200, 'the body is not read as the next request';
    }
};

subtest 'HTTP/2' => sub {
    is $nginx->get('/api/check?zone=red&key=reset2', 'X-Rate-Limit-Api' => 1)->{status}, 200, 'a client is stored';
    my $stream = RateLimit::HTTP2->new($h2);
    my @streams = map { $stream->request(@{$_}) } ([ GET => '/api/check?zone=red&key=h2', headers => [ 'x-rate-limit-api' => 1 ] ], [ DELETE => '/api/reset?zone=red&key=reset2' ],
        [ GET => '/api/zones' ], [ POST => '/api/check?zone=red' ]);
    ok $stream->send->await(10), 'the streams get responses';
    is join(' ', map { $stream->stream($_)->{status} } @streams), '200 204 200 400',
        'the same statuses as over HTTP/1.1';
};

is $nginx->get('/api/zones')->{status}, 200, 'nginx is still running';
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
