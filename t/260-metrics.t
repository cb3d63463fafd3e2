# The metrics match what clients saw, for every store, and no count is lost.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers request_text);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::FakeRedis qw(start_fake silence);
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Redis qw(start_redis);
use RateLimit::Twins qw(hold_worker);
use Test::More;
use Time::HiRes qw(time);

my @ports   = split ' ', $ENV{RL_PORTS};
my $metrics = "location = /metrics { rate_limit_metrics; }\n";
my $headers = "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n";

# Starts nginx with these zones, NAME => parameters, whose key is X-Client. /NAME is limited by each.
sub start {
    my ($zones, %more) = @_;
    my ($http, $server) = (delete $more{http} // '', (delete $more{server} // $metrics) . $headers);
    for my $name (sort keys %{$zones}) {
        $http   .= "rate_limit_zone \$http_x_client zone=$name:1m $zones->{$name};\n";
        $server .= "location = /$name { rate_limit zone=$name; empty_gif; }\n";
    }
    return (port => $ports[0], http => "keepalive_requests 1000000;\naccess_log off;\n$http", server => $server,
        log_level => 'error', %more);
}

# Sends $count requests over concurrent connections. Returns the number of responses with each status.
sub flood {
    my ($nginx, $path, $clients, $count) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 16;
    my ($sent, %seen) = (0);
    while ($sent < $count) {
        for my $connection (@connections) {
            my @some = map { request_text('GET', $path, [ 'X-Client' => 'client' . ($sent + $_) % $clients ]) } 1 .. 10;
            $connection->raw(join('', @some), ('GET') x @some);
            $sent += @some;
        }
        await_answers(30, @connections) or die "no answer\n";
        $seen{ $_->{status} }++ for map { $_->answers } @connections;
    }
    return (\%seen, $sent);
}

sub requests {
    my ($metrics, $zone, $allowed) = @_;
    return sum_of($metrics, 'rate_limiter_requests_total', zone => $zone, allowed => $allowed);
}

sub histogram {
    my ($metrics, $name, %labels) = @_;
    my %bounds;
    for my $series (grep {/^\Q$name\E_bucket\{/} keys %{$metrics}) {
        next if grep { $series !~ /[{,]$_="\Q$labels{$_}\E"/ } keys %labels;
        my ($bound) = $series =~ /le="([^"]+)"/;
        $bounds{ $bound eq '+Inf' ? 9**9**9 : $bound } = $metrics->{$series};
    }
    return [ map { $bounds{$_} } sort { $a <=> $b } keys %bounds ];
}

subtest 'four workers and sixteen connections lose no count, nor does a reload' => sub {
    my %conf = start({ fast => 'rate=30r/m algorithm=fixed_window', wide => 'rate=1000000r/s' }, workers => 4);
    my $nginx = start_nginx(%conf);
    my $began = time;
    my ($fast, $sent_fast) = flood($nginx, '/fast', 20,   8000);
    my ($wide, $sent_wide) = flood($nginx, '/wide', 1000, 8000);
    my $took   = time - $began;
    my $before = metrics($nginx);
    is requests($before, 'fast', 'true'),  $fast->{200}, 'admitted';
    is requests($before, 'fast', 'false'), $fast->{429}, 'rejected';
    is $fast->{200} + $fast->{429}, $sent_fast, 'the counts are those of all sent requests';
    is requests($before, 'wide', 'true'),  $sent_wide, 'the counts of another zone';
    is requests($before, 'wide', 'false'), 0,          'the other zone rejected no request';
    is sum_of($before, 'rate_limiter_store_total', zone => 'fast', store => 'memory'), $sent_fast, 'all from memory';
    is sum_of($before, 'rate_limiter_check_seconds_count', zone => 'fast'), $sent_fast, 'each check has a duration';
    my $checks = histogram($before, 'rate_limiter_check_seconds', zone => 'fast');
    is scalar @{$checks}, 15, 'fourteen bounds and infinity';
    is $checks->[-1], $sent_fast, 'the last bucket has all checks';
    is_deeply $checks, [ sort { $a <=> $b } @{$checks} ], 'each bucket has at least the count of the bucket before';
    my $quick = sum_of($before, 'rate_limiter_check_seconds_bucket', zone => 'fast', le => '0.001');
    cmp_ok $quick, '>', $sent_fast / 2, 'most checks take less than a millisecond';
    cmp_ok sum_of($before, 'rate_limiter_check_seconds_sum', zone => 'fast'), '<', 4 * $took,
        'the sum of durations is at most that of four workers';

    $nginx->reload(%conf, workers => 2);
    my $after = metrics($nginx);
    is requests($after, 'fast', 'true'), $fast->{200}, 'a reload keeps the counts';
    is requests($after, 'wide', 'true'), $sent_wide,   'a reload keeps the counts of the other zone';
    my ($more) = flood($nginx, '/fast', 20, 1000);
    is requests(metrics($nginx), 'fast', 'false'), $fast->{429} + $more->{429}, 'new workers add to the counts';
    $nginx->stop;
};

subtest 'requests of two zones' => sub {
    my $nginx = start_nginx(start({ one => 'rate=1r/d', three => 'rate=3r/d' }, server => $metrics
                . "location = /both { rate_limit zone=one; rate_limit zone=three; empty_gif; }\n"));
    is join(' ', map { $nginx->get('/both', 'X-Client' => 'a')->{status} } 1 .. 4), '200 429 429 429',
        'one of four requests is admitted';
    my $got = metrics($nginx);
    is requests($got, 'one',   'true') . requests($got, 'one',   'false'), '13',
        'the zone that rejected counts the rejection';
    is requests($got, 'three', 'true') . requests($got, 'three', 'false'), '10', 'the other zone does not count it';
    $nginx->get('/both');
    is requests(metrics($nginx), 'one', 'true'), 1, 'a request without a key is not counted';
    $nginx->stop;
};

subtest 'delays and dry runs' => sub {
    my $nginx = start_nginx(start(
        { slow => 'rate=2r/s algorithm=leaky_bucket burst=2', dry => 'rate=2r/s algorithm=leaky_bucket burst=1' },
        server => $metrics . "location = /try { rate_limit zone=dry; rate_limit_dry_run on; empty_gif; }\n"));
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 4;
    # The worker reads all requests in one turn.
    my $ask = sub {
        my ($path) = @_;
        my $go_on = hold_worker($nginx);
        $_->request('GET', $path, [ 'X-Client' => 'a' ]) for @connections;
        $go_on->();
        await_answers(60, @connections) or die "no answer\n";
        return join ' ', sort map { $_->{status} } map { $_->answers } @connections;
    };
    $_->request('GET', '/metrics', []) for @connections;
    await_answers(60, @connections);
    $_->answers for @connections;
    is $ask->('/slow'), '200 200 200 429', 'one request passes, two are delayed, one is rejected';
    is $ask->('/try'),  '200 200 200 200', 'in a dry run all requests pass';
    my $got = metrics($nginx);
    is requests($got, 'slow', 'true') . requests($got, 'slow', 'false'), '31', 'admitted and rejected';
    is sum_of($got, 'rate_limiter_delayed_total', zone => 'slow'), 2, 'delayed';
    is sum_of($got, 'rate_limiter_dry_run_total', zone => 'slow'), 0, 'not dry';
    is requests($got, 'dry', 'true') . requests($got, 'dry', 'false'), '22', 'a dry run counts its decisions';
    is sum_of($got, 'rate_limiter_delayed_total', zone => 'dry'), 1, 'a dry run counts a delay';
    is sum_of($got, 'rate_limiter_dry_run_total', zone => 'dry', outcome => 'delayed'),  1,
        'delays of a dry run are counted';
    is sum_of($got, 'rate_limiter_dry_run_total', zone => 'dry', outcome => 'rejected'), 2,
        'rejections of a dry run are counted';
    $nginx->stop;
};

subtest 'invalid rates' => sub {
    my $nginx = start_nginx(start({ tiers => 'rate=$http_x_rate' }));
    $nginx->get('/tiers', 'X-Client' => 'a', 'X-Rate' => $_) for qw(5r/d 5r/d nonsense off);
    my $got = metrics($nginx);
    is requests($got, 'tiers', 'true'), 2, 'requests with a rate are counted';
    is sum_of($got, 'rate_limiter_errors_total', zone => 'tiers', reason => 'rate'), 1,
        'one request without a valid rate is counted';
    $nginx->stop;
};

subtest 'decisions by Redis, by the deny cache, and by memory as fallback' => sub {
    my $redis = start_redis();
    my $nginx = start_nginx(start(
        {   fleet => 'rate=2r/d redis=main',
            plain => 'rate=2r/d redis=main deny_cache=off on_error=closed',
            local => 'rate=2r/d redis=main on_error=local',
            alone => 'rate=2r/d'
        },
        http => 'rate_limit_redis main ' . $redis->url . " timeout=10s connect_timeout=5s;\n", workers => 2));
    my $ask = sub { my ($path, $count) = @_; return join ' ', map { $nginx->get($path, 'X-Client' => 'a')->{status} } 1 .. $count };
    my $began = time;
    is $ask->('/fleet', 5), '200 200 429 429 429', 'two requests are admitted';
    is $ask->('/plain', 4), '200 200 429 429', 'the same without a cache';
    is $ask->('/local', 1), '200', 'one request is admitted';
    is $ask->('/alone', 1), '200', 'one decision by memory';
    my $got = metrics($nginx);
    is requests($got, 'fleet', 'true') . requests($got, 'fleet', 'false'), '23', 'admitted and rejected';
    my $store = sub { my ($zone, $name) = @_; return sum_of($got, 'rate_limiter_store_total', zone => $zone, store => $name) };
    is $store->('fleet', 'redis') + $store->('fleet', 'cache'), 5, 'decisions by Redis and by the cache';
    is $store->('fleet', 'cache'), 2, 'two decisions by the cache';
    is $store->('plain', 'redis'), 4, 'all decisions of another zone by Redis';
    is $store->('alone', 'memory'), 1, 'one decision of it by memory';
    my $label = sub { my ($name, @more) = @_; return sum_of($got, "rate_limiter_$name", redis => 'main', @more) };
    is $label->('redis_up'),                       1, 'Redis is up';
    is $label->('breaker_open'),                   0, 'no breaker is open';
    is $label->('redis_round_trip_seconds_count'), 8, 'Redis has answered eight calls';
    is $label->('batch_size_count'),               8, 'there were eight batches';
    is $label->('batch_size_sum'),                 8, 'each batch had one request';
    is $label->('redis_errors_total'),             0, 'without an error';
    is histogram($got, 'rate_limiter_batch_size', redis => 'main')->[0], 8, 'all batches are in the first bucket';
    is scalar @{ histogram($got, 'rate_limiter_batch_size', redis => 'main') }, 12,
        'there are eleven buckets and infinity';
    my $trips = histogram($got, 'rate_limiter_redis_round_trip_seconds', redis => 'main');
    is $trips->[-1], 8, 'each answer has a duration';
    cmp_ok $label->('redis_round_trip_seconds_sum'), '>', 0, 'all took some';
    cmp_ok $label->('redis_round_trip_seconds_sum'), '<', time - $began,
        'the sum of durations is at most the time that has passed';
    is sum_of($got, 'rate_limiter_errors_total'), 0, 'nothing failed';

    $redis->kill;
    my %seen;
    $seen{ $nginx->get('/plain', 'X-Client' => "b$_")->{status} }++ for 1 .. 10;
    $seen{"local $_->{status}"}++ for map { $nginx->get('/local', 'X-Client' => 'c') } 1 .. 4;
    $seen{"fleet $_->{status}"}++ for map { $nginx->get('/fleet', 'X-Client' => 'd') } 1 .. 3;
    is_deeply \%seen, { 503 => 10, 'local 200' => 2, 'local 429' => 2, 'fleet 200' => 3 }, 'without Redis';
    $got = metrics($nginx);
    is sum_of($got, 'rate_limiter_errors_total', zone => 'plain'), 10, 'each undecided request has a reason';
    is requests($got, 'plain', 'true') . requests($got, 'plain', 'false'), '22',
        'an undecided request is not counted as a decision';
    is sum_of($got, 'rate_limiter_errors_total', zone => 'fleet'), 3, 'a request admitted by on_error has a reason';
    is requests($got, 'fleet', 'true'), 2, 'a request admitted by on_error is not counted as admitted';
    is sum_of($got, 'rate_limiter_errors_total', zone => 'local'), 4, 'a request that memory decided has a reason';
    is $store->('local', 'fallback'), 4, 'memory decided as the fallback';
    is requests($got, 'local', 'true') . requests($got, 'local', 'false'), '32',
        'decisions of the fallback are counted';
    is sum_of($got, 'rate_limiter_errors_total', zone => 'alone'), 0, 'a zone in memory is not affected';
    my $open = $label->('breaker_open');
    cmp_ok $open, '>=', 1, 'a breaker is open';
    is $label->('redis_up'), 0, 'Redis is not up';
    cmp_ok $label->('breaker_opened_total'), '>=', $open, 'openings of the breaker are counted';
    cmp_ok $label->('redis_errors_total'), '>', 0, 'calls have failed';

    kill 'KILL', $nginx->workers;
    wait_for('new workers', sub { $nginx->workers == 2 && eval { sum_of(metrics($nginx), 'rate_limiter_redis_up') } });
    $got = metrics($nginx);
    is $label->('breaker_open'), 0, 'breakers of dead workers do not count';
    is sum_of($got, 'rate_limiter_errors_total', zone => 'plain'), 10, 'counts of dead workers are kept';

    $nginx->get('/fleet', 'X-Client' => "e$_") for 1 .. 10;
    is sum_of(metrics($nginx), 'rate_limiter_redis_up'), 0, 'down again';
    $redis->restart;
    wait_for('Redis to be up', sub { sum_of(metrics($nginx), 'rate_limiter_redis_up') });
    pass 'Redis is up again, without a request';
    $nginx->stop;
};

subtest 'a missing answer' => sub {
    my $fake  = start_fake(replies => { EVALSHA => silence(), TIME => silence() });
    my $nginx = start_nginx(start({ silent => 'rate=2r/d redis=main' },
        http => 'rate_limit_redis main ' . $fake->url . " timeout=1s;\n"));
    is $nginx->get('/silent', 'X-Client' => 'a')->{status}, 200, 'admitted';
    my $got = metrics($nginx);
    is sum_of($got, 'rate_limiter_errors_total', zone => 'silent', reason => 'timeout'),      1, 'after a timeout';
    is sum_of($got, 'rate_limiter_redis_errors_total', redis => 'main', reason => 'timeout'), 1,
        'the timeout of one call is counted';
    is sum_of($got, 'rate_limiter_redis_round_trip_seconds_count'), 0, 'the batch has no duration';
    is sum_of($got, 'rate_limiter_batch_size_sum'), 1, 'the batch was sent';
    $nginx->stop;
};

subtest 'checks in one batch' => sub {
    my $redis = start_redis();
    my $nginx = start_nginx(start({ many => 'rate=1000r/s redis=main' },
        http => 'rate_limit_redis main ' . $redis->url . " timeout=5s;\n"));
    $nginx->get('/many', 'X-Client' => 'first');
    my ($seen, $sent) = flood($nginx, '/many', 100, 2000);
    my $got = metrics($nginx);
    is requests($got, 'many', 'true'), $sent + 1, 'all are counted';
    is sum_of($got, 'rate_limiter_batch_size_sum'), $sent + 1, 'each check is in a batch';
    my $batches = sum_of($got, 'rate_limiter_batch_size_count');
    cmp_ok $batches, '<', $sent / 2, "there were fewer batches ($batches)";
    is sum_of($got, 'rate_limiter_redis_round_trip_seconds_count'), $batches, 'there were as many answers';
    $nginx->stop;
};

subtest 'the nodes of a cluster' => sub {
    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000, config => 'cluster-require-full-coverage no');
    my ($lost, @left) = $cluster->masters;
    my $nginx = start_nginx(start({ spread => 'rate=2r/d redis=main deny_cache=off on_error=closed' },
        http => 'rate_limit_redis main ' . $cluster->url . " timeout=10s connect_timeout=5s;\n"));
    my $ask = sub { return join ' ', map { $nginx->get('/spread', 'X-Client' => $_)->{status} } @_ };
    is $ask->(map { ($cluster->clients_of($_)) x 3 } $lost, @left), join(' ', ('200 200 429') x 3), 'each node decides';
    my $got = metrics($nginx);
    is requests($got, 'spread', 'true') . requests($got, 'spread', 'false'), '63', 'the counts of all nodes are added';
    is sum_of($got, 'rate_limiter_redis_round_trip_seconds_count'), 9, 'with their calls';
    is sum_of($got, 'rate_limiter_breaker_open'), 0, 'no breaker is open';
    $cluster->kill($lost);
    is $ask->($cluster->clients_of($lost, 3)), '503 503 503', 'requests of the lost node are rejected';
    is $ask->($cluster->clients_of($left[0])), '200', 'other nodes are not affected';
    $got = metrics($nginx);
    is sum_of($got, 'rate_limiter_errors_total', zone => 'spread'), 3, 'three requests were undecided';
    is sum_of($got, 'rate_limiter_breaker_open'), 1, 'one worker has an open breaker, for one node';
    is sum_of($got, 'rate_limiter_redis_up'),     0, 'the cluster is not up';
    $nginx->stop;
};

