# sync= uses the native module of Redis where it is loaded: an instance with the module and one with the script learn of
# each other's requests.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Native qw(native_module ask);
use RateLimit::Parallel ();
use RateLimit::Redis qw(start_redis);
use Test::More;

my @algorithms = grep { $_ ne 'sliding_log' } @RateLimit::Parallel::algorithms;
my $redis      = start_redis(config => 'loadmodule ' . native_module());

sub start {
    my ($options) = @_;
    my $http   = "rate_limit_log_level info;\nrate_limit_redis fleet @{[ $redis->url ]} $options;\n";
    my $server = '';
    for my $name (@algorithms) {
        my $burst = $name eq 'gcra' || $name eq 'leaky_bucket' ? 'burst=4' : '';
        $http   .= "rate_limit_zone \$http_x_client zone=$name:1m algorithm=$name rate=5r/h $burst redis=fleet sync=50ms;\n";
        $server .= "location = /$name { rate_limit zone=$name" . ($name eq 'leaky_bucket' ? ' nodelay' : '') . "; empty_gif; }\n";
    }
    return start_nginx(http => $http, server => $server);
}

my $native = start('native=on');
my $script = start('native=off');
for my $zone (@algorithms) {
    for my $case ([ $native, $script, 'a' ], [ $script, $native, 'b' ]) {
        my ($first, $second, $client) = @$case;
        my $way = $client eq 'a' ? 'from the module to the script' : 'from the script to the module';
        is ask($first, $zone, $client, 6), '200 200 200 200 200 429', "$zone: an instance admits five requests";
        ok wait_for('a sync call', sub { ask($second, $zone, $client, 1) eq '429' }), "the other learns of them, $way";
    }
}
# nginx sends each client once in a call. A client that is sent twice must not stay in a replica for ever.
my $replica = start_redis(replicaof => $redis);
my $monitor = $redis->monitor;
ask($native, 'fixed_window', 'c', 1);
$monitor->wait_for(qr/"RATELIMIT\.SYNC"/);
my ($call) = grep { $_->{words}[0] eq 'RATELIMIT.SYNC' } $monitor->commands;
my ($policies, $entries) = @{ $call->{words} }[ -4, -3 ];
my @twice = ('rate_limit:twice') x 2;
$redis->command('RATELIMIT.SYNC', 3, @twice, 'rate_limit:guard', $policies, substr($entries, 0, 8) x 2, 1, 0);
$redis->await_replicas($replica);
cmp_ok $redis->command('PEXPIRETIME', $twice[0]), '>', 0, 'a client that a call has twice expires';
for my $ask (qw(GET PEXPIRETIME)) {
    is $replica->command($ask, $twice[0]), $redis->command($ask, $twice[0]), "$ask: the same in a replica";
}

cmp_ok $redis->commandstats('ratelimit.sync'), '>', 0, 'the module has synchronised';
cmp_ok $redis->commandstats('evalsha'), '>', 0, 'and so has the script';
unlike $native->error_log . $script->error_log, qr/\[(?:warn|error|alert|crit|emerg)\]/, 'nothing is logged';

done_testing;
