# Corner cases of a limit in Redis: variables that are read early, error pages, delays, no free connection.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(exchange await_answers request_text statuses);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Redis qw(start_redis);
use Test::More;

# The clocks of nginx and Redis are frozen unless the test advances them.
my $redis     = start_redis(clock => 'stopped');
my $gone      = start_fake(mode => 'refuse');
my $variables = join ' ', map {"$_=[\$rate_limit_$_]"} qw(status zone limit remaining reset retry_after store error);
my $nginx     = start_nginx(
    clock => 1,
    http => <<"HTTP",
rate_limit_redis main @{[ $redis->url ]} timeout=1h connect_timeout=1h;
rate_limit_redis gone @{[ $gone->url ]} timeout=1h connect_timeout=1h;
rate_limit_zone \$http_x_client zone=a:1m rate=2r/d algorithm=sliding_log redis=main deny_cache=off;
rate_limit_zone \$http_x_client zone=b:1m rate=50r/d algorithm=token_bucket redis=main;
rate_limit_zone \$http_x_client zone=queue:1m rate=2r/s algorithm=leaky_bucket redis=main burst=20;
rate_limit_zone \$http_x_client zone=closed:1m rate=2r/d redis=gone on_error=closed;
rate_limit_zone \$http_x_client zone=open:1m rate=2r/d redis=gone;
rate_limit_zone \$http_x_client zone=memory:1m rate=1r/d algorithm=sliding_log;
log_format all '\$status \$request_uri $variables';
access_log access.log all;
map \$rate_limit_status \$as_map { default "map \$rate_limit_status"; }
HTTP
    server => <<"SERVER",
add_header X-Status \$rate_limit_status always;
add_header X-Store \$rate_limit_store always;
add_header X-Error \$rate_limit_error always;
add_header X-Zone \$rate_limit_zone always;
location = /a { rate_limit zone=a; empty_gif; }
location = /free { empty_gif; }
location = /early {
    set \$early "$variables \$as_map";
    if (\$rate_limit_status = PASSED) { return 500; }
    if (\$rate_limit_error) { return 500; }
    add_header X-Early \$early always;
    add_header X-Status \$rate_limit_status always;
    add_header X-Store \$rate_limit_store always;
    add_header X-Error \$rate_limit_error always;
    rate_limit zone=a;
    empty_gif;
}
location = /queue { rate_limit zone=queue; empty_gif; }
location = /closed { rate_limit zone=closed; empty_gif; }
location = /closed-page { rate_limit zone=closed; error_page 503 /page; empty_gif; }
location = /closed-rescue { rate_limit zone=closed; error_page 503 =200 \@rescue; empty_gif; }
location = /closed-dry { rate_limit zone=closed; rate_limit_dry_run on; empty_gif; }
location = /closed-status { rate_limit zone=closed; rate_limit_status 420; empty_gif; }
location = /open-memory { rate_limit zone=open; rate_limit zone=memory; empty_gif; }
location = /memory-open { rate_limit zone=memory; rate_limit zone=open; empty_gif; }
location = /page { rate_limit zone=closed; rate_limit zone=a; empty_gif; }
location \@rescue { rate_limit zone=b; empty_gif; }
location = /off { rate_limit off; empty_gif; }
location = /head { rate_limit zone=b; rate_limit_headers all; empty_gif; }
location = /if { rate_limit zone=b; if (\$arg_strict) { rate_limit zone=a; } empty_gif; }
SERVER
);

sub ask {
    my ($path, $client) = @_;
    return $nginx->get("/$path", 'X-Client' => $client // 'c');
}

sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status}, map { $answer->header($_) // '-' } qw(X-Status X-Store X-Error);
}

subtest 'variables that are read before, during and after a Redis call' => sub {
    my $answer = ask('early', 'early');
    is seen($answer), '200 PASSED redis -', 'a request that reads them in the rewrite phase is decided later';
    unlike $answer->header('X-Early') // '', qr/PASSED|REJECTED/, 'the variables are empty in the rewrite phase';
    $redis->pause;
    my $leaves = RateLimit::Async->new($nginx->port);
    $leaves->request('GET', '/a?leaves', [ 'X-Client' => 'leaves' ]);
    is await_answers(0.05, $leaves), 0, 'another waits';
    $leaves->close;
    my ($line) = wait_for('499', sub { $nginx->access_log =~ m{^(499 /a\?leaves .*)}m ? $1 : undef });
    unlike $line, qr/PASSED|REJECTED|ERROR/, "a client disconnects before the decision: $line";
    $redis->resume;
    is seen(ask('a', 'next')), '200 PASSED redis -', 'the next request is served';
};

