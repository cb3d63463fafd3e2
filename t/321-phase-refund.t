# If a limit after authentication rejects a request, the limits before get their charges back, wherever their state is.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(format_request start_nginx wait_for);
use RateLimit::Places qw(algorithms_of left new_name zones_of_places);
use RateLimit::Redis qw(start_redis);
use Test::More;

# Redis `lost` is stopped below. The clocks of nginx and Redis are frozen, so that no charge drains.
my ($one, $two, $lost) = map { start_redis(clock => 'stopped') } 1 .. 3;
my ($http, $server) = zones_of_places('cost=2', 'rate_limit zone=late phase=precontent;',
    one => $one, two => $two, lost => $lost);
my $nginx = start_nginx(
    clock => 1,
    http  => <<"HTTP",
$http
log_format short '\$status \$uri \$rate_limit_status';
access_log access.log short;
rate_limit_zone \$http_x_client zone=late:1m rate=1r/d algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=late_redis:1m rate=1r/d algorithm=fixed_window redis=two deny_cache=off;
rate_limit_zone \$http_x_client zone=late_closed:1m rate=9r/d algorithm=fixed_window redis=lost on_error=closed;
rate_limit_zone \$http_x_client zone=late_plan:1m rate=\$http_x_plan algorithm=fixed_window on_error=closed;
rate_limit_zone \$http_x_client zone=late_open:1m rate=9r/d algorithm=fixed_window redis=lost on_error=open;
rate_limit_zone \$http_x_client zone=all:1m rate=10r/d algorithm=fixed_window count=all;
rate_limit_zone \$http_x_client zone=cached:1m rate=1r/d algorithm=fixed_window redis=one deny_cache=1h;
rate_limit_zone \$http_x_client zone=queue:1m rate=1r/s burst=9 algorithm=leaky_bucket;
rate_limit_zone \$http_x_client zone=fast:1m rate=10r/s algorithm=token_bucket;
HTTP
    server => <<"SERVER",
add_header X-Status \$rate_limit_status always;
location /api/ { rate_limit_api; }
$server
location = /in-redis { rate_limit zone=memory_token_bucket; rate_limit zone=redis_token_bucket;
    rate_limit zone=late_redis phase=precontent; empty_gif; }
location = /closed { rate_limit zone=memory_token_bucket; rate_limit zone=redis_token_bucket;
    rate_limit zone=late_closed phase=precontent; empty_gif; }
location = /plan   { rate_limit zone=memory_token_bucket; rate_limit zone=late_plan phase=precontent; empty_gif; }
location = /open   { rate_limit zone=memory_token_bucket; rate_limit zone=late_open phase=precontent; empty_gif; }
location = /count-all { rate_limit zone=all; rate_limit zone=late phase=precontent; empty_gif; }
location = /cached { rate_limit zone=cached; rate_limit zone=late phase=precontent; empty_gif; }
location = /only-cached { rate_limit zone=cached; empty_gif; }
location = /fast   { rate_limit zone=fast; rate_limit zone=late phase=precontent; empty_gif; }
location = /page   { rate_limit zone=memory_token_bucket; rate_limit zone=late phase=precontent;
    error_page 429 /error; empty_gif; }
location = /error  { rate_limit zone=memory_fixed_window; rate_limit zone=memory_token_bucket;
    rate_limit zone=late phase=precontent; empty_gif; }
location = /moved  { rate_limit zone=memory_token_bucket; try_files /absent \@late; }
location \@late    { rate_limit zone=redis_token_bucket; rate_limit zone=late phase=precontent; empty_gif; }
location = /queue  { rate_limit zone=queue; rate_limit zone=late phase=precontent; empty_gif; }
SERVER
);

