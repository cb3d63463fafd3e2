# settle=: a client that leaves, an upstream or a worker that dies, an error, a redirect and a reload have the cost that
# docs/settle.md says.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(format_request start_nginx wait_for);
use RateLimit::HeldUpstream;
use RateLimit::HTTP2;
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Places qw(becomes left new_name);
use RateLimit::Redis qw(start_redis);
use Test::More;

# The clocks of nginx and Redis are frozen, so that no window ends.
my $redis = start_redis(clock => 'stopped');
my @ports = split ' ', $ENV{RL_PORTS};
my ($app_port, $h2_port) = @ports[ -1, -2 ];
my $app    = RateLimit::HeldUpstream->start($app_port);
my @places = qw(memory redis sync);

# A request is charged 6 of 10. It has cost what the upstream says, or a number of its status.
my $locations = "location /api/ { rate_limit_api write=on; }\nlocation = /metrics { rate_limit_metrics; }\n"
    . "location = /internal { internal; rate_limit zone=memory cost=2 settle=\$two; empty_gif; }\n";
for my $place (@places) {
    my $limit = "rate_limit zone=$place cost=6 settle=\$actual;";
    my $pass  = "proxy_pass http://127.0.0.1:$app_port; proxy_buffering off;";
    $locations .= <<"SERVER";
location = /$place          { $limit $pass }
location = /$place/page     { $limit $pass error_page 502 504 /internal; }
location = /$place/named    { $limit try_files /absent \@$place; }
location = /$place/error    { $limit try_files /absent =500; }
location = /$place/big      { $limit client_max_body_size 1; $pass }
location \@$place           { rate_limit zone=$place cost=3 settle=\$two; $pass }
SERVER
}
my %conf = (
    port  => $ports[0],
    clock => 1,
    http  => <<"HTTP",
map "\$status \$upstream_http_x_cost" \$actual {
    "~^499"                5;
    "~^500"                0;
    "~^413"                4;
    "~^502"                1;
    "~^504"                3;
    "~ (?<told>[0-9]+)\$"  \$told;
}
map "" \$two { default 2; }
log_format short '\$status \$request_uri \$http_x_client';
access_log access.log short;
rate_limit_redis one @{[ $redis->url ]} timeout=60s connect_timeout=60s;
rate_limit_zone \$http_x_client zone=memory:1m rate=10r/d algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=redis:1m rate=10r/d algorithm=fixed_window redis=one deny_cache=off;
rate_limit_zone \$http_x_client zone=sync:1m rate=10r/d algorithm=fixed_window redis=one sync=1h;
HTTP
    server  => $locations,
    servers => "server { listen 127.0.0.1:$h2_port http2; root html; $locations }",
);
my $nginx = start_nginx(%conf);

# Sends a request of a new client, and waits until the upstream has it. Returns the client's name, its connection and
# the request of nginx.
sub hold {
    my ($path) = @_;
    my ($name, $connection) = (new_name(), $nginx->connect);
    $connection->send(format_request(path => $path, headers => [ 'X-Client' => $name ]));
    return ($name, $connection, $app->next_request);
}

sub ended {
    my ($status, $path, $name) = @_;
    wait_for("the end of $path $name", sub { $nginx->access_log =~ m{^$status \Q$path\E $name$}m });
    return;
}

sub settled {
    my ($place, $result) = @_;
    return sum_of(metrics($nginx), 'rate_limiter_settled_total', zone => $place, result => $result);
}

subtest 'a client that leaves before the response' => sub {
    for my $place (@places) {
        my ($name, $connection, $held) = hold("/$place");
        is left($nginx, $place, $name), 4, "$place: the request is charged its estimate";
        $connection->close;
        ended(499, "/$place", $name);
        becomes($nginx, $place, $name, 5, "$place: it is settled by the status 499");
    }
};

