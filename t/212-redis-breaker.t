# Requests stop waiting for a Redis that does not respond, and limits apply again soon after it responds.
#
# The clock of nginx is frozen unless the test advances it: no call times out before, and a request that waits for a
# silent Redis gets no response.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers await_reading);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $timeout = 0.1;    # seconds
my ($port)  = split ' ', $ENV{RL_PORTS};

sub start {
    my ($url, %more) = @_;
    my ($http, $server) = ('', <<'SERVER');
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /free { empty_gif; }
SERVER
    for my $mode (qw(open closed local)) {
        $http .= "rate_limit_zone \$http_x_client zone=$mode:4m rate=2r/d algorithm=sliding_log redis=main on_error=$mode;\n";
        $server .= "location = /$mode { rate_limit zone=$mode; empty_gif; }\n";
    }
    return start_nginx(
        port => $port,
        http => "keepalive_requests 1000000;\naccess_log off;\n"
            . "rate_limit_redis main $url timeout=100ms @{[ delete $more{words} // '' ]};\n$http",
        server => $server,
        clock  => 1,
        %more
    );
}

sub store { my ($answer) = @_; return $answer->header('X-Store') // '-' }
sub error { my ($answer) = @_; return $answer->header('X-Error') // '-' }

my $clients = 0;

sub ask {
    my ($nginx, $mode) = @_;
    return $nginx->get('/' . ($mode // 'open'), 'X-Client' => 'client' . ++$clients);
}

# Sends requests to a silent Redis, and advances the clock until they time out.
sub time_out {
    my ($nginx, @connections) = @_;
    await_reading(@connections);
    $nginx->advance($timeout - 0.01);
    is await_answers(0.05, @connections), 0, 'the requests wait for timeout=';
    $nginx->advance(0.02);
    ok await_answers(20, @connections), 'the requests do not wait longer than timeout=';
    return;
}

sub requests {
    my ($nginx, $count, $client) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. $count;
    $_->request('GET', '/open', [ 'X-Client' => $client // 'client' . ++$clients ]) for @connections;
    return @connections;
}

# Returns true if Redis is called again without an advance of the clock.
sub is_asked {
    my ($nginx) = @_;
    return eval { wait_for('Redis', sub { store(ask($nginx)) eq 'redis' }) } // 0;
}

# Measures how long it takes until limits apply again, in seconds of the clock of nginx. An attempt to reach Redis is
# due within a second, and may take any time.
sub recovery {
    my ($nginx) = @_;
    $nginx->advance(1);
    return 1 if is_asked($nginx);
    $nginx->advance(1);
    return is_asked($nginx) ? 2 : 'never';
}

sub limits_again {
    my ($nginx, $title) = @_;
    is recovery($nginx), 1, "$title: limits apply again within a second";
    my $client = 'limited' . ++$clients;
    my @got    = map { $nginx->get('/closed', 'X-Client' => $client) } 1 .. 3;
    is join(' ', map { $_->{status} . ' ' . store($_) } @got), '200 redis 200 redis 429 redis', "$title: from Redis";
    ok $nginx->wait_for_log(qr/\[notice\] .*redis "main" 127\.0\.0\.1:\d+: answers again; zones open, closed, local: limits are enforced again\n/),
        "$title: the recovery is logged";
    return;
}

my $redis = start_redis();

subtest 'after the first timeout no request waits for a paused Redis' => sub {
    my $nginx = start($redis->url);
    is store(ask($nginx)), 'redis', 'Redis decides at first';
    $redis->pause;
    my ($connection) = my @first = requests($nginx, 1);
    time_out($nginx, @first);
    is error($connection->answers), 'timeout', 'the first request times out';
    my @later = map { ask($nginx, $_) } (qw(open closed local)) x 70;
    is scalar(grep { error($_) ne 'unavailable' } @later), 0, 'none of hundreds of other requests waits for Redis';
    $redis->resume;
    limits_again($nginx, 'SIGCONT');
    my @lines = grep {/redis "main"/} split /\n/, $nginx->error_log;
    cmp_ok scalar @lines, '<=', 5, 'few log lines' or diag join "\n", @lines;
};

subtest 'late answers close the breaker, and reach no other request' => sub {
    my $nginx = start($redis->url);
    ask($nginx);
    for my $round (1 .. 5) {
        $redis->pause;
        my @waiting = requests($nginx, 20, 'round');
        time_out($nginx, @waiting);
        my @answers = map { $_->answers } @waiting;
        is scalar(grep { $_->{status} != 200 || store($_) ne 'fallback' } @answers), 0,
            "round $round: on_error applies";
        $redis->resume;
        is recovery($nginx), 1, "round $round: Redis is called again";
    }
    ok wait_for('one connection', sub { $redis->clients == 1 }),
        'over the same connection, beside the one for health checks';
    my @got = map { $nginx->get('/open', 'X-Client' => 'after') } 1 .. 4;
    is join(' ', map { $_->{status} } @got), '200 200 429 429', 'each request gets its own answer';
    is join(' ', map { $_->header('X-RateLimit-Remaining') } @got), '1 0 0 0', 'each request gets its own numbers';
};

subtest 'a server that stops and starts again' => sub {
    my $server = start_redis();
    my $nginx  = start($server->url);
    for my $how (qw(stop kill)) {
        wait_for('Redis', sub { store(ask($nginx)) eq 'redis' });
        $server->$how;
        my @answers = map { ask($nginx) } 1 .. 30;
        is scalar(grep { $_->{status} == 200 && store($_) eq 'fallback' } @answers), 30,
            "$how: on_error=open admits, and no request waits";
        is ask($nginx, 'closed')->{status}, 503, "$how: on_error=closed rejects";
        is ask($nginx, 'local')->{status},  200, "$how: local does";
        $server->restart;
        limits_again($nginx, $how);
    }
    # The second outage began within ten seconds of the first, and was not logged.
    my ($down, $up) = map { scalar(() = $nginx->error_log =~ /$_/g) } qr/redis "main" \S+: \w+ \(/, qr/redis "main" \S+: answers again/;
    cmp_ok $up, '<=', $down, 'the log has the end of an outage only if it has its beginning';
};

subtest 'a server that starts after nginx' => sub {
    my $hold = start_fake(mode => 'refuse');
    my $url  = $hold->url;
    my $at   = $hold->port;
    my $nginx = start($url);
    my @answers = map { ask($nginx) } 1 .. 10;
    is scalar(grep { store($_) eq 'fallback' } @answers), 10, 'no server is there, and no request waits';
    $hold->stop;
    my $server = start_redis(port => $at);
    limits_again($nginx, 'a new server');
};

subtest 'five error replies in a row open the breaker' => sub {
    my $server = start_redis();
    my $nginx  = start($server->url);
    ask($nginx) for 1 .. 3;
    $server->command('CONFIG', 'SET', 'maxmemory', 1);
    my @answers = map { ask($nginx) } 1 .. 5;
    is join(' ', map { error($_) } @answers), 'oom oom oom oom oom', 'five calls fail';
    is error(ask($nginx)), 'unavailable', 'the next request causes no call';
    $server->command('CONFIG', 'RESETSTAT');
    ask($nginx) for 1 .. 50;
    is $server->commandstats('evalsha'), 0, 'the other requests cause no call';
    $server->command('CONFIG', 'SET', 'maxmemory', 0);
    limits_again($nginx, 'memory');

    $server->command('CONFIG', 'SET', 'maxmemory', 1);
    ask($nginx) for 1 .. 4;
    $server->command('CONFIG', 'SET', 'maxmemory', 0);
    is store(ask($nginx)), 'redis', 'four errors in a row do not open the breaker';
    $server->command('CONFIG', 'SET', 'maxmemory', 1);
    is join(' ', map { error(ask($nginx)) } 1 .. 4), 'oom oom oom oom', 'a success in between resets the count';
};

subtest 'retries back off, and do not flood the server' => sub {
    my $fake  = start_fake(greeting => '-ERR go away', replies => { '*' => '-LOADING not yet' });
    my $nginx = start($fake->url);
    for (1 .. 60) {
        ask($nginx);
        $nginx->advance(0.05);
    }
    my $tries = $fake->connections + $fake->count;
    # The connection for requests and the connection for background tasks.
    cmp_ok $tries, '<=', 80, "the server gets few attempts ($tries attempts and commands in three seconds)";
    ok wait_for('another try', sub { $nginx->advance(1); $fake->connections + $fake->count > $tries }),
        'there is another attempt later';
};

subtest '64 busy connections while Redis is paused' => sub {
    my $server = start_redis();
    my $nginx  = start($server->url, workers => 2);
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 64;

    # Sends rounds of 64 requests. Returns the number of responses with each status and error, or store if there is no
    # error.
    my $hammer = sub {
        my ($rounds) = @_;
        my %count;
        for (1 .. $rounds) {
            $_->request('GET', '/open', [ 'X-Client' => 'h' . ++$clients ]) for @connections;
            await_answers(20, @connections) or last;
            for my $answer (map { $_->answers } @connections) {
                $count{ $answer->{status} . ' ' . ($answer->header('X-Error') // store($answer)) }++;
            }
        }
        return \%count;
    };
    is_deeply $hammer->(10), { '200 redis' => 640 }, 'Redis decides';
    $server->pause;
    $_->request('GET', '/open', [ 'X-Client' => 'h' . ++$clients ]) for @connections;
    time_out($nginx, @connections);
    # Checks that were queued behind a call were not sent.
    my %errors;
    $errors{ error($_->answers) }++ for @connections;
    is join(' ', sort grep { $_ ne 'unavailable' } keys %errors), 'timeout', 'the first requests wait for timeout=';
    is_deeply $hammer->(10), { '200 unavailable' => 640 }, 'later requests do not wait';
    $server->resume;
    $nginx->advance(1);
    # Each worker has its own breaker.
    ok wait_for('both workers', sub { ($hammer->(1)->{'200 redis'} // 0) == 64 }), 'limits apply again';
    is_deeply $hammer->(10), { '200 redis' => 640 }, 'for all';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

done_testing;
