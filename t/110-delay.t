# A delayed request ends when its client disconnects, and otherwise is processed completely.
#
# The clock of nginx is frozen unless the test advances it, so a request is delayed for as long as the test needs.
use strict;
use warnings;

use lib 't/lib';
use Digest::MD5 qw(md5_hex);
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for slurp);
use RateLimit::Async qw(await_answers request_text statuses);
use RateLimit::HTTP2;
use RateLimit::Upstream;
use Test::More;

my $step     = 0.5;                           # seconds between two requests of a client, by the clock of nginx
my @ports    = split ' ', $ENV{RL_PORTS};
my ($app_port, $h2_port) = @ports[ -1, -2 ];
my $app      = RateLimit::Upstream->start($app_port);
my $location = <<"CONF";
    client_max_body_size 8m;
    add_header X-Worker \$pid;
    location = /free { empty_gif; }
    location /app/ { rate_limit zone=shaped burst=20; proxy_pass http://127.0.0.1:$app_port; }
    location /unbuffered/ {
        rate_limit zone=shaped burst=20;
        proxy_pass http://127.0.0.1:$app_port;
        proxy_http_version 1.1;
        proxy_request_buffering off;
    }
    location = /with-auth { auth_request /auth; proxy_pass http://127.0.0.1:$app_port; }
    location = /auth { internal; rate_limit zone=shaped burst=20; proxy_pass http://127.0.0.1:$app_port/auth-app; }
    location = /page { ssi on; ssi_types *; }
    location = /part1 { rate_limit zone=shaped burst=20; proxy_pass http://127.0.0.1:$app_port; }
    location = /part2 { rate_limit zone=shaped2 burst=20; proxy_pass http://127.0.0.1:$app_port; }
CONF
my %conf = (
    http => <<'CONF',
    rate_limit_zone $arg_k zone=shaped:1m rate=2r/s algorithm=leaky_bucket;
    rate_limit_zone $arg_k zone=shaped2:1m rate=2r/s algorithm=leaky_bucket;
    log_format client '$status $request_uri';
    access_log access.log client;
CONF
    server => $location,
);
my $nginx = start_nginx(%conf, clock => 1, servers => "server { listen 127.0.0.1:$h2_port http2; root html; $location }");
my $port  = $nginx->port;
$nginx->write_file('page', '<!--#include virtual="/part1?k=$arg_k" --><!--#include virtual="/part2?k=$arg_k" -->');

# Sends a request, so that the client's next request is delayed by one step, and the one after by two.
sub use_turn {
    my ($client) = @_;
    my $answer = $nginx->get("/app/first?k=$client");
    die "the first request was not served: $answer->{status}\n" if $answer->{status} != 200;
    return;
}

sub connection {
    return RateLimit::Async->new($port);
}

sub reached {
    my ($pattern) = @_;
    return scalar $app->requests($pattern);
}

sub wait_for_access {
    my ($line) = @_;
    return wait_for("\"$line\" in the access log", sub { $nginx->access_log =~ /^\Q$line\E$/m });
}

# Waits until nginx delays requests for these URIs.
sub wait_for_delay {
    my (@uris) = @_;
    for my $uri (@uris) {
        wait_for("a delay of $uri", sub { $nginx->error_log =~ /delaying.*\Q$uri\E/ });
    }
    return;
}

# Advances the clock by $turns steps. None of the delayed requests has reached the upstream before.
sub let_pass {
    my ($turns, @uris) = @_;
    wait_for_delay(@uris);
    is(reached("\Q$_\E "), 0, "$_ waits") for @uris;
    $nginx->advance($turns * $step);
    return;
}

subtest 'a delayed request ends when its client disconnects' => sub {
    use_turn('gone');
    my ($leaves, $stays) = (connection(), connection());
    $leaves->request('GET', '/app/leaves?k=gone');
    wait_for_delay('/app/leaves');
    $stays->request('GET', '/app/stays?k=gone');
    wait_for_delay('/app/stays');
    $leaves->close;
    ok(wait_for_access('499 /app/leaves?k=gone'), 'the request is logged as 499');
    $nginx->advance(2 * $step);
    ok(await_answers(20, $stays), 'another client with a longer delay gets a response');
    is(reached('/app/stays'),  1, 'the request of the other client reaches the upstream');
    is(reached('/app/leaves'), 0, 'the request of the disconnected client does not reach the upstream after its delay');
};

subtest 'a client that disconnects while it sends its body' => sub {
    use_turn('half');
    my ($leaves, $stays) = (connection(), connection());
    $leaves->raw(request_text('POST', '/app/leaves-half?k=half', [ 'Content-Length' => 1000 ]) . 'half', 'POST');
    wait_for_delay('/app/leaves-half');
    $stays->request('GET', '/app/stays-half?k=half');
    wait_for_delay('/app/stays-half');
    $leaves->close;
    ok(wait_for_access('499 /app/leaves-half?k=half'), 'the request is logged as 499');
    $nginx->advance(2 * $step);
    ok(await_answers(20, $stays), 'another client gets a response');
    is(reached('leaves-half'), 0, 'the request of the disconnected client does not reach the upstream');
};

subtest 'cancelled streams and closed connections of HTTP/2' => sub {
    for my $how (qw(stream connection)) {
        use_turn($how);
        my ($leaves, $stays) = map { RateLimit::HTTP2->new($h2_port) } 1, 2;
        my $gone = $leaves->request('GET', "/app/leaves-$how?k=$how");
        $leaves->ping;
        my $kept = $stays->request('GET', "/app/stays-$how?k=$how");
        $stays->ping;
        like($nginx->error_log, qr{delaying.*/app/leaves-$how}, "$how: the request is delayed");
        $how eq 'stream' ? $leaves->reset($gone)->send : $leaves->close;
        ok(wait_for_access("499 /app/leaves-$how?k=$how"), "$how: the request is logged as 499");
        $nginx->advance(2 * $step);
        ok($stays->await(20), "$how: another client gets a response");
        is($stays->stream($kept)->{status}, 200, "$how: with 200");
        is(reached("/app/leaves-$how"), 0, "$how: the cancelled request does not reach the upstream");
        next if $how ne 'stream';
        my $next = $leaves->request('GET', '/free');
        $leaves->send->await(20, $next);
        is($leaves->stream($next)->{status}, 200, 'the connection stays usable after a stream was reset');
    }
};

# Asserts that the whole body of a request arrived.
sub arrived {
    my ($name, $uri, $answer, $body) = @_;
    is($answer->{status}, 200, "$name: answered");
    is($answer->{body}, join(' ', 'POST', $uri, length $body, md5_hex($body)) . "\n", "$name: the body is complete");
    is(reached("POST \Q$uri\E "), 1, "$name: once");
    return;
}

my $megabyte = join '', map { pack 'N', $_ * 2_654_435_761 % 4_294_967_296 } 1 .. 262_144;

for my $where (qw(app unbuffered)) {
    subtest "bodies of delayed requests, $where" => sub {
        my %bodies = (small => 'a=1', megabyte => $megabyte, empty => '');
        my %waiting;
        for my $name (sort keys %bodies) {
            my $client = "$where-$name";
            use_turn($client);
            $waiting{$name} = connection();
            $waiting{$name}->request('POST', "/$where/$name?k=$client", [], $bodies{$name});
        }
        let_pass(1, map {"/$where/$_?k=$where-$_"} sort keys %bodies);
        ok(await_answers(20, values %waiting), 'all are answered');
        arrived($_, "/$where/$_?k=$where-$_", ($waiting{$_}->answers)[0], $bodies{$_}) for sort keys %bodies;

        use_turn("$where-chunked");
        my $chunked = connection();
        $chunked->raw(
            request_text('POST', "/$where/chunked?k=$where-chunked", [ 'Transfer-Encoding' => 'chunked' ])
                . "4\r\nWiki\r\n6\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\n\r\n",
            'POST'
        );
        let_pass(1, "/$where/chunked?k=$where-chunked");
        await_answers(20, $chunked);
        arrived('chunked', "/$where/chunked?k=$where-chunked", ($chunked->answers)[0], "Wikipedia in \r\n\r\nchunks.");
    };

    subtest "bodies that arrive late, $where" => sub {
        my @late = qw(while-delayed after-delay expect);
        my %waiting = map { $_ => connection() } @late;
        my $size    = length $megabyte;
        for my $name (@late) {
            my @expect = $name eq 'expect' ? (Expect => '100-continue') : ();
            use_turn("$where-$name");
            $waiting{$name}->raw(
                request_text('POST', "/$where/$name?k=$where-$name", [ 'Content-Length' => $size, @expect ]), 'POST');
        }
        $waiting{$_}->raw(substr $megabyte, 0, 1000) for qw(while-delayed after-delay);
        wait_for_delay(map {"/$where/$_?"} @late);
        $waiting{'while-delayed'}->raw(substr $megabyte, 1000);
        my $behind = connection();
        $behind->request('GET', "/$where/behind?k=$where-after-delay");
        let_pass(1, (map {"/$where/$_?k=$where-$_"} @late), "/$where/behind?k=$where-after-delay");
        await_answers(20, @waiting{qw(while-delayed)});
        $nginx->advance($step);
        await_answers(20, $behind);
        $waiting{'after-delay'}->raw(substr $megabyte, 1000);
        wait_for('100 Continue', sub { $waiting{expect}->fill; $waiting{expect}{interim} });
        is($waiting{expect}{interim}[0]{status}, 100, 'expect: 100 Continue is the first response');
        $waiting{expect}->raw($megabyte);
        ok(await_answers(20, values %waiting), 'all are answered');
        arrived($_, "/$where/$_?k=$where-$_", ($waiting{$_}->answers)[0], $megabyte) for @late;
    };
}

subtest 'bodies over HTTP/2' => sub {
    use_turn('h2-small');
    my $client = RateLimit::HTTP2->new($h2_port);
    my $stream = $client->request('POST', '/app/h2-small?k=h2-small', body => 'a=1', open => 1);
    $client->ping;
    $client->data($stream, '&b=2', 1);
    $client->send;
    let_pass(1, '/app/h2-small?k=h2-small');
    $client->await(20);
    arrived('small, in two parts', '/app/h2-small?k=h2-small', $client->stream($stream), 'a=1&b=2');

    my $file = "$ENV{RL_DIR}/megabyte";
    open my $out, '>:raw', $file or die "$file: $!\n";
    print {$out} $megabyte;
    close $out or die "$file: $!\n";
    use_turn('h2-big');
    open my $curl, '-|', qw(curl -sS --max-time 60 --http2-prior-knowledge --data-binary), "\@$file", '-w', '%{http_code}',
        "http://127.0.0.1:$h2_port/app/h2-big?k=h2-big" or die "curl: $!\n";
    let_pass(1, '/app/h2-big?k=h2-big');
    my ($body, $status) = do { local $/ = undef; <$curl> } =~ /(.*\n)(\d+)$/s;
    arrived('a megabyte', '/app/h2-big?k=h2-big', { status => $status, body => $body }, $megabyte);
};

subtest 'pipelined requests and kept connections' => sub {
    my $connection = connection();
    my @uris       = map {"/app/pipe$_?k=pipe"} 1 .. 3;
    $connection->raw(join('', map { request_text('POST', $uris[ $_ - 1 ], [], "body $_") } 1 .. 3), ('POST') x 3);
    for my $number (2, 3) {
        let_pass(1, $uris[ $number - 1 ]);
        is(reached("POST \Q$uris[$number - 2]\E "), 1, 'the requests are delayed one after the other');
    }
    ok(await_answers(20, $connection), 'three requests in one write get responses');
    my @answers = $connection->answers;
    is(statuses(@answers), '200 200 200', 'all with 200');
    is(
        join('', map { $_->{body} } @answers),
        join('', map { join(' ', 'POST', $uris[ $_ - 1 ], 6, md5_hex("body $_")) . "\n" } 1 .. 3),
        'the responses are in order, each with its body'
    );
    $connection->request('GET', '/free');
    ok(await_answers(20, $connection), 'the connection stays usable');
    is(statuses($connection->answers), 200, 'with 200');
};

# nginx runs no access phase for subrequests. Delayed or not, they must not get stuck.
subtest 'subrequests to limited locations' => sub {
    my $get = sub {
        my ($uri) = @_;
        my $connection = connection();
        $connection->request('GET', $uri);
        wait_for('an answer', sub { $nginx->advance($step); await_answers(0.05, $connection) });
        return ($connection->answers)[0];
    };
    is($get->('/with-auth?k=auth')->{status}, 200, 'auth_request is answered') for 1 .. 2;
    for (1 .. 2) {
        my $page = $get->('/page?k=page');
        is($page->{status}, 200, 'a page with two limited parts is complete');
        like($page->{body}, qr{^GET /part1\?k=page .*\nGET /part2\?k=page .*\n$}, 'with both');
    }
};

subtest 'a reload during a delay' => sub {
    my ($old) = $nginx->workers;
    use_turn('reload');
    my @waiting = map { connection() } 1, 2;
    $_->request('POST', '/app/reload?k=reload', [], 'kept') for @waiting;
    wait_for('two delays', sub { 2 == (() = $nginx->error_log =~ m{delaying.*/app/reload}g) });
    $nginx->signal('HUP');
    wait_for('a new worker', sub { grep { $_ != $old } $nginx->workers });
    wait_for('a response of the new worker', sub { $nginx->get('/free')->header('X-Worker') != $old });
    $nginx->advance(2 * $step);
    ok(await_answers(20, @waiting), 'both are answered');
    my @answers = map { $_->answers } @waiting;
    is(statuses(@answers), '200 200', 'with 200');
    is($answers[1]->header('X-Worker'), $old, 'the old worker responds');
    $_->close for @waiting;
    wait_for('the end of the old worker', sub { !grep { $_ == $old } $nginx->workers });
};

subtest 'a graceful stop during a delay' => sub {
    use_turn('quit');
    my @waiting = map { connection() } 1, 2;
    $_->request('GET', '/app/quit?k=quit') for @waiting;
    wait_for('two delays', sub { 2 == (() = $nginx->error_log =~ m{delaying.*/app/quit}g) });
    $nginx->signal('QUIT');
    wait_for('no listener', sub { !IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) });
    $nginx->advance(2 * $step);
    ok(await_answers(20, @waiting), 'both are answered');
    is(statuses(map { $_->answers } @waiting), '200 200', 'with 200');
    wait_for('the end of nginx', sub { !-e $nginx->dir . '/nginx.pid' });
    unlike($nginx->error_log, qr/\[(?:alert|emerg|crit)\]|exited on signal/, 'the log has no errors');
};

done_testing;
