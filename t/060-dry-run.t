# A dry run decides, counts and logs like a real limit, and delays or rejects no request.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use Test::More;

my $nginx = start_nginx(
    http => <<'HTTP',
rate_limit_zone $http_x_client zone=two:1m rate=2r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=queue:1m rate=1r/m algorithm=leaky_bucket burst=2;
rate_limit_zone $http_x_client zone=wide:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=closed:1m rate=$arg_rate on_error=closed;
HTTP
    server => <<'SERVER',
add_header X-Status $rate_limit_status always;
location /dry/    { rate_limit zone=two; rate_limit_dry_run on; empty_gif; }
location /earnest/ { rate_limit zone=two; empty_gif; }
location /queue/  { rate_limit zone=queue; rate_limit_dry_run on; empty_gif; }
location /both/   { rate_limit zone=two; rate_limit zone=wide; rate_limit_dry_run on; empty_gif; }
location /wide/   { rate_limit zone=wide; empty_gif; }
location /closed/ { rate_limit zone=closed; rate_limit_dry_run on; empty_gif; }
location /page/   { rate_limit zone=two; rate_limit_dry_run on; error_page 404 /dry/page; }
location /if/     { rate_limit_dry_run on; if ($arg_a) { rate_limit zone=two; } empty_gif; }
SERVER
);

# Sends a request of the named client. Returns status, $rate_limit_status, remaining, Retry-After.
sub ask {
    my ($path, $client) = @_;
    my $response = $nginx->get($path, 'X-Client' => $client);
    return join ' ', $response->{status}, $response->header('X-Status') // '-',
        $response->header('X-RateLimit-Remaining') // '-', defined $response->header('Retry-After') ? 'later' : ();
}

is ask('/dry/', 'a'), '200 PASSED 1',           'within the limit: passed';
is ask('/dry/', 'a'), '200 PASSED 0',           'within the limit: counted';
is ask('/dry/', 'a'), '200 REJECTED_DRY_RUN 0', 'beyond the limit: passed, and reported as REJECTED_DRY_RUN';
is ask('/dry/', 'a'), '200 REJECTED_DRY_RUN 0', 'beyond the limit: a second time';
is ask('/earnest/', 'a'), '429 REJECTED 0 later', 'requests of a dry run count for a real limit';

is ask('/dry/', 'b'), '200 PASSED 1', 'a request that a dry run would reject is not charged: one zone';
is ask('/both/', 'b'), '200 PASSED 0', 'a request that a dry run would reject is not charged: two zones';
is ask('/both/', 'b'), '200 REJECTED_DRY_RUN 0',
    'a request that a dry run would reject is not charged: the rejected one';
is ask('/wide/', 'b'), '200 PASSED 8', 'a request that a dry run would reject is not charged to another zone';

{
    is ask('/queue/', 'c'), '200 PASSED 2', 'a queue in a dry run: the first request';
    my $response = $nginx->get('/queue/', 'X-Client' => 'c');
    is $response->header('X-Status'), 'DELAYED_DRY_RUN',
        'a queue in a dry run: the second request is not delayed, and is reported';
    cmp_ok $response->{seconds}, '<', 20, 'a queue in a dry run: no request waited a minute';
    is ask('/queue/', 'c'), '200 DELAYED_DRY_RUN 0',  'a queue in a dry run: the third request';
    is ask('/queue/', 'c'), '200 REJECTED_DRY_RUN 0', 'a queue in a dry run: the fourth request';
}

is ask('/closed/?rate=wrong', 'd'), '200 ERROR -', 'a dry run admits a request that on_error=closed would reject';
is ask('/page/absent', 'e'), '404 PASSED 1', 'an error page counts once';
is ask('/if/?a=1', 'f'), '200 PASSED 1', 'a dry run works in an if';

my $log = $nginx->error_log;
like $log, qr/\[error\].* limiting requests, dry run, excess: (?:0\.99\d|1\.000) by zone "two".*"GET \/dry\//,
    'a rejection is logged';
like $log, qr/\[warn\].* delaying request, dry run, excess: (?:0\.9\d\d|1\.000), by zone "queue".*"GET \/queue\//,
    'a delay is logged';
is scalar(() = $log =~ m{limiting requests, dry run.*"GET /dry/}g), 2, 'each rejection once';
like $log, qr{limiting requests, excess: .*"GET /earnest/}, 'the log of a real rejection does not contain dry run';

done_testing;
