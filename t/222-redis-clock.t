# Limits in Redis use the clock of Redis: hosts with different clocks agree, and a clock step does not change a limit.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;

# The clock of Redis is frozen unless the test advances it.
my $redis = start_redis(clock => 'stopped');
my $began = redis_time();
my $ahead = 0;    # seconds since the start

sub redis_time { return $redis->command('TIME')->[0] }

sub set_clock {
    my ($seconds) = @_;
    $redis->advance($seconds - $ahead);
    $ahead = $seconds;
    return;
}

# Each zone admits two requests in an hour: its parameters, and the longest wait of a client that has used both.
my %zones = (
    token_bucket    => [ 'rate=2r/h', 1800 ],
    leaky_bucket    => [ 'rate=2r/h burst=1', 1800 ],
    gcra            => [ 'rate=2r/h burst=1', 1800 ],
    fixed_window    => [ 'rate=2r/h', 3600 ],
    fixed_first     => [ 'rate=2r/h align=first', 3600 ],
    sliding_window  => [ 'rate=2r/h', 7200 ],
    sliding_buckets => [ 'rate=2r/h', 3960 ],
    sliding_log     => [ 'rate=2r/h', 3600 ],
);
my @names = sort keys %zones;
my ($http, $places) = ("rate_limit_redis main @{[ $redis->url ]} timeout=1h connect_timeout=1h;\n", <<'SERVER');
add_header X-Store $rate_limit_store always;
add_header X-Status $rate_limit_status always;
SERVER
for my $name (@names) {
    my $algorithm = $name eq 'fixed_first'  ? 'fixed_window' : $name;
    my $nodelay   = $name eq 'leaky_bucket' ? 'nodelay'      : '';
    for my $zone ($name, "cached_$name") {
        my $cache = $zone eq $name ? 'deny_cache=off' : 'deny_cache=1h';
        $http   .= "rate_limit_zone \$http_x_client zone=$zone:1m algorithm=$algorithm $zones{$name}[0] redis=main $cache;\n";
        $places .= "location = /$zone { rate_limit zone=$zone $nodelay; empty_gif; }\n"
            . "location = /look/$zone { rate_limit zone=$zone cost=0 $nodelay; empty_gif; }\n";
    }
}
my $nginx = start_nginx(http => $http, server => $places);

my $run = 0;    # each run has new clients

sub ask {
    my ($zone) = @_;
    return $nginx->get("/$zone", 'X-Client' => "c$run");
}

sub left {
    my ($zone) = @_;
    return $nginx->get("/look/$zone", 'X-Client' => "c$run")->header('X-RateLimit-Remaining');
}

# Advances to the next whole hour, where windows that are aligned to the clock begin.
sub begin_hour {
    $run++;
    set_clock(3600 - $began % 3600 + 86_400 * $run * 3);
    return $ahead;
}

set_clock(1000);
is redis_time(), $began + 1000, 'the clock advances as requested';

for my $skew (0, 5 * 3600, -5 * 3600, 400 * 86_400) {
    subtest "Redis' clock is $skew seconds ahead of nginx'" => sub {
        my $base = begin_hour();
        set_clock($base + $skew);
        for my $zone (map { ($_, "cached_$_") } @names) {
            my ($name) = $zone =~ /(?:cached_)?(.*)/;
            my @answers = map { ask($zone) } 1 .. 4;
            is statuses(@answers), '200 200 429 429', "$zone: two requests are admitted";
            is join(' ', map { $_->header('X-RateLimit-Remaining') } @answers), '1 0 0 0', "$zone: what remains";
            for my $answer (@answers[ 2, 3 ]) {
                my $wait = $answer->header('Retry-After');
                cmp_ok $wait, '>', 1700,             "$zone: Retry-After is at least the rest of the period ($wait)";
                cmp_ok $wait, '<=', $zones{$name}[1], "$zone: Retry-After is at most the rest of the period";
                my $reset = $answer->header('X-RateLimit-Reset') - redis_time();
                cmp_ok $reset, '>',  1700, "$zone: X-RateLimit-Reset is a time of Redis, the same on every host ($reset s from now)";
                cmp_ok $reset, '<=', 7201, "$zone: X-RateLimit-Reset is at most two hours ahead";
            }
        }
    };
}

subtest 'after time has passed in Redis, clients have their quota again' => sub {
    my $base = begin_hour();
    my %wait;
    for my $zone (@names) {
        my @answers = map { ask($zone) } 1 .. 3;
        is statuses(@answers), '200 200 429', "$zone: used up";
        $wait{$zone} = $answers[2]->header('Retry-After');
    }
    # The clock only advances: keys that have expired in Redis do not come back.
    for my $wait (sort { $a <=> $b } values %{ { map { $_ => $_ } values %wait } }) {
        my @zones = grep { $wait{$_} == $wait } @names;
        set_clock($base + $wait - 1);
        is ask($_)->{status}, 429, "$_: no request is admitted before $wait seconds" for @zones;
        set_clock($base + $wait);
        is ask($_)->{status}, 200, "$_: a request is admitted after the wait" for @zones;
    }
    set_clock($base + 5 * 3600);
    is left($_), 2, "$_: the whole quota is back after five hours" for @names;
};

for my $step (1, 60, 600, 3600, 7200, 86_400) {
    subtest "the clock steps back by $step seconds" => sub {
        my $base = begin_hour();
        ask($_) for @names;
        set_clock($base - $step);
        for my $zone (@names) {
            is left($zone), 1, "$zone: one of two requests is still counted" or next;
            my @answers = map { ask($zone) } 1 .. 3;
            is statuses(@answers), '200 429 429', "$zone: one more request is admitted";
            cmp_ok $answers[2]->header('Retry-After'), '<=', $zones{$zone}[1] + 1,
                "$zone: the wait is at most that of an exhausted quota, plus the second that a clock may deviate";
            my $ttl = $redis->command('PTTL', "rate_limit:$zone:" . ($zone eq 'fixed_first' ? 'fixed_window' : $zone) . ":{c$run}");
            cmp_ok $ttl, '>', 0, "$zone: the key expires";
        }
        my %wait = map { $_ => ask($_)->header('Retry-After') } @names;
        for my $zone (sort { $wait{$a} <=> $wait{$b} } keys %wait) {
            set_clock($base - $step + $wait{$zone});
            is ask($zone)->{status}, 200, "$zone: who waits as told ($wait{$zone}) is admitted";
        }
    };
}

subtest 'the clock steps forward, and back again' => sub {
    my $base = begin_hour();
    ask($_) for @names;
    set_clock($base + 86_400);
    ask($_) for @names;
    set_clock($base);
    for my $zone (@names) {
        my @answers = map { ask($zone) } 1 .. 3;
        cmp_ok scalar(grep { $_->{status} == 200 } @answers), '<=', 2, "$zone: at most two requests are admitted";
        is $answers[2]{status}, 429, "$zone: further requests are rejected";
        cmp_ok $answers[2]->header('Retry-After'), '<=', $zones{$zone}[1], "$zone: the wait is not a day";
    }
};

unlike $nginx->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
