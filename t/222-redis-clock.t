# Limits in Redis use the clock of Redis: hosts with different clocks agree, and a clock step does not change a limit.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;

# Its clock stands still unless the test moves it.
my $redis = start_redis(clock => 'stopped');
my $began = redis_time();
my $ahead = 0;    # of the time at which it began, in seconds

sub redis_time { return $redis->command('TIME')->[0] }

sub set_clock {
    my ($seconds) = @_;
    $redis->advance($seconds - $ahead);
    $ahead = $seconds;
    return;
}

# Each admits two in an hour; the words, and the most that a client has to wait who has just used both.
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

my $run = 0;    # a new one has new clients

sub ask {
    my ($zone) = @_;
    return $nginx->get("/$zone", 'X-Client' => "c$run");
}

sub left {
    my ($zone) = @_;
    return $nginx->get("/look/$zone", 'X-Client' => "c$run")->header('X-RateLimit-Remaining');
}

# Windows of the clock begin at whole hours: this begins one.
sub begin_hour {
    $run++;
    set_clock(3600 - $began % 3600 + 86_400 * $run * 3);
    return $ahead;
}

set_clock(1000);
is redis_time(), $began + 1000, 'the clock moves when it is told to';

for my $skew (0, 5 * 3600, -5 * 3600, 400 * 86_400) {
    subtest "Redis' clock is $skew seconds ahead of nginx'" => sub {
        my $base = begin_hour();
        set_clock($base + $skew);
        for my $zone (map { ($_, "cached_$_") } @names) {
            my ($name) = $zone =~ /(?:cached_)?(.*)/;
            my @answers = map { ask($zone) } 1 .. 4;
            is statuses(@answers), '200 200 429 429', "$zone: two are admitted";
            is join(' ', map { $_->header('X-RateLimit-Remaining') } @answers), '1 0 0 0', "$zone: what remains";
            for my $answer (@answers[ 2, 3 ]) {
                my $wait = $answer->header('Retry-After');
                cmp_ok $wait, '>', 1700,             "$zone: Retry-After is what is left of the period ($wait)";
                cmp_ok $wait, '<=', $zones{$name}[1], "$zone: and not more";
                my $reset = $answer->header('X-RateLimit-Reset') - redis_time();
                cmp_ok $reset, '>',  1700, "$zone: X-RateLimit-Reset is a time of Redis, the same on every host ($reset s from now)";
                cmp_ok $reset, '<=', 7201, "$zone: and near";
            }
        }
    };
}

subtest 'time passes in Redis, and clients have their quota again' => sub {
    my $base = begin_hour();
    my %wait;
    for my $zone (@names) {
        my @answers = map { ask($zone) } 1 .. 3;
        is statuses(@answers), '200 200 429', "$zone: used up";
        $wait{$zone} = $answers[2]->header('Retry-After');
    }
    # Time only passes: what Redis has forgotten because it no longer matters does not come back.
    for my $wait (sort { $a <=> $b } values %{ { map { $_ => $_ } values %wait } }) {
        my @zones = grep { $wait{$_} == $wait } @names;
        set_clock($base + $wait - 1);
        is ask($_)->{status}, 429, "$_: not before $wait seconds have passed" for @zones;
        set_clock($base + $wait);
        is ask($_)->{status}, 200, "$_: but then" for @zones;
    }
    set_clock($base + 5 * 3600);
    is left($_), 2, "$_: and everything after five hours" for @names;
};

for my $step (1, 60, 600, 3600, 7200, 86_400) {
    subtest "the clock steps back by $step seconds" => sub {
        my $base = begin_hour();
        ask($_) for @names;
        set_clock($base - $step);
        for my $zone (@names) {
            is left($zone), 1, "$zone: one of two is still used" or next;
            my @answers = map { ask($zone) } 1 .. 3;
            is statuses(@answers), '200 429 429', "$zone: the limit is neither open nor closed";
            cmp_ok $answers[2]->header('Retry-After'), '<=', $zones{$zone}[1] + 1,
                "$zone: nobody waits longer than after using all, but for the second that a clock may waver";
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
        cmp_ok scalar(grep { $_->{status} == 200 } @answers), '<=', 2, "$zone: not more than two";
        is $answers[2]{status}, 429, "$zone: then no more";
        cmp_ok $answers[2]->header('Retry-After'), '<=', $zones{$zone}[1], "$zone: and nobody waits for the day to come";
    }
};

unlike $nginx->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
