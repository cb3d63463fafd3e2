# Requests stop waiting for a Redis that does not answer, and limits hold again soon after it does.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(max);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(sleep time);

my $timeout = 0.1;     # seconds
my $at_once = 0.05;    # a request that takes less has not waited for Redis
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

# How long Redis' limits take to hold again from now on, in seconds.
sub recovery {
    my ($nginx) = @_;
    my $began = time;
    wait_for('Redis', sub { store(ask($nginx)) eq 'redis' });
    return time - $began;
}

sub limits_again {
    my ($nginx, $title) = @_;
    my $seconds = recovery($nginx);
    cmp_ok $seconds, '<', 2, "$title: limits hold again within two seconds";
    note sprintf '%s: after %.0f ms', $title, $seconds * 1000;
    my $client = 'limited' . ++$clients;
    my @got    = map { $nginx->get('/closed', 'X-Client' => $client) } 1 .. 3;
    is join(' ', map { $_->{status} . ' ' . store($_) } @got), '200 redis 200 redis 429 redis', "$title: from Redis";
    ok $nginx->wait_for_log(qr/\[notice\] .*redis "main" answers again/), "$title: the log says so";
    return;
}

my $redis = start_redis();

subtest 'after the first timeout no request waits for a paused Redis' => sub {
    my $nginx = start($redis->url);
    is store(ask($nginx)), 'redis', 'it answers at first';
    $redis->pause;
    my $first = ask($nginx);
    is error($first), 'timeout', 'the first request waits in vain';
    cmp_ok $first->{seconds}, '>', $timeout - 0.02, 'for timeout=';
    cmp_ok $first->{seconds}, '<', $timeout + 0.1,  'and no longer';
    my @later;
    my $until = time + 2;
    while (time < $until) {
        push @later, map { ask($nginx, $_) } qw(open closed local);
        sleep 0.002;
    }
    my $slow = grep { $_->{seconds} > $at_once } @later;
    cmp_ok scalar @later, '>', 100, 'hundreds of requests in the next two seconds';
    is $slow, 0, 'of which none waits' or diag join ' ', map { sprintf '%.3f', $_->{seconds} } grep { $_->{seconds} > $at_once } @later;
    is scalar(grep { error($_) ne 'unavailable' } @later), 0, 'all know that Redis is not available';
    note sprintf 'first %.0f ms, then %d requests, the slowest %.1f ms', $first->{seconds} * 1000, scalar @later,
        1000 * max(map { $_->{seconds} } @later);
    $redis->resume;
    limits_again($nginx, 'SIGCONT');
    my @lines = grep {/redis "main"/} split /\n/, $nginx->error_log;
    cmp_ok scalar @lines, '<=', 5, 'few lines tell it' or diag join "\n", @lines;
};

subtest 'late answers close the breaker, and harm nobody' => sub {
    my $nginx = start($redis->url);
    ask($nginx);
    for my $round (1 .. 5) {
        $redis->pause;
        my @waiting = map { RateLimit::Async->new($nginx->port) } 1 .. 20;
        $_->request('GET', '/open', [ 'X-Client' => 'round' ]) for @waiting;
        ok await_answers(5, @waiting), "round $round: all are answered";
        my @answers = map { $_->answers } @waiting;
        is scalar(grep { $_->{status} != 200 || store($_) ne 'fallback' } @answers), 0, "round $round: by on_error";
        $redis->resume;
        cmp_ok recovery($nginx), '<', 2, "round $round: and Redis is asked again";
    }
    ok wait_for('one connection', sub { $redis->clients == 1 }), 'over the same connection, beside the one that no request waits for';
    my @got = map { $nginx->get('/open', 'X-Client' => 'after') } 1 .. 4;
    is join(' ', map { $_->{status} } @got), '200 200 429 429', 'each gets its own answer';
    is join(' ', map { $_->header('X-RateLimit-Remaining') } @got), '1 0 0 0', 'and numbers';
};

subtest 'a server that ends and starts again' => sub {
    my $server = start_redis();
    my $nginx  = start($server->url);
    for my $how (qw(stop kill)) {
        wait_for('Redis', sub { store(ask($nginx)) eq 'redis' });
        $server->$how;
        my @answers = map { ask($nginx) } 1 .. 30;
        is scalar(grep { $_->{status} == 200 && store($_) eq 'fallback' } @answers), 30, "$how: open goes on";
        is scalar(grep { $_->{seconds} > $at_once } @answers), 0, "$how: and nobody waits";
        is ask($nginx, 'closed')->{status}, 503, "$how: closed does not";
        is ask($nginx, 'local')->{status},  200, "$how: local does";
        $server->restart;
        limits_again($nginx, $how);
    }
    # The second outage came within ten seconds of the first, and had no line of its own.
    my ($down, $up) = map { scalar(() = $nginx->error_log =~ /$_/g) } qr/redis "main": /, qr/redis "main" answers again/;
    cmp_ok $up, '<=', $down, 'the log tells of an end only where it told of a beginning';
};

