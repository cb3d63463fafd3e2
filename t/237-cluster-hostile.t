# Cluster nodes with arbitrary replies crash no worker, and no request waits for them longer than timeout=.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async;
use RateLimit::FakeRedis qw(silence start_fake after_ms hang_up raw);
use RateLimit::Redis qw(start_redis redis_port);
use RateLimit::SpareTime qw(spare_time);
use Test::More;
use Time::HiRes qw(sleep time);

my $timeout = 0.1;    # seconds
my ($port)  = split ' ', $ENV{RL_PORTS};
my $clients = 0;
my ($at, $second, $dead) = map { redis_port() } 1 .. 3;    # of the nodes, and of no process

sub start {
    my ($url, %more) = @_;
    my $words = delete $more{words} // "timeout=@{[ 1000 * $timeout ]}ms";
    my ($http, $server) = ('', "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n");
    for my $mode (qw(open closed)) {
        $http .= "rate_limit_zone \$http_x_client zone=$mode:1m rate=3r/d redis=fleet on_error=$mode deny_cache=off;\n";
        $server .= "location = /$mode { rate_limit zone=$mode; empty_gif; }\n";
    }
    return start_nginx(
        port   => $port,
        http   => "rate_limit_redis fleet $url $words;\n$http",
        server => "location = /free { empty_gif; }\n$server",
        %more,
    );
}

sub ask {
    my ($nginx, $mode) = @_;
    return $nginx->get("/$mode", 'X-Client' => 'client' . ++$clients);
}

