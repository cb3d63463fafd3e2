# A CONNECT request is limited like any other: it may be delayed or wait for Redis, and its tunnel works afterwards.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config start_nginx);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

if (check_config(server => 'location /tunnel/ { tunnel_pass; }')->{exit} != 0) {
    plan skip_all => 'this nginx has no ngx_http_tunnel_module (1.31.0 or later)';
}

my $redis = start_redis();
my $url   = $redis->url;
my $nginx = start_nginx(
    http => <<"HTTP",
rate_limit_redis main $url timeout=10s;
rate_limit_zone \$http_x_client zone=counted:1m rate=2r/d algorithm=sliding_log;
rate_limit_zone \$http_x_client zone=remote:1m rate=2r/d algorithm=sliding_log redis=main;
rate_limit_zone \$http_x_client zone=shaped:1m rate=4r/s algorithm=leaky_bucket burst=5;
HTTP
    servers => <<'SERVERS',
server { listen 127.0.0.1:%PORT%; server_name counted; location / { rate_limit zone=counted; tunnel_pass 127.0.0.1:%PORT1%; } }
server { listen 127.0.0.1:%PORT%; server_name remote;  location / { rate_limit zone=remote;  tunnel_pass 127.0.0.1:%PORT1%; } }
server { listen 127.0.0.1:%PORT%; server_name shaped;  location / { rate_limit zone=shaped;  tunnel_pass 127.0.0.1:%PORT1%; } }
server { listen 127.0.0.1:%PORT1%; location / { return 200 "through\n"; } }
SERVERS
);

# Requests a tunnel, and sends the data for its other end in the same write. Returns the response to CONNECT and, if the
# tunnel is established, the response through the tunnel.
sub tunnel {
    my ($host, $client) = @_;
    my $connection = $nginx->connect;
    $connection->send("CONNECT $host:80 HTTP/1.1\r\nHost: $host:80\r\nX-Client: $client\r\n\r\n"
            . "GET / HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n");
    my $answer = $connection->receive('HEAD');    # neither response has a body that matters
    return ($answer, $answer->{status} == 200 ? $connection->receive->{body} : '');
}

for my $host ('counted', 'remote') {
    for my $i (1 .. 2) {
        my ($answer, $body) = tunnel($host, 'one');
        is "$answer->{status} $body", "200 through\n", "$host: tunnel $i";
    }
    my ($answer) = tunnel($host, 'one');
    is $answer->{status}, 429, "$host: a third request is rejected";
    ok $answer->header('Retry-After') > 86390, "$host: with Retry-After";
    is $answer->header('X-RateLimit-Remaining'), 0, "$host: the rejection has the headers";
}

my $began = time;
tunnel('shaped', 'one');
my ($answer, $body) = tunnel('shaped', 'one');
is "$answer->{status} $body", "200 through\n", 'a tunnel that was delayed';
cmp_ok time - $began, '>', 0.23, 'the tunnel was delayed by an interval';
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no unexpected errors';

done_testing;