sub ask {
    my ($path, $client, @headers) = @_;
    my $answer = $nginx->get($path, 'X-Client' => $client, @headers);
    return "$answer->{status} " . ($answer->header('X-Status') // '-');
}

# A request for which the API asks Redis follows all refunds, which are sent over the same connection.
sub check_refunds {
    my ($place) = @_;
    for my $algorithm (algorithms_of($place)) {
        my $name = new_name();
        my $zone = "${place}_$algorithm";
        is ask("/$zone", $name), '200 PASSED', "$algorithm: the first request is admitted";
        is left($nginx, $zone, $name), 8, "$algorithm: it is charged";
        is ask("/$zone", $name), '429 REJECTED', "$algorithm: the later limit rejects the next";
        is left($nginx, $zone, $name), 8, "$algorithm: its charge is given back, once";
    }
    return;
}

subtest 'memory' => sub { check_refunds('memory') };
subtest 'redis=' => sub { check_refunds('redis') };
subtest 'sync=' => sub { check_refunds('sync') };

subtest 'a later limit in Redis' => sub {
    my $name = new_name();
    is ask('/in-redis', $name), '200 PASSED', 'admitted';
    is ask('/in-redis', $name), '429 REJECTED', 'rejected';
    is left($nginx, 'memory_token_bucket', $name) . left($nginx, 'redis_token_bucket', $name), '99',
        'memory and another Redis are refunded';
};

subtest 'a client that leaves while the later limit waits for Redis' => sub {
    my $name = new_name();
    $two->pause;
    my $connection = $nginx->connect;
    $connection->send(format_request(path => '/in-redis', headers => [ 'X-Client' => $name ]));
    my $early = sub { return left($nginx, 'memory_token_bucket', $name) . left($nginx, 'redis_token_bucket', $name) };
    wait_for('the charges of the earlier limits', sub { $early->() eq '99' });
    $connection->close;
    wait_for('the end of the request', sub { $nginx->access_log =~ m{^499 /in-redis PASSED$}m });
    $two->resume;
    wait_for('the charge of the later limit', sub { left($nginx, 'late_redis', $name) == 0 });
    is $early->(), '99', 'is charged to all limits, once';
};

subtest 'an internal redirect between' => sub {
    my $name = new_name();
    is ask('/moved', $name), '200 PASSED', 'admitted';
    is ask('/moved', $name), '429 REJECTED', 'rejected after an internal redirect';
    is left($nginx, 'memory_token_bucket', $name) . left($nginx, 'redis_token_bucket', $name), '99',
        'the charges of both locations are given back';
};

subtest 'the error page of a rejected request' => sub {
    my $name = new_name();
    is ask('/page', $name), '200 PASSED', 'admitted';
    is ask('/page', $name), '429 REJECTED', 'rejected';
    is left($nginx, 'memory_token_bucket', $name) . left($nginx, 'memory_fixed_window', $name), '910',
        'charges nothing, and gives nothing back again';
};

subtest 'charges that stay' => sub {
    my $name = new_name();
    ask('/count-all', $name) for 1 .. 2;
    is left($nginx, 'all', $name), 8, 'where rejected requests count';
    ask('/fast', $name);
    $nginx->advance(1);
    is left($nginx, 'fast', $name), 10, 'a charge that has drained';
    is ask('/fast', $name), '429 REJECTED', 'is not given back';
    is left($nginx, 'fast', $name), 10, 'beyond the capacity';
};

subtest 'a rejection that the deny cache remembers' => sub {
    my $name = new_name();
    ask('/' . 'memory_fixed_window', $name);                       # uses up the later limit
    is ask('/cached', $name), '429 REJECTED', 'the later limit rejects';
    is ask('/only-cached', $name), '200 PASSED', 'the earlier one has its only request back';
    is ask('/only-cached', $name), '429 REJECTED', 'and rejects the next';
};

subtest 'a delayed request' => sub {
    my $name = new_name();
    is ask('/queue', $name), '200 PASSED', 'the first request';
    my $answer = $nginx->delayed_request(path => '/queue', headers => [ 'X-Client' => $name ]);
    is "$answer->{status} " . $answer->header('X-Status'), '429 REJECTED',
        'the second one is delayed before, and rejected after authentication';
    is left($nginx, 'queue', $name), 9, 'what has drained during the delay is not given back twice';
};

# From here on, one Redis does not answer.
$lost->stop;

subtest 'on_error=local' => sub { check_refunds('local') };

subtest 'a later limit with on_error=closed' => sub {
    my $name = new_name();
    is ask('/closed', $name), '503 ERROR', 'Redis does not answer';
    is left($nginx, 'memory_token_bucket', $name) . left($nginx, 'redis_token_bucket', $name), '1010',
        'the earlier limits get their charges back';
    is $nginx->get('/closed', 'X-Client' => $name)->header('X-RateLimit-Remaining'), 10,
        'the header shows what remains';
    is ask('/plan', $name, 'X-Plan' => 'bad'), '503 ERROR', 'a rate that is not valid';
    is left($nginx, 'memory_token_bucket', $name), 10, 'the earlier limit gets its charge back';
};

subtest 'a later limit with on_error=open' => sub {
    my $name = new_name();
    is ask('/open', $name), '200 ERROR', 'the request continues';
    is left($nginx, 'memory_token_bucket', $name), 9, 'and is charged';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';

done_testing;
