# With lease=, instances take a quota in portions: never above the limit, in few calls, and unused units go back.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(sum0);
use RateLimit qw(check_config start_nginx wait_for decode_json);
use RateLimit::Async qw(await_answers request_text);
use RateLimit::Fleet qw(zone_config ask left sum_metric);
use RateLimit::Metrics qw(metrics);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

my $limit   = 6000;
my %windows = (
    fixed_clock     => "algorithm=fixed_window rate=${limit}r/366d",
    fixed_first     => "algorithm=fixed_window rate=${limit}r/d align=first",
    sliding_window  => "algorithm=sliding_window rate=${limit}r/366d",
    sliding_buckets => "algorithm=sliding_buckets rate=${limit}r/366d",
    several_rates   => "algorithm=sliding_window rate=${limit}r/366d,9999r/366d",
);
my $refill  = 400;    # requests a second
my %buckets = (
    token_bucket => "algorithm=token_bucket rate=${refill}r/s capacity=$limit",
    leaky_bucket => "algorithm=leaky_bucket rate=${refill}r/s burst=" . ($limit - 1),
    gcra         => "algorithm=gcra rate=${refill}r/s burst=" . ($limit - 1),
);
my %zones = (%windows, %buckets);
my @ports = split ' ', $ENV{RL_PORTS};
my $quiet = "access_log off;\nrate_limit_log_level warn;\n";    # thousands of rejections
my $each  = 20;       # requests in flight on a connection

