# With on_error=local, instances know their number, share the rate while Redis is down, and charge their counts later.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Fleet qw(zone_config ask left told);
use RateLimit::Metrics qw(metrics);
use RateLimit::Proxy qw(start_proxy);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;

my %zones = (
    token_bucket    => 'algorithm=token_bucket rate=10r/d',
    fixed_clock     => 'algorithm=fixed_window rate=10r/366d',
    fixed_first     => 'algorithm=fixed_window align=first rate=10r/d',
    sliding_window  => 'algorithm=sliding_window rate=10r/366d',
    sliding_buckets => 'algorithm=sliding_buckets rate=10r/366d',
    sliding_log     => 'algorithm=sliding_log rate=10r/d',
    several_rates   => 'algorithm=token_bucket rate=10r/d,30r/30d',
);
my @names = sort keys %zones;
my %few   = (%zones, one => 'algorithm=token_bucket rate=1r/d', gcra => 'algorithm=gcra rate=10r/d burst=9');
my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis(config => "appendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0");
my $exact = start_nginx(zone_config($redis->url, \%few, port => $ports[7], words => 'deny_cache=off on_error=closed'));

sub conf {
    my ($number, %more) = @_;
    my $url = delete $more{url} // $redis->url;
    return zone_config($url, \%few, port => $ports[$number], words => 'on_error=local deny_cache=off', workers => 3,
        redis => 'timeout=10s', %more);
}
sub members { return @{ $redis->command('ZRANGE', 'rate_limit:instances', 0, -1) } }

# Waits until exactly these instances are members, and all of them know it.
sub wait_for_instances {
    my (@nginxes) = @_;
    wait_for(@nginxes . ' instances', sub { members() == @nginxes });
    wait_until_known(@nginxes);
    return;
}

sub wait_until_known {
    my (@nginxes) = @_;
    for my $nginx (@nginxes) {
        wait_for('the number of instances to be ' . @nginxes, sub { metrics($nginx)->{'rate_limiter_instances{redis="fleet"}'} == @nginxes });
    }
    return;
}

# Waits until no worker of an nginx has an open breaker.
sub wait_for_redis {
    my ($nginx) = @_;
    wait_for('Redis to be up', sub { metrics($nginx)->{'rate_limiter_redis_up{redis="fleet"}'} == 1 });
    return;
}

sub redis_ms {
    my ($seconds, $micros) = @{ $redis->command('TIME') };
    return $seconds * 1000 + int($micros / 1000);
}

# Returns how many of twelve requests of a new client each instance admits.
sub admitted {
    my ($zone, $client, @fleet) = @_;
    return map { my @answers = ask($_, $zone, $client, 12); scalar grep { $_->{status} == 200 } @answers } @fleet;
}

# Kills all processes of an nginx, as if its host failed.
sub crash {
    my ($nginx) = @_;
    kill 'KILL', $nginx->pid, $nginx->workers;
    $nginx->stop;
    return;
}

my @fleet = map { start_nginx(conf($_)) } 0 .. 2;

subtest 'every nginx is a member' => sub {
    wait_for_instances(@fleet);
    my @first = sort(members());
    is scalar @first, 3, 'three instances of three workers count as three';
    my $began   = spare_time();
    my $monitor = $redis->monitor;
    my %said;    # times of the heartbeats, by instance
    my %from;    # connections of the heartbeats, by instance
    wait_for('four heartbeats of each instance', sub {
        (%said, %from) = ();
        for my $call (grep { $_->{words}[0] eq 'EVAL' && $_->{words}[3] eq 'rate_limit:instances' } $monitor->commands) {
            my $member = $call->{words}[4];
            push @{ $said{$member} }, $call->{time};
            $from{$member}{ $call->{client} } = 1;
        }
        return 3 == grep { @{$_} >= 4 } values %said;
    });
    my $took = spare_time() - $began;
    is_deeply [ sort keys %said ], \@first, 'the instances are the same after some seconds';
    for my $member (@first) {
        my @times = @{ $said{$member} };
        is scalar keys %{ $from{$member} }, 1, 'one worker of each instance sends heartbeats';
        # Redis may receive the first heartbeat late, but before the second is sent. One more covers the resolution of
        # the clocks.
        cmp_ok scalar @times, '<=', 3 + $times[-1] - $times[0], 'at most one heartbeat a second';
    }
    cmp_ok $took, '<', 6, sprintf 'at least one heartbeat a second: four in %.1f s', $took;
    my $ttl = $redis->command('PTTL', 'rate_limit:instances');
    cmp_ok $ttl, '>',  0,    'the key expires';
    cmp_ok $ttl, '<=', 5000, 'no instance is left after all have stopped';
    $fleet[0]->reload(conf(0));
    my $again = $redis->monitor;
    $again->wait_for(qr/"EVAL".*"rate_limit:instances" "$_"/) for @first;
    wait_for_instances(@fleet);
    is_deeply [ sort(members()) ], \@first, 'a reload changes nothing';
};

