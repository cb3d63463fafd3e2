# Keys with arbitrary bytes, chosen by clients, are distinct and affect nothing but the table.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx decode_json);
use RateLimit::Async qw(statuses);
use Test::More;

my $nginx = start_nginx(
    http => <<'CONF',
    large_client_header_buffers 8 32k;
    keepalive_requests 100000;
    rate_limit_zone $http_x_key  zone=header:1m rate=2r/d;
    rate_limit_zone $arg_k       zone=arg:1m    rate=2r/d;
    rate_limit_zone $uri         zone=uri:1m    rate=2r/d;
    rate_limit_zone $cookie_id   zone=cookie:1m rate=2r/d;
    rate_limit_zone "$http_x_a|$http_x_b" zone=both:1m rate=2r/d;
    rate_limit_zone one          zone=cost:1m   rate=2r/d;
    rate_limit_zone one          zone=rate:1m   rate=$http_x_rate;
    rate_limit_headers all;
CONF
    server => <<'CONF',
    location = /header { rate_limit zone=header; empty_gif; }
    location = /arg    { rate_limit zone=arg; empty_gif; }
    location = /cookie { rate_limit zone=cookie; empty_gif; }
    location = /both   { rate_limit zone=both; empty_gif; }
    location /uri/     { rate_limit zone=uri; rate_limit_body problem; empty_gif; }
    location = /rate   { rate_limit zone=rate; empty_gif; }
    location ~ (?s)^/cost/(?<decoded>.*)$ { rate_limit zone=cost cost=$decoded; empty_gif; }
CONF
);

# Sends $count requests of one client. Returns their statuses.
sub ask {
    my ($count, $path, @headers) = @_;
    return statuses(map { $nginx->request(path => $path, headers => \@headers) } 1 .. $count);
}

my $limited = '200 200 429';

subtest 'all bytes that a header may have' => sub {
    # Blanks around a header's value are not part of it. CR, LF and NUL end the value or the request.
    my @bytes = grep { !/[\0\r\n \t]/ } map {chr} 0 .. 255;
    my %wrong;
    for my $byte (@bytes) {
        my $seen = ask(3, '/header', 'X-Key' => "$byte");
        $wrong{ ord $byte } = $seen if $seen ne $limited;
    }
    is_deeply(\%wrong, {}, scalar(@bytes) . ' keys of one byte are distinct clients');
    is(ask(3, '/header', 'X-Key' => join('', @bytes)),         $limited, 'a key of all these bytes');
    is(ask(3, '/header', 'X-Key' => join('', reverse @bytes)), $limited, 'another order is another client');
    is(ask(3, '/header', 'X-Key' => "in the\tmiddle"),         $limited, 'blanks inside');
    is(ask(1, '/header', 'X-Key' => "a\0b"),                   400,      'nginx rejects NUL');
};

subtest 'long keys' => sub {
    my $long = 'k' x 8191;
    is(ask(3, '/header', 'X-Key' => "${long}a"),    $limited, 'a key of 8 KB');
    is(ask(3, '/header', 'X-Key' => "${long}b"),    $limited, 'a key of 8 KB with another last byte is another client');
    is(ask(3, '/header', 'X-Key' => "a$long"),      $limited,
        'a key of 8 KB with another first byte is another client');
    is(ask(3, '/header', 'X-Key' => 'k' x 30_000),  $limited, 'a key of 30 KB');
    is(ask(3, '/arg?k=' . 'k' x 20_000),            $limited, 'an argument of 20 KB');
    my ($longest) = sort { $b <=> $a } map {length} grep {/limiting.*zone "header"/} split /\n/, $nginx->error_log;
    cmp_ok($longest, '<', 2048, 'the log truncates a key');
};

subtest 'several headers, several values' => sub {
    my @many = map { ("X-Other-$_" => "value $_") } 1 .. 200;
    is(ask(3, '/header', @many, 'X-Key' => 'many'), $limited, 'other headers do not change the client');
    is(ask(1, '/header', 'X-Key' => 'many'),        429,      'other headers do not change the client');
    is(ask(3, '/header', 'X-Key' => 'twice', 'X-Key' => 'again'), $limited, 'a header that occurs twice is one client');
    is(ask(3, '/both', 'X-A' => 'a', 'X-B' => 'b'),   $limited, 'a key of two headers');
    is(ask(3, '/both', 'X-A' => 'b', 'X-B' => 'a'),   $limited, 'exchanged values of two headers are another client');
    is(ask(3, '/cookie', Cookie => 'id=1; other=2'),  $limited, 'a cookie');
    is(ask(3, '/cookie', Cookie => 'other=1; id=2'),  $limited, 'another cookie value is another client');
    is(ask(3, '/cookie', Cookie => 'other=1'),        '200 200 200', 'a request without the header is not limited');
};

