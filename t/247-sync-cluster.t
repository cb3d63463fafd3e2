# With sync= and a cluster, each count arrives at its node although slots move and nodes fail over, fail and return.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(sum0);
use RateLimit qw(start_nginx);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Fleet qw(zone_config ask load told);
use Test::More;

my $limit = 5000;
my %zones = (
    gcra           => 'algorithm=gcra rate=1r/d burst=' . ($limit - 1),
    fixed_window   => "algorithm=fixed_window rate=${limit}r/d align=first",
    sliding_window => "algorithm=sliding_window rate=${limit}r/366d",
);
my @names = sort keys %zones;
my @ports = split ' ', $ENV{RL_PORTS};
my $run   = 0;

# With RL_LONG=1 one more algorithm is tested while nodes fail.

sub start_all {
    my ($cluster) = @_;
    my @fleet = map {
        start_nginx(zone_config($cluster->url, \%zones, port => $ports[$_], words => 'sync=20ms', workers => 2, redis => 'timeout=200ms',
            http => "access_log off;\n"))
    } 0, 1;
    my $reader = start_nginx(zone_config($cluster->url, \%zones, port => $ports[7], words => 'deny_cache=off on_error=closed'));
    return ($reader, @fleet);
}

# Runs a load with some given clients, and an event in the middle. Asserts that all counts were sent in the end.
sub survives {
    my ($title, $zone, $reader, $fleet, $given, %more) = @_;
    $run++;
    my $after    = delete $more{after};
    my @clients  = (@{$given}, map {"client$run-$_"} 1 .. 20);
    my $admitted = load($fleet, $zone, \@clients, 20, %more);
    is delete $admitted->{other}, 0, "$title, $zone: memory decides all requests";
    is sum0(values %{$admitted}), 20 * @clients, "$title, $zone: all requests are admitted";
    $after->() if $after;
    told($limit, $reader, $zone, $admitted, "$title, $zone: the cluster counts each request exactly once");
    return;
}

my $cluster = start_cluster(node_timeout => 60_000);
my ($reader, @fleet) = start_all($cluster);

subtest 'a slot moves' => sub {
    my ($from, $to) = $cluster->masters;
    for my $zone (@names) {
        my $slot   = $cluster->first_slot($from) + 1 + $run;
        my ($name) = $cluster->key_of($slot) =~ /{(.*)}/;
        # A call with a client's first key and the key of its sender may wait until the slot has moved.
        survives('moving', $zone, $reader, \@fleet, [$name], during => sub { $cluster->begin_move($slot, $to) },
            after => sub { $cluster->finish_move($slot) });
        ask($_, $zone, $name, 5) for @fleet;
        told($limit, $reader, $zone, { $name => 30 }, "$zone: after the slot has moved");
    }
};

subtest 'a planned failover' => sub {
    # Nodes do not vote twice about the same master within some time.
    my @masters = $cluster->masters;
    for my $zone ($ENV{RL_LONG} ? @names : @names[ 0, 1 ]) {
        my $master = shift @masters;
        my ($name) = $cluster->key_of($cluster->first_slot($master)) =~ /{(.*)}/;
        survives('handing over', $zone, $reader, \@fleet, [$name], during => sub { $cluster->failover($master) });
    }
};
unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for $reader, @fleet;
$_->stop for $reader, @fleet;
undef $cluster;

subtest 'a node is killed, and restarted with its data' => sub {
    my $kept = start_cluster(replicas => 0, node_timeout => 60_000,
        config => "cluster-require-full-coverage no\nappendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0");
    ($reader, @fleet) = start_all($kept);
    for my $zone ($ENV{RL_LONG} ? @names : @names[ 0, 1 ]) {
        my ($node, $other) = $kept->masters;
        my ($gone, $there) = map { $kept->key_of($kept->first_slot($_)) =~ /{(.*)}/ } $node, $other;
        survives(
            'killed', $zone, $reader, \@fleet, [$gone],
            during => sub { $kept->kill($node) },
            after  => sub {
                ask($fleet[0], $zone, $there, 3);
                told($limit, $reader, $zone, { $there => 3 }, "$zone: other nodes get their counts meanwhile");
                $kept->revive($node);
                $kept->wait_until_ok;
            }
        );
    }
    unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet;
};

done_testing;
