# A request that its client cancels at once is charged to all its limits or to none, and is counted.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_reading request_text);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::HTTP2;
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Redis qw(start_redis);
use Test::More;

my ($one, $two) = (start_redis(), start_redis());
my $cluster = start_cluster(masters => 2, replicas => 0, node_timeout => 60_000);
my ($port, $h2_port) = split ' ', $ENV{RL_PORTS};

# Where the state of the shared limit is, and where that of each client's limit.
my %places = (
    redis_redis     => [ 'redis=one',     'redis=two' ],
    redis_memory    => [ 'redis=one',     '' ],
    memory_redis    => [ '',              'redis=two' ],
    cluster_cluster => [ 'redis=cluster', 'redis=cluster' ],
    one_place       => [ 'redis=one',     'redis=one' ],
);
my ($http, $server) = ('', '');
for my $name (sort keys %places) {
    my ($shared, $own) = @{ $places{$name} };
    $http .= "rate_limit_zone \$scheme zone=${name}_shared:1m rate=1000r/h $shared;\n"
        . "rate_limit_zone \$http_x_client zone=${name}_own:1m rate=10r/h $own;\n";
    $server .= "location = /$name { rate_limit zone=${name}_shared; rate_limit zone=${name}_own; empty_gif; }\n"
        . "location = /look/${name}_shared { rate_limit zone=${name}_shared cost=0; empty_gif; }\n"
        . "location = /look/${name}_own { rate_limit zone=${name}_own cost=0; empty_gif; }\n";
}

my $nginx = start_nginx(
    port => $port,
    http => <<"HTTP",
rate_limit_redis one @{[ $one->url ]} timeout=1h connect_timeout=1h;
rate_limit_redis two @{[ $two->url ]} timeout=1h connect_timeout=1h;
rate_limit_redis cluster @{[ $cluster->url ]} timeout=1h connect_timeout=1h;
rate_limit_zone \$http_x_client zone=slow:1m rate=60r/h algorithm=leaky_bucket burst=100;
rate_limit_zone \$http_x_client zone=late:1m rate=1000r/h redis=two;
$http
HTTP
    server => <<"SERVER",
location = /metrics { rate_limit_metrics; }
location = /slow { rate_limit zone=slow; empty_gif; }
location = /late { rate_limit zone=late; empty_gif; }
location = /look/late { rate_limit zone=late cost=0; empty_gif; }
$server
SERVER
    servers => "server { listen 127.0.0.1:$h2_port http2; $server }",
);

sub used {
    my ($zone, $client) = @_;
    my $answer = $nginx->get("/look/$zone", 'X-Client' => $client);
    return $answer->header('X-RateLimit-Limit') - $answer->header('X-RateLimit-Remaining');
}

sub decided {
    my ($zone) = @_;
    return sum_of(metrics($nginx), 'rate_limiter_requests_total', zone => $zone);
}

sub aborted {
    my ($zone) = @_;
    return sum_of(metrics($nginx), 'rate_limiter_aborted_total', zone => $zone);
}

# Sends requests, each followed by RST_STREAM, 40 on each connection.
sub abort {
    my ($path, $count) = @_;
    my @connections;
    while ($count > 0) {
        my $connection = RateLimit::HTTP2->new($h2_port);
        for (1 .. 40) {
            $connection->reset($connection->request('GET', $path, headers => [ 'x-client' => 'attacker' ]));
            $count--;
        }
        push @connections, $connection->send;
    }
    $_->ping or die "nginx has closed a connection\n" for @connections;
    return;
}

for my $name (sort keys %places) {
    subtest "limits in $name" => sub {
        abort("/$name", 400);
        wait_for('the decisions of all requests', sub { decided("${name}_own") == 400 });
        is used("${name}_own", 'attacker'), 10, 'the limit of the client is exhausted';
        is used("${name}_shared", 'attacker'), 10, 'the shared limit was charged for admitted requests only';
        cmp_ok aborted("${name}_own"), '>=', 10, 'at least the requests that waited are counted as aborted';
        is $nginx->get("/$name", 'X-Client' => 'another')->{status}, 200, 'other clients are admitted';
    };
}

subtest 'a client that disconnects while Redis does not respond' => sub {
    $two->pause;
    my $connection = RateLimit::Async->new($port);
    $connection->raw(request_text('GET', '/late', [ 'X-Client' => 'leaver' ]), 'GET');
    await_reading($connection);
    $connection->close;
    wait_for('nginx to see it', sub { $nginx->access_log =~ m{"GET /late [^"]*" 499 } });
    is aborted('late'), 0, 'the request is not decided yet';
    $two->resume;
    wait_for('the end', sub { aborted('late') == 1 });
    is decided('late'), 1, 'the request is counted when Redis has decided';
    is used('late', 'leaver'), 1, 'the request is charged when Redis has decided';
};

subtest 'a client that disconnects during a delay' => sub {
    is $nginx->get('/slow', 'X-Client' => 'slow')->{status}, 200, 'the first request is admitted';
    my $connection = RateLimit::Async->new($port);
    $connection->raw(request_text('GET', '/slow', [ 'X-Client' => 'slow' ]), 'GET');
    wait_for('the delay', sub { sum_of(metrics($nginx), 'rate_limiter_delayed_total', zone => 'slow') == 1 });
    is aborted('slow'), 0, 'the second request is delayed';
    $connection->close;
    wait_for('the end', sub { aborted('slow') == 1 });
    is decided('slow'), 2, 'the request was counted once';
};

$nginx->stop;
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'nothing is wrong';

done_testing;
