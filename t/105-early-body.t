# With client_body_early_read, nginx reads the request body before the limit check, and the decisions are the same.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config start_nginx decode_json);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(sleep time);

if (check_config(server => 'client_body_early_read 1;')->{exit} != 0) {
    plan skip_all => 'this nginx has no client_body_early_read (1.31.5 or later)';
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
    server => <<'SERVER',
client_body_early_read 1;
client_body_buffer_size 16k;
location = /counted { rate_limit zone=counted; proxy_pass http://127.0.0.1:%PORT1%; }
location = /remote  { rate_limit zone=remote; proxy_pass http://127.0.0.1:%PORT1%; }
location = /shaped  { rate_limit zone=shaped; proxy_pass http://127.0.0.1:%PORT1%; }
location /api/      { rate_limit_api write=on; }
SERVER
    servers => 'server { listen 127.0.0.1:%PORT1%; location / { return 200 $content_length; } }',
);

# Posts a body in two parts, so that nginx has to wait for the second part.
sub post {
    my ($path, $size) = @_;
    my $half       = $size / 2;
    my $connection = $nginx->connect;
    $connection->send("POST $path HTTP/1.1\r\nHost: localhost\r\nX-Client: $size\r\nContent-Length: $size\r\n\r\n" . 'x' x $half);
    sleep 0.05;
    $connection->send('x' x $half);
    my $answer = $connection->receive;
    return $answer->{status} . ($answer->{status} == 200 ? " $answer->{body}" : '');
}

# A body that fits into memory, and a body that nginx writes to a file.
for my $size (1000, 100_000) {
    for my $path ('/counted', '/remote') {
        is join(' ', map { post($path, $size) } 1 .. 3), "200 $size 200 $size 429", "$path with $size bytes";
    }
    post('/shaped', $size);
    my $began = time;
    is post('/shaped', $size), "200 $size", "/shaped with $size bytes gets a response";
    cmp_ok time - $began, '>', 0.15, 'after its delay';
}

for my $zone ('counted', 'remote') {
    my $answer = $nginx->request(
        method  => 'PATCH',
        path    => "/api/zones/$zone",
        headers => [ 'Content-Type' => 'application/json' ],
        body    => '{"rate":"1r/d"}',
    );
    is $answer->{status}, 200, "the API changes a rate of $zone";
    is decode_json($answer->{body})->{rate}, '1r/d', 'the rate of the body is in force';
}
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no unexpected errors';

done_testing;
