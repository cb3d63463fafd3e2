# A lost cluster node: its clients are handled by on_error, others are unaffected, and limits apply again soon.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(max);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Load qw(start_load);
use RateLimit::SpareTime qw(spare_time);
use RateLimit::Twins qw(hold_worker);
use Test::More;

# Seconds of spare time, except the timeout.
my $timeout = 2;       # of a check
my $slow    = 0.25;    # a request that takes longer has waited for a node that does not answer
my $again   = 1;       # limits must apply this long after a promotion
my $limit   = 3;

# With full coverage, the default, all nodes refuse to serve while one is down: see 238-cluster-down.t. The test
# triggers a failover; the silence of a node does not.
my $cluster = start_cluster(config => 'cluster-require-full-coverage no', node_timeout => 60_000);

sub client_of { my ($node) = @_; return ($cluster->clients_of($node))[0] }

my $prefixes = 0;    # for other nginx instances, which do not share the limits
my ($http, $server) = ('', '');
for my $mode (qw(open closed local)) {
    $http .= "rate_limit_zone \$http_x_client zone=$mode:1m rate=${limit}r/d redis=fleet deny_cache=off on_error=$mode;\n";
    $server .= "location = /$mode { rate_limit zone=$mode; empty_gif; }\n";
}
my $nginx = start_nginx(
    workers => 2,
    http    => "keepalive_requests 1000000;\naccess_log off;\nrate_limit_log_level info;\n"
        . "rate_limit_redis fleet @{[ $cluster->url ]} timeout=@{[ $timeout * 1000 ]}ms;\n$http",
    server => "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n$server",
);

sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status}, $answer->header('X-Store') // '-';
}

sub ask {
    my ($client, $count, $mode) = @_;
    return join ', ', map { seen($nginx->get("/$mode", 'X-Client' => $client)) } 1 .. $count;
}

my $enforced = join ', ', ('200 redis') x $limit, '429 redis';
my %goes     = (
    open   => join(', ', ('200 fallback') x 4),
    closed => join(', ', ('503 fallback') x 4),
    local  => '200 fallback, 200 fallback, 200 fallback, 429 fallback',
);

# Starts traffic of clients of some nodes. Each client soon exceeds its limit.
sub traffic {
    my ($mode, @nodes) = @_;
    my @names = map { $cluster->clients_of($_, 20) } @nodes;
    my $load  = start_load(ports => [ $nginx->port ], connections => 12, pause => 0.02,
        requests => [ map { [ "/$mode", 'X-Client' => $_ ] } @names ]);
    $load->wait_for(($limit + 2) * @names);
    return $load;
}

# Returns the number of responses of each kind.
sub kinds {
    my (@answers) = @_;
    my %count;
    $count{"$_->{status} $_->{store} $_->{error}"}++ for @answers;
    return join ', ', map {"$count{$_} x $_"} sort keys %count;
}

# Asserts that clients of working nodes were not affected.
sub undisturbed {
    my ($title, @answers) = @_;
    my @wrong = grep { $_->{store} ne 'redis' || $_->{status} !~ /^(?:200|429)$/ } @answers;
    is kinds(@wrong), '', "$title: of " . @answers . ' requests of other nodes: Redis decided each';
    my %admitted;
    $admitted{ $_->{request} }++ for grep { $_->{status} == 200 } @answers;
    is scalar(grep { $admitted{$_} != $limit } keys %admitted), 0, "$title: exactly";
    my @slow = grep { $_->{waited} > $slow } @answers;
    is scalar @slow, 0, sprintf "$title: no request waits, the slowest takes %.0f ms", 1000 * max(map { $_->{waited} } @answers);
    return;
}

