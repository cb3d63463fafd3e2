# Limits in a Redis Cluster: each client's state is at the node of its slot, also after the slot moves.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(sum0);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Load qw(start_load);
use RateLimit::SpareTime qw(spare_time);
use RateLimit::Twins qw(hold_worker);
use Test::More;

my $cluster = start_cluster(node_timeout => 60_000);
my @masters = $cluster->masters;
my $clients = 0;
my $prefixes = 0;
my ($port, $second_port) = split ' ', $ENV{RL_PORTS};

sub new_client { return 'new' . ++$clients }

sub client_in { my ($slot) = @_; return ($cluster->clients_in($slot))[0] }
sub client_of { my ($node) = @_; return ($cluster->clients_of($node))[0] }

# Each nginx has its own prefix, so that it does not share limits with an earlier one.
sub start {
    my ($url, %options) = @_;
    my $words = delete $options{words} // 'timeout=5s prefix=p' . ++$prefixes . ':';
    my ($http, $server) = ('', '');
    for my $mode (qw(open closed local)) {
        my $zone = "rate_limit_zone \$http_x_client redis=fleet deny_cache=off on_error=$mode";
        $http .= "$zone zone=$mode:1m rate=3r/d;\n$zone zone=more_$mode:1m rate=5r/d algorithm=token_bucket;\n"
            . "$zone zone=most_$mode:1m rate=9r/d algorithm=sliding_log;\n";
        $server .= "location = /one/$mode { rate_limit zone=$mode; empty_gif; }\n"
            . "location = /two/$mode { rate_limit zone=$mode; rate_limit zone=more_$mode; empty_gif; }\n"
            . "location = /three/$mode { rate_limit zone=$mode; rate_limit zone=more_$mode; rate_limit zone=most_$mode; empty_gif; }\n";
    }
    return start_nginx(
        port   => $port,
        http   => "keepalive_requests 1000000;\nrate_limit_redis fleet $url $words;\n$http",
        server => <<"SERVER",
add_header X-Status \$rate_limit_status always;
add_header X-Store \$rate_limit_store always;
add_header X-Error \$rate_limit_error always;
$server
SERVER
        %options,
    );
}

sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status}, $answer->header('X-Store') // '-';
}

