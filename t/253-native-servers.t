# With the native module of Redis, ACLs, maxmemory, replicas, the AOF and clusters mean what they mean with the script.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Native qw(native_module start_native ask is_native key_of);
use RateLimit::Parallel qw(@algorithms);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $so   = native_module();
my $load = "loadmodule $so\n";

subtest 'a user without the command uses the script' => sub {
    my $rights = 'on >secret ~rate_limit:* +evalsha +script|load +mget +set +del +time +select +eval +hmget +zrangebyscore +exists';
    my $redis  = start_redis(config => $load, acl => "nginx $rights\nnative $rights +ratelimit.check");
    my $nginx  = start_native($redis->url(user => 'nginx', password => 'secret'), 3);
    is ask($nginx, 'gcra', 'a', 4), '200 200 200 429', 'the limit holds';
    ok !is_native($nginx), 'by the script';
    unlike $nginx->error_log, qr/\[(?:warn|error|alert|crit|emerg)\]/, 'nothing is logged';
    my $native = start_native($redis->url(user => 'native', password => 'secret'), 3);
    is ask($native, 'gcra', 'b', 4), '200 200 200 429', 'a user with the command';
    ok is_native($native), 'uses the module';
    my $client = $redis->connect(plain => 1);
    $client->command('AUTH', 'native', 'secret');
    for my $words ([ '1', 'other', '', '' ], [ '2', 'rate_limit:a', 'other', '', '' ]) {
        my $answer = eval { $client->command('RATELIMIT.CHECK', @$words) } // $@;
        like $answer, qr/NOPERM/, 'a key of other patterns is denied';
    }
};

subtest 'a user that must not write' => sub {
    my $valkey = start_redis(server => 'valkey', config => $load);
    for my $words ([ 'RATELIMIT.CHECK', '1', 'a', '', '' ], [ 'RATELIMIT.SYNC', '1', 'a', '', '', '1', '1' ]) {
        for my $category (qw(write fast)) {
            $valkey->command('ACL', 'SETUSER', 'user', 'reset', '~*', '+@all', '-@' . $category);
            like $valkey->command('ACL', 'DRYRUN', 'user', @$words), qr/no permissions to run/,
                "a user without \@$category may not call $words->[0]";
        }
    }
};

subtest 'a full Redis refuses a check' => sub {
    my $redis = start_redis(config => $load);
    my $nginx = start_native($redis, 3);
    is ask($nginx, 'gcra', 'a', 2), '200 200', 'it decides while there is memory';
    $redis->command('CONFIG', 'SET', 'maxmemory', '1');
    is ask($nginx, 'gcra', 'a', 2), '200 200', 'then on_error=open decides';
    like $nginx->get('/metrics')->{body}, qr/rate_limiter_redis_errors_total\{redis="fleet",reason="oom"\} [1-9]/, 'since the memory is exhausted';
    $redis->command('CONFIG', 'SET', 'maxmemory', '0');
    ok wait_for('Redis to decide', sub { ask($nginx, 'gcra', 'a', 1) eq '429' }), 'Redis decides again, and has not charged more';
};

subtest 'a replica without the module continues exactly' => sub {
    my $redis   = start_redis(config => $load);
    my $replica = start_redis(replicaof => $redis);
    my $nginx   = start_native($redis, 5);
    ask($nginx, $_, 'a', 3) for @algorithms;
    ok is_native($nginx), 'the module decides';
    $redis->await_replicas($replica);
    is $replica->commandstats('ratelimit.check'), 0, 'the replica gets no command of the module';
    for my $zone (@algorithms) {
        my $key = key_of($zone, 'a');
        is_deeply [ map { $replica->command($_, $key) } qw(GET PEXPIRETIME) ], [ map { $redis->command($_, $key) } qw(GET PEXPIRETIME) ],
            "$zone: the replica has the same value and expiry";
    }
    $replica->command('REPLICAOF', 'NO', 'ONE');
    my $next = start_native($replica, 5);
    is ask($next, $_, 'a', 3), '200 200 429', "$_ continues after the promotion" for @algorithms;
};

subtest 'the AOF restores what the module wrote' => sub {
    my $redis = start_redis(config => "${load}appendonly yes\nappendfsync always\n");
    my $nginx = start_native($redis, 5);
    ask($nginx, $_, 'a', 3) for @algorithms;
    my %before = map {
        my $key = key_of($_, 'a');
        ($key => [ map { $redis->command($_, $key) } qw(GET PEXPIRETIME) ])
    } @algorithms;
    $redis->kill;
    $redis->restart;
    for my $key (sort keys %before) {
        is_deeply [ map { $redis->command($_, $key) } qw(GET PEXPIRETIME) ], $before{$key}, "$key is restored";
    }
};

subtest 'a cluster whose nodes have the module, or not' => sub {
    my $cluster = start_cluster(replicas => 0, config => "enable-module-command yes\n");
    my @masters = $cluster->masters;
    $_->command('CONFIG', 'RESETSTAT') for @masters;
    $_->command('MODULE', 'LOAD', $so) for @masters[ 0, 1 ];
    my $nginx = start_native($cluster->url, 3);
    for my $client (1 .. 30) {
        is ask($nginx, 'sliding_window', $client, 4), '200 200 200 429', "client $client gets its limit";
    }
    my @native = map { $_->commandstats('ratelimit.check') } @masters;
    ok $native[0] > 10 && $native[1] > 10, 'two nodes decide by the module';
    is $native[2], 0, 'the third does not know the command' or diag "@native";
    ok $masters[2]->commandstats('evalsha') > 10, 'and decides by the script';
};

done_testing;
