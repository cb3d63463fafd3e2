# settle= and phase=precontent with sync=: what was sent to Redis before a response has ended, or before another limit
# has rejected the request, is corrected in Redis exactly once, and other instances see it.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(format_request start_nginx wait_for);
use RateLimit::Fleet qw(ask left zone_config);
use RateLimit::HeldUpstream;
use RateLimit::Places qw(new_name);
use RateLimit::Proxy qw(start_proxy);
use RateLimit::Redis qw(start_redis);
use Test::More;

my %zones = (
    token_bucket    => 'algorithm=token_bucket rate=1r/366d capacity=20',
    leaky_bucket    => 'algorithm=leaky_bucket rate=1r/366d burst=19',
    gcra            => 'algorithm=gcra rate=1r/366d burst=19',
    fixed_window    => 'algorithm=fixed_window rate=20r/366d',
    sliding_window  => 'algorithm=sliding_window rate=20r/366d',
    sliding_buckets => 'algorithm=sliding_buckets rate=20r/366d',
);
my @names = sort keys %zones;
my @ports = split ' ', $ENV{RL_PORTS};
my $app   = RateLimit::HeldUpstream->start($ports[-1]);
my $redis = start_redis();
my $proxy = start_proxy($redis);

# /settle/ZONE is charged 6, and has cost what the upstream says. /late/ZONE is charged 6, and rejected by another limit
# once it is authenticated.
my $server = "location = /auth { internal; proxy_pass http://127.0.0.1:$ports[-1]; }\n";
for my $zone (@names) {
    my $nodelay = $zone eq 'leaky_bucket' ? 'nodelay' : '';
    $server .= "location = /settle/$zone { rate_limit zone=$zone cost=6 settle=\$upstream_http_x_cost $nodelay; "
        . "proxy_pass http://127.0.0.1:$ports[-1]; }\n"
        . "location = /late/$zone { rate_limit zone=$zone cost=6 $nodelay; auth_request /auth; "
        . "rate_limit zone=late cost=2 phase=precontent; empty_gif; }\n";
}
my $http = "rate_limit_zone \$http_x_client zone=late:1m rate=1r/d algorithm=fixed_window;\n";
# The limit of zone large is the largest number that is exact.
my $most = 9_007_199_254_740_991;
$zones{large} = "algorithm=fixed_window rate=${most}r/366d";
my %conf = (words => 'sync=20ms', redis => 'timeout=60s', http => $http, server => $server);

# Both instances are connected through the proxy. The reader has no sync=, so its numbers are those of Redis.
my ($one, $other) = map { start_nginx(zone_config($proxy->url, \%zones, %conf, port => $ports[$_])) } 0, 1;
my %reads  = (port => $ports[2], words => 'deny_cache=off on_error=closed');
my $reader = start_nginx(zone_config($redis->url, \%zones, %reads));

sub hold {
    my ($zone, $client, $kind) = (@_, 'settle');
    my $connection = $one->connect;
    $connection->send(format_request(path => "/$kind/$zone", headers => [ 'X-Client' => $client ]));
    return ($connection, $app->next_request);
}

sub comes_to {
    my ($nginx, $zone, $client, $number, $text) = @_;
    my $left;
    eval { wait_for($text, sub { $left = left($nginx, $zone, $client); return $left == $number }); 1 } or diag $@;
    is $left, $number, $text;
    return;
}

sub check_zone {
    my ($zone, $cost) = @_;
    my $client = new_name();
    my ($connection, $held) = hold($zone, $client);
    comes_to($reader, $zone, $client, 14, "$zone: Redis has the estimate");
    ask($other, $zone, $client);
    comes_to($reader, $zone, $client, 13, "$zone: and a request of another instance");
    $held->answer(cost => $cost);
    $connection->receive;
    comes_to($reader, $zone, $client, 19 - $cost, "$zone: Redis has the $cost that the request has cost");
    ask($other, $zone, $client);
    comes_to($reader, $zone, $client, 18 - $cost, "$zone: Redis counts on");
    comes_to($other, $zone, $client, 18 - $cost, "$zone: the other instance knows");
    ask($one, $zone, $client);
    comes_to($reader, $zone, $client, 17 - $cost, "$zone: nothing is corrected twice");
    comes_to($one, $zone, $client, 17 - $cost, "$zone: the instance that corrected");
    return;
}

