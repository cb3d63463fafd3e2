# settle=: if Redis is away when a response ends, the estimate stays or the fallback charges what is missing, and no
# request is settled twice when Redis is back.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(format_request start_nginx wait_for);
use RateLimit::HeldUpstream;
use RateLimit::Places qw(becomes left new_name);
use RateLimit::Redis qw(start_redis);
use Test::More;

# The server keeps its data over a restart. The windows last a year, so that the test needs no frozen clock.
my $redis    = start_redis(config => "appendonly yes\nappendfsync always");
my @ports    = split ' ', $ENV{RL_PORTS};
my $app      = RateLimit::HeldUpstream->start($ports[-1]);
my @on_error = qw(local open closed);
my ($http, $server) = ('', '');
for my $zone (@on_error) {
    $http .= "rate_limit_zone \$http_x_client zone=$zone:1m rate=10r/366d algorithm=fixed_window redis=r "
        . "on_error=$zone deny_cache=off;\n";
    $server .= "location = /$zone { rate_limit zone=$zone cost=6 settle=\$upstream_http_x_cost; "
        . "proxy_pass http://127.0.0.1:$ports[-1]; proxy_read_timeout 1h; }\n";
}
my $nginx = start_nginx(
    port => $ports[0],
    http => <<"HTTP",
rate_limit_redis r @{[ $redis->url ]} timeout=60s connect_timeout=60s;
$http
log_format short '\$status \$request_uri \$http_x_client';
access_log access.log short;
HTTP
    server => "location /api/ { rate_limit_api; }\nlocation = /metrics { rate_limit_metrics; }\n$server",
);

# Requests of each on_error, which will have cost less and more than their estimate of 6, and the same.
sub hold_all {
    my @held;
    for my $zone (@on_error) {
        for my $cost (9, 2, 6) {
            my ($name, $connection) = (new_name(), $nginx->connect);
            $connection->send(format_request(path => "/$zone", headers => [ 'X-Client' => $name ]));
            my %peers = (connection => $connection, app => $app->next_request);
            push @held, { zone => $zone, cost => $cost, name => $name, %peers };
            is left($nginx, $zone, $name), 4, "on_error=$zone, cost $cost: charged by Redis";
        }
    }
    return @held;
}

sub answer_all {
    my (@held) = @_;
    for my $each (@held) {
        $each->{app}->answer(cost => $each->{cost});
        is $each->{connection}->receive->{status}, 200, "on_error=$each->{zone}: the response does not wait";
        wait_for('the end of the request', sub { $nginx->access_log =~ m{^200 /$each->{zone} $each->{name}$}m });
    }
    return;
}

# The API answers with Redis' numbers once Redis is back. Each expected number is stable: a request of another client
# of the same zone follows, and the numbers are read again.
sub check_all {
    my ($title, $expected, @held) = @_;
    for my $round ('first', 'again') {
        for my $each (@held) {
            my ($zone, $cost) = @{$each}{qw(zone cost)};
            my $number = $expected->($zone, $cost);
            becomes($nginx, $zone, $each->{name}, $number, "$title, on_error=$zone, cost $cost: $round");
        }
        for my $zone (@on_error) {
            my ($name, $connection) = (new_name(), $nginx->connect);
            $connection->send(format_request(path => "/$zone", headers => [ 'X-Client' => $name ]));
            $app->next_request->answer(cost => 1);
            is $connection->receive->{status}, 200, "$title, on_error=$zone: requests are admitted as before";
            becomes($nginx, $zone, $name, 9, "$title, on_error=$zone: and settled in Redis");
        }
    }
    return;
}

# Redis does not run when the responses end.
sub lost_when_down {
    my ($zone, $cost) = @_;
    return $cost > 6 && $zone eq 'local' ? 10 - $cost : 4;
}

for my $end (qw(stop kill)) {
    subtest "$end" => sub {
        my @held = hold_all();
        $redis->$end;
        $nginx->get('/metrics');    # after this, nginx has noticed that its connection has ended
        answer_all(@held);
        $redis->restart;
        check_all($end, \&lost_when_down, @held);
    };
}

subtest 'SIGSTOP: Redis applies the corrections that it receives when it goes on' => sub {
    my @held = hold_all();
    $redis->pause;
    answer_all(@held);
    $redis->resume;
    check_all('paused', sub { my (undef, $cost) = @_; return 10 - $cost }, @held);
};

subtest 'SIGSTOP, then killed: the corrections are lost' => sub {
    my @held = hold_all();
    $redis->pause;
    answer_all(@held);
    $redis->kill;
    $redis->restart;
    check_all('paused and killed', sub { return 4 }, @held);
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';
done_testing;
