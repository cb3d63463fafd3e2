# The groups of servers of these tests work: Sentinels name a new primary, and a cluster moves its slots.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use RateLimit qw(wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Sentinels qw(start_sentinels);
use Test::More;

# Returns the answer of a server, also if it is an error.
sub answer {
    my ($connection, @words) = @_;
    $connection->send(@words);
    my $reply = $connection->receive;
    return ref $reply eq 'ARRAY' ? join ' ', map { $_ // 'nil' } @{$reply} : defined $reply ? "$reply" : 'nil';
}

sub ports { return join ' ', map { $_->port } @_ }

# Returns true if no process listens on the port.
sub refuses {
    my ($server) = @_;
    return !IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $server->port);
}

subtest 'Sentinels watch a primary and its replica' => sub {
    my $group = start_sentinels();
    my ($first, $second) = $group->servers;
    my @sentinels = $group->sentinels;
    is $group->url, 'redis+sentinel://' . join(',', map { '127.0.0.1:' . $_->port } @sentinels) . '/limits/0', 'url';
    is ports(map { $group->named_by($_) } @sentinels), ports(($first) x 3), 'all name the same primary';
    is ports($group->primary),  ports($first),  'the first';
    is ports($group->replicas), ports($second), 'the second server is its replica';
    is_deeply [ map { $_->clients } $first, $second, @sentinels ], [ (0) x 5 ], 'no server counts another as a client';
    my $plain = $sentinels[2]->connect(plain => 1);
    is answer($plain, 'SENTINEL', 'GET-MASTER-ADDR-BY-NAME', 'limits'), '127.0.0.1 ' . $first->port, 'a client asks';

    $first->command('SET', 'key', 'kept');
    is $first->command('WAIT', 1, 5000), 1, 'a write reaches the replica';
    my $client = $second->connect(plain => 1);
    like answer($client, 'SET', 'key', 'new'), qr/^READONLY/, 'the replica accepts no writes';
    is ports($group->failover), ports($second), 'failover returns the new primary';
    is ports($group->primary),  ports($second), 'the Sentinels name the new primary';
    $client = $second->connect(plain => 1);
    is answer($client, 'GET', 'key'),        'kept', 'the new primary has the data';
    is answer($client, 'SET', 'key', 'new'), 'OK',   'the new primary accepts writes';
    $group->wait_until_settled;
    like answer($first->connect(plain => 1), 'SET', 'key', 'x'), qr/^READONLY/, 'the old primary accepts no writes';
    is answer($first->connect(plain => 1), 'GET', 'key'), 'new', 'the old primary replicates the new one';

    $sentinels[0]->kill;
    is ports($group->kill_primary), ports($second), 'kill_primary returns the old primary';
    ok refuses($second), 'the killed primary has ended';
    is ports($group->wait_for_primary($second)), ports($first), 'two of three Sentinels are enough for a failover';
    is ports($group->replicas), '', 'there is no replica';
    is answer($first->connect(plain => 1), 'SET', 'key', 'newest'), 'OK', 'the new primary accepts writes';

    $sentinels[0]->restart;
    $group->revive($second);
    is $second->command('ROLE')->[0], 'master', 'the old primary restarts as a primary';
    $group->wait_until_settled;
    is ports($group->replicas), ports($second), 'the old primary becomes a replica';
    is answer($second->connect(plain => 1), 'GET', 'key'), 'newest', 'the old primary has the data of the new one';
    is ports($group->named_by($sentinels[0])), ports($first), 'a Sentinel that was down learns the primary';

    my @all = ($group->servers, @sentinels);
    undef $group;
    is scalar(grep { !refuses($_) } @all), 0, 'all servers end with the group, even if the test has references to them';
};

