# The debug log shows each step of a request: its limits, the call to Redis, and the decisions.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $binary = $ENV{TEST_NGINX_BINARY} // 'nginx';
plan skip_all => 'this nginx is built without --with-debug' if qx($binary -V 2>&1) !~ /--with-debug/;

my $redis = start_redis();
my $nginx = start_nginx(
    log_level => 'debug',
    clock     => 1,
    http      => <<"END",
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_zone \$arg_key zone=memory:1m rate=1r/d;
rate_limit_zone \$arg_key zone=fleet:1m rate=5r/m,9r/d redis=fleet;
rate_limit_zone \$arg_key zone=many:1m rate=9r/d;
rate_limit_zone \$arg_key zone=queue:1m rate=5r/s algorithm=leaky_bucket burst=3;
END
    server => <<'END',
location /memory { rate_limit zone=memory cost=1; empty_gif; }
location /fleet  { rate_limit zone=fleet; empty_gif; }
location /queue  { rate_limit zone=queue; empty_gif; }
location /settle { rate_limit zone=many cost=5 settle=$arg_actual; empty_gif; }
location /late   { rate_limit zone=many cost=3; rate_limit zone=memory cost=2 phase=precontent; empty_gif; }
END
);

# The debug lines since the log had so many bytes.
sub lines_since { my ($before) = @_; return substr($nginx->error_log, $before) =~ /: (?:\*\d+ )?rate_limit: (.*)/g }

# The debug lines of one request.
sub lines_of {
    my ($path) = @_;
    my $before = length $nginx->error_log;
    $nginx->get($path);
    return lines_since($before);
}

is_deeply [ lines_of('/memory?key=a%22b') ],
    [
        'zone "memory", key "a%22b", sliding_window, rate 1r/d, cost 1',
        'zone "memory" allowed by memory, 0 of 1 left, delay 0us, retry after 0us',
    ],
    'a limit in memory';
like +(lines_of('/memory?key=a%22b'))[1], qr/^zone "memory" rejected by memory, 0 of 1 left, delay 0us, retry after \d+us$/,
    'a rejection';
is_deeply [ lines_of('/fleet?key=a') ],
    [
        'zone "fleet", key "a", sliding_window, rate 5r/m,9r/d, cost 1',
        'wait for Redis',
        'call Redis for 1 requests, 1 keys',
        'reply of Redis for 1 requests: decided',
        'Redis has answered',
        'zone "fleet" allowed by redis, 4 of 5 left, delay 0us, retry after 0us',
    ],
    'a limit in Redis';

lines_of('/queue?key=a');
my $before = length $nginx->error_log;
is $nginx->delayed_request(path => '/queue?key=a')->{status}, 200, 'a delayed request';
is_deeply [ lines_since($before) ],
    [
        'zone "queue", key "a", leaky_bucket, rate 5r/s, cost 1',
        'zone "queue" allowed by memory, 2 of 4 left, delay 200000us, retry after 0us',
        'the delay has ended',
    ],
    'and its lines';

is_deeply [ grep {/settled|gives back/} lines_of('/settle?key=s&actual=2') ], ['zone "many" settled: charged 5, cost 2'],
    'a charge that is settled';
is_deeply [ grep {/settled|gives back/} lines_of('/late?key=s') ], ['zone "many" gives back 3'],
    'a charge that is given back';

done_testing;
