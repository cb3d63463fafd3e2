# A sliding_log with very many entries in Redis is exact, is read and written in parts, and slows no other limit.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Redis qw(start_redis);
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};

sub start {
    my ($number, $url) = @_;
    return start_nginx(
        port => $ports[$number],
        http => <<"HTTP",
rate_limit_redis main $url timeout=1h connect_timeout=1h;
rate_limit_zone \$http_x_client zone=large:1m rate=1000000r/h algorithm=sliding_log redis=main deny_cache=off;
rate_limit_zone \$http_x_client zone=small:1m rate=10r/h algorithm=sliding_log redis=main deny_cache=off;
HTTP
        server => <<'SERVER',
add_header X-Store $rate_limit_store always;
location = /large { rate_limit zone=large cost=$arg_cost; empty_gif; }
location = /both { rate_limit zone=large; rate_limit zone=small; empty_gif; }
location /api/ { rate_limit_api write=on; }
SERVER
    );
}

# Returns "STATUS STORE REMAINING" of a request.
sub ask {
    my ($nginx, $path) = @_;
    my $answer = $nginx->get($path, 'X-Client' => 'c');
    return join ' ', $answer->{status}, map { $answer->header($_) // '-' } qw(X-Store X-RateLimit-Remaining);
}

subtest 'exact at any start of the hour' => sub {
    # The clock of Redis is frozen unless the test advances it.
    my $redis = start_redis(clock => 'stopped');
    my $nginx = start(0, $redis->url);
    is ask($nginx, '/large?cost=400000'), '200 redis 600000', 'the first';
    $redis->advance(1800);
    is ask($nginx, '/large?cost=599999'), '200 redis 1', 'the other requests come half an hour later';
    is ask($nginx, '/large?cost=2'),      '429 redis 1', 'a cost of two is rejected if one remains';
    is ask($nginx, '/large?cost=1'),      '200 redis 0', 'a cost of one is admitted';
    my $rejected = $nginx->get('/large?cost=1', 'X-Client' => 'c');
    is $rejected->{status}, 429, 'no request remains';
    is $rejected->header('Retry-After'), 1800, 'requests are rejected until the first entries are an hour old';
    $redis->advance(1800);
    is ask($nginx, '/large?cost=399999'), '200 redis 1', 'then requests are admitted again';
    my $key = 'rate_limit:large:sliding_log:{c}';
    my $lives = $redis->command('PTTL', $key);
    ok $lives == 3_600_000 || $lives == 3_600_001, 'the key expires with its newest entry, rounded up';
    is $redis->command('STRLEN', $key), 44 + 4 * 1_000_000, 'the log has no more entries than the count';
    $redis->advance(3601);
    is $redis->command('EXISTS', $key), 0, 'the key has expired';
    unlike $nginx->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'nothing is logged';
};

subtest 'read and written in parts, by a user with only the documented rights' => sub {
    my $rights = '+evalsha +script|load +mget +set +del +time +select +eval +hmget +zrangebyscore +exists '
        . '+getrange +setrange +pexpireat';
    my $redis = start_redis(acl => "nginx on >secret ~rate_limit:* $rights\n");
    my $nginx = start(1, $redis->url(user => 'nginx', password => 'secret'));
    is ask($nginx, '/large?cost=500000'), '200 redis 500000', 'a large log exists';
    $redis->command(qw(CONFIG RESETSTAT));
    is ask($nginx, '/large?cost=1'), '200 redis 499999', 'a request';
    is $redis->commandstats('setrange'), 2, 'a check writes its time and the header';
    is $redis->commandstats($_) // 0, 0, "a check does not use $_" for qw(mget get set);
    is ask($nginx, '/both'), '200 redis 9', 'a check together with a small limit';
    is $redis->commandstats('mget'), 1, 'only the small limit is read completely';
    is ask($nginx, '/large?cost=0'), '200 redis 499998', 'both limits are charged';
    unlike $nginx->error_log, qr/redis "/, 'nothing is missing';
};

subtest 'a user with the rights of an earlier release' => sub {
    my $redis = start_redis(acl => "nginx on >secret ~rate_limit:* +evalsha +script|load +mget +set +del +time\n");
    my $nginx = start(2, $redis->url(user => 'nginx', password => 'secret'));
    is ask($nginx, '/large?cost=1000'), '200 redis 999000', 'a request';
    is ask($nginx, '/large?cost=1'),    '200 redis 998999', 'another';
    is ask($nginx, '/both'), '200 redis 9', 'a check together with a small limit';
};

subtest 'in a cluster' => sub {
    my $cluster = start_cluster(masters => 3, replicas => 0);
    my $nginx   = start(3, $cluster->url);
    is ask($nginx, '/large?cost=500000'), '200 redis 500000', 'a large log';
    is ask($nginx, '/both'),              '200 redis 9',      'together with a small limit';
    is ask($nginx, '/large?cost=500000'), '429 redis 499999', 'the limit is exact';
    is ask($nginx, '/large?cost=499999'), '200 redis 0',      'to the last';
};

subtest 'given back, and deleted' => sub {
    my $redis = start_redis();
    my $nginx = start(4, $redis->url);
    is ask($nginx, '/large?cost=999999'), '200 redis 1', 'all but one request are used';
    is ask($nginx, '/both'), '200 redis 0', 'the last request is charged with another limit';
    is ask($nginx, '/both'), '429 redis 0', 'no request remains';
    like $nginx->get('/api/remaining?zone=small&key=c')->{body}, qr/"remaining":9\b/, 'the other limit is not charged';
    is $nginx->request(method => 'DELETE', path => '/api/reset?zone=large&key=c')->{status}, 204, 'a reset';
    is ask($nginx, '/large?cost=1'), '200 redis 999999', 'forgets all';
};

done_testing;