subtest 'without rate_limit_metrics there are no counts' => sub {
    my %zones = (blind => 'rate=2r/d');
    my $nginx = start_nginx(start(\%zones, server => ''));
    $nginx->get('/blind', 'X-Client' => 'a') for 1 .. 5;
    $nginx->reload(start(\%zones));
    my $got = metrics($nginx);
    is requests($got, 'blind', 'true') . requests($got, 'blind', 'false'), '00', 'earlier requests are not counted';
    is sum_of($got, 'rate_limiter_keys', zone => 'blind'), 1, 'the state of the client is kept';
    is $nginx->get('/blind', 'X-Client' => 'a')->{status}, 429, 'the limit applies';
    is requests(metrics($nginx), 'blind', 'false'), 1, 'new requests are counted';
    $nginx->stop;
};

subtest 'methods' => sub {
    my $nginx = start_nginx(start({ one => 'rate=2r/d' }));
    is $nginx->request(method => 'POST', path => '/metrics')->{status}, 405, 'only GET';
    my $head = $nginx->request(method => 'HEAD', path => '/metrics');
    is $head->{status} . length $head->{body}, '2000', 'HEAD has no body';
    like $head->header('Content-Type'), qr{^text/plain; version=0\.0\.4; charset=utf-8$},
        'the content type of Prometheus';
    $nginx->stop;
};

done_testing;
