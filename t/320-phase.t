# A limit with phase=precontent is checked after authentication: by tenant, user, plan and cost, whatever leads there.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config format_request start_nginx);
use RateLimit::HTTP2;
use RateLimit::Metrics qw(metrics sum_of);
use RateLimit::Places qw(left new_name);
use RateLimit::Redis qw(start_redis);
use RateLimit::Upstream;
use Test::More;

my $redis   = start_redis();
my @ports   = split ' ', $ENV{RL_PORTS};
my ($app_port, $h2_port) = @ports[ -2, -3 ];
my $app     = RateLimit::Upstream->start($app_port);

# Authentication accepts a request with a tenant, and tells the tenant, its plan and the cost of the request.
my $auth = <<"SERVERS";
server {
    listen 127.0.0.1:%PORT1%;
    add_header X-Tenant \$http_x_tenant;
    add_header X-Plan \$http_x_plan;
    add_header X-Cost \$http_x_cost;
    location / { if (\$http_x_tenant = "") { return 401; } return 200; }
}
SERVERS
my $check = <<'SERVER';
auth_request /auth;
auth_request_set $tenant $upstream_http_x_tenant;
auth_request_set $plan $upstream_http_x_plan;
auth_request_set $cost $upstream_http_x_cost;
SERVER

my $locations = <<"SERVER";
rate_limit_headers all;
add_header X-Status \$rate_limit_status always;
add_header X-Zone \$rate_limit_zone always;
location = /auth    { internal; rate_limit zone=address; proxy_pass http://127.0.0.1:%PORT1%; }
location /api/      { rate_limit_api; }
location = /metrics { rate_limit_metrics; }
location = /tenant  { $check rate_limit zone=tenant phase=precontent; empty_gif; }
location = /redis   { $check rate_limit zone=redis phase=precontent; empty_gif; }
location = /early   { $check rate_limit zone=tenant phase=access; empty_gif; }
location = /plan    { $check rate_limit zone=plan phase=precontent; empty_gif; }
location = /cost    { $check rate_limit zone=tenant phase=precontent cost=\$cost; empty_gif; }
location = /both    { $check rate_limit zone=tenant phase=precontent; rate_limit zone=address; empty_gif; }
location = /user    { auth_basic x; auth_basic_user_file %DIR%/html/users; rate_limit zone=user phase=precontent;
    empty_gif; }
location = /any     { satisfy any; allow 192.0.2.1; deny all; $check rate_limit zone=tenant phase=precontent;
    empty_gif; }
location = /any-user { satisfy any; allow 127.0.0.1; deny all; auth_basic x; auth_basic_user_file %DIR%/html/users;
    rate_limit zone=user phase=precontent; empty_gif; }
location = /any-tenant { satisfy any; allow 127.0.0.1; deny all; $check rate_limit zone=tenant phase=precontent;
    empty_gif; }
location = /any-403 { satisfy any; allow 127.0.0.1; deny all; $check rate_limit zone=address phase=precontent;
    rate_limit_status 403; empty_gif; }
location = /closed  { deny all; rate_limit zone=address phase=precontent; empty_gif; }

location = /try        { $check rate_limit zone=tenant phase=precontent; try_files /page =404; }
location = /try-named  { $check try_files /absent \@named; }
location = /twice      { $check rate_limit zone=tenant phase=precontent; try_files /absent \@named; }
location \@named       { rate_limit zone=tenant phase=precontent; empty_gif; }
location = /error      { $check rate_limit zone=tenant phase=precontent; error_page 404 = /again;
    try_files /absent =404; }
location = /again      { $check rate_limit zone=tenant phase=precontent; empty_gif; }
location = /rejected   { $check rate_limit zone=tenant phase=precontent; error_page 429 /rejected-page; empty_gif; }
location = /rejected-page { $check rate_limit zone=tenant phase=precontent; rate_limit zone=address;
    try_files /page =404; }
location = /post       { $check rate_limit zone=redis phase=precontent; proxy_pass http://127.0.0.1:$app_port; }
location = /mirror     { $check rate_limit zone=tenant phase=precontent; mirror /mirrored; empty_gif; }
location = /mirrored   { internal; rate_limit zone=address phase=precontent;
    proxy_pass http://127.0.0.1:$app_port/mirrored; }
location = /ssi        { $check rate_limit zone=tenant phase=precontent; ssi on; ssi_types *; }
location = /part       { rate_limit zone=address phase=precontent; try_files /page =404; }

location = /queue      { $check rate_limit zone=queue phase=precontent; empty_gif; }
location = /queue-first { $check rate_limit zone=queue; rate_limit zone=tenant phase=precontent; empty_gif; }
location = /queues     { $check rate_limit zone=queue; rate_limit zone=queue2 phase=precontent; empty_gif; }
location = /dry        { $check rate_limit_dry_run on; rate_limit zone=tenant phase=precontent;
    rate_limit zone=address; empty_gif; }
location = /dry-first  { $check rate_limit_dry_run on; rate_limit zone=address;
    rate_limit zone=wide phase=precontent; empty_gif; }
location = /shadow     { $check rate_limit_shadow zone=candidate phase=precontent; empty_gif; }
location /outer/ {
    $check
    rate_limit zone=tenant phase=precontent;
    location = /outer/inner { empty_gif; }
    location = /outer/off { rate_limit off; empty_gif; }
    location = /outer/except { limit_except GET { deny 192.0.2.1; } empty_gif; }
    location /outer/api/ { auth_request off; rate_limit_api; }
}
SERVER
my %conf = (
    port => $ports[0],
    http => <<"HTTP",
rate_limit_redis r @{[ $redis->url ]};
rate_limit_zone \$tenant zone=tenant:1m rate=3r/d algorithm=token_bucket;
rate_limit_zone \$tenant zone=redis:1m rate=3r/d algorithm=token_bucket redis=r;
rate_limit_zone \$tenant zone=plan:1m rate=\$plan algorithm=token_bucket;
rate_limit_zone \$tenant zone=wide:1m rate=100r/d algorithm=token_bucket;
rate_limit_zone \$tenant zone=candidate:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone \$remote_user zone=user:1m rate=2r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=address:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=queue:1m rate=2r/s algorithm=leaky_bucket burst=5;
rate_limit_zone \$http_x_client zone=queue2:1m rate=1r/s algorithm=leaky_bucket burst=5;
log_format client '\$status \$uri';
access_log access.log client;
HTTP
    server  => $locations,
    servers => "server { listen 127.0.0.1:$h2_port http2; root html; $locations } $auth",
);
my $nginx = start_nginx(%conf, clock => 1);
$nginx->write_file('page', "page\n");
$nginx->write_file('ssi', '<!--#include virtual="/part" --><!--#include virtual="/part" -->');
$nginx->write_file('users', "alice:{PLAIN}secret\nbob:{PLAIN}secret\n");

# Sends requests of one tenant, whose client has the same name. Returns the statuses.
sub ask {
    my ($path, $tenant, $count, @headers) = @_;
    push @headers, 'X-Tenant' => $tenant, 'X-Client' => $tenant;
    return join ' ', map { $nginx->get($path, @headers)->{status} } 1 .. $count;
}

subtest 'a key of auth_request_set' => sub {
    is ask('/tenant', 'alice', 4), '200 200 200 429', 'a tenant has its limit';
    is ask('/tenant', 'bob', 1), '200', 'another tenant has a limit of its own';
    is $nginx->get('/tenant')->{status}, 401, 'a request without a tenant is not authenticated';
    is ask('/early', 'alice', 1), '200', 'with phase=access, the key is still empty';
    is ask('/redis', 'alice', 4), '200 200 200 429', 'a zone in Redis';
    is ask('/redis', 'bob', 1), '200', 'each tenant in Redis';
};

subtest 'headers, variables and log' => sub {
    my $name = new_name();
    my @seen = map { $nginx->get('/tenant', 'X-Tenant' => $name) } 1 .. 4;
    is join(' ', map { $_->header('X-RateLimit-Remaining') } @seen), '2 1 0 0', 'what remains';
    is join(' ', map { $_->header('X-Status') . ':' . $_->header('X-Zone') } @seen[ 0, 3 ]),
        'PASSED:tenant REJECTED:tenant', 'variables';
    ok $seen[3]->header('Retry-After') > 0, 'a rejected client learns when to return';
    like $nginx->error_log, qr/limiting requests, excess: \S+ by zone "tenant", client: \S+, key "$name"/,
        'the log names the tenant';
    is $nginx->get('/early', 'X-Tenant' => $name)->header('X-Status'), 'BYPASSED',
        'with phase=access, the status is BYPASSED';
};

subtest 'a user whom auth_basic has verified' => sub {
    my %right = (Authorization => 'Basic YWxpY2U6c2VjcmV0');    # alice:secret
    my %wrong = (Authorization => 'Basic YWxpY2U6d3Jvbmc=');    # alice:wrong
    is join(' ', map { $nginx->get('/user', %wrong)->{status} } 1 .. 3), '401 401 401', 'wrong passwords are refused';
    is left($nginx, 'user', 'alice'), 2, 'and take nothing from the user';
    is join(' ', map { $nginx->get('/user', %right)->{status} } 1 .. 3), '200 200 429', 'the user has its limit';
};

subtest 'rate= and cost= of auth_request_set' => sub {
    is ask('/plan', 'gold',   4, 'X-Plan' => '5r/d'), '200 200 200 200', 'a plan';
    is ask('/plan', 'silver', 2, 'X-Plan' => '1r/d'), '200 429', 'another plan';
    is ask('/plan', 'free',   3, 'X-Plan' => 'off'), '200 200 200', 'a plan without a limit';
    is ask('/cost', 'dear', 3, 'X-Cost' => 2), '200 429 429', 'a cost';
    is left($nginx, 'tenant', 'dear'), 1, 'is charged';
};

subtest 'both phases in one location' => sub {
    my $name = new_name();
    my @seen = map { $nginx->get('/both', 'X-Tenant' => $name, 'X-Client' => $name) } 1 .. 4;
    is join(' ', map { $_->{status} } @seen), '200 200 200 429', 'the later one rejects';
    is left($nginx, 'address', $name), 7, 'and the earlier one is not charged for the rejected request';
    is $seen[0]->header('X-Zone'), 'tenant', 'the tighter limit is shown';
    is $seen[0]->header('RateLimit-Policy'), '"address";q=10;w=86400, "tenant";q=3;w=86400', 'both are policies';
    is $seen[3]->header('X-RateLimit-Limit'), 3, 'the rejecting limit is shown';
    is $nginx->get('/both', 'X-Client' => $name)->{status}, 401, 'a request that is not authenticated';
    is left($nginx, 'address', $name), 6, 'is charged by the earlier limit';
    $name = new_name();
    is join(' ', map { $nginx->get('/both', 'X-Client' => $name)->{status} } 1 .. 11), '401 ' x 10 . '429',
        'which protects authentication';
};

subtest 'counters' => sub {
    my $count = sub {
        my ($zone, $allowed) = @_;
        return sum_of(metrics($nginx), 'rate_limiter_requests_total', zone => $zone, allowed => $allowed);
    };
    my @of = map { [ split / / ] } 'tenant true', 'tenant false', 'address true', 'address false';
    my @before = map { $count->(@$_) } @of;
    ask('/both', new_name(), 4);
    my @after = map { $count->(@$_) } @of;
    is join(' ', map { $after[$_] - $before[$_] } 0 .. 3), '3 1 4 0', 'each zone counts what it decided in its phase';
    is sum_of(metrics($nginx), 'rate_limiter_bypassed_total', zone => 'tenant', reason => 'empty_key'), 2,
        'requests with an empty key are counted by zone';
};

subtest 'satisfy any' => sub {
    is ask('/any', new_name(), 4), '200 200 200 429', 'a request that authentication admits is limited';
    is $nginx->get('/any')->{status}, 401, 'a request that neither admits is refused';
    my %wrong = (Authorization => 'Basic Ym9iOndyb25n');    # bob:wrong
    is join(' ', map { $nginx->get('/any-user', %wrong)->{status} } 1 .. 3), '200 200 429',
        'an allowed address is limited as the user that it claims to be';
    is ask('/any-tenant', new_name(), 1), '200', 'and skips auth_request';
    is $nginx->get('/any-tenant', 'X-Tenant' => 'x')->header('X-Status'), 'BYPASSED', 'so its tenant is not known';
    my $name = new_name();
    is ask('/any-403', $name, 11), '200 ' x 10 . '403', 'a rejection with 403 is final, though the address is allowed';
    $name = new_name();
    is ask('/closed', $name, 2), '403 403', 'a request without access';
    is left($nginx, 'address', $name), 10, 'does not reach the later phase';
};

subtest 'try_files, named locations and error_page' => sub {
    for my $path (qw(/try /try-named /twice /error)) {
        my $name = new_name();
        is ask($path, $name, 4), '200 200 200 429', "$path: limited once a request";
    }
    my $name = new_name();
    my @seen = map { $nginx->get('/rejected', 'X-Tenant' => $name, 'X-Client' => $name) } 1 .. 4;
    is "$seen[3]{status} $seen[3]{body}", "429 page\n", 'the error page of a rejected request is not limited';
    is $seen[3]->header('X-Status') . left($nginx, 'address', $name), 'REJECTED10', 'and charges nothing';
};

subtest 'subrequests are not limited' => sub {
    my $name = new_name();
    is $nginx->get('/ssi', 'X-Tenant' => $name, 'X-Client' => $name)->{body}, "page\npage\n", 'SSI includes';
    is left($nginx, 'tenant', $name) . ' ' . left($nginx, 'address', $name), '2 10', 'only the main request is charged';
    is ask('/mirror', $name, 3), '200 200 429', 'a mirrored request';
    is left($nginx, 'address', $name), 10, 'the mirror is not charged';
};

subtest 'a body, and HTTP/2' => sub {
    my $name = new_name();
    my $body = 'x' x 100_000;
    my $answer = $nginx->request(method => 'POST', path => '/post', headers => [ 'X-Tenant' => $name ], body => $body);
    is $answer->{status}, 200, 'a request with a body waits for Redis after authentication';
    my $client = RateLimit::HTTP2->new($h2_port);
    for my $path (qw(/tenant /redis)) {
        my @streams = map { $client->request('GET', $path, headers => [ 'x-tenant' => "h2$name" ]) } 1 .. 5;
        ok $client->send->await(60, @streams), "$path: five streams at once get responses";
        is join(' ', sort map { $client->stream($_)->{status} } @streams), '200 200 200 429 429', 'three are admitted';
    }
    $client->close;
};

subtest 'a delay in either phase' => sub {
    my $delayed = sub {
        my ($path, $name) = @_;
        my $answer = $nginx->delayed_request(path => $path, headers => [ 'X-Tenant' => $name, 'X-Client' => $name ]);
        return "$answer->{status} " . $answer->header('X-Status');
    };
    for my $path (qw(/queue /queue-first)) {
        my $name = new_name();
        is ask($path, $name, 1), '200', "$path: the first request";
        is $delayed->($path, $name), '200 DELAYED',
            "$path: the second one is delayed, and remains delayed in the later phase";
    }
    my $name = new_name();
    is ask('/queues', $name, 1), '200', 'both phases: the first request';
    my $seen       = length $nginx->error_log;
    my $connection = $nginx->connect;
    $connection->send(format_request(path => '/queues', headers => [ 'X-Tenant' => $name, 'X-Client' => $name ]));
    $nginx->pass_delay($seen);
    $seen += length($nginx->error_log) - $seen;
    $nginx->wait_for_log(qr/delaying request, excess: \S+, by zone "queue2", client: \S+, key "$name"/);
    $nginx->advance(1);
    is $connection->receive->header('X-Status'), 'DELAYED', 'the second one is delayed in both';
};

subtest 'a client that leaves during the second delay is counted once' => sub {
    my $aborted = sub { return sum_of(metrics($nginx), 'rate_limiter_aborted_total', zone => 'queue2') };
    my $before  = $aborted->();
    my $name    = new_name();
    ask('/queues', $name, 1);
    my $seen       = length $nginx->error_log;
    my $connection = $nginx->connect;
    $connection->send(format_request(path => '/queues', headers => [ 'X-Tenant' => $name, 'X-Client' => $name ]));
    $nginx->pass_delay($seen);
    $nginx->wait_for_log(qr/delaying request, excess: \S+, by zone "queue2", client: \S+, key "$name"/);
    $connection->close;
    RateLimit::wait_for('the end of the request', sub { $nginx->access_log =~ m{^499 /queues$}m });
    is $aborted->() - $before, 1, 'one aborted request';
};

subtest 'a dry run' => sub {
    my $name = new_name();
    my @seen = map { $nginx->get('/dry', 'X-Tenant' => $name, 'X-Client' => $name) } 1 .. 4;
    is join(' ', map { "$_->{status}:" . $_->header('X-Status') } @seen),
        '200:PASSED 200:PASSED 200:PASSED 200:REJECTED_DRY_RUN', 'rejects nothing';
    is left($nginx, 'address', $name), 6, 'and gives nothing back';
    $name = new_name();
    @seen = map { $nginx->get('/dry-first', 'X-Tenant' => $name, 'X-Client' => $name) } 1 .. 11;
    is $seen[10]->header('X-Status'), 'REJECTED_DRY_RUN',
        'the later phase does not hide the rejection of the earlier one';
};

subtest 'a shadow after authentication' => sub {
    is ask('/shadow', new_name(), 3), '200 200 200', 'has no effect';
    my %labels = (zone => 'candidate', live => 'allowed', shadow => 'rejected');
    is sum_of(metrics($nginx), 'rate_limiter_shadow_total', %labels), 2, 'and decides by the tenant';
};

subtest 'inheritance' => sub {
    is ask('/outer/inner', new_name(), 4), '200 200 200 429', 'a nested location inherits the limit and its phase';
    is ask('/outer/off', new_name(), 4), '200 200 200 200', 'off';
    my $name = new_name();
    $nginx->request(method => 'POST', path => '/outer/except', headers => [ 'X-Tenant' => $name ]);
    is left($nginx, 'tenant', $name), 2, 'a method of limit_except';
    is $nginx->get('/outer/api/remaining?zone=tenant&key=x')->{status}, 200,
        'an API location does not inherit the limit';
};

subtest 'a reload keeps the state, and may change the phase' => sub {
    my $name = new_name();
    is ask('/tenant', $name, 2), '200 200', 'two requests';
    $nginx->reload(%conf, server => $locations =~ s{(location = /early .*?)phase=access}{$1phase=precontent}sr);
    is ask('/early', $name, 2), '200 429', 'a limit that has become one of the precontent phase';
};

subtest 'configuration' => sub {
    my $zone = 'rate_limit_zone $tenant zone=a:1m rate=1r/s; rate_limit_zone $uri zone=b:1m rate=1r/s;';
    my $messages = sub {
        my ($limit) = @_;
        my $server = "location = /auth { internal; } location / { $check $limit empty_gif; }";
        return check_config(http => $zone, server => $server)->{stderr};
    };
    is $messages->('rate_limit zone=a phase=precontent;'), '', 'no warning after authentication';
    like $messages->('rate_limit zone=a phase=access;'),
        qr/\[warn\] .*the key of zone "a" has "\$tenant", .*"phase=precontent" checks after that/, 'a warning before';
    is $messages->('rate_limit zone=a phase=precontent; rate_limit zone=b;'), '', 'both phases';
    like $messages->('rate_limit zone=a phase=precontent; rate_limit zone=a;'), qr/zone "a" is duplicate here/,
        'a zone has one phase in a location';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';

done_testing;
