# The nodes of a real Redis Cluster, and operations on nodes and slots.
#
#   use lib 't/lib';
#   use RateLimit::Cluster qw(start_cluster);
#
# FUNCTIONS
#   start_cluster(%options)     starts the nodes, gives each master its share of the slots, and waits until they serve
#                               them; returns an object (METHODS). Dies with a server's messages if one does not start.
#                               The nodes end with the object. A node takes two ports of RL_REDIS_PORTS
#
# OPTIONS
#   masters     how many (3)                                replicas        of each master (1)
#   node_timeout    ms of silence after which a node counts as failed (1000). On a busy machine a node may not answer
#                   for seconds: if no node is to fail, use a minute
#   All others are those of start_redis, for each node. With the line 'cluster-require-full-coverage no' in `config`,
#   the rest of a cluster keeps working when a master is lost.
#
# METHODS, which wait for at most 60 seconds; a node is an object of RateLimit::Redis
#   url(%parts)                 redis+cluster://127.0.0.1:PORT,… for rate_limit_redis; parts: user, password,
#                               nodes => [the nodes to list] (all)
#   nodes                       all nodes in the order of their start, the first masters before the first replicas
#   masters                     those that have slots now, in the order of their first slots
#   replicas($master)           the nodes that run and replicate it
#   slot_of($key)               by CLUSTER KEYSLOT
#   owner($slot), node_of($key) the master that has the slot now, even if it has just ended
#   key_of($slot, $prefix)      a key in the slot, with $prefix before its {tag}, if given
#   clients_in($slot, $count)   names of $count (1) clients whose keys, PREFIX ZONE:ALGORITHM:{CLIENT}, are in the slot
#   clients_of($node, $count)   of $count (1) clients whose keys are in slots of this master now. Each name is returned
#                               once
#   first_slot($master)         its lowest slot
#   slots($master)              all of its slots
#   id($node)                   by CLUSTER MYID
#   count_keys                  keys in all masters that run
#   kill($node)                 SIGKILL
#   revive($node)               starts it again with its slots, but without keys; if a replica took over, the node
#                               becomes a replica of that
#   failover($master)           makes a planned failover to a replica, and waits for it; returns the new master
#   hand_over_to($replica)      the same for this replica, without waiting until all nodes agree
#   promote($replica)           makes it the master at once, without a vote, as if the old master had failed
#   set_node_timeout($ms)       of all nodes, those that are revived later included
#   wait_for_promotion(@nodes)  waits until one of the nodes has become a master; returns it, and the time at which it
#                               was seen to be one
#   wait_for_state($state, @nodes)
#                               waits until each running node, or each of these, reports the state: ok or fail
#   total($command)             how often a command was called on all running nodes; reset_stats sets it to 0
#   wait_until_ok               waits until all nodes that run agree who has which slot, all slots are served, and all
#                               replicas follow their masters
#
# MOVING A SLOT, in the steps of redis-cli --cluster reshard
#   move_slot($slot, $to)       all of it: begin_move, move_keys, finish_move
#   move_together($to, @slots)  begins all moves before it finishes one, and then waits
#   move_slots($to, @slots)     each of them without a pause, and then waits until all nodes agree; a function after
#                               the slots is called after each move
#   begin_move($slot, $to)      from now on, the owner answers ASK for keys that it does not have
#   move_keys($slot, @keys)     of a move that has begun, these keys, by default all: TRYAGAIN for a command with
#                               a moved key and another one
#   finish_move($slot)          moves the other keys, and tells the nodes; from now on, the old owner answers MOVED
#   cancel_move($slot)          for a move before any key was moved
#   was_moving($slot, $from, $to)
#                               whether it was migrating at some time between these two
package RateLimit::Cluster;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use List::Util qw(first sum0);
use RateLimit qw(wait_for);
use RateLimit::Redis qw(start_redis redis_port control_user);
use Test::More import => ['note'];
use Time::HiRes qw(time);

our @EXPORT_OK = qw(start_cluster);

my $slots     = 16_384;
my @crc_table = map { crc_of_byte($_) } 0 .. 255;
my $tried     = 0;
my $named     = 0;
my @tags;     # by slot
my @names;    # unused client names, lists by slot

