# One call to a node has the checks of many clients; while slots move, each client is checked alone, and charged once.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(await_answers);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Load qw(start_load);
use RateLimit::Twins qw(hold_worker);
use Test::More;
use Time::HiRes qw(sleep);

my @ports = split ' ', $ENV{RL_PORTS};
my $limit = 30;
my $least = '~rate_limit:* +evalsha +script|load +mget +set +del +time +cluster|slots +asking';

sub start {
    my ($url, %options) = @_;
    my $zone = "rate_limit_zone \$http_x_client redis=fleet deny_cache=off on_error=closed rate=${limit}r/366d";
    return start_nginx(
        port => $ports[0],
        http => "keepalive_requests 1000000;\naccess_log off;\nrate_limit_log_level info;\n"
            . "rate_limit_redis fleet $url timeout=10s;\n$zone zone=one:1m;\n",
        server => <<'SERVER',
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /plain { empty_gif; }
location = /one { rate_limit zone=one; empty_gif; }
location = /look { rate_limit zone=one cost=0; empty_gif; }
SERVER
        %options,
    );
}

# Returns "STATUS STORE REMAINING" of requests that a worker processes in one turn, one of each client, in order.
sub at_once {
    my ($nginx, $path, @clients) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } @clients;
    $_->request('GET', '/plain', []) for @connections;
    await_answers(20, @connections) or return 'no connection';
    my $go_on = hold_worker($nginx);
    $connections[$_]->request('GET', $path, [ 'X-Client' => $clients[$_] ]) for 0 .. $#clients;
    $go_on->();
    await_answers(20, @connections) or return 'no answer';
    return map { join ' ', $_->{status}, $_->header('X-Store') // '-', $_->header('X-RateLimit-Remaining') // '-' }
        map { ($_->answers)[-1] } @connections;
}

# Returns the calls to the nodes, one node after the other: "DECLARED KEYS/NAMED CLIENTS".
sub calls {
    my (@monitors) = @_;
    my @calls;
    for my $command (map { $_->commands } @monitors) {
        my @words = @{ $command->{words} };
        next if uc $words[0] ne 'EVALSHA';
        my %clients = map { (/\{([^}]*)\}$/ ? ($1 => 1) : ()) } @words[ 3 .. $#words ];
        push @calls, "$words[2]/" . keys %clients;
    }
    return join ', ', @calls;
}