subtest 'arguments' => sub {
    is(ask(3, '/arg?k=a'),       $limited,      'a letter');
    is(ask(3, '/arg?k=A'),       $limited,      'upper case is another client');
    is(ask(1, '/arg?x=1&k=a'),   429,           'the position of the argument does not matter');
    is(ask(3, '/arg?k=%0d%0aa'), $limited,      'percent escapes are not decoded');
    is(ask(3, '/arg?k='),        '200 200 200', 'an empty value is not limited');
    is(ask(3, '/arg'),           '200 200 200', 'a missing argument is not limited');
    is($nginx->get('/arg')->count('X-RateLimit-Limit'), 0,
        'a request that is not limited has no headers of the module');
};

subtest 'no two clients share a count' => sub {
    my $connection = $nginx->connect;
    my %seen;
    my $clients = 3000;
    for my $round (1 .. 3) {
        for my $number (1 .. $clients / 100) {
            my @keys = map { sprintf '%032b', ($number * 100 + $_) * 2_654_435_761 % 4_294_967_296 } 1 .. 100;
            $connection->send(join '', map {"GET /arg?k=$_ HTTP/1.1\r\nHost: a\r\n\r\n"} @keys);
            $seen{ $round . ' ' . $connection->receive->{status} }++ for @keys;
        }
    }
    is_deeply(\%seen, { '1 200' => $clients, '2 200' => $clients, '3 429' => $clients },
        "$clients clients have two requests each");
};

# A key must not create a line of its own in a response or in the log.
sub harmless {
    my ($what, $answer) = @_;
    my ($head) = split /\r\n\r\n/, $answer->{raw};
    unlike($head, qr/evil/i, "$what: the response headers do not contain the key");
    return;
}

subtest 'keys that try to inject headers or log lines' => sub {
    my @keys = (
        '%0d%0aX-Evil:%20yes',
        '%0aX-Evil:%20yes',
        '%0d%0a%0d%0aevil',
        '%0a2026/01/01%2000:00:00%20[emerg]%20evil',
        '%22;evil=1,%20%22b',
        '%5c%22evil',
        '%1b[31mevil',
        '%ff%fe%80evil',
        '%25s%25s%25nevil',
    );
    for my $key (@keys) {
        my @answers = map { $nginx->get("/uri/$key") } 1 .. 3;
        is(statuses(@answers), $limited, "$key: limited");
        harmless($key, $_) for @answers;
        is_deeply(
            decode_json($answers[2]{body})->{'violated-policies'}, ['uri'],
            "$key: the body is as expected, without the key"
        );
        unlike($answers[2]{body}, qr/evil/i, "$key: without the key");
        is($answers[2]->header('RateLimit') =~ s/t=\d+/t=T/r, '"uri";r=0;t=T',
            "$key: RateLimit has only the name of the zone");
    }
    my $log = $nginx->error_log;
    my @lines = grep { !m{^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w+\] \d+#\d+: } } split /\n/, $log;
    is_deeply(\@lines, [], 'every line of the error log has the prefix of nginx');
    my ($control) = $log =~ /([^\n -~])/;
    is($control, undef, 'the error log is printable ASCII');
    like($log, qr{key "/uri/\\x0D\\x0AX-Evil: yes"}, 'bytes are escaped as nginx escapes them in logs');
    like($log, qr{key "/uri/\\x22;evil=1, \\x22b"},  'quotes are escaped');
    like($log, qr{key "/uri/\\x5C\\x22evil"},        'backslashes are escaped');
    like($log, qr{key "/uri/%s%s%nevil"},            'percent signs are not interpreted');
};

subtest 'costs and rates from clients' => sub {
    is(ask(1, '/cost/1'), 200, 'a cost');
    for my $wrong ('%0d%0aX-Evil:%20yes', '-1', '1e3', '99999999999999999999', '%0a2026/01/01%20[emerg]%20evil') {
        my $answer = $nginx->get("/cost/$wrong");
        like($answer->{status}, qr/^(?:200|429)$/, "cost $wrong: answered");
        harmless("cost $wrong", $answer);
    }
    for my $wrong ("1r/s\x1b[31mevil", '1' x 5000, ',', 'r/s', "5r/d,\x80evil", '-5r/d', '5r/d ' x 100) {
        my $answer = $nginx->get('/rate', 'X-Rate' => $wrong);
        is($answer->{status}, 200, 'a request with an invalid rate is not limited');
        harmless('rate', $answer);
    }
    my @lines = grep { !m{^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w+\] \d+#\d+: } } split /\n/, $nginx->error_log;
    is_deeply(\@lines, [], 'every line of the error log has the prefix of nginx');
    my ($control) = $nginx->error_log =~ /([^\n -~])/;
    is($control, undef, 'the error log is printable ASCII');
    is($nginx->get('/rate', 'X-Rate' => '2r/d')->{status}, 200, 'a valid rate is limited');
    is(ask(2, '/rate', 'X-Rate' => '2r/d'), '200 429', 'the rate of the client is applied');
};

unlike($nginx->error_log, qr/exited on signal|\[(?:alert|crit)\]/, 'no worker died');

done_testing;