# Returns "STATUS STORE" of $count requests of a client.
sub ask {
    my ($nginx, $client, $count, $path) = @_;
    return join ', ', map { seen($nginx->get($path // '/one/closed', 'X-Client' => $client)) } 1 .. $count;
}

# Returns the results of requests that a worker processes in one turn, [ PATH, CLIENT ] each; errors in parentheses.
sub at_once {
    my ($nginx, @requests) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } @requests;
    my $go_on = hold_worker($nginx);
    $connections[$_]->request('GET', $requests[$_][0], [ 'X-Client' => $requests[$_][1] ]) for 0 .. $#requests;
    $go_on->();
    await_answers(20, @connections) or return 'no answer';
    my %count;
    for my $answer (map { $_->answers } @connections) {
        my $error = $answer->header('X-Error');
        $count{ seen($answer) . ($error ? " ($error)" : '') }++;
    }
    return join ', ', map {"$count{$_} x $_"} sort keys %count;
}

# Returns how many client keys a node has.
sub keys_at {
    my ($node) = @_;
    return scalar @{ $node->command('KEYS', '*{*') };
}

sub nothing_worse {
    my ($nginx) = @_;
    my @lines = grep { /\[(?:error|alert|crit|emerg)\]|exited on signal/ && !/limiting requests/ } split /\n/, $nginx->error_log;
    is join("\n", @lines), '', 'no error is logged';
    return;
}

my $enforced = '200 redis, 200 redis, 200 redis, 429 redis';

subtest 'one seed that answers is enough' => sub {
    my $down = start_fake(mode => 'refuse');
    my $dead = '127.0.0.1:' . $down->port;
    my $all  = $cluster->url;
    my %seeds = (
        'all nodes'                    => $all,
        'a master'                     => $cluster->url(nodes => [ $masters[1] ]),
        'a replica'                    => $cluster->url(nodes => [ $cluster->replicas($masters[2]) ]),
        'a seed that is down, and a working one' => $cluster->url(nodes => [ $masters[0] ]) =~ s{//}{//$dead,}r,
        'a working seed, and one that is down' => $cluster->url(nodes => [ $masters[0] ]) . ",$dead",
        'two seeds that are down'      => $cluster->url(nodes => [ $masters[2] ]) =~ s{//}{//$dead,$dead,}r,
        'a name'                       => 'redis+cluster://localhost:' . $masters[1]->port,
    );
    for my $seeds (sort keys %seeds) {
        my $nginx = start($seeds{$seeds});
        is ask($nginx, client_of($_), 4), $enforced, "$seeds: clients of " . $_->port for @masters;
        $nginx->stop;
    }
};

subtest 'a seed that does not answer is skipped' => sub {
    my $mute  = start_fake(mode => 'mute');
    my $url   = $cluster->url(nodes => [ $masters[0] ]) =~ s{//}{'//127.0.0.1:' . $mute->port . ','}er;
    my $nginx = start($url, words => 'timeout=300ms connect_timeout=300ms prefix=mute:');
    my $began = spare_time();
    my $first = $nginx->get('/one/open', 'X-Client' => new_client());
    is $first->{status}, 200, 'the first request is served';
    cmp_ok spare_time() - $began, '<', 1, 'within timeout=';
    $nginx->stop;
    $nginx = start($url, words => 'timeout=10s connect_timeout=1s prefix=patient:');
    wait_for('another seed', sub { !grep { seen($nginx->get('/one/open', 'X-Client' => client_of($_))) ne '200 redis' } @masters });
    is ask($nginx, client_of($_), 4), $enforced, 'another seed is asked' for @masters;
    $nginx->stop;
};

my $nginx = start($cluster->url, workers => 2, words => 'timeout=5s');

subtest 'keys are at the node of their slot, with the documented names' => sub {
    $_->command('FLUSHALL') for @masters;
    my @names = map { new_client() } 1 .. 60;
    is ask($nginx, $_, 1, '/two/closed'), '200 redis', $_ for @names;
    my (%count, @missing);
    for my $client (@names) {
        for my $key ("rate_limit:closed:sliding_window:{$client}", "rate_limit:more_closed:token_bucket:{$client}") {
            my $node = $cluster->node_of($key);
            $count{ $node->port }++;
            push @missing, $key if !$node->command('EXISTS', $key);
        }
    }
    is "@missing", '', 'every key is at its node';
    is_deeply { map { $_->port => keys_at($_) } @masters }, \%count, 'there are no other keys';
    cmp_ok $count{ $_->port }, '>', 10, 'each node has more than ten keys' for @masters;
    my ($client) = @names;
    my $slot = $cluster->slot_of("{$client}");
    is $cluster->owner($slot)->command('CLUSTER', 'COUNTKEYSINSLOT', $slot), 2, 'zones of a client share a slot';
};

subtest 'names with braces' => sub {
    # A name that begins with } would leave its keys without a hash tag, so its digest is used.
    my @names = ('}', '}{', '}x', '}}', '{', '{{', 'a}b', 'a{b}c', '{a}', 'a}', '{}', '{}x', 'a b', '"', "\x7d\x01\x02\x03", "\xff\xfe",
        'sha256:x', '}' x 200, 'x' x 200);
    my $other = start($cluster->url, port => $second_port);
    $_->command('FLUSHALL') for @masters;
    for my $name (@names) {
        my $title = length $name > 100 ? substr($name, 0, 1) . '…' : $name =~ s/([^ -~])/sprintf '\x%02x', ord $1/ger;
        is ask($other, $name, 4, '/three/closed'), $enforced, $title;
    }
    is sum0(map { keys_at($_) } @masters), 3 * @names, 'three keys each';
    nothing_worse($other);
    $other->stop;
};

subtest 'zones of one client are one atomic call' => sub {
    for my $node (@masters) {
        my $client = client_of($node);
        ask($nginx, client_of($node), 1) for 1 .. 4;    # both workers have loaded the script
        $cluster->reset_stats;
        my $monitor = $node->monitor;
        is ask($nginx, $client, 5, '/three/closed'), "$enforced, 429 redis", 'three zones';
        is $node->commandstats('evalsha'), 5, 'five requests, five calls';
        is $cluster->total('evalsha'),     5, 'other nodes get no calls';
        my @calls = grep { uc $_->{words}[0] eq 'EVALSHA' } $monitor->commands;
        is scalar(grep {/\{$client\}/} @{ $calls[0]{words} }), 3, 'each names three keys';
        is ask($nginx, $client, 1, '/two/open'), '200 redis', 'two zones of a client';
        is $cluster->total('evalsha'), 6, 'two zones are one call';
    }
};

subtest 'a script that a node has lost is loaded again' => sub {
    $_->command('SCRIPT', 'FLUSH') for @masters;
    is ask($nginx, client_of($_), 4), $enforced, 'clients are limited as before' for @masters;
};

subtest 'many clients in one turn' => sub {
    my $other = start($cluster->url, port => $second_port);
    ask($other, client_of($_), 1) for @masters;
    my @requests = map { [ '/two/closed', $_ ] } map { (new_client()) x 5 } 1 .. 40;
    is at_once($other, @requests), '120 x 200 redis, 80 x 429 redis', 'each request gets its own answer';
    my ($slot) = $cluster->slots($masters[0]);
    @requests = map { [ '/one/closed', $_ ] } map { (client_in($slot)) x 4 } 1 .. 3;
    is at_once($other, @requests), '9 x 200 redis, 3 x 429 redis', 'requests of one slot get their own answers';
    nothing_worse($other);
    $other->stop;
};

subtest 'MOVED: a slot moves to another node' => sub {
    my ($from, $to) = @masters;
    my @slots = ($cluster->slots($from))[ 10 .. 29 ];
    my @names = map { client_in($_) } @slots;
    is ask($nginx, $_, 2, '/two/closed'), '200 redis, 200 redis', 'before' for @names;
    $cluster->move_slots($to, @slots);
    for my $place (0 .. $#slots) {
        is ask($nginx, $names[$place], 2, '/two/closed'), '200 redis, 429 redis',
            "slot $slots[$place]: the count continues";
        is $cluster->owner($slots[$place])->port, $to->port, 'the key is at the other node';
    }
    $cluster->move_slots($from, @slots);
    is ask($nginx, $_, 1, '/two/closed'), '429 redis', 'the count continues after a move back' for @names;
    nothing_worse($nginx);
};

subtest 'MOVED: a replica takes over' => sub {
    my $old     = $masters[2];
    my @names   = map { client_of($old) } 1 .. 5;
    is ask($nginx, $_, 2), '200 redis, 200 redis', 'before' for @names;
    $old->await_replicas($cluster->replicas($old));
    my $new = $cluster->failover($old);
    is ask($nginx, $_, 2), '200 redis, 429 redis', 'the count continues' for @names;
    is $cluster->failover($new)->port, $old->port, 'a failover back';
    is ask($nginx, $_, 1), '429 redis', 'the count continues after a failover back' for @names;
    nothing_worse($nginx);
};

# Returns the times at which an nginx asked a node for the slot map, by the clock of Redis.
sub questions {
    my (@monitors) = @_;
    my @times = sort { $a <=> $b }
        map { $_->{time} } grep { uc $_->{words}[0] eq 'CLUSTER' && $_->{client} =~ /^127/ } map { $_->commands } @monitors;
    return @times;
}

subtest 'the slot map is loaded at most every 100 ms' => sub {
    my $rates = 'p' . ($prefixes + 1) . ':rates';
    my $other_asks = $cluster->node_of($rates)->monitor;
    my $other = start($cluster->url, port => $second_port);
    # When nginx asks for changed rates, it has also loaded the slot map for its background tasks: their slots do not
    # move.
    $other_asks->wait_for(qr/"EVAL" .*"\Q$rates\E"/);
    my ($from, $to) = @masters;
    my $fixed = $cluster->slot_of($rates);
    my @slots = grep { $_ != $fixed } ($cluster->slots($from))[ 100 .. 249 ];
    my @names = map { client_in($_) } @slots;
    is_deeply [ grep { $_ ne '200 redis' } map { ask($other, $_, 1) } @names ], [], 'before';
    my @monitors = map { $_->monitor } $cluster->nodes;
    my @answers;
    $cluster->move_slots($to, @slots, sub { push @answers, ask($other, $names[@answers], 1) });
    my @asked = questions(@monitors);
    is scalar(grep { $_ eq '200 redis' } @answers), @slots, 'each slot is used at its new node at once';
    cmp_ok scalar @asked, '>=', 1, 'the slot map was loaded again (' . @asked . ' times)';
    # Redis may receive the first question late, but before the second is sent: all intervals but the first are at least
    # 100 ms. One more question covers the resolution of the clocks.
    my $took = $asked[-1] - $asked[0];
    cmp_ok scalar @asked, '<=', 3 + $took / 0.1, sprintf 'the slot map was not loaded each time: %d questions in %.2f s of Redis', scalar @asked, $took;
    $cluster->move_slots($from, @slots);
    nothing_worse($other);
    $other->stop;
};

subtest 'ASK: a migrating slot' => sub {
    my ($from, $to) = @masters[ 1, 2 ];
    for my $forgotten (0, 1) {
        my $slot  = ($cluster->slots($from))[ 50 + $forgotten ];
        my $title = $forgotten ? 'a new node without the script' : 'a new node';
        my ($old, $new) = map { client_in($slot) } 1, 2;
        my ($old_key, $new_key) = map {"rate_limit:closed:sliding_window:{$_}"} $old, $new;
        is ask($nginx, $old, 1), '200 redis', "$title: an existing client";
        ask($nginx, client_of($to), 1) for 1 .. 4;
        $cluster->begin_move($slot, $to);
        $to->command('SCRIPT', 'FLUSH') if $forgotten;
        my $asking = $to->commandstats('asking');
        is ask($nginx, $old, 1), '200 redis', "$title: an existing key stays at the old node";
        is $to->commandstats('asking'), $asking, "$title: its key is at the old node";
        is ask($nginx, $new, 3), '200 redis, 200 redis, 200 redis', "$title: a new client is served";
        my @found = map { join ' ', @{ $_->command('CLUSTER', 'GETKEYSINSLOT', $slot, 9) } } $from, $to;
        is_deeply \@found, [ $old_key, $new_key ], "$title: the key of the new client is at the new node";
        $cluster->move_keys($slot, $old_key);
        is ask($nginx, $old, 2), '200 redis, 429 redis', "$title: the existing client follows its key";
        is ask($nginx, $new, 1), '429 redis', "$title: the new client is rejected at its limit";
        $cluster->finish_move($slot);
        is ask($nginx, $_, 1), '429 redis', "$title: the same after the migration" for $old, $new;
    }
    nothing_worse($nginx);
};

subtest 'ASK: many clients at once' => sub {
    my $other = start($cluster->url, port => $second_port);
    ask($other, client_of($_), 1) for @masters;
    my ($from, $to) = @masters[ 1, 2 ];
    my $slot  = ($cluster->slots($from))[60];
    my @names = map { client_in($slot) } 1 .. 6;
    is at_once($other, map { [ '/one/closed', $_ ] } @names[ 0 .. 2 ]), '3 x 200 redis', 'three that stay';
    $cluster->begin_move($slot, $to);
    my @both = map { ($_) x 3 } @names;
    is at_once($other, map { [ '/one/closed', $_ ] } @both), '15 x 200 redis, 3 x 429 redis',
        'with three new clients: no client affects another';
    my @elsewhere = map { client_of($_) } @masters;
    is at_once($other, map { [ '/one/closed', $_ ] } @elsewhere, @names), '3 x 200 redis, 6 x 429 redis',
        'together with clients of other slots';
    $cluster->finish_move($slot);
    is at_once($other, map { [ '/one/closed', $_ ] } @names), '6 x 429 redis', 'the same after the migration';
    nothing_worse($other);
    $other->stop;
};

subtest 'TRYAGAIN: on_error applies to two zones of a client whose slot migrates' => sub {
    my ($from, $to) = @masters[ 1, 2 ];
    my $slot = ($cluster->slots($from))[70];
    my ($old, $split) = map { client_in($slot) } 1, 2;
    is ask($nginx, $_, 1, '/two/closed'), '200 redis', 'clients of before' for $old, $split;
    $cluster->begin_move($slot, $to);
    $cluster->move_keys($slot, "rate_limit:closed:sliding_window:{$split}");
    my %goes = (
        open   => join(', ', ('200 fallback') x 4),
        closed => join(', ', ('503 fallback') x 4),
        local  => '200 fallback, 200 fallback, 200 fallback, 429 fallback',
    );
    for my $mode (sort keys %goes) {
        my $new = client_in($slot);
        is ask($nginx, $new, 4, "/two/$mode"), $goes{$mode}, "a new client: $mode";
        my $answer = $nginx->get("/two/$mode", 'X-Client' => client_in($slot));
        ok $answer->header('X-Error'), "$mode: " . ($answer->header('X-Error') // 'nothing');
        is $answer->header('X-Status'), 'ERROR', "$mode: \$rate_limit_status" if $mode ne 'local';
        # Requests that memory has admitted are not admitted again, although Redis does not count them yet.
        my $one = $mode eq 'local' ? join(', ', ('429 fallback') x 4) : $enforced;
        is ask($nginx, $new, 4, "/one/$mode"), $one, "$mode: one zone is decided, and was not charged before";
    }
    is ask($nginx, $split, 1, '/two/closed'), '503 fallback', 'a client with one key moved';
    is ask($nginx, $old,   2, '/two/closed'), '200 redis, 200 redis',
        'a client with all keys at one node is limited as before';
    is ask($nginx, client_of($from), 4, '/two/closed'), $enforced,
        'clients of other slots of the node are limited as before';
    is ask($nginx, client_of($to),   4, '/two/closed'), $enforced, 'clients of the other node are limited as before';
    $cluster->finish_move($slot);
    is ask($nginx, $split, 3, '/two/closed'), '200 redis, 200 redis, 429 redis',
        'after the migration, nothing was charged without effect';
    is ask($nginx, $old,   1, '/two/closed'), '429 redis', 'after the migration, the old client is rejected';
    my $lines = () = $nginx->error_log =~ /\[error\] .*redis "fleet" \S+: tryagain \(.*TRYAGAIN/g;
    cmp_ok $lines, '>=', 1, 'the log has the reason';
    cmp_ok $lines, '<=', 4, 'the log does not have each failure';
};

subtest 'TRYAGAIN of one slot does not affect other clients' => sub {
    my ($from, $to) = @masters[ 1, 2 ];
    my $slot = ($cluster->slots($from))[80];
    $cluster->begin_move($slot, $to);
    my $other = start($cluster->url, port => $second_port);
    my %seen;
    for my $round (1 .. 20) {
        $seen{ ask($other, client_in($slot), 1, '/two/open') }++;
        $seen{"other: " . ask($other, client_of($_), 1, '/two/open')}++ for $from, $to;
    }
    is_deeply \%seen, { '200 fallback' => 20, 'other: 200 redis' => 40 }, 'only the affected requests fail';
    %seen = ();
    my $answers = ask($other, client_in($slot), 20, '/two/closed');
    unlike $answers, qr/redis/, 'twenty failures in a row';
    is ask($other, $_, 1, '/two/closed'), '200 redis',
        'other clients are decided afterwards' for map { client_of($_) } $from, $to, $masters[0];
    is ask($other, client_in($slot), 4), $enforced, 'clients of the slot with one zone are decided';
    $cluster->finish_move($slot);
    $other->stop;
};

subtest 'new workers take over under load' => sub {
    my $other = start($cluster->url, port => $second_port, workers => 2);
    my @names = map { $cluster->clients_of($_, 20) } @masters;
    my $load  = start_load(ports => [$second_port], requests => [ map { [ '/two/closed', 'X-Client' => $_ ] } @names ]);
    for my $round (1 .. 3) {
        $load->wait_for(200, 'more');
        $other->signal('HUP');
        my $pattern = 'gracefully shutting down';
        wait_for("reload $round", sub { (() = $other->error_log =~ /$pattern/g) >= 2 * $round });
    }
    $load->wait_for(200, 'more');
    my @answers = grep { $_->{status} } $load->stop;    # an idle connection is closed
    is scalar(grep { "$_->{status} $_->{store}" !~ /^(?:200|429) redis$/ } @answers), 0, 'no client sees an error';
    my %admitted;
    $admitted{ $_->{request} }++ for grep { $_->{status} == 200 } @answers;
    is join(' ', values %admitted), join(' ', (3) x 60), 'each client is admitted exactly its limit';
    nothing_worse($other);
    $other->stop;
};

subtest 'workers start and exit' => sub {
    my %conf = (workers => 3);
    my $other = start($cluster->url, port => $second_port, %conf);
    my @before = map { $_->clients } @masters;
    for my $round (1 .. 3) {
        ask($other, client_of($_), 4) for @masters;
        kill 'KILL', ($other->workers)[0];
    }
    is ask($other, client_of($_), 4), $enforced, 'after three workers were killed' for @masters;
    $other->signal('QUIT');
    $other->wait_for_log(qr/signal 3 .*exit|\bexit$/m);
    $other->stop;
    wait_for('connections to be closed', sub { sum0(map { $_->clients } @masters) <= sum0(@before) });
    my @lines = grep { /\[(?:error|alert|crit|emerg)\]/ && !/exited on signal 9|limiting/ } split /\n/, $other->error_log;
    is join("\n", @lines), '', 'no connection is leaked';
};

$nginx->stop;
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
