# In a cluster with the native module, each client keeps its limit while slots move, and after a failover.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Native qw(native_module is_native key_of);
use Test::More;

my $cluster = start_cluster(node_timeout => 60_000, config => 'loadmodule ' . native_module() . "\n");
my $nginx   = start_nginx(
    log_level => 'notice',
    http      => <<"HTTP",
rate_limit_log_level info;
rate_limit_redis fleet @{[ $cluster->url ]} timeout=20s native=on;
rate_limit_zone \$http_x_client zone=first:1m rate=3r/d algorithm=fixed_window redis=fleet deny_cache=off on_error=closed;
rate_limit_zone \$http_x_client zone=second:1m rate=9r/d algorithm=fixed_window redis=fleet deny_cache=off on_error=closed;
HTTP
    server => <<'SERVER',
location = /alone    { rate_limit zone=first; empty_gif; }
location = /together { rate_limit zone=first; rate_limit zone=second; empty_gif; }
location /api/ { rate_limit_api; }
SERVER
);

sub ask {
    my ($path, $client, $count) = @_;
    return join ' ', map { $nginx->get($path, 'X-Client' => $client)->{status} } 1 .. $count;
}

my ($from, $to) = $cluster->masters;

subtest 'a node redirects a command with a key of another node' => sub {
    my ($slot) = $cluster->slots($from);
    my ($client) = $cluster->clients_in($slot);
    my $key     = key_of('first', $client);
    my $keys    = { 'RATELIMIT.CHECK' => [ '', '' ], 'RATELIMIT.SYNC' => [ '', '', 1, 1 ] };
    my $elsewhere = $to->connect(plain => 1);
    for my $command (sort keys %$keys) {
        $elsewhere->send($command, 1, $key, @{ $keys->{$command} });
        is $elsewhere->receive, "MOVED $slot 127.0.0.1:" . $from->port, "$command: MOVED";
    }
    $cluster->begin_move($slot, $to);
    my $source = $from->connect(plain => 1);
    for my $command (sort keys %$keys) {
        $source->send($command, 1, $key, @{ $keys->{$command} });
        is $source->receive, "ASK $slot 127.0.0.1:" . $to->port, "$command: ASK for a key that has moved";
    }
    $cluster->cancel_move($slot);
};

for my $path (qw(/alone /together)) {
    subtest "$path: slots move" => sub {
        my @slots   = ($cluster->slots($from))[ 10 .. 19 ];
        my @clients = map { $cluster->clients_in($_) } @slots;
        is ask($path, $_, 1), '200', 'before' for @clients;
        ok is_native($nginx), 'the module decides';
        $cluster->begin_move($slots[$_], $to) for 0 .. $#slots;
        is ask($path, $_, 1), '200', 'while the slot moves, its keys being at the old node' for @clients;
        $cluster->move_keys($_) for @slots;
        is ask($path, $_, 1), '200', 'its keys being at the new node' for @clients;
        $cluster->finish_move($_) for @slots;
        is ask($path, $_, 1), '429', 'after the move' for @clients;
        $cluster->move_slots($from, @slots);
        is ask($path, $_, 1), '429', 'after a move back' for @clients;
    };

    subtest "$path: a failover" => sub {
        my $old     = ($cluster->masters)[2];
        my @clients = $cluster->clients_of($old, 5);
        is ask($path, $_, 2), '200 200', 'before' for @clients;
        $old->await_replicas($cluster->replicas($old));
        my $new = $cluster->failover($old);
        is ask($path, $_, 2), '200 429', 'the new master continues the count' for @clients;
        ok wait_for('the module', sub { ask($path, $clients[0], 1); is_native($nginx) }), 'by the module';
    };
}

unlike $nginx->error_log, qr/\[(?:warn|error|alert|crit|emerg)\]/, 'nothing is logged';

done_testing;