subtest 'a failed Redis, and error pages' => sub {
    is seen(ask('closed')),        '503 ERROR fallback refused', 'closed';
    like ask('closed-page')->{body}, qr/^GIF/, 'an error page';
    is ask('closed-page')->{status}, 503, 'with the status';
    is ask('closed-rescue', 'rescued')->{status}, 200, 'a rescue';
    is ask('closed-status')->{status}, 503, 'rate_limit_status is for rejections, not for errors';
    is ask('closed-dry')->{status}, 200, 'a dry run rejects no request';
    is ask('closed')->header('Retry-After'), undef, 'no Retry-After without a decision';
    is ask('page')->{status}, 503, 'two limits, one of them failed with on_error=closed';
    for my $path (qw(open-memory memory-open)) {
        my @answers = map { ask($path, $path) } 1, 2;
        is statuses(@answers), '200 429', "$path: a limit in memory still applies";
        is $answers[1]->header('X-Status'), 'REJECTED', "$path: the headers show the limit in memory";
        is $answers[1]->header('X-Zone'),   'memory',   "$path: of";
    }
};

subtest 'methods, and limits inside if' => sub {
    my $head = $nginx->request(method => 'HEAD', path => '/head', headers => [ 'X-Client' => 'head' ]);
    is $head->{status}, 200, 'HEAD';
    is $head->header('X-RateLimit-Remaining'), 49, 'a HEAD request is charged';
    like $head->header('RateLimit'), qr/^"b";r=49;t=/, 'the response has the headers of the draft';
    like $head->header('RateLimit-Policy'), qr/^"b";q=50;w=86400/, 'with its policy';
    is ask('if', 'if')->header('X-RateLimit-Limit'), 50, 'outside if';
    is ask('if?strict=1', 'if')->header('X-RateLimit-Limit'), 2, 'inside if';
    is ask('off')->header('X-RateLimit-Limit'), undef, 'off';
};

subtest 'a client that disconnects during a delay that Redis decided' => sub {
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 4;
    $connections[$_]->request('GET', "/queue?$_", [ 'X-Client' => 'queue' ]) for 0 .. 3;
    await_answers(5, $connections[0]);
    wait_for('delays', sub { (() = $nginx->error_log =~ m{delaying.*/queue\?[123]}g) == 3 });
    $connections[1]->close;
    $connections[2]->close;
    wait_for('both clients to disconnect', sub { $nginx->access_log =~ m{^499 /queue\?1}m && $nginx->access_log =~ m{^499 /queue\?2}m });
    $nginx->advance(1.49);
    is await_answers(0.05, $connections[3]), 0, 'the last waits';
    $nginx->advance(0.02);
    ok await_answers(20, $connections[3]), 'the other client gets its response after the delay';
    is statuses($connections[3]->answers), '200', 'with 200';
};

subtest 'a worker without free connections' => sub {
    my ($port) = (split ' ', $ENV{RL_PORTS})[-1];
    my $small  = start_nginx(
        port => $port,
        http => <<"HTTP",
rate_limit_redis main @{[ $redis->url ]} timeout=1h connect_timeout=1h;
rate_limit_zone \$http_x_client zone=a:1m rate=2r/d algorithm=sliding_log redis=main;
HTTP
        server => <<'SERVER',
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /a { rate_limit zone=a; empty_gif; }
location = /free { empty_gif; }
SERVER
    );
    my @held;
    for my $number (1 .. 300) {
        my $connection = RateLimit::Async->new($port);
        $connection->raw("GET /a HTTP/1.1\r\nHost: localhost\r\nX-Client: held$number\r\n");
        push @held, $connection;
    }
    wait_for('no connection left', sub { $small->error_log =~ /worker_connections are not enough/ });
    $_->raw("\r\n", 'GET') for @held[ 0 .. 9 ];
    ok await_answers(20, @held[ 0 .. 9 ]), 'requests that need Redis get responses';
    my @answers = map { ($_->answers)[0] } @held[ 0 .. 9 ];
    is statuses(@answers), join(' ', (200) x 10), 'on_error or Redis decides them';
    note join ', ', map { seen($_) } @answers;
    $_->close for @held;
    wait_for('Redis', sub { my $answer = eval { $small->get('/a', 'X-Client' => 'later') }; $answer && seen($answer) =~ /redis/ });
    pass 'Redis is used again when connections are free';
    unlike $small->error_log, qr/exited on signal/, 'the worker lives';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
