# With on_error=local, a fleet keeps its limit when an outage begins, when it ends, and while Redis comes and goes.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Metrics qw(metrics);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $redis = start_redis();
my @ports = split ' ', $ENV{RL_PORTS};
my %zones = (
    token_bucket   => 'algorithm=token_bucket rate=100r/30d',
    fixed_window   => 'algorithm=fixed_window align=first rate=100r/30d',
    sliding_window => 'algorithm=sliding_window rate=100r/366d',
    sliding_log    => 'algorithm=sliding_log rate=100r/30d',
    gcra           => 'algorithm=gcra rate=1r/30d burst=99',
    several_rates  => 'algorithm=token_bucket rate=100r/30d,1000r/366d',
);
my ($http, $server) = ("keepalive_requests 100000;\n", "location = /metrics { rate_limit_metrics; }\n");
for my $zone (sort keys %zones) {
    $http   .= "rate_limit_zone \$http_x_client zone=$zone:1m $zones{$zone} redis=fleet on_error=local;\n";
    $server .= "location = /$zone { rate_limit zone=$zone; empty_gif; }\n";
}
my @fleet = map {
    start_nginx(port => $ports[$_], server => $server,
        http => "rate_limit_redis fleet @{[ $redis->url ]} timeout=1s connect_timeout=1s;\n$http")
} 0 .. 1;
wait_for('both instances', sub { !grep { (metrics($_)->{'rate_limiter_instances{redis="fleet"}'} // 0) != 2 } @fleet });

# Sends $count requests of a client, alternately to both instances. Returns how many were admitted.
sub ask {
    my ($zone, $client, $count) = @_;
    my @answers = map { $fleet[ $_ % 2 ]->get("/$zone", 'X-Client' => $client) } 1 .. $count;
    return scalar grep { $_->{status} == 200 } @answers;
}

sub lose_redis {
    $redis->pause;
    wait_for('breakers', sub { !grep { !opened($_) } @fleet });
    return;
}

# Sends a request that opens the breaker of an instance.
sub opened {
    my ($nginx) = @_;
    $nginx->get('/token_bucket', 'X-Client' => 'nobody');
    return metrics($nginx)->{'rate_limiter_breaker_open{redis="fleet"}'};
}

sub find_redis {
    $redis->resume;
    for my $nginx (@fleet) {
        wait_for('Redis to be up', sub { metrics($nginx)->{'rate_limiter_redis_up{redis="fleet"}'} == 1 });
    }
    return;
}

my %admitted = map { $_ => ask($_, 'alice', 60) } keys %zones;
is_deeply \%admitted, { map { $_ => 60 } keys %zones }, 'sixty are admitted before the outage';
lose_redis();
$admitted{$_} += ask($_, 'alice', 150) for keys %zones;
for my $zone (sort keys %zones) {
    cmp_ok $admitted{$zone}, '>=', 98,  "$zone: the remaining requests are admitted without Redis";
    cmp_ok $admitted{$zone}, '<=', 102, "$zone: no further request is admitted";
}
find_redis();
$admitted{$_} += ask($_, 'alice', 50) for keys %zones;
cmp_ok $admitted{$_}, '<=', 102, "$_: no further request is admitted when Redis is back" for sort keys %zones;

# New clients while Redis comes and goes.
my %flapping = map { $_ => 0 } keys %zones;
for my $round (1 .. 4) {
    $flapping{$_} += ask($_, 'bob', 16) for keys %zones;
    lose_redis();
    $flapping{$_} += ask($_, 'bob', 16) for keys %zones;
    find_redis();
}

# Until each instance knows that the other has sent its counts, both hold back a part of the remaining limit.
for my $zone (sort keys %zones) {
    wait_for("the whole quota of $zone", sub { ($flapping{$zone} += ask($zone, 'bob', 20)) >= 100 });
    $flapping{$zone} += ask($zone, 'bob', 50);
    cmp_ok $flapping{$zone}, '<=', 115, "$zone: a Redis that comes and goes loses no request, and admits few more";
}

done_testing;
