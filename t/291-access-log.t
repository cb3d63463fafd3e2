# The access log of docs/explain.md is JSON, line by line, and records the decisions.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx slurp decode_json wait_for);
use RateLimit::Redis qw(start_redis);
use Test::More;

my ($format) = slurp('docs/explain.md') =~ /^(log_format rate_limit_json .*?;)\n/ms;
ok $format, 'the page has a format';

my $redis = start_redis();
my $log   = "$ENV{RL_DIR}/limits.json";
my $nginx = start_nginx(
    http => <<"END",
$format
access_log $log rate_limit_json;
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_zone \$http_x_client zone=memory:1m rate=1r/d;
rate_limit_zone \$http_x_client zone=fleet:1m rate=1r/d redis=fleet;
END
    server => <<'END',
location /memory { rate_limit zone=memory; empty_gif; }
location /fleet  { rate_limit zone=fleet; empty_gif; }
location /dry    { rate_limit zone=memory; rate_limit_dry_run on; empty_gif; }
location /none   { empty_gif; }
END
);

# Returns the log entry of the last request.
sub logged {
    my ($path, %headers) = @_;
    my $before = () = slurp($log) =~ /\n/g;
    $nginx->get($path, %headers);
    my @lines = @{ wait_for('a line', sub { my @all = split /\n/, slurp($log); @all > $before ? \@all : undef }) };
    my $line  = decode_json($lines[-1]);
    return join ' ', map { $line->{$_} eq '' ? '-' : $line->{$_} } qw(status decision zone limit remaining store error);
}

is logged('/memory', 'X-Client' => 'a'), '200 PASSED memory 1 0 memory -',           'an admitted request';
is logged('/memory', 'X-Client' => 'a'), '429 REJECTED memory 1 0 memory -',         'a rejected request';
is logged('/dry',    'X-Client' => 'a'), '200 REJECTED_DRY_RUN memory 1 0 memory -',
    'a request that a dry run would reject';
is logged('/fleet',  'X-Client' => 'a'), '200 PASSED fleet 1 0 redis -',             'a request that Redis admits';
is logged('/fleet',  'X-Client' => 'a'), '429 REJECTED fleet 1 0 redis -',           'a request that Redis rejects';
is logged('/fleet',  'X-Client' => 'a'), '429 REJECTED fleet 1 0 cache -',           'a request that the deny cache rejects';
is logged('/memory'), '200 BYPASSED - - - - -', 'a request that is not limited';
is logged('/none'),   '200 - - - - - -',        'a request without a limit';
is logged("/none?\"\\\xc3\xa9<"), '200 - - - - - -', 'a request with hostile bytes';
my ($line) = slurp($log) =~ /("retryAfter":"\d+")/;
ok $line, 'a rejection has its wait';
$redis->kill;
like logged('/fleet', 'X-Client' => 'b'), qr/^200 ERROR - - - fallback (?:closed|refused)$/,
    'a request while Redis is down';
done_testing;
