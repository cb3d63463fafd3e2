# With sync= under load, Redis ends with exactly the admitted requests, from few calls by one worker per instance.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(sum0 uniq);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Fleet qw(zone_config ask left load told metric senders tellers);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

my $limit = 5000;    # far more than the test sends

my %zones = (
    token_bucket    => "algorithm=token_bucket rate=1r/d capacity=$limit",
    leaky_bucket    => 'algorithm=leaky_bucket rate=1r/d burst=' . ($limit - 1),
    gcra            => 'algorithm=gcra rate=1r/d burst=' . ($limit - 1),
    fixed_clock     => "algorithm=fixed_window rate=${limit}r/366d",
    fixed_first     => "algorithm=fixed_window rate=${limit}r/d align=first",
    sliding_window  => "algorithm=sliding_window rate=${limit}r/366d",
    sliding_buckets => "algorithm=sliding_buckets rate=${limit}r/366d",
    several_rates   => "algorithm=token_bucket rate=${limit}r/366d,9999r/366d",
);
my @names = sort keys %zones;
my @ports = split ' ', $ENV{RL_PORTS};

sub start_instances {
    my ($url, $count, $words, %more) = @_;
    return map {
        start_nginx(zone_config($url, \%zones, port => $ports[$_], words => $words, workers => 3, http => "access_log off;\n", %more))
    } 0 .. $count - 1;
}

# Returns the calls of clients, not of scripts, that MONITOR has shown.
sub calls {
    my ($monitor) = @_;
    return grep { $_->{client} ne 'lua' && $_->{words}[0] =~ /^EVALSHA$/i } $monitor->commands;
}

my $redis  = start_redis();
my $reader = start_nginx(zone_config($redis->url, \%zones, port => $ports[7], words => 'deny_cache=off'));

subtest 'the sum of two instances of three workers' => sub {
    my @fleet = start_instances($redis->url, 2, 'sync=20ms');
    my @few   = map {"few$_"} 1 .. 3;
    my @many  = map {"many$_"} 1 .. 150;
    for my $zone (@names) {
        my %admitted = (%{ load(\@fleet, $zone, \@few, 400) }, %{ load(\@fleet, $zone, \@many, 4) });
        is delete $admitted{other}, 0, "$zone: memory decides all requests";
        is sum0(values %admitted), 1800, "$zone: all requests are admitted";
        told($limit, $reader, $zone, \%admitted, "$zone: each client is charged exactly its admitted requests");
    }
    my ($forever) = $redis->command('EVAL', <<'LUA', 0);
local without = 0
for _, key in ipairs(redis.call('keys', '*')) do
    if redis.call('pttl', key) <= 0 then without = without + 1 end
end
return without
LUA
    is $forever, 0, 'every key expires';
    my @others = grep { !/^rate_limit:(?:sync:.*|\w+:\w+:\{\w+\})\z/ } @{ $redis->command('KEYS', '*') };
    is_deeply \@others, [], 'Redis has no keys but those of clients and of sent batches';
    is metric($_, 'rate_limiter_sync_overshoot_total', 'gcra'), 0, 'no overshoot is counted' for @fleet;
    # Each background task of an instance may run in another worker, but always in the same.
    my $monitor = $redis->monitor;
    for my $round (1 .. 5) {
        for my $zone (@names) {
            ask($_, $zone, "one$round") for @fleet;
            wait_for('the counts of both instances', sub { left($reader, $zone, "one$round") == $limit - 2 });
        }
    }
    for my $nginx (@fleet) {
        is_deeply [ map { scalar tellers($nginx, $_, $monitor) } @names ], [ (1) x @names ],
            'one worker of an instance sends the counts of a zone';
        my %connections;
        $connections{$_}++ for senders($nginx, $redis);
        is join(' ', uniq(values %connections)), 1, 'the worker has one connection for all background tasks';
    }
    unlike $_->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet;
};

