# A client over its limit causes no Redis call until a retry can succeed or deny_cache has passed.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for format_request);
use RateLimit::Async qw(exchange statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;

# The clocks of nginx and Redis are frozen unless let_pass() advances both.
my $redis = start_redis(clock => 'stopped');

# The parameters with which each algorithm admits two requests, and more later; and the seconds until then.
my %soon = (
    token_bucket    => 'rate=2r/1s',
    leaky_bucket    => 'rate=2r/s burst=1',
    gcra            => 'rate=2r/s burst=1',
    fixed_window    => 'rate=2r/s',
    sliding_window  => 'rate=2r/s',
    sliding_buckets => 'rate=2r/s',
    sliding_log     => 'rate=2r/s',
);
my ($http, $server) = ('', '');
for my $name (sort keys %soon) {
    my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
    $http   .= "rate_limit_zone \$http_x_client zone=$name:1m algorithm=$name $soon{$name} redis=main deny_cache=1h;\n";
    $server .= "location = /$name { rate_limit zone=$name $nodelay; empty_gif; }\n";
}
my %conf = (
    clock => 1,
    http => <<"HTTP",
rate_limit_redis main @{[ $redis->url ]} timeout=1h connect_timeout=1h;
rate_limit_zone \$http_x_client zone=hour:1m rate=10r/d algorithm=token_bucket redis=main deny_cache=1h;
rate_limit_zone \$http_x_client zone=other:1m rate=10r/d algorithm=token_bucket redis=main deny_cache=1h;
rate_limit_zone \$http_x_client zone=default:1m rate=2r/d algorithm=sliding_log redis=main;
rate_limit_zone \$http_x_client zone=short:1m rate=2r/d algorithm=sliding_log redis=main deny_cache=300ms;
rate_limit_zone \$http_x_client zone=none:1m rate=2r/d algorithm=sliding_log redis=main deny_cache=off;
rate_limit_zone \$http_x_client zone=every:1m rate=2r/d algorithm=sliding_log redis=main count=all;
rate_limit_zone \$http_x_client zone=burst:1m rate=1r/d algorithm=gcra redis=main deny_cache=1h;
rate_limit_zone \$http_x_client zone=long:1m rate=1r/5s algorithm=sliding_log redis=main deny_cache=1h;
rate_limit_zone \$http_x_client zone=tiny:64k rate=5r/d algorithm=token_bucket redis=main deny_cache=1h;
rate_limit_zone \$http_x_client zone=variable:1m rate=\$rate algorithm=sliding_log log=10 redis=main deny_cache=1h;
map \$arg_rate \$rate { "" 2r/d; default \$arg_rate; }
map \$arg_cost \$cost { "" 1; default \$arg_cost; }
$http
HTTP
    server => <<"SERVER",
add_header X-Status \$rate_limit_status always;
add_header X-Store \$rate_limit_store always;
add_header X-Error \$rate_limit_error always;
add_header X-Worker \$pid always;
location = /hour { rate_limit zone=hour cost=\$cost; empty_gif; }
location = /default { rate_limit zone=default; empty_gif; }
location = /short { rate_limit zone=short; empty_gif; }
location = /none { rate_limit zone=none; empty_gif; }
location = /every { rate_limit zone=every; empty_gif; }
location = /variable { rate_limit zone=variable; empty_gif; }
location = /both { rate_limit zone=other; rate_limit zone=default; empty_gif; }
location = /dry { rate_limit zone=default; rate_limit_dry_run on; empty_gif; }
location = /burst/1 { rate_limit zone=burst; empty_gif; }
location = /burst/6 { rate_limit zone=burst burst=5; empty_gif; }
location = /long { rate_limit zone=long; empty_gif; }
location = /tiny { rate_limit zone=tiny cost=\$cost; empty_gif; }
location = /look/other { rate_limit zone=other cost=0; empty_gif; }
$server
SERVER
    workers => 3,
);
my $nginx = start_nginx(%conf);

sub let_pass {
    my ($seconds) = @_;
    $redis->advance($seconds);
    $nginx->advance($seconds);
    return;
}

my $clients = 0;
sub client { return 'client' . ++$clients }

sub ask {
    my ($path, $client) = @_;
    return $nginx->get("/$path", 'X-Client' => $client);
}

sub asks {
    my ($path, $client, $count) = @_;
    return map { ask($path, $client) } 1 .. $count;
}

sub stores { return join ' ', map { $_->header('X-Store') // '-' } @_ }

# Returns how many calls Redis gets while a function runs.
sub calls_of {
    my ($what) = @_;
    my $before = $redis->commandstats('evalsha');
    $what->();
    return $redis->commandstats('evalsha') - $before;
}

subtest 'after a rejection there are no Redis calls' => sub {
    my $client = client();
    my @first  = asks('hour', $client, 11);
    is statuses(@first), '200 ' x 10 . '429', 'ten are admitted';
    is stores($first[10]), 'redis', 'Redis rejects the first request over the limit';
    my @more;
    is calls_of(sub { @more = asks('hour', $client, 200) }), 0, '200 further requests cause no call';
    is scalar(grep { $_->{status} == 429 && stores($_) eq 'cache' } @more), 200,
        'all of them are rejected from the cache';
    my ($redis_said, $cache_said) = @{ [ $first[10], $more[0] ] };
    is $cache_said->header($_), $redis_said->header($_), "$_ is the same" for qw(X-RateLimit-Limit X-RateLimit-Remaining X-Status);
    for my $header (qw(Retry-After X-RateLimit-Reset)) {
        cmp_ok abs($cache_said->header($header) - $redis_said->header($header)), '<=', 1, "$header has the same time";
    }
    is calls_of(sub { is ask('hour', client())->{status}, 200, 'another client is admitted' }), 1, 'by Redis';
};

subtest 'all workers share the cache' => sub {
    my $client = client();
    asks('hour', $client, 11);
    my (%workers, @held, @wrong);
    my $calls = calls_of(
        sub {
            for (1 .. 400) {
                my $connection = $nginx->connect;
                push @held, $connection;
                $connection->send(format_request(path => '/hour', headers => [ 'X-Client' => $client, Connection => 'keep-alive' ]));
                my $answer = $connection->receive;
                $workers{ $answer->header('X-Worker') }++;
                push @wrong, stores($answer) if $answer->{status} != 429 || stores($answer) ne 'cache';
                last if keys %workers == 3;
                @held = () if @held > 60;
            }
        }
    );
    is scalar keys %workers, 3, 'three workers answered';
    is_deeply \@wrong, [], 'all rejections are from the cache';
    is $calls, 0, 'there are no calls';
};

subtest 'a client that waits for Retry-After is admitted' => sub {
    my (%until, %name);
    for my $name (sort keys %soon) {
        my $client = $name{$name} = client();
        my ($answer, $tries) = (undef, 0);
        do { $answer = ask($name, $client) } while $answer->{status} == 200 && $tries++ < 20;
        is $answer->{status}, 429, "$name: rejected";
        my $again = ask($name, $client);
        $until{$name} = $again->header('Retry-After');
        is stores($again), 'cache', "$name: rejected from the cache again";
    }
    my $passed = 0;
    for my $name (sort { $until{$a} <=> $until{$b} } keys %until) {
        let_pass($until{$name} - $passed);
        $passed = $until{$name};
        my $answer = ask($name, $name{$name});
        is $answer->{status} . ' ' . stores($answer), '200 redis', "$name: admitted, though deny_cache is an hour";
    }
};

subtest 'a client is admitted as soon as its limit allows' => sub {
    for my $name (sort keys %soon) {
        my $client = client();
        my ($answer, $tries, $passed) = (undef, 0, 0);
        do { $answer = ask($name, $client) } while $answer->{status} == 200 && $tries++ < 20;
        my $most = $name eq 'sliding_window' ? 1.5 : 1;    # half of the earlier window may still count
        my $status = 429;
        while ($status == 429 && $passed < $most) {
            let_pass(0.05);
            $passed += 0.05;
            $status = ask($name, $client)->{status};
        }
        is $status, 200, sprintf '%s: after %.2f s, within %.1f s', $name, $passed, $most;
    }
};

subtest 'a key that the operator deletes in Redis takes effect within deny_cache' => sub {
    my %at_most = (default => 1, short => 0.3, none => 0);
    for my $zone (sort keys %at_most) {
        my $client = client();
        my @before = asks($zone, $client, 5);
        is stores(@before), $zone eq 'none' ? 'redis redis redis redis redis' : 'redis redis redis cache cache', "$zone: stores";
        is $redis->command('DEL', "rate_limit:$zone:sliding_log:{$client}"), 1, "$zone: the key is deleted";
        if ($at_most{$zone}) {
            let_pass($at_most{$zone} - 0.01);
            is stores(ask($zone, $client)), 'cache', "$zone: not noticed before $at_most{$zone} s";
            let_pass(0.02);
        }
        is ask($zone, $client)->{status}, 200, "$zone: admitted after $at_most{$zone} s";
    }
};

subtest 'a denial applies to its cost and its rates' => sub {
    my $client = client();
    is ask('hour?cost=7', $client)->{status}, 200, 'seven of ten';
    is ask('hour?cost=5', $client)->{status}, 429, 'a cost of five is too high';
    my @answers = asks('hour?cost=5', $client, 2);
    is statuses(@answers), '429 429', 'a cost of five is still too high';
    is stores(@answers), 'cache cache', 'Redis is not called for it again';
    my $dear = ask('hour?cost=9', $client);
    is $dear->{status} . ' ' . stores($dear), '429 redis', 'a cost of nine has a longer wait, which only Redis knows';
    cmp_ok $dear->header('Retry-After'), '>', $answers[0]->header('Retry-After'), 'the longer wait is reported';
    is stores(ask('hour?cost=9', $client)), 'cache', 'once';
    my $cheap = ask('hour?cost=2', $client);
    is $cheap->{status} . ' ' . stores($cheap), '200 redis', 'a cost of two is admitted';
    my $look = ask('hour?cost=0', $client);
    is $look->{status}, 200, 'a cost of 0 is admitted';
    is $look->header('X-RateLimit-Remaining'), 1, 'a cost of 0 reports the remaining count';

    $client = client();
    is statuses(asks('variable', $client, 4)), '200 200 429 429', 'a rate from a variable';
    my $raised = ask('variable?rate=5r/d', $client);
    is $raised->{status} . ' ' . stores($raised), '200 redis', 'a raised rate admits the client at once';
    is ask('variable?rate=off', $client)->{status}, 200, 'no rate admits the client at once';
};

subtest 'a denial applies to its location' => sub {
    my $client = client();
    is statuses(asks('burst/1', $client, 3)), '200 429 429', 'without a burst';
    my @answers = asks('burst/6', $client, 6);
    is statuses(@answers), '200 200 200 200 200 429', 'another location gives the zone a burst';
    is stores($answers[0]), 'redis', 'the other location calls Redis';
    is statuses(asks('burst/1', $client, 1)), '429', 'the first location still rejects';
};

subtest 'the wait decreases' => sub {
    my $client = client();
    my ($first, $second) = asks('long', $client, 2);
    is $second->header('Retry-After'), 5, 'the wait is five seconds at first';
    my $reset = $second->header('X-RateLimit-Reset');
    let_pass(2.5);
    my $later = ask('long', $client);
    is $later->header('Retry-After'), 3, 'the wait is shorter later';
    is $later->{status} . ' ' . stores($later), '429 cache', 'the shorter wait is from the cache';
    is $later->header('X-RateLimit-Reset'), $reset, 'the reset time is the same';
};

subtest 'more clients than the cache has room for' => sub {
    my (%count, @wrong);
    for my $round (1 .. 40) {
        my @answers = exchange($nginx->port, map { [ 'GET', '/tiny?cost=6', [ 'X-Client' => "flood$round-$_" ] ] } 1 .. 100);
        $count{ $_ ? $_->{status} : 'none' }++ for @answers;
    }
    is_deeply \%count, { 429 => 4000 }, 'all clients over their limit are rejected';
    my $client = client();
    is statuses(asks('tiny', $client, 7)), '200 200 200 200 200 429 429', 'other clients have their quota';
};

subtest 'rejections from the cache are not charged' => sub {
    my $client = client();
    my @answers = asks('both', $client, 8);
    is statuses(@answers), '200 200 429 429 429 429 429 429', 'one of two zones rejects';
    is $nginx->get('/look/other', 'X-Client' => $client)->header('X-RateLimit-Remaining'), 8,
        'the other zone was charged twice';
    my $dry = ask('dry', $client);
    is $dry->{status}, 200, 'a dry run rejects no request';
    is $dry->header('X-Status'), 'REJECTED_DRY_RUN', 'a dry run reports its decision';

    $client = client();
    is calls_of(sub { is statuses(asks('every', $client, 6)), '200 200 429 429 429 429', 'count=all' }), 6,
        'Redis is called every time';
};

subtest 'with Redis gone, who was rejected stays rejected; and a reload forgets neither' => sub {
    my $client = client();
    asks('hour', $client, 11);
    $nginx->reload(%conf);
    my $answer;
    is calls_of(sub { $answer = ask('hour', $client) }), 0, 'no call after a reload';
    is $answer->{status} . ' ' . stores($answer), '429 cache', 'rejected after a reload';
    $redis->pause;
    $answer = ask('hour', $client);
    is $answer->{status} . ' ' . stores($answer), '429 cache', 'rejected while Redis is paused, without a wait';
    $redis->resume;
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