# The first correction of the worker.
subtest 'a request that a later limit rejects, after it was sent' => sub {
    for my $zone (@names) {
        my $client = new_name();
        my ($connection, $held) = hold($zone, $client, 'late');
        comes_to($reader, $zone, $client, 14, "$zone: Redis has the charge");
        ask($other, $zone, $client);
        comes_to($reader, $zone, $client, 13, "$zone: and a request of another instance");
        $held->answer;
        is $connection->receive->{status}, 429, "$zone: the request is rejected";
        comes_to($reader, $zone, $client, 19, "$zone: Redis has given the charge back");
        ask($one, $zone, $client);
        comes_to($reader, $zone, $client, 18, "$zone: Redis counts on");
        comes_to($one, $zone, $client, 18, "$zone: so does this instance");
    }
};

subtest 'less, after the estimate was sent' => sub { check_zone($_, 2) for @names };
subtest 'more, after the estimate was sent' => sub { check_zone($_, 9) for @names };

subtest 'while the estimate is in flight' => sub {
    for my $zone (@names) {
        for my $cost (2, 9) {
            my $client = new_name();
            $proxy->hold_replies(EVALSHA => 1);
            my ($connection, $held) = hold($zone, $client);
            $proxy->wait_until_happened(1);
            $held->answer(cost => $cost);
            $connection->receive;
            comes_to($one, $zone, $client, 20 - $cost, "$zone, cost $cost: this instance is corrected at once");
            $proxy->release;
            comes_to($reader, $zone, $client, 20 - $cost, "$zone, cost $cost: Redis");
            ask($one, $zone, $client);
            comes_to($reader, $zone, $client, 19 - $cost, "$zone, cost $cost: Redis counts on");
            comes_to($one, $zone, $client, 19 - $cost, "$zone, cost $cost: this instance after its next request");
        }
    }
};

# Holds a request whose estimate is no longer in flight: the instance has the reply of Redis, since it knows the request
# of the other instance.
sub hold_confirmed {
    my ($zone, $client) = @_;
    ask($other, $zone, $client);
    comes_to($reader, $zone, $client, 19, "$zone: Redis has a request of another instance");
    my @held = hold($zone, $client);
    comes_to($one, $zone, $client, 13, "$zone: Redis has the estimate, and has replied");
    return @held;
}

# A request whose estimate Redis has, and whose correction meets an event of the proxy.
sub correct_with {
    my ($event, $zone) = @_;
    my $client = new_name();
    my ($connection, $held) = hold_confirmed($zone, $client);
    $proxy->$event(EVALSHA => 1);
    $held->answer(cost => 2);
    is $connection->receive->{status}, 200, "$zone: the response does not wait";
    $proxy->wait_until_happened(1);
    comes_to($one, $zone, $client, 17, "$zone: this instance is corrected at once");
    return $client;
}

# The next counts of both instances follow, so that a repeated correction would show.
sub count_on {
    my ($zone, $client, $number) = @_;
    for my $nginx ($other, $one) {
        ask($nginx, $zone, $client);
        comes_to($reader, $zone, $client, --$number, "$zone: Redis counts on");
        comes_to($nginx, $zone, $client, $number, "$zone: the instance knows");
    }
    return;
}

subtest 'a correction that does not reach Redis' => sub {
    for my $zone (@names) {
        my $client = correct_with('lose_calls', $zone);
        is left($reader, $zone, $client), 13, "$zone: the estimate stays in Redis";
        count_on($zone, $client, 13);
        check_zone($zone, 2);    # also resets the breaker
    }
};

subtest 'a correction whose reply is lost' => sub {
    for my $zone (@names) {
        my $client = correct_with('lose_replies', $zone);
        comes_to($reader, $zone, $client, 17, "$zone: Redis is corrected");
        count_on($zone, $client, 17);
        check_zone($zone, 2);
    }
};

subtest 'counts above 32 bits' => sub {
    my $client = new_name();
    for my $number (1, 2) {
        my $left = $most - $number * 5_000_000_000_001 - ($number - 1);
        is $one->get('/large?cost=5000000000001', 'X-Client' => $client)->{status}, 200, "request $number";
        comes_to($reader, 'large', $client, $left, 'Redis has the cost exactly');
        ask($other, 'large', $client);
        comes_to($reader, 'large', $client, --$left, 'and one of the other instance');
        comes_to($other, 'large', $client, $left, 'the other instance knows');
    }
};

subtest 'more, while Redis is away' => sub {
    for my $zone (@names) {
        my $client = new_name();
        my ($connection, $held) = hold_confirmed($zone, $client);
        $redis->pause;
        $held->answer(cost => 9);
        is $connection->receive->{status}, 200, "$zone: the response does not wait";
        comes_to($one, $zone, $client, 10, "$zone: this instance is corrected at once");
        $redis->resume;
        comes_to($reader, $zone, $client, 10, "$zone: Redis gets the rest as a count");
        count_on($zone, $client, 10);
    }
};

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert' for $one, $other;
done_testing;