subtest 'many clients in a call, and no call without new requests' => sub {
    $redis->command('FLUSHALL');
    my ($nginx) = start_instances($redis->url, 1, 'sync=300ms');
    my @clients = map {"client$_"} 1 .. 500;
    ok wait_for('greetings', sub { $redis->clients == 1 }),
        'before the first request, the only connection is for changed rates';
    my $monitor  = $redis->monitor;
    my $began    = time;
    my $admitted = load([$nginx], 'sliding_window', \@clients, 2);
    told($limit, $reader, 'sliding_window', $admitted, 'all 500 clients are charged');
    my @calls = grep { grep {/^rate_limit:sync:/} @{ $_->{words} } } calls($monitor);
    my $turns = 1 + int((time - $began) / 0.3);
    cmp_ok scalar @calls, '<=', 10 + $turns, 'in ' . @calls . ' calls';
    is scalar(uniq(map { $_->{client} } @calls)), 1, 'over one connection';
    my $named = grep {/^rate_limit:sliding_window:/} map { @{ $_->{words} } } @calls;
    cmp_ok $named, '>=', 500, 'each is named';
    cmp_ok $named, '<=', 500 * $turns, 'each client is charged once for each batch';

    # Rejected requests, and requests with cost=0, are not sent. Another client's count shows that the time of a batch
    # has come.
    ask($nginx, 'sliding_window', 'full', 1, $limit);
    wait_for('the full one', sub { left($reader, 'sliding_window', 'full') == 0 });
    $monitor = $redis->monitor;
    for my $beat (1 .. 3) {
        is ask($nginx, 'sliding_window', 'full')->{status}, 429, 'one request is rejected';
        left($nginx, 'sliding_window', $_) for qw(client1 never_seen full);
        ask($nginx, 'gcra', "beat$beat");
        $monitor->wait_for(qr/"EVALSHA" .*\{beat$beat\}/);
    }
    my @told = grep {/EVALSHA/ && /sliding_window/} $monitor->lines;
    is_deeply \@told, [], 'no call for rejected requests or cost=0';
    $monitor = $redis->monitor;
    # nginx asks for changed rates twice a second: the third question comes after three intervals of sync=.
    wait_for('questions for rates', sub { 3 <= grep { /"EVAL"/ && /"rate_limit:rates"/ } $monitor->lines });
    is_deeply [ grep { !/"AUTH"|"EVAL"| lua\]/ } $monitor->lines ], [],
        'without requests, nginx asks only for changed rates';
};

subtest 'zones with different intervals' => sub {
    my %paces = (fast => 'algorithm=gcra rate=1r/d burst=99 sync=10ms', slow => 'algorithm=gcra rate=1r/d burst=99 sync=1h',
        plain => 'algorithm=gcra rate=1r/d burst=99 deny_cache=off');
    my $nginx = start_nginx(zone_config($redis->url, \%paces, port => $ports[0], redis => 'prefix=pace: timeout=5s', workers => 2));
    my @answers = map { ask($nginx, $_, 'a', 3) } qw(slow plain fast);
    is join(' ', map { $_->header('X-Store') } @answers), 'memory memory memory redis redis redis memory memory memory',
        'the stores that decide';
    wait_for('the fast one', sub { $redis->command('EXISTS', 'pace:fast:gcra:{a}') });
    is $redis->command('EXISTS', 'pace:plain:gcra:{a}'), 1, 'the count of the zone without sync= is in Redis';
    is $redis->command('EXISTS', 'pace:slow:gcra:{a}'), 0, 'the count of the slow zone is not in Redis yet';
    is left($nginx, 'slow', 'a'), 97, 'the slow zone counts in memory';
};

subtest 'a Cluster of three nodes' => sub {
    my $cluster  = start_cluster(replicas => 0, node_timeout => 60_000);
    my $looker   = start_nginx(zone_config($cluster->url, \%zones, port => $ports[6], words => 'deny_cache=off'));
    my @fleet    = start_instances($cluster->url, 2, 'sync=20ms');
    my @clients  = map {"client$_"} 1 .. 90;
    for my $zone (qw(gcra fixed_first sliding_buckets)) {
        my $admitted = load(\@fleet, $zone, \@clients, 10);
        is delete $admitted->{other}, 0, "$zone: memory decides all requests";
        is sum0(values %{$admitted}), 900, "$zone: all requests are admitted";
        told($limit, $looker, $zone, $admitted, "$zone: each client is charged exactly its admitted requests");
    }
    unlike $_->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet;
};

unlike $reader->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
