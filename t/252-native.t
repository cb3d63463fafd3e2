# The native module of Redis and Valkey: nginx finds, uses, loses and regains it without a wrong decision.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config wait_for);
use RateLimit::Async qw(await_answers request_text);
use RateLimit::Native qw(native_module start_native ask is_native stays_loaded);
use RateLimit::Parallel qw(in_parallel @algorithms);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(sleep time);

my $so   = native_module();
my $load = "loadmodule $so\n";
my $free = "enable-module-command yes\n";

for my $kind (qw(redis valkey)) {
    subtest "$kind decides by the module" => sub {
        my $redis = start_redis(server => $kind, config => $load);
        my $nginx = start_native($redis, 3);
        ask($nginx, 'gcra', 'first', 1);
        $redis->command('CONFIG', 'RESETSTAT');
        for my $zone (@algorithms) {
            is ask($nginx, $zone, 'a', 5), '200 200 200 429 429', "$zone admits three requests";
        }
        is $redis->commandstats('ratelimit.check'), 5 * @algorithms, 'every check is the command';
        is $redis->commandstats('evalsha'), 0, 'no check is the script';
        ok is_native($nginx), 'the API shows the module';
        like $nginx->get('/metrics')->{body}, qr/^rate_limiter_redis_native\{redis="fleet"\} 1$/m, 'and so do the metrics';
        my $other = start_native($redis, 3, options => 'native=off');
        for my $zone (@algorithms) {
            is ask($other, $zone, 'a', 1), '429', "$zone: an instance with native=off shares the clients";
        }
        ok !is_native($other), 'it uses the script';
        is $redis->commandstats('evalsha'), scalar(@algorithms), 'for each of its checks';
        unlike $nginx->error_log . $other->error_log, qr/\[(?:warn|error|alert|crit|emerg)\]/, 'nothing is logged';
    };
}

subtest 'native=on reports a server without the module' => sub {
    my $redis = start_redis();
    my $nginx = start_native($redis, 3, options => 'native=on');
    is ask($nginx, 'gcra', 'a', 4), '200 200 200 429', 'the script decides';
    ok $nginx->wait_for_log(qr/native=on, but the server does not have the native module.*; no request is affected/), 'the log says so';
    ok !is_native($nginx), 'and the API';
    my $silent = start_native($redis, 3);
    is ask($silent, 'gcra', 'b', 4), '200 200 200 429', 'native=auto uses the script too';
    unlike $silent->error_log, qr/native/, 'and logs nothing';
};

subtest 'the module is unloaded and loaded under load' => sub {
    my ($limit, $clients, $each) = (40, 24, 16);
    my $redis = start_redis(config => "$load$free");
    if (stays_loaded($redis)) {
        my $unloaded = eval { $redis->command('MODULE', 'UNLOAD', 'ratelimit'); 1 };
        ok !$unloaded, 'on Redis 8, the module stays';
        like $@, qr/Error unloading module: operation not possible/, 'and Redis says so';
        return;
    }
    my $nginx = start_native($redis, $limit, workers => 2);
    my $run   = 0;
    my $ask   = sub {
        my %count;
        my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. $each;
        for my $client (1 .. $clients) {
            for my $zone (@algorithms) {
                $_->raw(request_text('GET', "/$zone", [ 'X-Client' => $client ]), 'GET') for @connections;
            }
            await_answers(60, @connections) or $count{late}++;
            for my $answer (map { $_->answers } @connections) {
                $count{ $answer->{status} . ' by ' . ($answer->header('X-Store') // 'none') }++;
            }
        }
        return \%count;
    };
    my $changes = 0;
    my $count   = in_parallel(
        4, $ask,
        sub {
            my $end = time + 4;
            while (time < $end) {
                $redis->command($changes++ % 2 ? ('MODULE', 'LOAD', $so) : ('MODULE', 'UNLOAD', 'ratelimit'));
                sleep 0.05;
            }
        }
    );
    my $asked = 4 * $each * $clients * @algorithms;
    is_deeply $count, { '200 by redis' => $limit * $clients * @algorithms, '429 by redis' => $asked - $limit * $clients * @algorithms },
        "each client gets $limit of @{[ 4 * $each ]} requests, and Redis decides all";
    cmp_ok $changes, '>', 10, "while the module comes and goes $changes times";
    unlike $nginx->error_log, qr/\[(?:warn|error|alert|crit|emerg)\]/, 'nothing is logged';
};

subtest 'nginx finds a module that is loaded later' => sub {
    my $redis = start_redis(config => $free);
    my $nginx = start_native($redis, 1000);
    ask($nginx, 'gcra', 'a', 1);
    ok !is_native($nginx), 'the script decides at first';
    $redis->command('MODULE', 'LOAD', $so);
    ok wait_for('the module', sub { ask($nginx, 'gcra', 'a', 1); is_native($nginx) }), 'then the module';
    return if stays_loaded($redis);
    $redis->command('MODULE', 'UNLOAD', 'ratelimit');
    is ask($nginx, 'gcra', 'a', 1), '200', 'a request after its end is decided';
    ok !is_native($nginx), 'by the script';
};

like check_config(http => 'rate_limit_redis fleet redis://127.0.0.1 native=yes;')->{stderr}, qr/invalid value "native=yes", it must be auto, on or off/,
    'a wrong value is refused';

done_testing;
