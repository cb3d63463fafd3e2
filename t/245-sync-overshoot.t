# With sync=, requests admitted beyond the limit are counted as overshoot, and paid back later.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Fleet qw(zone_config ask left load sum_metric);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $overshoot = 'rate_limiter_sync_overshoot_total';
my @ports     = split ' ', $ENV{RL_PORTS};
my $redis     = start_redis();

sub start_three {
    my ($zones, $words, $server, %more) = @_;
    return map {
        start_nginx(
            zone_config($server->url, $zones, port => $ports[$_], words => $words, workers => 2, log_level => 'error',
                http => "access_log off;\nrate_limit_log_level info;\n"),
            %more
        )
    } 0 .. 2;
}

# The clocks of the three instances stand still, so none sends its counts before the test advances them.
subtest 'each of three instances admits the whole limit before the first exchange' => sub {
    my %zones = (
        token_bucket    => 'algorithm=token_bucket rate=1r/d capacity=100',
        leaky_bucket    => 'algorithm=leaky_bucket rate=1r/d burst=99',
        gcra            => 'algorithm=gcra rate=1r/d burst=99',
        fixed_clock     => 'algorithm=fixed_window rate=100r/366d',
        fixed_first     => 'algorithm=fixed_window rate=100r/d align=first',
        sliding_window  => 'algorithm=sliding_window rate=100r/366d',
        sliding_buckets => 'algorithm=sliding_buckets rate=100r/366d',
        several_rates   => 'algorithm=token_bucket rate=100r/d,150r/366d',
    );
    my @names = sort keys %zones;
    my @fleet = start_three(\%zones, 'sync=100ms', $redis, clock => 1);
    my $exact = start_nginx(zone_config($redis->url, \%zones, port => $ports[7], words => 'deny_cache=off'));
    my $wait  = sub {
        my ($what, $condition) = @_;
        return wait_for($what, sub { $_->advance(0.1) for @fleet; return $condition->() });
    };
    for my $zone (@names) {
        my @admitted = map { load([$_], $zone, ['hot'], 110)->{hot} } @fleet;
        is "@admitted", '100 100 100', "$zone: each instance admits a hundred";
        is sum_metric($overshoot, $zone, @fleet), 0, "$zone: no overshoot is counted yet";
    }
    for my $zone (@names) {
        $wait->('the counts of all instances', sub { sum_metric($overshoot, $zone, @fleet) >= 200 });
        is sum_metric($overshoot, $zone, @fleet), 200, "$zone: an overshoot of two hundred is counted";
        is left($exact, $zone, 'hot'), 0, "$zone: nothing remains in Redis";
        is join(' ', map { ask($_, $zone, 'hot')->{status} } @fleet, $exact), '429 429 429 429',
            "$zone: no further request is admitted";
        is load(\@fleet, $zone, ['calm'], 90)->{calm}, 90, "$zone: another client is admitted";
    }
    ask($fleet[0], $_, 'last') for @names;
    $wait->('the count of the last client', sub { left($exact, $names[-1], 'last') == 99 });
    is sum_metric($overshoot, $_, @fleet), 200, "$_: the other client causes no overshoot" for @names;
    $_->stop for @fleet, $exact;
};

# sync= uses the clock of Redis, so the test can advance by hours.
subtest 'a client that sends without a pause, at three instances' => sub {
    my %zones = (
        token_bucket   => 'algorithm=token_bucket rate=20r/h',
        leaky_bucket   => 'algorithm=leaky_bucket rate=20r/h burst=19',
        gcra           => 'algorithm=gcra rate=20r/h burst=19',
        sliding_window => 'algorithm=sliding_window rate=20r/h',
    );
    my @names  = sort keys %zones;
    my $server = start_redis(clock => 1);
    my @fleet  = start_three(\%zones, 'sync=10ms', $server);
    my $exact  = start_nginx(zone_config($server->url, \%zones, port => $ports[7], words => 'deny_cache=off'));
    my ($ticks, $hours, $rounds, %admitted) = (0, 5, 20);

    # When an instance sends the count of another client, it has sent all earlier counts and knows the time.
    my $settle = sub {
        for my $zone (@names, @names) {
            $ticks++;
            ask($_, $zone, "tick$ticks") for @fleet;
            wait_for('the counts of all instances', sub { left($exact, $zone, "tick$ticks") == 17 });
        }
    };
    # The first window begins at a whole hour.
    my ($now)  = @{ $server->command('TIME') };
    my $offset = 3600 - $now % 3600;
    for my $round (0 .. $rounds) {
        $server->clock($offset + $round * $hours * 3600 / $rounds);
        $settle->();
        for my $zone (@names) {
            for my $nginx (@fleet) {
                $admitted{$zone}++ while ask($nginx, $zone, 'hot')->{status} == 200;
            }
        }
        $settle->();
    }
    # The rate, plus the whole limit at each of the three instances, plus the excess of a sliding window an hour later.
    # Without payback it would be three times the rate.
    my $most  = 20 * $hours + 4 * 20;
    my $least = 20 * $hours * 0.85;
    for my $zone (@names) {
        cmp_ok $admitted{$zone}, '<=', $most,  sprintf '%s: %d of at most %d in %d hours', $zone, $admitted{$zone}, $most, $hours;
        cmp_ok $admitted{$zone}, '>=', $least, "$zone: not much less than the limit";
    }
    $_->stop for @fleet, $exact;
};

subtest 'metrics' => sub {
    my %zones = (synced => 'algorithm=gcra rate=1r/d burst=9 sync=10ms', plain => 'algorithm=gcra rate=1r/d burst=9');
    my $nginx = start_nginx(zone_config($redis->url, \%zones, port => $ports[0],
        http => "rate_limit_zone \$http_x_client zone=memory:1m rate=1r/d;\n"));
    ask($nginx, 'synced', 'a client"}', 3);
    my $answer = $nginx->get('/metrics');
    is $answer->{status}, 200, 'status';
    like $answer->header('Content-Type'), qr{^text/plain; version=0\.0\.4}, 'type';
    my (%help, %type, @wrong);
    for my $line (split /\n/, $answer->{body}, -1) {
        if    ($line =~ /^# HELP (\w+) \S.*$/)                    { push @wrong, $line if $help{$1}++ || $type{$1} }
        elsif ($line =~ /^# TYPE (\w+) (?:counter|gauge|histogram)$/) { push @wrong, $line if $type{$1}++ || !$help{$1} }
        elsif ($line =~ /^(\w+?)(?:_bucket|_sum|_count)?\{(?:zone="(?:synced|plain|memory)"|redis="fleet"|version="[\d.]+")(?:,\w+="[^"]*")*\} [\d.]+$/) {
            push @wrong, $line if !$type{$1};
        }
        elsif ($line ne '')                                         { push @wrong, $line }
    }
    is_deeply \@wrong, [], 'every line is HELP, TYPE or a value, in this order';
    like $answer->{body}, qr/^# TYPE $overshoot counter\n$overshoot\{zone="synced"\} 0$/m, 'the overshoot counter';
    unlike $answer->{body}, qr/a client/, 'no client name';
    like $answer->{body}, qr/\n\z/, 'the last line has a newline';
    is scalar(my @zeros = $answer->{body} =~ /^$overshoot\{/mg), 1, 'a zone without sync= has no overshoot counter';
    $nginx->stop;
};

done_testing;
