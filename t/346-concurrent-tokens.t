# Of twenty concurrent calls, as many pass as the estimates allow, and what they overdraw is paid before the next call.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(decode_json start_nginx wait_for);
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Models qw(ended_model_calls held_responses hold_responses model_call model_outcome model_server
    release_responses start_model_call);
use RateLimit::Redis qw(start_redis);
use List::Util qw(sum0);
use Test::More;

my $upstream = model_server();
my $redis    = start_redis(clock => 'stopped');

# Each zone: its rate, what rate_limit has besides, and the seconds until a call passes after twenty calls at the begin
# of a minute. Each call uses 130 tokens.
my %zones = (
    right_sliding_window => { rate => '1000r/m', limit => 'cost=130', pass => 7 },
    right_token_bucket   => { rate => '1000r/m', limit => 'cost=130', pass => 7 },
    right_fixed_window   => { rate => '1000r/m', limit => 'cost=130', pass => 7 },

    # Five calls are charged 100, and overdraw 550, of which 100 are owed: 200 of 100 are used. 20 fit when 80 are left.
    wrong_sliding_window => { rate => '100r/m', limit => 'cost=20', pass => 5, wait => 60 + 36 },
    wrong_token_bucket   => { rate => '100r/m', limit => 'cost=20', pass => 5, wait => 120 * 0.6 },
    wrong_fixed_window   => { rate => '100r/m', limit => 'cost=20', pass => 5, wait => 60 },

    # All 550 are owed: 650 of 100 are used.
    debt_sliding_window => { rate => '100r/m', limit => 'cost=20 debt=1000', pass => 5, wait => 60 + 53 },
    debt_token_bucket   => { rate => '100r/m', limit => 'cost=20 debt=1000', pass => 5, wait => 570 * 0.6 },

    # Nothing is owed: 100 of 100 are used. With sync=, a client may always owe the limit once more.
    zero_token_bucket => { rate => '100r/m', limit => 'cost=20 debt=0', pass => 5, wait => 12, sync => 120 * 0.6 },
);

# The time of day is frozen. The deny cache uses another clock.
my %places = (memory => '', redis => 'redis=fleet deny_cache=off', sync => 'redis=fleet sync=1h');

sub conf {
    my ($place) = @_;
    my $http   = "rate_limit_redis fleet @{[ $redis->url ]} timeout=20s connect_timeout=20s;\n"
        . "rate_limit_response \$total_tokens json:usage.total_tokens;\n";
    my $server = "keepalive_timeout 0; location /api/ { rate_limit_api; }\n"
        . "location = /metrics { rate_limit_metrics; }\n";
    for my $zone (sort keys %zones) {
        my ($algorithm) = $zone =~ /^[a-z]+_(.*)/;
        my $is = $zones{$zone};
        $http .= "rate_limit_zone \$http_authorization zone=$zone:1m rate=$is->{rate} algorithm=$algorithm"
            . " $places{$place};\n";
        $server .= "location /$zone/ { rate_limit zone=$zone settle=\$total_tokens $is->{limit};"
            . " rewrite ^/\\w+(/.*) \$1 break; proxy_http_version 1.1; proxy_pass http://127.0.0.1:$upstream; }\n";
    }
    return (clock => 'day', workers => $place eq 'redis' ? 1 : 2, http => $http, server => $server);
}

# Two instances, each of one worker, share a Redis. Two workers share memory; with sync=, an instance counts for itself
# until it sends its counts.
my %nginx = (memory => [ start_nginx(conf('memory')) ], sync => [ start_nginx(conf('sync')) ]);
$nginx{redis} = [ map { start_nginx(conf('redis')) } 1 .. 2 ];

sub advance {
    my ($place, $seconds) = @_;
    $redis->advance($seconds) if $place eq 'redis';
    $_->advance($seconds) for @{ $nginx{$place} };
    return;
}

# Advances to half a second after the begin of a minute.
sub begin_minute {
    my ($place) = @_;
    my ($seconds, $micros) = @{ $redis->command('TIME') };
    my $now = $place eq 'redis' ? $seconds + $micros / 1e6 : $nginx{$place}[0]->now;
    advance($place, 60.5 - $now + 60 * int($now / 60));
    return;
}

sub left {
    my ($place, $zone) = @_;
    return decode_json($nginx{$place}[0]->get("/api/remaining?zone=$zone&key=Bearer%20key")->{body})->{remaining};
}

sub call_of {
    my ($zone) = @_;
    return ('openai', 'key', prefix => "/$zone", text => 'use 100 30', retries => 0);
}

# Starts twenty calls, and answers those that passed once all are decided. Returns the outcomes.
sub twenty_calls {
    my ($place, $zone) = @_;
    hold_responses();
    my @ports = map { $_->port } @{ $nginx{$place} };
    my @calls = map { start_model_call($ports[ $_ % @ports ], call_of($zone)) } 1 .. 20;
    wait_for('all decisions', sub { held_responses() + grep({defined} (ended_model_calls())[@calls]) == 20 });
    my $held = held_responses();
    is $held, $zones{$zone}{pass}, "$held of 20 calls reach the upstream";
    release_responses();
    return map { model_outcome($_) } @calls;
}

sub call {
    my ($place, $zone) = @_;
    return model_call($nginx{$place}[-1]->port, call_of($zone));
}

# Waits until all calls that passed are settled. A worker may send a correction to Redis in the same call as its next
# check, at the latest: each instance in Redis makes one. Returns Retry-After of the last check.
sub settle_all {
    my ($place, $zone) = @_;
    my $settled = sub {
        sum0(map { sum_of(metrics($_), 'rate_limiter_settled_total', zone => $zone) } @{ $nginx{$place} });
    };
    wait_for('all calls to be settled', sub { $settled->() == $zones{$zone}{pass} });
    my @told = map { model_call($_->port, call_of($zone))->{headers}{'retry-after'} } @{ $nginx{$place} };
    return $told[-1];
}

sub check_right {
    my ($place, $zone) = @_;
    is left($place, $zone), 90, 'seven calls of 130 leave 90 of 1000';
    is call($place, $zone)->{status}, 429, 'no further call passes';
    return;
}

sub check_wrong {
    my ($place, $zone) = @_;
    my $wait = $zones{$zone}{$place} // $zones{$zone}{wait};
    is settle_all($place, $zone), $wait, "Retry-After is $wait seconds, until the debt is paid";
    is left($place, $zone), 0, 'nothing is left';
    advance($place, $wait - 1);
    is call($place, $zone)->{status}, 429, 'a call a second earlier is rejected';
    advance($place, 1);
    is call($place, $zone)->{status}, 200, 'then a call passes';
    return;
}

for my $place (sort keys %places) {
    for my $zone (sort keys %zones) {
        subtest "$place, $zone" => sub {
            begin_minute($place);
            my @outcomes = twenty_calls($place, $zone);
            my %count;
            $count{ $_->{status} . ' ' . ($_->{error} // $_->{used}) }++ for @outcomes;
            my $pass     = $zones{$zone}{pass};
            my %expected = ('200 130' => $pass, '429 RateLimitError' => 20 - $pass);
            is_deeply \%count, \%expected, "$pass pass, the others do not";
            defined $zones{$zone}{wait} ? check_wrong($place, $zone) : check_right($place, $zone);
        };
    }
}

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for map { @{$_} } values %nginx;
done_testing;