# Sends requests of a client over two connections to each instance, as fast as they are answered, until $enough->($seen)
# is true. Returns $seen: how many answers had each status and each store. With `survives`, connections may be lost.
sub flood {
    my ($fleet, $path, $client, $enough, %more) = @_;
    my @open = map { my $nginx = $_; map { RateLimit::Async->new($nginx->port) } 1 .. 2 } @{$fleet};
    my $text = join '', (request_text('GET', $path, [ 'X-Client' => $client ])) x $each;
    my %seen = (200 => 0, 429 => 0, lease => 0, redis => 0, cache => 0, sent => 0);
    my $end  = time + 30;
    do {
        die "no end in 30 seconds\n" if time > $end;
        $_->raw($text, ('GET') x $each) for @open;
        $seen{sent} += $each * @open;
        await_answers(30, @open) or die "no answer in 30 seconds\n";
        for my $answer (map { $_->answers } @open) {
            $seen{ $answer->{status} }++;
            $seen{ $answer->header('X-Store') // 'none' }++;
        }
        die "a connection was closed\n" if !$more{survives} && grep { $_->{closed} } @open;
        @open = map { $_->{closed} ? RateLimit::Async->new($_->{socket}->peerport // $more{survives}) : $_ } @open;
    } until $enough->(\%seen);
    return \%seen;
}

# Calls of scripts and native commands.
sub calls {
    my ($redis) = @_;
    my ($text) = $redis->command('INFO', 'commandstats');
    return sum0($text =~ /^cmdstat_(?:evalsha|ratelimit\.check):calls=(\d+)/gmi);
}

sub conf {
    my ($url, $number, %more) = @_;
    return zone_config($url, \%zones, port => $ports[$number], words => 'lease=5% deny_cache=50ms', workers => 2,
        http => $quiet, log_level => 'error', server => "location /api/ { rate_limit_api write=on; }\n", %more);
}

my $redis = start_redis();
my @fleet = map { start_nginx(conf($redis->url, $_)) } 0 .. 2;

for my $zone (sort keys %zones) {
    subtest "$zone: three instances share one quota" => sub {
        my $start = time;
        my $seen  = flood(\@fleet, "/$zone", 'hot', sub { $_[0]{429} > 3000 });
        my $took  = time - $start;
        my $most  = $limit + ($buckets{$zone} ? $refill * $took : 0);
        cmp_ok $seen->{200}, '<=', $most, 'no more than the limit is admitted';
        cmp_ok $seen->{200}, '>=', 0.98 * ($buckets{$zone} ? $limit : $most), 'nearly the whole limit is admitted';
        cmp_ok $seen->{lease}, '>', $seen->{sent} / 2, 'leases decide most requests';
        note "$seen->{200} of $most, $seen->{lease} by leases, $seen->{redis} by Redis, in $took s";
        my ($before, $since) = (calls($redis), time);
        my $more = flood(\@fleet, "/$zone", 'hot', sub { $_[0]{429} > 20_000 });
        my ($calls, $lasted) = (calls($redis) - $before, time - $since);
        cmp_ok $calls, '<', 200 * @fleet * $lasted, 'saturated instances call Redis less than 200 times a second';
        note "$more->{sent} requests, $calls calls in $lasted s";
        $seen->{200} += $more->{200};
        if ($windows{$zone}) {
            my $rest = sub {
                $seen->{200} += grep { $_->{status} == 200 } map { ask($_, $zone, 'hot') } @fleet;
                return $seen->{200} >= $limit;
            };
            wait_for('unused units', $rest) if $seen->{200} < $limit;
            is $seen->{200}, $limit, 'unused units go back, and then the whole limit is admitted';
            is scalar(grep { ask($_, $zone, 'hot')->{status} == 429 } @fleet), 3, 'and nothing more';
        }
    };
}

subtest 'cold clients lease nothing' => sub {
    my $asks = sum_metric('rate_limiter_lease_asks_total', 'sliding_window', @fleet);
    ask($fleet[ $_ % 3 ], 'sliding_window', "cold$_") for 1 .. 300;
    is sum_metric('rate_limiter_lease_asks_total', 'sliding_window', @fleet), $asks, 'no portion is asked for';
};

subtest 'an idle client' => sub {
    my $seen = flood([ $fleet[0] ], '/sliding_window', 'idle', sub { $_[0]{lease} > 500 });
    wait_for('the units to go back', sub { left($fleet[1], 'sliding_window', 'idle') == $limit - $seen->{200} });
    pass 'gives all unused units back';
    cmp_ok sum_metric('rate_limiter_lease_returned_total', 'sliding_window', $fleet[0]), '>', 0, 'they are counted';
};

subtest 'a reset' => sub {
    my $seen = flood([ $fleet[0] ], '/sliding_window', 'reset', sub { $_[0]{lease} > 1000 });
    is $fleet[0]->request(method => 'DELETE', path => '/api/reset?zone=sliding_window&key=reset')->{status}, 204,
        'is possible';
    $seen = flood([ $fleet[0] ], '/sliding_window', 'reset', sub { $_[0]{429} > 200 });
    cmp_ok $seen->{200}, '<=', $limit, 'gives a whole quota, and no more';
    cmp_ok $seen->{200}, '>',  0.98 * $limit, 'of which nearly all is admitted';
};

subtest 'a worker that is killed' => sub {
    my $killed;
    my $seen = flood(
        [ $fleet[0] ], '/fixed_clock', 'killed',
        sub {
            my ($now) = @_;
            kill 'KILL', $killed = ($fleet[0]->workers)[0] if !$killed && $now->{lease} > 1000;
            return $now->{429} > 500;
        },
        survives => $fleet[0]->port
    );
    ok $killed, 'was killed';
    cmp_ok $seen->{200}, '<=', $limit, 'no more than the limit is admitted';
    cmp_ok $seen->{lease}, '>', 2000, 'leases go on';
};

subtest 'a reload' => sub {
    my $seen = flood([ $fleet[1] ], '/fixed_clock', 'reload', sub { $_[0]{lease} > 1000 });
    $fleet[1]->reload(conf($redis->url, 1));
    my $after = flood([ $fleet[1] ], '/fixed_clock', 'reload', sub { $_[0]{429} > 500 });
    cmp_ok $seen->{200} + $after->{200}, '<=', $limit,        'no more than the limit is admitted';
    cmp_ok $seen->{200} + $after->{200}, '>=', 0.98 * $limit, 'nearly the whole limit is admitted';
    cmp_ok $after->{lease}, '>', 2000, 'the new workers lease';
};

subtest 'an instance that stops' => sub {
    my $seen = flood([ $fleet[1] ], '/fixed_clock', 'stop', sub { $_[0]{lease} > 1000 });
    $fleet[1]->signal('QUIT');
    wait_for('the units to go back', sub { left($fleet[0], 'fixed_clock', 'stop') == $limit - $seen->{200} });
    pass 'gives its units back';
    $fleet[1] = start_nginx(conf($redis->url, 1));
};

subtest 'several limits' => sub {
    my %more = (
        http   => "${quiet}rate_limit_zone \$arg_other zone=other:1m rate=300r/d algorithm=fixed_window;\n",
        server => "location = /both { rate_limit zone=sliding_window; rate_limit zone=other; empty_gif; }\n"
            . "location = /two { rate_limit zone=sliding_window; rate_limit zone=fixed_clock; empty_gif; }\n",
    );
    my $nginx = start_nginx(conf($redis->url, 3, %more));
    my $seen  = flood([$nginx], '/both?other=x', 'several', sub { $_[0]{429} > 1000 });
    is $seen->{200}, 300, 'the lower limit binds';
    wait_for('the units to go back', sub { left($fleet[0], 'sliding_window', 'several') == $limit - 300 });
    pass 'the leased limit is charged for admitted requests only';
    $seen = flood([$nginx], '/two', 'two', sub { $_[0]{200} > 3000 });
    wait_for('the units to go back', sub { left($fleet[0], 'sliding_window', 'two') == $limit - $seen->{200} });
    wait_for('the units to go back', sub { left($fleet[0], 'fixed_clock',    'two') == $limit - $seen->{200} });
    pass 'two leased limits are charged alike';
};

subtest 'settle=' => sub {
    my $at   = "location = /settle { rate_limit zone=fixed_clock cost=3 settle=\$arg_actual; empty_gif; }\n";
    my %more = (server => $at);
    my $nginx = start_nginx(conf($redis->url, 4, %more));
    my $seen  = flood([$nginx], '/settle?actual=2', 'settle', sub { $_[0]{lease} > 500 });
    wait_for('the units to go back', sub { left($fleet[0], 'fixed_clock', 'settle') == $limit - 2 * $seen->{200} });
    pass 'less than the charge is charged in the end';
};

# By the clock of nginx, each round of requests lasts a millisecond, so that a portion has hundreds of units, and no unit
# ends while Redis is killed.
subtest 'Redis is away' => sub {
    my $own   = start_redis();
    my %more  = (words => 'lease=50% on_error=closed', redis => 'timeout=200ms', workers => 1);
    my $nginx = start_nginx(conf($own->url, 5, %more), clock => 1);
    my $away  = 0;
    my $seen  = flood(
        [$nginx],
        '/sliding_window',
        'away',
        sub {
            my ($now) = @_;
            $nginx->advance(0.001);
            $away = $now->{lease}, $own->kill if !$away && $now->{lease} > 1000;
            return $now->{503};
        },
    );
    cmp_ok $seen->{lease}, '>', $away, 'units that were leased before are used';
    cmp_ok $seen->{503}, '>', 0, 'then on_error= applies';
    is $seen->{429}, 0, 'nothing is rejected';
};

subtest 'the setting and its counters are visible' => sub {
    my $nginx = start_nginx(conf($redis->url, 6));
    flood([$nginx], '/gcra', 'seen', sub { $_[0]{lease} > 100 });
    my $zone = decode_json($nginx->get('/api/zones/gcra')->{body});
    is $zone->{lease}, '5%', 'in the API';
    cmp_ok $zone->{stores}{lease}, '>', 100, 'with the requests that leases decided';
    cmp_ok $zone->{leases}{asks},  '>', 0,   'and the calls for portions';
    cmp_ok metrics($nginx)->{'rate_limiter_store_total{zone="gcra",store="lease"}'}, '>', 100, 'in metrics';
};

# Each has one line that says why.
my $in_redis = "rate_limit_redis fleet redis://127.0.0.1;\nrate_limit_zone \$arg_k zone=z:1m redis=fleet";
my %wrong    = (
    'lease=5% algorithm=sliding_log' => qr/"lease=5%" cannot be used: sliding_log needs the time of every request/,
    'lease=5 min_interval=1s'        => qr/"lease=5" cannot be used: min_interval= needs/,
    'lease=5 count=all'              => qr/"lease=5" cannot be used: count=all counts each rejected request/,
    'lease=5 sync=1s'                => qr/"lease=5" cannot be used with "sync=1s"/,
    'lease=0'                        => qr/"lease=0".*from 1 to 9007199254740991, or .* from 1% to 100%/,
    'lease=101%'                     => qr/"lease=101%".*from 1% to 100%/,
    'lease=0%'                       => qr/"lease=0%".*from 1% to 100%/,
    'lease=%'                        => qr/"lease=%".*from 1% to 100%/,
    'lease=x'                        => qr/"lease=x".*from 1 to/,
    'lease=5 algorithm=token_bucket rate=5r/s,9r/m' => qr/"lease=5" cannot be used: several rates of token_bucket/,
    'lease=5 algorithm=fixed_window align=first rate=5r/s,9r/m' => qr/"lease=5" cannot be used: with align=first/,
);
for my $words (sort keys %wrong) {
    my $rate = $words =~ /rate=/ ? '' : 'rate=100r/s';
    my $is   = check_config(http => "$in_redis $rate $words;\n");
    is scalar @{ $is->{emerg} }, 1, "$words: one line";
    like $is->{emerg}[0], $wrong{$words}, "$words: says why";
}
my $alone = check_config(http => "rate_limit_zone \$arg_k zone=z:1m rate=5r/s lease=5;\n");
like $alone->{emerg}[0], qr/"lease=5" requires "redis="/, 'lease= without redis=';
my $delays = check_config(
    http   => "$in_redis rate=5r/s algorithm=leaky_bucket lease=5;\n",
    server => "location / { rate_limit zone=z; }\n"
);
like $delays->{emerg}[0], qr/zone "z" has "lease=" and requires "nodelay"/, 'leaky_bucket that delays';

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\](?!.*exited on signal 9)/, 'the log has no critical errors' for @fleet;

done_testing;