subtest 'three instances, and Redis is killed' => sub {
    $redis->kill;
    for my $zone (@names) {
        is join(' ', sort { $b <=> $a } admitted($zone, 'three', @fleet)), '4 3 3', "$zone: ten in all";
    }
    is join(' ', admitted('one', 'three', @fleet)), '1 1 1', 'with a limit below three, each instance admits one';
    my $answer = ask($fleet[0], 'one', 'three');
    is $answer->header('X-Store'), 'fallback', 'the fallback decides';
    cmp_ok abs($answer->header('Retry-After') - 3 * 86_400), '<', 60, 'the period is three times as long';
    $answer = ask($fleet[0], 'token_bucket', 'third', 1);
    like $answer->header('X-RateLimit-Limit'), qr/^[34]$/, 'the headers show the share';
    ask($_, 'gcra', 'charged', 2) for @fleet;
    $redis->restart;
    my $began = spare_time();
    for my $zone (@names) {
        told(10, $exact, $zone, { three => 10 }, "$zone: Redis is charged when it is back");
    }
    told(10, $exact, 'gcra', { charged => 6 }, 'gcra, too');
    told(1, $exact, 'one', { three => 1 }, 'the one request a day is used');
    my $took = spare_time() - $began;
    cmp_ok $took, '<', 4, sprintf 'all counts are sent within %.1f s', $took;
    is ask($_, 'token_bucket', 'three')->{status}, 429, 'no instance has any requests left' for @fleet;
};

subtest 'requests before, during and after an outage add up' => sub {
    wait_for_instances(@fleet);
    wait_for_redis($fleet[0]);
    for my $zone (@names) {
        is ask($fleet[0], $zone, 'sum', 3)->header('X-Store'), 'redis', "$zone: three admitted by Redis";
    }
    $redis->kill;
    for my $zone (@names) {
        my @answers = map { ask($_, $zone, 'sum', 2) } @fleet[ 0, 1 ];
        is join(' ', map { $_->{status} . $_->header('X-Store') } @answers), join(' ', ('200fallback') x 4),
            "$zone: four admitted without Redis";
    }
    $redis->restart;
    told(10, $exact, $_, { sum => 7 }, "$_: seven in all") for @names;
    for my $zone (@names) {
        my $answer;
        wait_for('a decision of Redis', sub {
            $answer = ask($fleet[1], $zone, 'sum', 1, 0);
            return $answer->header('X-Store') eq 'redis';
        });
        is $answer->header('X-RateLimit-Remaining'), 3, "$zone: each instance sees the sum";
    }
};

subtest 'one instance is lost' => sub {
    wait_for_instances(@fleet);
    crash(pop @fleet);
    my $began = spare_time();
    my %said;     # the last heartbeat of each instance, by the clock of Redis, in milliseconds
    my $now;
    wait_for('the lost instance to be forgotten', sub {
        my %now = @{ $redis->command('ZRANGE', 'rate_limit:instances', 0, -1, 'WITHSCORES') };
        $now  = redis_ms();
        %said = (%said, %now);
        return keys %now == 2;
    });
    my $took   = spare_time() - $began;
    my ($last) = sort { $a <=> $b } values %said;
    cmp_ok $took, '<', 6.5, sprintf 'the instance is forgotten after %.1f s', $took;
    cmp_ok $now - $last, '>=', 5000, 'the instance is not forgotten within five seconds of its last heartbeat';
    wait_for_instances(@fleet);
    $redis->kill;
    is join(' ', admitted($_, 'two', @fleet)), '5 5', "$_: two instances share the limit equally" for @names;
    $redis->restart;
    told(10, $exact, $_, { two => 10 }, "$_: ten requests are charged") for @names;
};