# Asserts that on_error applies in time, and that the worker keeps running.
sub survives {
    my ($title, $url, $rounds) = @_;
    my $nginx = start($url);
    $nginx->get('/free');
    my @workers = $nginx->workers;
    my (%seen, $longest);
    for my $round (1 .. $rounds // 3) {
        for my $mode (qw(open closed)) {
            my $began  = spare_time();
            my $answer = ask($nginx, $mode);
            my $took   = spare_time() - $began;
            $seen{"$mode $answer->{status} " . $answer->header('X-Store')}++;
            $longest = $took if $took > ($longest // -1);
        }
    }
    is join(', ', sort keys %seen), 'closed 503 fallback, open 200 fallback', "$title: on_error applies";
    cmp_ok $longest, '<', $timeout + 0.3, sprintf '%s: in %.0f ms', $title, 1000 * $longest;
    is $nginx->get('/free')->{status}, 200, "$title: the worker is still running";
    is join(' ', $nginx->workers), "@workers", "$title: the same";
    my $log = $nginx->error_log;
    unlike $log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, "$title: the log has no critical errors";
    $nginx->stop;
    return $log;
}

sub url { return 'redis+cluster://' . join ',', map { '127.0.0.1:' . $_->port } @_ }

# Starts a node that claims to have all slots, or sends other answers.
sub fake {
    my (%replies) = @_;
    my %more = (CLUSTER => [ [ 0, 16_383, [ '127.0.0.1', $at, 'x' x 40, [] ] ] ], ASKING => '+OK', SET => '+OK');
    for my $name (keys %replies) {
        my $reply = $replies{$name};
        $more{$name} = ref $reply eq 'CODE' ? $reply->($at) : $reply;
    }
    return start_fake(port => $at, replies => \%more);
}

subtest 'redirects to nowhere' => sub {
    my %words = (
        'to itself'         => sub {"-MOVED 1 127.0.0.1:$_[0]"},
        'ask itself'        => sub {"-ASK 1 127.0.0.1:$_[0]"},
        'to nobody'         => sub {"-MOVED 1 127.0.0.1:$dead"},
        'ask nobody'        => sub {"-ASK 1 127.0.0.1:$dead"},
        'no words'          => sub {'-MOVED'},
        'ask, no words'     => sub {'-ASK'},
        'no address'        => sub {'-MOVED 1'},
        'an empty address'  => sub {'-MOVED 1 '},
        'no port'           => sub {'-MOVED 1 127.0.0.1'},
        'an empty port'     => sub {'-MOVED 1 127.0.0.1:'},
        'port 0'            => sub {'-MOVED 1 127.0.0.1:0'},
        'a large port'      => sub {'-MOVED 1 127.0.0.1:65536'},
        'a huge port'       => sub {'-MOVED 1 127.0.0.1:99999999999999999999'},
        'a negative port'   => sub {'-MOVED 1 127.0.0.1:-1'},
        'a large slot'      => sub {"-MOVED 16384 127.0.0.1:$_[0]"},
        'a huge slot'       => sub {"-MOVED 99999999999999999999 127.0.0.1:$_[0]"},
        'a negative slot'   => sub {"-MOVED -1 127.0.0.1:$_[0]"},
        'no slot'           => sub {"-MOVED x 127.0.0.1:$_[0]"},
        'a wrong name'      => sub {'-MOVED 1 no.such.host.invalid:6379'},
        'a long name'       => sub { '-MOVED 1 ' . 'x' x 5000 . ':6379' },
        'a question mark'   => sub {'-MOVED 1 ?:6379'},
        'no host, no port'  => sub {'-ASK 1 :'},
        'wrong brackets'    => sub {'-ASK 1 [::1:6379'},
    );
    for my $title (sort keys %words) {
        my $fake  = fake(EVALSHA => $words{$title});
        survives($title, url($fake));
        cmp_ok $fake->count('EVALSHA'), '<=', 120,
            "$title: the number of calls is limited: " . $fake->count('EVALSHA') . ' times';
        $fake->stop;
    }
};

subtest 'two nodes that redirect to each other' => sub {
    my @ports = ($at, $second);
    for my $word (qw(MOVED ASK)) {
        my @fakes = map {
            my ($own, $other) = @ports[ $_, 1 - $_ ];
            start_fake(
                port    => $own,
                replies => {
                    CLUSTER => [ [ 0, 16_383, [ '127.0.0.1', $own, 'x' x 40 ] ] ],
                    ASKING  => '+OK',
                    SET     => '+OK',
                    EVALSHA => "-$word 1 127.0.0.1:$other",
                },
            )
        } 0, 1;
        survives($word, url(@fakes));
        my $calls = $fakes[0]->count('EVALSHA') + $fakes[1]->count('EVALSHA');
        cmp_ok $calls, '<=', 240, "$word: the number of redirects is limited: $calls";
        $_->stop for @fakes;
    }
};

subtest 'invalid slot maps' => sub {
    my $node = [ '127.0.0.1', $dead, 'x' x 40 ];
    my %maps = (
        'an error'           => '-ERR This instance has cluster support disabled',
        'CLUSTERDOWN'        => '-CLUSTERDOWN The cluster is down',
        'nil'                => undef,
        'a number'           => 1,
        'a string'           => 'x' x 100,
        'nothing'            => [],
        'no ranges'          => [ 1, 2, 3 ],
        'empty ranges'       => [ [], [] ],
        'ranges of one'      => [ [0], [1] ],
        'no node'            => [ [ 0, 16_383 ] ],
        'nil for a node'     => [ [ 0, 16_383, undef ] ],
        'a number as node'   => [ [ 0, 16_383, 7 ] ],
        'an empty node'      => [ [ 0, 16_383, [] ] ],
        'no port'            => [ [ 0, 16_383, ['127.0.0.1'] ] ],
        'port 0'             => [ [ 0, 16_383, [ '127.0.0.1', 0 ] ] ],
        'a large port'       => [ [ 0, 16_383, [ '127.0.0.1', 65_536 ] ] ],
        'a negative port'    => [ [ 0, 16_383, [ '127.0.0.1', -5 ] ] ],
        'a port that is not a number'    => [ [ 0, 16_383, [ '127.0.0.1', 'six' ] ] ],
        'a wrong name'       => [ [ 0, 16_383, [ 'no.such.host.invalid', 6379 ] ] ],
        'a long name'        => [ [ 0, 16_383, [ 'x' x 100_000, 6379 ] ] ],
        'a name with a NUL'  => [ [ 0, 16_383, [ "127.0.0.1\0x", 6379 ] ] ],
        'a number as host'   => [ [ 0, 16_383, [ 127, 6379 ] ] ],
        'slots below 0'      => [ [ -1, 16_383, $node ] ],
        'slots above'        => [ [ 0, 16_384, $node ] ],
        'slots far above'    => [ [ 0, 4_294_967_295, $node ] ],
        'slots out of range' => [ [ 0, '9223372036854775807', $node ] ],
        'slots backwards'    => [ [ 16_383, 0, $node ] ],
        'slots in words'     => [ [ 'a', 'b', $node ] ],
        'many ranges'        => [ map { [ 0, 16_383, $node ] } 1 .. 20_000 ],
        'many nodes'         => [ map { [ 16 * $_, 16 * $_ + 15, [ '127.0.0.2', 1 + $_ ] ] } 0 .. 999 ],
        'no end'             => raw("*1000000000\r\n*3\r\n:0\r\n"),
        'no RESP'            => raw("HTTP/1.1 400 Bad Request\r\n\r\n"),
        'the end'            => hang_up(),
        'silence'            => silence(),
    );
    for my $title (sort keys %maps) {
        my $fake  = fake(CLUSTER => $maps{$title}, EVALSHA => silence());
        my $began = time;
        survives($title, url($fake), 2);
        # Requests and background tasks have one slot map each, and load it at most every 50 ms.
        my $most = 2 * (2 + (time - $began) / 0.05);
        cmp_ok $fake->count('CLUSTER'), '<=', $most,
            "$title: the number of calls is limited: " . $fake->count('CLUSTER') . ' times';
        $fake->stop;
    }
};

subtest 'a Redis without cluster mode' => sub {
    my $redis = start_redis();
    my $log   = survives('no cluster', url($redis));
    like $log, qr/\[error\] .*redis "fleet" \S+: other \(.*cluster support disabled/, 'the log has the reason';
};

subtest 'a redirect does not restart timeout=' => sub {
    my $mute  = start_fake(mode => 'mute');
    my $limit = 0.4;    # seconds
    for my $word (qw(MOVED ASK)) {
        my $fake  = fake(EVALSHA => after_ms(1000 * $limit * 0.7, "-$word 1 127.0.0.1:" . $mute->port));
        my $nginx = start(url($fake), words => "timeout=@{[ 1000 * $limit ]}ms");
        my $began = spare_time();
        my $first = ask($nginx, 'open');
        my $took  = spare_time() - $began;
        is $first->header('X-Error'), 'timeout', "$word: the request times out";
        cmp_ok $first->{seconds}, '>', $limit - 0.05, "$word: the request waits for the node";
        cmp_ok $took, '<', $limit + 0.15, "$word: the request waits no longer than timeout=";
        $nginx->stop;
        $fake->stop;
    }
};

subtest 'requests that are cancelled while they are redirected' => sub {
    my $redis = start_redis(cluster => 1, config => 'cluster-announce-ip 127.0.0.1');
    for my $word (qw(MOVED ASK)) {
        my $fake  = fake(EVALSHA => after_ms(20, "-$word 1 127.0.0.1:" . $redis->port));
        my $nginx = start(url($fake));
        ask($nginx, 'open');
        my @workers = $nginx->workers;
        for my $round (1 .. 10) {
            my @leaving = map { RateLimit::Async->new($nginx->port) } 1 .. 8;
            $_->request('GET', '/open', [ 'X-Client' => 'leaving' . ++$clients ]) for @leaving;
            sleep 0.003 * $round;
            $_->close for @leaving;
        }
        is ask($nginx, 'open')->{status}, 200, "$word: the next request is served";
        is join(' ', $nginx->workers), "@workers", "$word: the worker is still running";
        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/,
            "$word: the log has no critical errors";
        $nginx->stop;
        $fake->stop;
    }
};

subtest 'a slot map that arrives late' => sub {
    my $redis = start_redis(cluster => 1, config => 'cluster-announce-ip 127.0.0.1');
    my $map   = [ [ 0, 16_383, [ '127.0.0.1', $redis->port, 'x' x 40 ] ] ];
    my $patient = 'timeout=10s connect_timeout=10s';
    my $seed    = start_fake(replies => { CLUSTER => after_ms(100, $map) });
    my $nginx = start(url($seed), words => $patient);
    my $first = ask($nginx, 'closed');
    is join(' ', $first->{status}, $first->header('X-Store')), '200 redis', 'the first request is decided';
    cmp_ok $first->{seconds}, '>', 0.09, 'the first request waits for the map';
    $nginx->stop;
    $seed->stop;

    # Each slot is a range of its own, as after many moves.
    $seed  = start_fake(replies => { CLUSTER => [ map { [ $_, $_, $map->[0][2] ] } 0 .. 16_383 ] });
    $nginx = start(url($seed), words => $patient);
    wait_for('a long map', sub { ask($nginx, 'open')->header('X-Store') eq 'redis' });
    is ask($nginx, 'closed')->{status}, 200, 'a long map is read completely';
    $nginx->stop;
    $seed->stop;

    $seed  = start_fake(replies => {}, phases => [ { CLUSTER => silence() }, { CLUSTER => $map } ]);
    $nginx = start(url($seed), words => 'timeout=10s connect_timeout=500ms');
    is ask($nginx, 'closed')->{status}, 503, 'an incomplete map is ignored';
    $seed->phase(1);
    wait_for('the map', sub { ask($nginx, 'open')->header('X-Store') eq 'redis' });
    is ask($nginx, 'closed')->{status}, 200, 'the map is loaded again';
    $nginx->stop;
};

done_testing;