subtest 'a client that leaves during the response' => sub {
    for my $place (@places) {
        my ($name, $connection, $held) = hold("/$place");
        $held->begin(cost => 2);
        $connection->need(100);
        $connection->close;
        becomes($nginx, $place, $name, 8, "$place: the request is settled by the header of the upstream");
    }
};

subtest 'HTTP/2: a stream that is reset' => sub {
    for my $place (@places) {
        my $name   = new_name();
        my $client = RateLimit::HTTP2->new($h2_port);
        my $stream = $client->request('GET', "/$place", headers => [ 'x-client' => $name ]);
        $client->send;
        my $held = $app->next_request;
        is left($nginx, $place, $name), 4, "$place: the request is charged its estimate";
        $client->reset($stream)->send;
        ended(499, "/$place", $name);
        becomes($nginx, $place, $name, 5, "$place: it is settled by the status 499");
        my $next = new_name();
        $stream = $client->request('GET', "/$place", headers => [ 'x-client' => $next ]);
        $client->send;
        $held = $app->next_request;
        $held->begin(cost => 9);
        wait_for('the response', sub { $client->ping; $client->stream($stream)->{status} });
        $client->reset($stream)->send;
        becomes($nginx, $place, $next, 1, "$place: during the response, by the header of the upstream");
        $client->close;
    }
};

subtest 'a client that leaves while Redis decides' => sub {
    my $before = settled('redis', 'kept') . settled('redis', 'less') . settled('redis', 'more');
    $redis->pause;
    my ($name, $next) = (new_name(), new_name());
    my $connection = $nginx->connect;
    $connection->send(format_request(path => '/redis', headers => [ 'X-Client' => $name ]));
    my $client = RateLimit::HTTP2->new($h2_port);
    my $stream = $client->request('GET', '/redis', headers => [ 'x-client' => $next ]);
    $client->send->ping;
    $client->reset($stream)->send;
    $connection->close;
    ended(499, '/redis', $_) for $name, $next;
    $redis->resume;
    becomes($nginx, 'redis', $name, 4, 'HTTP/1.1: the estimate is charged');
    becomes($nginx, 'redis', $next, 4, 'HTTP/2: the estimate is charged');
    is settled('redis', 'kept') . settled('redis', 'less') . settled('redis', 'more'), $before, 'nothing is settled';
    $client->close;
};

subtest 'an upstream that dies' => sub {
    for my $place (@places) {
        my ($name, $connection, $held) = hold("/$place");
        $held->die;
        is $connection->receive->{status}, 502, "$place: no response";
        becomes($nginx, $place, $name, 9, "$place: the request is settled by the status 502");
        ($name, $connection, $held) = hold("/$place");
        $held->begin(cost => 3);
        $connection->need(100);
        $held->die;
        becomes($nginx, $place, $name, 7, "$place: during the response, by its header");
        ($name, $connection, $held) = hold("/$place");
        $nginx->advance(61);
        is $connection->receive->{status}, 504, "$place: a timeout";
        becomes($nginx, $place, $name, 7, "$place: the request is settled by the status 504");
    }
};

subtest 'an error of nginx' => sub {
    for my $place (@places) {
        my $name = new_name();
        is $nginx->get("/$place/error", 'X-Client' => $name)->{status}, 500, "$place: status 500";
        becomes($nginx, $place, $name, 10, "$place: the map says that the request costs nothing");
        $name = new_name();
        my %big = (method => 'POST', path => "/$place/big", body => 'x' x 9, headers => [ 'X-Client' => $name ]);
        is $nginx->request(%big)->{status}, 413, "$place: a body that is too large";
        # nginx refuses the request before any limit.
        becomes($nginx, $place, $name, 10, "$place: no limit has charged the request");
    }
};

