# sync= uses the clock of Redis: instances with different clocks have the same windows, and a step changes no limit.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(statuses);
use RateLimit::Fleet qw(zone_config ask left);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

# Each zone admits four requests in an hour: its parameters, and the longest wait of a client that has just used them.
my %zones = (
    token_bucket    => [ 'rate=4r/h', 900 ],
    leaky_bucket    => [ 'rate=4r/h burst=3', 900 ],
    gcra            => [ 'rate=4r/h burst=3', 900 ],
    fixed_window    => [ 'rate=4r/h', 3600 ],
    fixed_first     => [ 'rate=4r/h align=first', 3600 ],
    sliding_window  => [ 'rate=4r/h', 7200 ],
    sliding_buckets => [ 'rate=4r/h', 3960 ],
);
my @names = sort keys %zones;
my %words = map { $_ => 'algorithm=' . ($_ eq 'fixed_first' ? 'fixed_window' : $_) . " $zones{$_}[0]" } @names;
my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis(clock => 1);
my @fleet = map { start_nginx(zone_config($redis->url, \%words, port => $ports[$_], words => 'sync=10ms', workers => 2)) } 0, 1;
my $exact = start_nginx(zone_config($redis->url, \%words, port => $ports[7], words => 'deny_cache=off'));
my ($run, $ticks) = (0, 0);

sub redis_time { my ($seconds, $micros) = @{ $redis->command('TIME') }; return $seconds + $micros / 1e6 }

# Starts a new client, a number of seconds after a whole hour of Redis, whose clock is ahead of this host.
sub begin {
    my ($ahead, $into) = @_;
    $run++;
    $redis->clock(0);
    my $now    = redis_time();
    my $offset = $ahead - ($now + $ahead) % 3600 + $into;
    $redis->clock($offset);
    learn();
    return $offset;
}

# An instance learns the time from each call. Requests of other clients cause calls. When the second call is sent, the
# first has been answered.
sub learn {
    for my $zone (@names, @names) {
        $ticks++;
        ask($_, $zone, "tick$ticks") for @fleet;
        wait_for('the counts of both instances', sub { left($exact, $zone, "tick$ticks") == 2 });
    }
    return;
}

sub synced {
    my ($zone, $client, $count) = @_;
    wait_for("$count in $zone", sub { left($exact, $zone, $client) == $count });
    return;
}

for my $ahead (0, 5 * 3600, -5 * 3600, 400 * 86_400, 1, -1) {
    subtest "Redis' clock is $ahead seconds ahead" => sub {
        begin($ahead, 600);
        for my $zone (@names) {
            my $client  = "client$run";
            my @answers = ask($fleet[0], $zone, $client, 2);
            synced($zone, $client, 2);
            push @answers, ask($fleet[1], $zone, $client);
            synced($zone, $client, 1);
            wait_for('the second instance', sub { left($fleet[1], $zone, $client) == 1 });
            my $asked = time;
            push @answers, ask($fleet[1], $zone, $client, 3);
            is statuses(@answers), '200 200 200 200 429 429', "$zone: four of six requests are admitted";
            synced($zone, $client, 0);
            my ($late) = ask($exact, $zone, $client);
            my ($wait, $want) = map { $_->header('Retry-After') } $answers[5], $late;
            my $passed = time - $asked;    # the longest time between the two requests in seconds
            cmp_ok abs($wait - $want), '<=', 1 + $passed,
                "$zone: Retry-After equals that of an instance without sync= ($wait, $want)";
        }
    };
}

subtest 'an instance that has just started' => sub {
    for my $ahead (5000, -5000) {
        begin($ahead, 1800);
        my $fresh = start_nginx(zone_config($redis->url, \%words, port => $ports[2], words => 'sync=10ms'));
        my $client = "fresh$run";
        ask($fresh, $_, "$client-before") for @names;
        wait_for('all counts in Redis', sub { left($exact, $_, "$client-before") == 3 }) for @names;
        agrees($fresh, $_, "$client-before") for @names;
        is statuses(ask($fresh, $_, $client, 5)), '200 200 200 200 429',
            "$_, $ahead: four of five requests are admitted" for @names;
        for my $zone (@names) {
            synced($zone, $client, 0);
            my ($got, $want) = agrees($fresh, $zone, $client);
            cmp_ok abs($got - $want), '<=', 1,
                "$zone, $ahead: the wait equals that of an instance without sync= ($got, $want)";
        }
        $fresh->stop;
    }
};

# Waits until an instance reports the same wait of a client as an instance without sync=. Returns both waits.
sub agrees {
    my ($nginx, $zone, $client) = @_;
    my @said;
    eval {
        wait_for('the same', sub {
            @said = map { $_->get("/$zone?cost=4", 'X-Client' => $client)->header('Retry-After') } $nginx, $exact;
            return abs($said[0] - $said[1]) <= 1;
        });
    };
    return @said;
}

subtest 'after time has passed in Redis, clients have their quota again' => sub {
    my $base = begin(0, 0);
    my %wait;
    for my $zone (@names) {
        my @answers = ask($fleet[0], $zone, "client$run", 5);
        is statuses(@answers), '200 200 200 200 429', "$zone: used up";
        synced($zone, "client$run", 0);
        $wait{$zone} = $answers[4]->header('Retry-After');
        cmp_ok $wait{$zone}, '<=', $zones{$zone}[1], "$zone: no client waits too long";
    }
    # The clock only advances, so zones with similar waits share these steps.
    my @order = sort { $wait{$a} <=> $wait{$b} } @names;
    while (my $first = $order[0]) {
        my @zones = grep { $wait{$_} < $wait{$first} + 120 } @order;
        splice @order, 0, scalar @zones;
        $redis->clock($base + $wait{$first} - 30);
        learn();
        is ask($fleet[0], $_, "client$run")->{status}, 429, "$_: not before $wait{$_} seconds have passed" for @zones;
        $redis->clock($base + $wait{ $zones[-1] } + 1);
        learn();
        for my $zone (@zones) {
            ok wait_for("$zone to admit", sub { ask($fleet[0], $zone, "client$run")->{status} == 200 }),
                "$zone: a request is admitted after the wait";
        }
    }
};

for my $step (1, 60, 3600, 86_400) {
    subtest "Redis' clock steps back by $step seconds" => sub {
        my $base = begin(86_400 * 3, 1800);
        my $client = "client$run";
        ask($fleet[0], $_, $client, 2) for @names;
        synced($_, $client, 2) for @names;
        $redis->clock($base - $step);
        learn();
        for my $zone (@names) {
            is left($fleet[0], $zone, $client), 2, "$zone: two requests are still counted";
            my @answers = ask($fleet[0], $zone, $client, 4);
            is statuses(@answers), '200 200 429 429', "$zone: two more requests are admitted";
            synced($zone, $client, 0);
            cmp_ok $answers[3]->header('Retry-After'), '<=', $zones{$zone}[1] + 1,
                "$zone: the wait is at most that of an exhausted quota";
        }
    };
}

unlike $_->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet, $exact;
done_testing;