subtest 'replies to charges are lost' => sub {
    my $proxy = start_proxy($redis);
    my $nginx = start_nginx(conf(3, url => $proxy->url));
    wait_for_instances(@fleet, $nginx);
    $redis->kill;
    for my $zone (@names) {
        is ask($nginx, $zone, 'lost', 2)->header('X-Store'), 'fallback', "$zone: two admitted without Redis";
    }
    $proxy->lose_replies(EVALSHA => 3);
    $redis->restart;
    $proxy->wait_until_happened(3);
    told(10, $exact, $_, { lost => 2 }, "$_: two are charged once") for @names;
    $nginx->stop;
};

subtest 'a node of a Cluster is down' => sub {
    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000,
        config => "cluster-require-full-coverage no\nappendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0");
    my @both   = map { start_nginx(conf($_, url => $cluster->url)) } 3, 4;
    my $reader = start_nginx(zone_config($cluster->url, \%zones, port => $ports[5], words => 'deny_cache=off on_error=closed'));
    my $keeper = $cluster->node_of('rate_limit:instances');
    my ($other) = grep { $_ != $keeper } $cluster->masters;
    for my $node ($keeper, $other) {
        wait_until_known(@both);
        wait_for_redis($_) for @both;
        my $title = $node == $keeper ? 'the node with the list of instances' : 'another';
        my ($gone, $there) = map { $cluster->key_of($cluster->first_slot($_)) =~ /{(.*)}/ } $node, $node == $keeper ? $other : $keeper;
        ask($both[0], $_, $gone) for @names;
        $cluster->kill($node);
        for my $zone (@names) {
            # The first instance has called Redis before: it shares the nine requests that remained.
            like join(' ', admitted($zone, $gone, @both)), qr/^[45] 5$/,
                "$title, $zone: both instances share the limit of the node";
            is ask($both[0], $zone, $there)->header('X-Store'), 'redis',
                "$title, $zone: Redis decides for clients of other nodes";
        }
        $cluster->revive($node);
        $cluster->wait_until_ok;
        told(10, $reader, $_, { $gone => 10 }, "$title, $_: Redis is charged when the node is back") for @names;
    }
    unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @both;
};

subtest 'a user with only the documented rights' => sub {
    my $rights = '+evalsha +script|load +mget +set +del +time +select +eval +hmget +zrangebyscore +exists +zadd +zcard +zrange +zremrangebyscore +pexpire';
    my $server = start_redis(acl => "nginx on >secret ~rate_limit:* $rights\n");
    my $nginx  = start_nginx(conf(3, url => $server->url(user => 'nginx', password => 'secret'),
        http => "rate_limit_zone \$http_x_client zone=synced:1m algorithm=gcra rate=10r/d burst=9 redis=fleet sync=10ms;\n",
        server => "location = /synced { rate_limit zone=synced; empty_gif; }\n"));
    wait_for('the instance to be a member', sub { $server->command('ZCARD', 'rate_limit:instances') == 1 });
    is ask($nginx, 'gcra', 'a')->header('X-Store'), 'redis', 'Redis decides';
    is ask($nginx, 'synced', 'a')->header('X-Store'), 'memory', 'a zone with sync= decides';
    ok wait_for('the key of the zone', sub { $server->command('EXISTS', 'rate_limit:synced:gcra:{a}') }),
        'a zone with sync= sends its counts';
    unlike $nginx->error_log, qr/redis "/, 'nothing is missing';
    $nginx->stop;
};

subtest 'a single instance that never reached Redis' => sub {
    my $lost  = start_redis();
    my $url   = $lost->url;
    $lost->kill;
    my $nginx = start_nginx(conf(3, url => $url));
    is join(' ', admitted($_, 'alone', $nginx)), 10, "$_: the instance has the whole limit" for @names;
    $nginx->stop;
};

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet, $exact;
done_testing;