subtest 'a server that was never there, and comes' => sub {
    my $hold = start_fake(mode => 'refuse');
    my $url  = $hold->url;
    my $at   = $hold->port;
    my $nginx = start($url);
    my @answers = map { ask($nginx) } 1 .. 10;
    is scalar(grep { store($_) eq 'fallback' } @answers), 10, 'nobody answers';
    cmp_ok max(map { $_->{seconds} } @answers), '<', $at_once, 'and nobody waits';
    $hold->stop;
    my $server = start_redis(port => $at);
    limits_again($nginx, 'a new server');
};

subtest 'replies that are errors open the breaker after five in a row' => sub {
    my $server = start_redis();
    my $nginx  = start($server->url);
    ask($nginx) for 1 .. 3;
    $server->command('CONFIG', 'SET', 'maxmemory', 1);
    my @answers = map { ask($nginx) } 1 .. 5;
    is join(' ', map { error($_) } @answers), 'oom oom oom oom oom', 'five are asked in vain';
    is error(ask($nginx)), 'unavailable', 'the next does not ask';
    $server->command('CONFIG', 'RESETSTAT');
    ask($nginx) for 1 .. 50;
    cmp_ok $server->commandstats('evalsha'), '<=', 2, 'nor do the others';
    $server->command('CONFIG', 'SET', 'maxmemory', 0);
    limits_again($nginx, 'memory');

    $server->command('CONFIG', 'SET', 'maxmemory', 1);
    ask($nginx) for 1 .. 4;
    $server->command('CONFIG', 'SET', 'maxmemory', 0);
    is store(ask($nginx)), 'redis', 'four in a row do not open it';
    $server->command('CONFIG', 'SET', 'maxmemory', 1);
    is join(' ', map { error(ask($nginx)) } 1 .. 4), 'oom oom oom oom', 'and a good one in between starts the count anew';
};

subtest 'retries come later and later, and do not flood the server' => sub {
    my $fake  = start_fake(greeting => '-ERR go away', replies => { '*' => '-LOADING not yet' });
    my $nginx = start($fake->url);
    my $until = time + 3;
    while (time < $until) {
        ask($nginx);
        sleep 0.005;
    }
    my $tries = $fake->connections + $fake->count;
    cmp_ok $tries, '>=', 2,  "it is tried again ($tries tries and commands in three seconds)";
    # By the connection of requests, and by that of the background.
    cmp_ok $tries, '<=', 80, 'but not often';
};

subtest '64 connections that hammer while Redis is paused for two seconds' => sub {
    my $server = start_redis();
    my $nginx  = start($server->url, workers => 2);
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 64;
    my (%count, @slowest);
    my $began = time;
    my ($paused, $resumed) = (0, 0);
    while (time - $began < 3.5) {
        if (!$paused && time - $began > 0.5) {
            $server->pause;
            $paused = time;
        }
        if (!$resumed && time - $began > 2.5) {
            $server->resume;
            $resumed = time;
        }
        $_->request('GET', '/open', [ 'X-Client' => 'h' . ++$clients ]) for @connections;
        await_answers(10, @connections) or last;
        for my $answer (map { $_->answers } @connections) {
            $count{ $answer->{status} }++;
            $count{ store($answer) }++;
            $count{waited}++ if error($answer) eq 'timeout';
            push @slowest, $answer->{after};
        }
    }
    @slowest = sort { $b <=> $a } @slowest;
    my $waited = $count{waited} // 0;
    is join(' ', grep {/^\d+$/} sort keys %count), '200', 'every request is served';
    cmp_ok $slowest[0], '<', $timeout + 0.3, sprintf 'the slowest takes timeout= and a little (%.0f ms)', 1000 * $slowest[0];
    cmp_ok $waited, '<=', 64 * 4, "only those of the first moment wait for timeout= ($waited of " . @slowest . ')';
    cmp_ok $count{redis} // 0,    '>', 500, "many were decided by Redis ($count{redis})";
    cmp_ok $count{fallback} // 0, '>', 500, "and many without ($count{fallback})";
    cmp_ok recovery($nginx), '<', 2, 'limits hold again';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'nothing worse is logged';
};

done_testing;
