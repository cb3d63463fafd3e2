# A client that is reset has its whole quota again, on all instances within a second.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::FakeRedis qw(start_fake raw);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;
use Time::HiRes qw(sleep);

my @ports = split ' ', $ENV{RL_PORTS};

sub conf {
    my ($url, $port) = @_;
    my %zones = (
        plain => 'rate=5r/h deny_cache=off',
        deny  => 'rate=5r/h deny_cache=1h',
        local => 'rate=5r/h deny_cache=1h on_error=local',
        gcra  => 'rate=5r/h algorithm=gcra burst=4 sync=20ms',
        fixed => 'rate=5r/366d algorithm=fixed_window sync=20ms',
        lazy  => 'rate=5r/366d algorithm=fixed_window sync=1h',
    );
    my ($http, $server) = ("rate_limit_redis fleet $url timeout=5s;\n", "location /api/ { rate_limit_api write=on; }\n");
    for my $zone (sort keys %zones) {
        $http   .= "rate_limit_zone \$http_x_client zone=$zone:1m $zones{$zone} redis=fleet;\n";
        $server .= "location = /$zone { rate_limit zone=$zone; add_header X-Store \$rate_limit_store always; empty_gif; }\n";
    }
    return (workers => 2, port => $port, http => $http, server => $server);
}

sub ask {
    my ($nginx, $zone, $client, $count) = @_;
    return scalar grep { $_->{status} == 200 } map { $nginx->get("/$zone", 'X-Client' => $client) } 1 .. $count // 1;
}

sub left {
    my ($nginx, $zone, $client) = @_;
    return decode_json($nginx->get("/api/remaining?zone=$zone&key=$client")->{body})->{remaining};
}

sub forget {
    my ($nginx, $zone, $client) = @_;
    return $nginx->request(method => 'DELETE', path => "/api/reset?zone=$zone&key=$client")->{status};
}

# Waits until a number of instances have asked Redis for rates and resets twice: they have processed the first answer by
# then.
sub wait_for_questions {
    my ($redis, $instances) = @_;
    my $node    = $redis->can('node_of') ? $redis->node_of('rate_limit:rates') : $redis;
    my $monitor = $node->monitor;
    wait_for('questions for rates', sub {
        my %count;
        $count{$_}++ for map { /"EVAL" .*"rate_limit:rates"/ && / \[\d+ (\S+)\]/ ? $1 : () } $monitor->lines;
        return $instances == grep { $_ >= 2 } values %count;
    });
    return;
}

for my $kind (qw(redis cluster)) {
    my $redis = $kind eq 'redis' ? start_redis() : start_cluster(replicas => 0, node_timeout => 60_000);
    my @fleet = map { start_nginx(conf($redis->url, $_)) } @ports[ 0, 1 ];
    wait_for('a first answer', sub { left($_, 'plain', 'nobody') == 5 }) for @fleet;
    wait_for_questions($redis, 2);    # both instances follow

    for my $zone (qw(plain deny local gcra fixed)) {
        subtest "$kind: $zone" => sub {
            # With RL_LONG=1 a long name is tested in every zone, otherwise in one zone of each kind.
            my @long = $ENV{RL_LONG} || $zone =~ /^(?:plain|gcra)$/ ? 'x' x 300 : ();
            for my $client ('alice', @long) {
                ask($fleet[0], $zone, $client, 5);
                wait_for('all instances to know the count', sub { left($_, $zone, $client) == 0 || !ask($_, $zone, $client) }) for @fleet;
                is ask($_, $zone, $client), 0, 'no instance admits more' for @fleet;
                is ask($_, $zone, 'bystander'), 1, 'another client is admitted' for @fleet;
                my $began = spare_time();
                is forget($fleet[0], $zone, $client), 204, 'the client is reset';
                is left($fleet[0], $zone, $client), 5, 'the client has its whole quota on this instance at once';
                wait_for('the reset on the other instance', sub { ask($fleet[1], $zone, $client) });
                my $took = spare_time() - $began;
                cmp_ok $took, '<', 1.3, sprintf 'the client has its whole quota on the other instance after %.2f s', $took;
                sleep 0.2;    # ten intervals of sync=
                cmp_ok left($fleet[0], $zone, $client), '>=', 3, 'earlier counts do not come back';
                cmp_ok left($_, $zone, 'bystander'), '<=', 4, 'no other client is reset' for @fleet;
            }
        };
    }

    subtest "$kind: unsent counts of before the reset do not come back" => sub {
        ask($_, 'lazy', 'late', 5) for @fleet;
        is ask($_, 'lazy', 'late'), 0, 'each instance has admitted the whole limit' for @fleet;
        is forget($fleet[0], 'lazy', 'late'), 204, 'the client is reset';
        wait_for('the reset on the other instance', sub { left($fleet[1], 'lazy', 'late') == 5 });
        is left($fleet[0], 'lazy', 'late'), 5, 'both have';
        $_->reload(conf($redis->url, $_->port)) for @fleet;    # a reload sends all unsent counts
        wait_for_questions($redis, 2);
        is left($_, 'lazy', 'late'), 5, 'there were no unsent counts' for @fleet;
    };

    subtest "$kind: a reset applies once" => sub {
        ask($fleet[0], 'gcra', 'once', 5);
        # A count that is in flight to Redis during the reset would arrive after it.
        wait_for('Redis to know of all', sub { ask($fleet[1], 'gcra', 'once', 1); left($fleet[1], 'gcra', 'once') == 0 });
        forget($fleet[0], 'gcra', 'once');
        wait_for_questions($redis, 2);
        is ask($fleet[0], 'gcra', 'once', 6), 5, 'five more';
        wait_for_questions($redis, 2);
        is ask($fleet[0], 'gcra', 'once', 3), 0, 'the client is not reset again';
        my $fresh = start_nginx(conf($redis->url, $ports[2]));
        wait_for('the new instance to know the count', sub { ask($fresh, 'gcra', 'once', 1); sleep 0.05; left($fresh, 'gcra', 'once') == 0 });
        pass 'a new instance does not repeat the reset';
        wait_for_questions($redis, 3);
        is ask($fleet[0], 'gcra', 'once', 3), 0, 'the other instance does not repeat the reset either';
    };

    unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/,
        "$kind: the log has no critical errors" for @fleet;
}

# A reset deletes the key, announces the reset, forgets the client in this instance, and deletes the key again.
for my $deletion (1, 2) {
    subtest "deletion $deletion of a reset fails" => sub {
        my $count  = 0;
        my $delete = sub { return ++$count == $deletion ? '-READONLY no' : raw("\$1\r\n1\r\n") };
        my $fake   = start_fake(replies => { EVAL => sub { return $_[1] =~ /'DEL'/ ? $delete->() : '' } });
        my $nginx  = start_nginx(conf($fake->url . ' connect_timeout=5s', $ports[0]));
        ask($nginx, 'lazy', 'alice', 5);
        my $answer = $nginx->request(method => 'DELETE', path => '/api/reset?zone=lazy&key=alice');
        my $effect = $deletion == 1 ? 'nothing was changed in this instance'
            : 'the client was reset in this instance, but perhaps not in Redis';
        is $answer->{status}, 503, 'the reset fails';
        is decode_json($answer->{body})->{detail}, "Redis \"fleet\" cannot be asked, and $effect: readonly",
            'the detail says what was changed';
        is ask($nginx, 'lazy', 'alice'), $deletion == 1 ? 0 : 1, 'and so it is';
    };
}

done_testing;