subtest 'Sentinels of Valkey, with passwords, and one that is paused' => sub {
    my $group = start_sentinels(
        server            => 'valkey',
        name              => 'other',
        password          => 'sesame',
        sentinel_password => 'watch',
    );
    my ($first, $second) = $group->servers;
    my $sentinel = ($group->sentinels)[0];
    like $group->url(db => 2), qr{^redis\+sentinel://:sesame\@127[^/]*/other/2$}, 'url';
    like answer($first->connect(plain => 1),    'GET', 'key'), qr/^NOAUTH/, 'a server wants its password';
    like answer($sentinel->connect(plain => 1), 'ROLE'),       qr/^NOAUTH/, 'a Sentinel too';
    my $client = $sentinel->connect(plain => 1);
    is answer($client, 'AUTH', 'watch'), 'OK', 'its own';
    $sentinel->pause;
    is ports($group->failover), ports($second), 'two of three Sentinels do a failover';
    $sentinel->resume;
    is ports(wait_for('news', sub { my $named = $group->named_by($sentinel); $named == $second && $named })),
        ports($second), 'the third Sentinel learns the primary';
};

subtest 'a cluster has three masters and their replicas' => sub {
    my $cluster = start_cluster();
    my @masters = $cluster->masters;
    is $cluster->url, 'redis+cluster://' . join(',', map { '127.0.0.1:' . $_->port } $cluster->nodes), 'url';
    is scalar $cluster->nodes, 6, 'nodes';
    is ports(@masters), ports(($cluster->nodes)[ 0 .. 2 ]), 'masters';
    is ports(map { $cluster->replicas($_) } @masters), ports(($cluster->nodes)[ 3 .. 5 ]), 'each master has a replica';
    is_deeply [ map { $_->clients } $cluster->nodes ], [ (0) x 6 ], 'no node counts another as a client';
    is $cluster->slot_of('foo'), 12_182, 'the slot of a key';
    is ports($cluster->node_of('foo')), ports($masters[2]), 'the master of a key';
    is $cluster->slot_of($cluster->key_of($_, 'a')), $_, "a key of slot $_" for 0, 5461, 16_383;

    my ($from, $to) = @masters;
    my $slot   = $cluster->first_slot($from);
    my ($here, $there, $absent) = map { $cluster->key_of($slot, $_) } qw(here there absent);
    my ($old, $new) = map { $_->connect(plain => 1) } $from, $to;
    my $to_old = '127.0.0.1:' . $from->port;
    my $to_new = '127.0.0.1:' . $to->port;
    is answer($old, 'SET', $_, "$_ is set"), 'OK', "a key of slot $slot" for $here, $there;
    is answer($new, 'GET', $here), "MOVED $slot $to_old", 'another master says MOVED';
    is $cluster->count_keys, 2, 'keys';

    $cluster->begin_move($slot, $to);
    is answer($old, 'GET', $here),   "$here is set",       'a migrating slot: a key that has not moved';
    is answer($old, 'GET', $absent), "ASK $slot $to_new", 'a migrating slot: ASK for an absent key';
    $cluster->move_keys($slot, $there);
    is answer($old, 'GET', $there), "ASK $slot $to_new",   'a migrating slot: ASK for a moved key';
    is answer($new, 'GET', $there), "MOVED $slot $to_old", 'the new master redirects a client without ASKING';
    is answer($new, 'ASKING'),      'OK',                  'the new master accepts ASKING';
    is answer($new, 'GET', $there), "$there is set",       'a client with ASKING gets the value';
    like answer($old, 'MGET', $here, $there), qr/^TRYAGAIN/, 'TRYAGAIN for keys at both nodes';
    answer($new, 'ASKING');
    like answer($new, 'MGET', $here, $there), qr/^TRYAGAIN/, 'TRYAGAIN at the new master too';
    $cluster->finish_move($slot);
    is answer($old, 'GET', $here), "MOVED $slot $to_new", 'after the migration, MOVED';
    is answer($new, 'MGET', $here, $there), "$here is set $there is set", 'both keys are at the new master';
    is ports($cluster->owner($slot)), ports($to), 'the new master owns the slot';

    $cluster->begin_move($slot, $from);
    $cluster->cancel_move($slot);
    is answer($new, 'GET', $absent), 'nil', 'a cancelled migration';
    $cluster->move_slot($slot, $from);
    is answer($old, 'GET', $here), "$here is set", 'a migration in one step';
    is $cluster->count_keys, 2, 'no key was lost';

    my ($replica) = $cluster->replicas($from);
    is ports($cluster->failover($from)), ports($replica), 'a replica takes over on request';
    is answer($old, 'GET', $here), "MOVED $slot 127.0.0.1:" . $replica->port, 'the old master redirects to it';
    $cluster->kill($replica);
    ok refuses($replica), 'a master is killed';
    $cluster->wait_until_ok;
    is ports($cluster->node_of($here)), ports($from), 'its replica takes over';
    is answer($old, 'GET', $here), "$here is set", 'with its data';
    $cluster->revive($replica);
    $cluster->wait_until_ok;
    is ports($cluster->replicas($from)), ports($replica), 'the killed master returns as a replica';

    my @nodes = $cluster->nodes;
    undef $cluster;
    is scalar(grep { !refuses($_) } @nodes), 0,
        'all nodes end with the cluster, even if the test has references to them';
};

subtest 'a cluster of Valkey without replicas works in part' => sub {
    my $cluster = start_cluster(
        server   => 'valkey',
        replicas => 0,
        password => 'sesame',
        config   => 'cluster-require-full-coverage no',
    );
    my ($lost, $left) = $cluster->masters;
    like $cluster->url(nodes => [$left]), qr{^redis\+cluster://:sesame\@127\.0\.0\.1:@{[ $left->port ]}$}, 'url';
    my ($moved, $gone) = map { $cluster->key_of($cluster->first_slot($lost) + $_) } 0, 1;
    $lost->command('SET', $moved, 'saved');
    $cluster->move_slot($cluster->slot_of($moved), $left);
    $cluster->kill($lost);
    wait_for('the other nodes to see the failure', sub { $left->command('CLUSTER', 'INFO') !~ /^cluster_slots_fail:0\r$/m });
    my $client = $left->connect(plain => 1);
    like answer($client, 'GET', $moved), qr/^NOAUTH/, 'the cluster requires a password';
    answer($client, 'AUTH', 'sesame');
    is answer($client, 'GET', $moved), 'saved', 'a slot that was moved before the loss';
    like answer($client, 'GET', $gone), qr/^MOVED \d+ 127\.0\.0\.1:@{[ $lost->port ]}$/, 'a slot of the lost node';
};

done_testing;