sub start_cluster {
    my (%options) = @_;
    my %is = (masters => 3, replicas => 1, node_timeout => 1000);
    for my $name (keys %is) {
        $is{$name} = delete $options{$name} if exists $options{$name};
    }
    my $self = bless { nodes => [], options => \%options, owner => $$ }, __PACKAGE__;
    $self->start_node for 1 .. $is{masters} * (1 + $is{replicas});
    my @nodes   = $self->nodes;
    my @masters = splice @nodes, 0, $is{masters};
    $self->share_slots(@masters);
    $_->clock(0) for $self->nodes;
    $self->introduce;
    for my $index (0 .. $#nodes) {
        my $master = $self->id($masters[ $index % @masters ]);
        wait_for('a node to know its master',
            sub { eval { $nodes[$index]->command('CLUSTER', 'REPLICATE', $master) } // $@ !~ /Unknown node/ });
    }
    $self->wait_until_ok;
    $self->set_node_timeout($is{node_timeout});
    return $self;
}

# Until all nodes know each other, a short timeout makes them exchange messages more often.
sub start_node {
    my ($self) = @_;
    my ($user, $password) = control_user();
    my $bus   = redis_port();
    my @lines = (
        'cluster-enabled yes',
        "cluster-port $bus",
        'cluster-announce-ip 127.0.0.1',
        'cluster-node-timeout 1000',
        'cluster-replica-validity-factor 0',
        "masteruser $user",
        qq(masterauth "$password"),
    );
    push @lines, 'tls-cluster yes', 'tls-replication yes' if $self->{options}{tls};
    my $config = join "\n", @lines, $self->{options}{config} // '';
    # A master serves no slot in the first two seconds after its start, by its own clock. Programs that measure servers
    # (bench/run and others) use unmodified servers.
    my @sooner = $ENV{RL_BUILD} ? (clock => 1, ahead => -3) : ();
    my $node   = start_redis(%{ $self->{options} }, config => $config, @sooner);
    $node->{bus} = $bus;
    push @{ $node->{taken} }, $bus;
    push @{ $self->{nodes} }, $node;
    return;
}

sub share_slots {
    my ($self, @masters) = @_;
    my $first = 0;
    for my $index (0 .. $#masters) {
        my $next = int $slots * ($index + 1) / @masters;
        $masters[$index]->command('CLUSTER', 'ADDSLOTS', $first .. $next - 1);
        $first = $next;
    }
    return;
}

sub introduce {
    my ($self) = @_;
    my @nodes = $self->nodes;
    $nodes[$_]->command('CLUSTER', 'SET-CONFIG-EPOCH', $_ + 1) for 0 .. $#nodes;
    # If a handshake takes too long, one of the two nodes forgets it, and the other does not repeat it: CLUSTER MEET is
    # retried.
    my $next = 0;
    wait_for(
        'all nodes to know each other',
        sub {
            $self->meet_all, $next = time + 3 if time >= $next;
            return !first { $self->stranger($_) } @nodes;
        }
    );
    return;
}

# Introduces each node to each: gossip alone takes seconds.
sub meet_all {
    my ($self) = @_;
    my @nodes = $self->nodes;
    while (my $node = shift @nodes) {
        $node->command('CLUSTER', 'MEET', '127.0.0.1', $_->port, $_->{bus}) for @nodes;
    }
    return;
}

sub nodes { my ($self) = @_; return @{ $self->{nodes} } }

# Returns the nodes that can answer.
sub awake { my (@nodes) = @_; return grep { $_->pid && !$_->{paused} } @nodes }

sub any {
    my ($self) = @_;
    return (awake($self->nodes))[0] // croak 'no node runs';
}

sub at_port {
    my ($self, $port) = @_;
    return first { $_->port == $port } $self->nodes;
}

sub url {
    my ($self, %parts) = @_;
    my $password = $parts{password} // $self->{options}{password};
    my $url      = $self->{options}{tls} ? 'rediss+cluster://' : 'redis+cluster://';
    $url .= ($parts{user} // '') . ":$password@" if defined $password;
    return $url . join ',', map { '127.0.0.1:' . $_->port } @{ $parts{nodes} // $self->{nodes} };
}

sub with_id {
    my ($self, $id) = @_;
    return first { $self->id($_) eq $id } $self->nodes;
}

# Returns the slot map of a node: { first, last, port } in order. With TLS a node may not report plain ports.
sub ranges {
    my ($self, $node) = @_;
    my $shown  = $node->command('CLUSTER', 'SLOTS');
    my @ranges = map { { first => $_->[0], last => $_->[1], port => $self->with_id($_->[2][2])->port } } @{$shown};
    @ranges = sort { $a->{first} <=> $b->{first} } @ranges;
    return @ranges;
}

sub masters {
    my ($self) = @_;
    my %seen;
    return map { $self->at_port($_) } grep { !$seen{$_}++ } map { $_->{port} } $self->ranges($self->any);
}

sub replicas {
    my ($self, $master) = @_;
    my @replicas;
    for my $node (awake($self->nodes)) {
        my $role = $node->command('ROLE');
        push @replicas, $node if $role->[0] eq 'slave' && $role->[2] == $master->port;
    }
    return @replicas;
}

sub slot_of {
    my ($self, $key) = @_;
    return $self->any->command('CLUSTER', 'KEYSLOT', $key);
}

sub owner {
    my ($self, $slot) = @_;
    my $range = first { $_->{first} <= $slot && $slot <= $_->{last} } $self->ranges($self->any);
    croak "no node has the slot $slot" unless $range;
    return $self->at_port($range->{port});
}

# Returns the owners of all slots, by slot.
sub owners {
    my ($self) = @_;
    my @owners;
    for my $range ($self->ranges($self->any)) {
        my $node = $self->at_port($range->{port});
        $owners[$_] = $node for $range->{first} .. $range->{last};
    }
    return \@owners;
}

sub node_of {
    my ($self, $key) = @_;
    return $self->owner($self->slot_of($key));
}

sub first_slot {
    my ($self, $master) = @_;
    my $range = first { $_->{port} == $master->port } $self->ranges($self->any);
    return $range ? $range->{first} : croak $master->port . ' has no slot';
}

sub key_of {
    my ($self, $slot, $prefix) = @_;
    while (!defined $tags[$slot]) {
        my $tag = 't' . $tried++;
        $tags[ crc16($tag) % $slots ] //= $tag;
    }
    return ($prefix // '') . "{$tags[$slot]}";
}

sub clients_in {
    my ($self, $slot, $count) = @_;
    $count //= 1;
    name_client() while @{ $names[$slot] // [] } < $count;
    return splice @{ $names[$slot] }, 0, $count;
}

sub clients_of {
    my ($self, $node, $count) = @_;
    my @ranges = grep { $_->{port} == $node->port } $self->ranges($self->any);
    croak $node->port . ' has no slot' unless @ranges;
    my @found;
    while (@found < ($count // 1)) {
        my $slot = name_client();
        push @found, pop @{ $names[$slot] } if first { $_->{first} <= $slot && $slot <= $_->{last} } @ranges;
    }
    return @found;
}

# Creates one more client name, adds it to the list of its slot, and returns the slot.
sub name_client {
    my $name = 'client' . ++$named;
    my $slot = crc16($name) % $slots;
    push @{ $names[$slot] }, $name;
    return $slot;
}

sub slots {
    my ($self, $master) = @_;
    return map { $_->{first} .. $_->{last} } grep { $_->{port} == $master->port } $self->ranges($self->any);
}

sub crc16 {
    my ($text) = @_;
    my $crc = 0;
    $crc = $crc << 8 & 0xffff ^ $crc_table[ $crc >> 8 ^ $_ ] for unpack 'C*', $text;
    return $crc;
}

# The polynomial is x¹⁶ + x¹² + x⁵ + 1.
sub crc_of_byte {
    my ($byte) = @_;
    my $crc = $byte << 8;
    $crc = ($crc << 1 ^ ($crc & 0x8000 ? 0x1021 : 0)) & 0xffff for 1 .. 8;
    return $crc;
}

sub id {
    my ($self, $node) = @_;
    return $node->{cluster_id} //= $node->command('CLUSTER', 'MYID');
}

sub count_keys {
    my ($self) = @_;
    return sum0 map { $_->command('DBSIZE') } awake($self->masters);
}

sub kill {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self, $node) = @_;
    $node->kill;
    return;
}

sub revive {
    my ($self, $node) = @_;
    $node->restart(ahead => -3);
    $node->clock(0);
    $node->command('CONFIG', 'SET', 'cluster-node-timeout', $self->{node_timeout});
    return;
}

sub failover {
    my ($self, $master) = @_;
    my ($replica) = $self->replicas($master) or croak $master->port . ' has no replica';
    $self->hand_over_to($replica);
    $self->wait_until_ok;
    return $replica;
}

# A replica gives up a failover if the other nodes have not agreed within five seconds.
sub hand_over_to {
    my ($self, $replica) = @_;
    my $asked = -1;
    wait_for(
        'a failover',
        sub {
            my $given_up = () = $replica->log =~ /Manual failover timed out/g;
            if ($given_up != $asked) {
                $asked = $given_up;
                $replica->command('CLUSTER', 'FAILOVER');
            }
            return $replica->command('ROLE')->[0] eq 'master';
        }
    );
    return;
}

sub promote {
    my ($self, $replica) = @_;
    $replica->command('CLUSTER', 'FAILOVER', 'TAKEOVER');
    return;
}

sub set_node_timeout {
    my ($self, $timeout) = @_;
    $self->{node_timeout} = $timeout;
    $_->command('CONFIG', 'SET', 'cluster-node-timeout', $timeout) for awake($self->nodes);
    return;
}

sub wait_for_promotion {
    my ($self, @nodes) = @_;
    my $promoted = wait_for('a promotion', sub { first { $_->command('ROLE')->[0] eq 'master' } @nodes });
    return ($promoted, time);
}

sub wait_for_state {
    my ($self, $state, @nodes) = @_;
    for my $node (@nodes ? @nodes : awake($self->nodes)) {
        wait_for($node->port . " to say $state", sub { $node->command('CLUSTER', 'INFO') =~ /^cluster_state:$state\b/m });
    }
    return;
}

sub total {
    my ($self, $command) = @_;
    return sum0 map { $_->commandstats($command) } awake($self->nodes);
}

sub reset_stats {
    my ($self) = @_;
    $_->command('CONFIG', 'RESETSTAT') for awake($self->nodes);
    return;
}

sub wait_until_ok {
    my ($self) = @_;
    my $missing;
    my $ok = sub { return ($missing = eval { $self->trouble } // $@) eq '' };
    return if $ok->();
    # With a short timeout, nodes exchange messages more often, and so agree sooner. A node that does not answer would
    # count as failed.
    my $timeout = $self->{node_timeout} // 0;
    my $shorten = $timeout > 2000 && awake($self->nodes) == $self->nodes;
    $self->set_node_timeout(2000) if $shorten;
    my $repeat_at = time + 2;
    my $agree     = sub {
        return 1 if $ok->();
        if (time > $repeat_at) {
            $self->repeat_hand_over;
            $repeat_at = time + 2;
        }
        return 0;
    };
    eval { wait_for('the cluster', $agree) } or croak $@ . $missing;
    $self->set_node_timeout($timeout) if $shorten;
    return;
}

# If an old owner tells its state while its slot is handed over, both nodes may take the other one for the owner. Redis
# does not resolve this, so the nodes are told again.
sub repeat_hand_over {
    my ($self) = @_;
    for my $node (grep { $_->command('ROLE')->[0] eq 'master' } awake($self->nodes)) {
        for my $range ($self->ranges($node)) {
            for my $slot ($range->{first} .. $range->{last}) {
                my $to = $self->{handed}{$slot} // next;
                next if $to->port == $range->{port} || !grep { $_ == $to } $self->masters;
                note "slot $slot is handed over once more";
                eval { $node->command('CLUSTER', 'SETSLOT', $slot, 'NODE', $self->id($to)); 1 } or note $@;
            }
        }
    }
    return;
}

# Returns what wait_until_ok still waits for.
sub trouble {
    my ($self) = @_;
    my $view;
    for my $node (awake($self->nodes)) {
        my ($state) = $node->command('CLUSTER', 'INFO') =~ /^cluster_state:(\w+)/m;
        return $node->port . " says $state" if $state ne 'ok';
        my @ranges = $self->ranges($node);
        return $node->port . ' does not know an owner of each slot'
            if $slots != sum0 map { $_->{last} - $_->{first} + 1 } @ranges;
        for my $port (map { $_->{port} } @ranges) {
            return $node->port . " lists $port, which is not running" unless awake($self->at_port($port));
        }
        my $seen = join ' ', map {"$_->{first}-$_->{last}:$_->{port}"} @ranges;
        return $node->port . " sees $seen, and another $view" if $seen ne ($view //= $seen);
        my $stranger = $self->stranger($node);
        return $node->port . " does not see the state of $stranger" if $stranger;
    }
    for my $replica (map { awake($self->replicas($_)) } $self->masters) {
        return $replica->port . ' has not caught up with its master' if $replica->info('master_link_status') ne 'up';
    }
    return '';
}

# Returns the first node that another node does not see in its real state: up, and a replica if it is one.
sub stranger {
    my ($self, $node) = @_;
    my %flags;
    for my $line (split /\n/, $node->command('CLUSTER', 'NODES')) {
        my ($id, $flags) = $line =~ /^(\w+) [^ ]*:\d+@\S* (\S+)/ or next;
        $flags{$id} = $flags =~ /fail|handshake|noaddr/ ? 'missing' : $flags =~ /master/ ? 'master' : 'slave';
    }
    for my $other (awake($self->nodes)) {
        my $role = $other->command('ROLE');
        return $other->port if ($flags{ $self->id($other) } // '') ne $role->[0];
    }
    return;
}

sub move_slot {
    my ($self, $slot, $to) = @_;
    $self->begin_move($slot, $to);
    $self->finish_move($slot);
    return;
}

sub move_slots {
    my ($self, $to, @moving) = @_;
    my $after  = ref $moving[-1] eq 'CODE' ? pop @moving : sub { };
    my $owners = $self->owners;
    for my $slot (@moving) {
        $self->begin_move($slot, $to, $owners->[$slot]);
        $self->hand_over($slot);
        $after->($slot);
    }
    $self->wait_until_ok;
    return;
}

sub move_together {
    my ($self, $to, @moving) = @_;
    my $owners = $self->owners;
    $self->begin_move($_, $to, $owners->[$_]) for @moving;
    $self->hand_over($_) for @moving;
    $self->wait_until_ok;
    return;
}

sub begin_move {
    my ($self, $slot, $to, $from) = @_;
    $from //= $self->owner($slot);
    push @{ $self->{times}{$slot} }, [time];
    $to->command('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $self->id($from));
    $from->command('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $self->id($to));
    $self->{moves}{$slot} = [ $from, $to ];
    return;
}

sub move_keys {
    my ($self, $slot, @keys) = @_;
    my ($from, $to) = @{ $self->{moves}{$slot} // croak "the slot $slot does not move" };
    my ($user, $password) = control_user();
    my @migrate = ('MIGRATE', '127.0.0.1', $to->port, '', 0, 5000, 'AUTH2', $user, $password, 'KEYS');
    return $from->command(@migrate, @keys) if @keys;
    while (my @some = @{ $from->command('CLUSTER', 'GETKEYSINSLOT', $slot, 100) }) {
        $from->command(@migrate, @some);
    }
    return;
}

sub finish_move {
    my ($self, $slot) = @_;
    $self->hand_over($slot);
    $self->wait_until_ok;
    return;
}

# The new owner is told first, so that the slot always has an owner.
sub hand_over {
    my ($self, $slot) = @_;
    $self->move_keys($slot);
    my ($from, $to) = @{ delete $self->{moves}{$slot} };
    my @others = grep { $_ != $from && $_ != $to && $_->command('ROLE')->[0] eq 'master' } awake($self->nodes);
    $_->command('CLUSTER', 'SETSLOT', $slot, 'NODE', $self->id($to)) for $to, $from, @others;
    $self->{times}{$slot}[-1][1] = time;
    $self->{handed}{$slot} = $to;
    return;
}

sub cancel_move {
    my ($self, $slot) = @_;
    my $nodes = delete $self->{moves}{$slot} // croak "the slot $slot does not move";
    $_->command('CLUSTER', 'SETSLOT', $slot, 'STABLE') for @{$nodes};
    $self->{times}{$slot}[-1][1] = time;
    return;
}

sub was_moving {
    my ($self, $slot, $from, $to) = @_;
    return !!first { $_->[0] <= $to && ($_->[1] // $to) >= $from } @{ $self->{times}{$slot} // [] };
}

# All nodes end at once, even if the test has a reference to one: a remaining node would look for the others at their
# ports.
sub DESTROY {
    my ($self) = @_;
    return if $self->{owner} != $$;
    $_->kill for grep {defined} $self->nodes;
    return;
}

1;