sub remaining {
    my ($nginx, @clients) = @_;
    return join ' ', map { $nginx->get('/look', 'X-Client' => $_)->header('X-RateLimit-Remaining') // '-' } @clients;
}

sub nothing_logged {
    my ($nginx) = @_;
    my @lines = grep { /\[(?:error|alert|crit|emerg)\]|exited on signal/ && !/limiting requests/ } split /\n/, $nginx->error_log;
    is join("\n", @lines), '', 'no error is logged';
    return;
}

for my $kind (qw(redis valkey)) {
    subtest "$kind: many clients in one call" => sub {
        my $cluster = start_cluster(server => $kind, masters => 2, replicas => 0, node_timeout => 60_000);
        my @masters = $cluster->masters;
        my $nginx   = start($cluster->url);
        my @known   = map { $cluster->clients_of($_) } @masters;
        at_once($nginx, '/one', @known);

        my @monitors = map { $_->monitor } @masters;
        my @clients  = map { $cluster->clients_of($_, 20) } @masters;
        is join(', ', at_once($nginx, '/one', @clients)), join(', ', ("200 redis @{[ $limit - 1 ]}") x 40), 'all are admitted';
        is calls(@monitors), '0/20, 0/20', 'each node gets one call';
        undef @monitors;

        # A key that is not a string counts as absent.
        my ($odd, @others) = $cluster->clients_of($masters[0], 3);
        $masters[0]->command('RPUSH', "rate_limit:one:sliding_window:{$odd}", 'x');
        is join(', ', at_once($nginx, '/one', $odd, @others)), join(', ', ("200 redis @{[ $limit - 1 ]}") x 3),
            'the other clients of the call are not affected';
        is remaining($nginx, $odd, @others), join(' ', ($limit - 1) x 3), 'all are charged';
        nothing_logged($nginx);
        $nginx->stop;
    };

    subtest "$kind: a call with a key of a migrating slot changes nothing" => sub {
        my $cluster = start_cluster(server => $kind, masters => 2, replicas => 0, node_timeout => 60_000);
        my ($from, $to) = $cluster->masters;
        my $nginx = start($cluster->url);
        my ($slot)  = $cluster->slots($from);
        my ($moved) = $cluster->clients_in($slot);
        my @clients = ($cluster->clients_of($from, 9), $moved);
        at_once($nginx, '/one', $cluster->clients_of($_)) for $from, $to;

        $cluster->begin_move($slot, $to);
        my ($here, $there) = map { $_->monitor } $from, $to;
        is join(', ', at_once($nginx, '/one', @clients)), join(', ', ("200 redis @{[ $limit - 1 ]}") x 10), 'ASK: nobody notices';
        # MONITOR does not show redirected calls.
        is calls($here), '0/10' . ', 1/1' x 9, 'one call for all clients, then one for each';
        is calls($there), '1/1', 'the moved client at the new node';
        my @written = grep { $_->{client} eq 'lua' && $_->{words}[0] =~ /^(?:set|del)$/i } $here->commands;
        # The module writes the key of the other calls, which declare it, without a command.
        is scalar(@written), $ENV{RL_NATIVE} ? 0 : 9, 'the failed call wrote nothing';
        is remaining($nginx, @clients), join(' ', ($limit - 1) x 10), 'each client is charged once';

        # The worker does not know yet that the slot has moved.
        $cluster->finish_move($slot);
        sleep 1.2;
        is join(', ', at_once($nginx, '/one', @clients)), join(', ', ("200 redis @{[ $limit - 2 ]}") x 10), 'MOVED: nobody notices';
        is remaining($nginx, @clients), join(' ', ($limit - 2) x 10), 'each client is charged once';

        sleep 1.2;
        ($here, $there) = map { $_->monitor } $from, $to;
        is join(', ', at_once($nginx, '/one', @clients)), join(', ', ("200 redis @{[ $limit - 3 ]}") x 10), 'later';
        is calls($here, $there), '0/9, 0/1', 'one call for all clients again';
        nothing_logged($nginx);
        $nginx->stop;
    };

    # Redis 7.4 and later look for such a key in the slot of the command before.
    subtest "$kind: a call with keys that are still in a migrating slot" => sub {
        my $cluster = start_cluster(server => $kind, masters => 2, replicas => 0, node_timeout => 60_000);
        my ($from, $to) = $cluster->masters;
        my $nginx = start($cluster->url);
        my ($slot) = $cluster->slots($from);
        my ($first, $last) = $cluster->clients_in($slot, 2);
        my @clients = ($first, $cluster->clients_of($from, 8), $last);
        at_once($nginx, '/one', $cluster->clients_of($_)) for $from, $to;
        at_once($nginx, '/one', @clients);

        $cluster->begin_move($slot, $to);
        my $here = $from->monitor;
        is join(', ', at_once($nginx, '/one', @clients)), join(', ', ("200 redis @{[ $limit - 2 ]}") x 10), 'all are admitted';
        is calls($here), '0/10', 'by one call';
        is remaining($nginx, @clients), join(' ', ($limit - 2) x 10), 'each client is charged once';
        $cluster->finish_move($slot);
        nothing_logged($nginx);
        $nginx->stop;
    };

    subtest "$kind: slots move while many clients send" => sub {
        my $cluster = start_cluster(server => $kind, masters => 2, replicas => 0, node_timeout => 60_000);
        my ($from, $to) = $cluster->masters;
        my @fleet = map { start($cluster->url, port => $_) } @ports[ 0, 1 ];
        my @slots = ($cluster->slots($from))[ 0 .. 99 ];
        my @names = ((map { $cluster->clients_in($_) } @slots[ 0 .. 29 ]), map { $cluster->clients_of($_, 15) } $from, $to);
        my $load  = start_load(
            ports       => [ map { $_->port } @fleet ],
            requests    => [ map { [ '/one', 'X-Client' => $_ ] } @names ],
            connections => 48,
            pause       => 0.005,
        );
        my $moves = 0;
        while (($load->count < @names * ($limit + 10) || $moves < 2) && $moves < 40) {
            $cluster->move_slots($to, @slots);
            ($from, $to) = ($to, $from);
            $moves++;
        }
        $load->wait_for(@names * ($limit + 10));
        my @answers = $load->stop;
        my (%admitted, %odd);
        for my $answer (@answers) {
            $admitted{ $answer->{request} } += $answer->{status} == 200;
            $odd{"$answer->{status} $answer->{store} $answer->{error}"}++
                if "$answer->{status} $answer->{store}" !~ /^(?:200|429) redis$/;
        }
        note "$moves moves of 100 slots";
        cmp_ok $moves, '>=', 2, 'slots have moved to and fro';
        is_deeply \%odd, {}, 'no client sees an error';
        is_deeply [ grep { $_ != $limit } values %admitted ], [], "each of @{[ scalar keys %admitted ]} is admitted $limit times";
        nothing_logged($_) for @fleet;
        $_->stop for @fleet;
    };

    subtest "$kind: a user without the right to GET" => sub {
        my $cluster = start_cluster(server => $kind, masters => 1, replicas => 0, node_timeout => 60_000,
            acl => "less on >secret $least\nenough on >secret $least +get");
        my ($node) = $cluster->masters;
        my %seen = (less => '0/5' . ', 1/1' x 5, enough => '0/5');
        for my $user (sort keys %seen) {
            my $nginx = start($cluster->url(user => $user, password => 'secret'));
            at_once($nginx, '/one', 'known');
            sleep 1.2 if $user eq 'less';
            my $monitor = $node->monitor;
            is join(', ', at_once($nginx, '/one', map {"$user$_"} 1 .. 5)), join(', ', ("200 redis @{[ $limit - 1 ]}") x 5),
                "$user: limits apply";
            is calls($monitor), $seen{$user}, "$user: calls";
            nothing_logged($nginx);
            $nginx->stop;
        }
    };
}

done_testing;