# Sends requests of one client after the other until Redis decides again.
sub wait_for_limits {
    my (@names) = @_;
    wait_for('limits', sub { seen($nginx->get('/open', 'X-Client' => shift @names // die "no more names\n")) eq '200 redis' });
    return spare_time();
}

sub loses_a_master {
    my ($title, $lose) = @_;
    my ($lost, @left) = $cluster->masters;
    my ($replica) = $cluster->replicas($lost);
    my @others = map { traffic($_, @left) } qw(open closed);
    my $its    = traffic('open', $lost);
    my @names  = $cluster->clients_of($lost, 3000);    # enough clients that the worker does not know yet

    my $began = spare_time();
    $lose->($lost);
    wait_for("$title: an error", sub { $nginx->get('/open', 'X-Client' => shift @names)->header('X-Store') eq 'fallback' });
    is ask(shift @names, 4, 'closed'), $goes{closed}, "$title: on_error=closed applies to clients of the node";
    is ask(shift @names, 4, 'local'),  $goes{local},  "$title: on_error=local applies to clients of the node";
    is ask(client_of($_), 4, 'closed'), $enforced, "$title: Redis decides for other clients" for @left;

    $cluster->promote($replica);
    $cluster->wait_for_promotion($replica);
    my $promoted = spare_time();
    my $last_name = pop @names;
    wait_for_limits(@names);
    $_->wait_for(100, 'more') for $its, @others;
    is ask($last_name, 4, 'closed'), $enforced, "$title: limits apply again";

    my @answers = $its->stop;
    is join(' ', sort { $a <=> $b } keys %{ { map { $_->{status} => 1 } @answers } }), '200 429',
        "$title: open: no client sees an error";
    my @missed = grep { $_->{store} ne 'redis' } @answers;
    cmp_ok scalar @missed, '>', 0, "$title: requests that Redis did not decide: " . @missed;
    my $last = max(map { $_->{spare} } @missed) - $promoted;
    cmp_ok $last, '<', $again, sprintf "$title: the last undecided request came %.2f s after the promotion, %.2f s after the loss",
        $last, $promoted - $began + $last;
    my @slow = grep { $_->{waited} > $timeout + $slow } @answers;
    is scalar @slow, 0, sprintf "$title: the slowest request takes %.0f ms", 1000 * max(map { $_->{waited} } @answers);
    undisturbed($title, $_->stop) for @others;
    return ($lost, \@answers);
}

subtest 'a master is killed' => sub {
    my ($lost, $answers) = loses_a_master('killed', sub { $cluster->kill(@_) });
    my $waited = grep { $_->{waited} > $slow } @{$answers};
    cmp_ok $waited, '<=', 12, 'killed: requests do not wait for a node that refuses connections';
    $cluster->revive($lost);
    $cluster->wait_until_ok;
};

subtest 'a master is suspended, and resumed later' => sub {
    my ($lost) = loses_a_master('stopped', sub { $_[0]->pause });
    my ($master) = $cluster->masters;
    my $load = traffic('open', $master);
    $lost->resume;
    $cluster->wait_until_ok;
    $load->wait_for(100, 'more');
    my @answers = $load->stop;
    is scalar(grep { $_->{store} ne 'redis' } @answers), 0, 'its return as a replica affects no client';
    my @all = $cluster->masters;
    is ask(client_of($_), 4, 'closed'), $enforced, 'limits apply' for @all;
};

subtest 'a planned failover' => sub {
    my ($master, @others) = $cluster->masters;
    my @loads = map { traffic('closed', $_) } $master, $others[0];
    my ($replica) = $cluster->replicas($master);
    $cluster->hand_over_to($replica);
    my $promoted = spare_time();
    $cluster->wait_until_ok;
    $_->wait_for(100, 'more') for @loads;
    # Before a master hands over, it may delay writes for longer than timeout=.
    my @answers = $loads[0]->stop;
    my @missed  = grep { $_->{store} ne 'redis' } @answers;
    my $last    = @missed ? max(map { $_->{spare} } @missed) - $promoted : 0;
    cmp_ok $last, '<', $again, sprintf '%d of %d requests were not decided, the last %.2f s after the failover', scalar @missed, scalar @answers, $last;
    my %admitted;
    $admitted{ $_->{request} }++ for grep { $_->{status} == 200 } @answers;
    is join(' ', values %admitted), join(' ', ($limit) x 20), 'each client is admitted exactly its limit';
    undisturbed('another node', $loads[1]->stop);
};

subtest 'a replica is killed' => sub {
    my ($master)  = $cluster->masters;
    my ($replica) = $cluster->replicas($master);
    my $load      = traffic('open', $cluster->masters);
    $cluster->kill($replica);
    $load->wait_for(300, 'more');
    undisturbed('a replica', $load->stop);
    $cluster->revive($replica);
    $cluster->wait_until_ok;
};

subtest 'a master and its replica are killed' => sub {
    my ($lost, @left) = $cluster->masters;
    my ($replica) = $cluster->replicas($lost);
    my @names = $cluster->clients_of($lost, 9);
    my $load  = traffic('closed', @left);
    $cluster->kill($_) for $replica, $lost;
    is ask(shift @names, 4, $_), $goes{$_}, "on_error=$_ applies to clients of the node" for sort keys %goes;
    $cluster->set_node_timeout(1000);
    for my $node (@left) {
        wait_for('the other nodes to see the failure', sub { $node->command('CLUSTER', 'INFO') !~ /^cluster_slots_fail:0\r$/m });
    }
    is ask(shift @names, 4, $_), $goes{$_}, "the same when the other nodes know of the failure: $_" for sort keys %goes;
    is ask(client_of($_), 4, 'closed'), $enforced, 'Redis decides for clients of other nodes' for @left;
    undisturbed('both', $load->stop);
    $cluster->revive($_) for $lost, $replica;
    my $revived = spare_time();
    my $decided = wait_for_limits($cluster->clients_of($lost, 1000));
    cmp_ok $decided - $revived, '<', 3, sprintf 'limits apply %.2f s after the node is back', $decided - $revived;
    $cluster->wait_until_ok;
    $cluster->set_node_timeout(60_000);
    # Each worker has to find out by itself.
    for my $master ($cluster->masters) {
        ok wait_for('both workers', sub { 4 == grep { ask(client_of($master), 4, 'closed') eq $enforced } 1 .. 4 }), 'exactly';
    }
};

subtest 'a slot without a node' => sub {
    my ($master) = $cluster->masters;
    my ($slot, $next) = ($cluster->slots($master))[ 5, 6 ];
    my @names = $cluster->clients_in($slot, 5);
    my ($neighbour) = $cluster->clients_in($next);
    $_->command('CLUSTER', 'DELSLOTS', $slot) for $cluster->masters;
    is ask(shift @names, 4, $_), $goes{$_}, "on_error=$_ applies to clients of the slot" for sort keys %goes;
    is ask($neighbour, 4, 'closed'), $enforced, 'Redis decides for clients of the next slot';
    my $fresh = start_nginx(
        http   => "rate_limit_redis fleet @{[ $cluster->url(nodes => [ $cluster->masters ]) ]} timeout=10s prefix=@{[ ++$prefixes ]}:;\n$http",
        server => "add_header X-Store \$rate_limit_store always;\n$server",
    );
    my @first   = (shift @names, map { client_of($_) } $cluster->masters);
    my $resume  = hold_worker($fresh);
    my @waiting = map { RateLimit::Async->new($fresh->port) } @first;
    $waiting[$_]->request('GET', '/closed', [ 'X-Client' => $first[$_] ]) for 0 .. $#first;
    $resume->();
    await_answers(30, @waiting);
    is join(', ', map { seen($_->answers) } @waiting), '503 fallback, 200 redis, 200 redis, 200 redis',
        'a new nginx cannot decide for clients of the slot either';
    $fresh->stop;
    $master->command('CLUSTER', 'ADDSLOTS', $slot);
    my $began = spare_time();
    wait_for('limits', sub { seen($nginx->get('/open', 'X-Client' => $names[0])) =~ /redis/ });
    my $took = spare_time() - $began;
    cmp_ok $took, '<', 2, sprintf 'limits apply %.2f s after the slot has a node', $took;
    $cluster->wait_until_ok;
    # Each worker has to find out by itself.
    my $exactly = sub { 4 == grep { ask($cluster->clients_in($slot), 4, 'closed') eq $enforced } 1 .. 4 };
    ok wait_for('both workers', $exactly), 'exactly';
};

subtest 'a lost seed is not needed' => sub {
    my ($seed, @left) = $cluster->masters;
    my ($replica) = $cluster->replicas($seed);
    my $other = start_nginx(
        http   => "rate_limit_redis fleet @{[ $cluster->url(nodes => [$seed]) ]} timeout=10s prefix=@{[ ++$prefixes ]}:;\n$http",
        server => "add_header X-Store \$rate_limit_store always;\n$server",
    );
    my $at = sub { my ($node) = @_; return seen($other->get('/open', 'X-Client' => client_of($node))) };
    is $at->($_), '200 redis', 'a node that the seed named is used' for $seed, @left;
    my @names = $cluster->clients_of($seed, 1000);
    $cluster->kill($seed);
    $cluster->promote($replica);
    $cluster->wait_for_promotion($replica);
    my $promoted = spare_time();
    wait_for('limits', sub { seen($other->get('/open', 'X-Client' => shift @names)) eq '200 redis' });
    my $took = spare_time() - $promoted;
    cmp_ok $took, '<', $again, sprintf 'other nodes name the new master: limits apply %.2f s later', $took;
    $other->stop;
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
my @lines = grep {/redis "fleet"/} split /\n/, $nginx->error_log;
cmp_ok scalar @lines, '<=', 60, 'few lines are logged' or diag join "\n", @lines;
done_testing;