subtest 'an internal redirect settles once, by the limit that charged' => sub {
    for my $place (@places) {
        my ($name, $connection, $held) = hold("/$place/page");
        $held->die;
        $connection->receive;
        my $memory = $place eq 'memory' ? undef : left($nginx, 'memory', $name);
        becomes($nginx, $place, $name, 9, "$place: error_page");
        is $memory, 8, "$place: a zone of the error page is charged and settled by its own limit" if defined $memory;
        ($name, $connection, $held) = hold("/$place/named");
        $held->answer(cost => 4);
        $connection->receive;
        becomes($nginx, $place, $name, 6, "$place: try_files");
        ($name, $connection, $held) = hold("/$place");
        $held->answer(cost => 7, more => ['X-Accel-Redirect: /internal']);
        is $connection->receive->{status}, 200, "$place: X-Accel-Redirect";
        becomes($nginx, $place, $name, 3, "$place: X-Accel-Redirect: the upstream's header is still known");
    }
};

subtest 'a reload between charge and settlement' => sub {
    my @held = map { [ $_, hold("/$_") ] } @places, @places;
    my ($old) = $nginx->workers;
    $nginx->signal('HUP');
    my $leaves = qr/gracefully shutting down/;
    wait_for('the old worker to leave', sub { $nginx->workers == 2 && $nginx->error_log =~ $leaves });
    is left($nginx, $_->[0], $_->[1]), 4, "$_->[0]: the new worker knows the estimate" for @held[ 0 .. 1 ];
    for my $index (0 .. $#held) {
        my ($place, $name, $connection, $held) = @{ $held[$index] };
        ok kill(0, $old), 'the old worker is still there';
        my $cost = $index < @places ? 2 : 9;
        $held->answer(cost => $cost);
        is $connection->receive->{status}, 200, "$place: the response";
        $nginx->advance(1);    # a correction waits some milliseconds for a check of its worker
        becomes($nginx, $place, $name, 10 - $cost, "$place: the old worker settles $cost");
    }
    wait_for('the end of the old worker', sub { $nginx->workers == 1 });
};

# A debt is at most the limit once more. By the old rate, only 14 more could be charged.
subtest 'a rate that changes between charge and settlement' => sub {
    for my $place (@places) {
        my ($name, $connection, $held) = hold("/$place");
        my %patch = (method => 'PATCH', path => "/api/zones/$place", headers => [ 'Content-Type' => 'application/json' ]);
        is $nginx->request(%patch, body => '{"rate":"50r/d"}')->{status}, 200, "$place: 50r/d instead of 10r/d";
        wait_for('the new rate', sub { left($nginx, $place, new_name()) == 50 });
        $held->answer(cost => 30);
        is $connection->receive->{status}, 200, "$place: the response";
        becomes($nginx, $place, $name, 20, "$place: the request is settled by the new rate");
        is $nginx->request(method => 'DELETE', path => "/api/zones/$place")->{status}, 200, "$place: the old rate again";
        wait_for('the old rate', sub { left($nginx, $place, new_name()) == 10 });
    }
};

subtest 'a worker that is killed between charge and settlement' => sub {
    my @held = map { [ $_, hold("/$_") ] } @places;
    my ($old) = $nginx->workers;
    kill 'KILL', $old;
    wait_for('a new worker', sub { my @now = $nginx->workers; return @now == 1 && $now[0] != $old });
    for (@held) {
        my ($place, $name, $connection, $held) = @{$_};
        ok $connection->at_end, "$place: the connection has ended";
        $held->answer(cost => 1);
        becomes($nginx, $place, $name, 4, "$place: the estimate stays charged");
        my $again = $nginx->connect;
        my %next = (path => "/$place", headers => [ 'X-Client' => $name ]);
        $again->send(format_request(%next));
        is $again->receive->{status}, 429, "$place: another 6 do not fit";
    }
    my ($name, $connection, $held) = hold('/memory');
    $held->answer(cost => 2);
    becomes($nginx, 'memory', $name, 8, 'the new worker settles');
};

my $log = $nginx->error_log =~ s/^.*\[alert\].*worker process \d+ exited on signal 9.*\n//gmr;
unlike $log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';
done_testing;
