# Requests with an empty key or no rate are counted as bypassed, and a key that is set after the check gets a warning.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config slurp start_nginx);
use RateLimit::Metrics qw(metrics sum_of);
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};

# Authentication accepts the user name that a header gives.
my $auth = <<'SERVER';
location = /auth { internal; proxy_pass http://127.0.0.1:%PORT1%/; }
SERVER
my $auth_server = 'server { listen 127.0.0.1:%PORT1%; access_log %DIR%/auth.log; add_header X-User $http_x_user; return 200; }';

my %conf = (
    port => $ports[0],
    http => <<'HTTP',
map $http_x_rate $rate { default 3r/d; off off; }
map $auth_user $mapped { default $auth_user; }
rate_limit_key  $named    $auth_user;
rate_limit_zone $http_x_client zone=plain:1m rate=3r/d;
rate_limit_zone $http_x_client zone=plan:1m rate=$rate;
rate_limit_zone $http_x_client zone=candidate:1m rate=3r/d;
rate_limit_zone $server_name zone=all:1m rate=100r/d;
rate_limit_zone $auth_user zone=late:1m rate=3r/d;
rate_limit_zone $mapped zone=mapped:1m rate=3r/d;
rate_limit_zone $named zone=after:1m rate=3r/d;
HTTP
    server => <<"SERVER" . $auth,
location = /metrics { rate_limit_metrics; }
location = /plain { rate_limit zone=plain; empty_gif; }
location = /plan { rate_limit zone=plan; empty_gif; }
location = /both { rate_limit zone=plain; rate_limit zone=all; empty_gif; }
location = /candidate { rate_limit_shadow zone=candidate; empty_gif; }
location /again/ { rate_limit zone=plain; rate_limit zone=all; index page; }
location = /moved { rate_limit zone=plain; error_page 404 = /plain; try_files /absent =404; }
location = /late { rate_limit zone=late; auth_request /auth; auth_request_set \$auth_user \$upstream_http_x_user; empty_gif; }
location = /mapped { rate_limit zone=mapped; auth_request /auth; auth_request_set \$auth_user \$upstream_http_x_user; empty_gif; }
location = /before { rate_limit zone=all cost=60; auth_request /auth; empty_gif; }
location = /after { auth_request /auth; auth_request_set \$auth_user \$upstream_http_x_user; try_files "" \@after; }
location \@after { rate_limit zone=after; empty_gif; }
SERVER
    servers => $auth_server,
);
my $nginx = start_nginx(%conf);
$nginx->write_file('again/page', 'here');

sub bypassed {
    my ($zone, $reason) = @_;
    return sum_of(metrics($nginx), 'rate_limiter_bypassed_total', zone => $zone, reason => $reason);
}

# Returns how far requests increase the two counters of a zone: empty keys, rates that are off.
sub added {
    my ($zone, $count, $path, @headers) = @_;
    my @before   = map { bypassed($zone, $_) } qw(empty_key rate_off);
    my @statuses = map { $nginx->get($path, @headers)->{status} } 1 .. $count;
    my @after    = map { bypassed($zone, $_) } qw(empty_key rate_off);
    return join ' ', $after[0] - $before[0], $after[1] - $before[1], map {"[$_]"} @statuses;
}

subtest 'what is counted' => sub {
    is added('plain', 5, '/plain'), '5 0 [200] [200] [200] [200] [200]', 'an empty key: each request is counted';
    is added('plain', 4, '/plain', 'X-Client' => 'a'), '0 0 [200] [200] [200] [429]', 'a key: none';
    is added('plan', 4, '/plan', 'X-Client' => 'a', 'X-Rate' => 'off'), '0 4 [200] [200] [200] [200]', 'a rate that is off';
    is added('plan', 2, '/plan', 'X-Rate' => 'off'), '2 0 [200] [200]',
        'an empty key and no rate: counted as an empty key';
    is added('plain', 2, '/both'), '2 0 [200] [200]', 'an empty key in one of two zones';
    is added('all', 2, '/both'), '0 0 [200] [200]', 'a zone that applies counts no bypassed request';
    is added('candidate', 2, '/candidate'), '2 0 [200] [200]', 'a shadow zone';
};

subtest 'once for each request' => sub {
    is added('plain', 2, '/again/'), '2 0 [200] [200]', 'an internal redirect to the same location';
    is added('plain', 2, '/moved'),  '2 0 [200] [200]', 'an internal redirect to another location';
};

subtest 'a reload keeps the counts' => sub {
    my $before = bypassed('plain', 'empty_key');
    cmp_ok $before, '>', 0, 'there are some';
    $nginx->reload(%conf);
    is bypassed('plain', 'empty_key'), $before, 'the counts are unchanged';
};

subtest 'limits are checked before auth_request sends its subrequest' => sub {
    my $asked  = sub { return scalar(() = slurp($nginx->dir . '/auth.log') =~ /\n/g) };
    my $before = $asked->();
    is join(' ', map { $nginx->get('/before', 'X-User' => 'alice')->{status} } 1 .. 3), '200 429 429',
        'one of three requests is admitted';
    is $asked->() - $before, 1, 'only the admitted request is authenticated';
};

subtest 'a key that auth_request sets' => sub {
    is added('late',   5, '/late',   'X-User' => 'alice'), '5 0 [200] [200] [200] [200] [200]',
        'the key is still empty: no request is limited';
    is added('mapped', 5, '/mapped', 'X-User' => 'alice'), '5 0 [200] [200] [200] [200] [200]',
        'a map of the key is empty too';
    is added('after',  4, '/after',  'X-User' => 'alice'), '0 0 [200] [200] [200] [429]',
        'a location after an internal redirect has the key';
    is added('after',  1, '/after',  'X-User' => 'bob'),   '0 0 [200]', 'each user has a quota';
};

# Returns the warnings of `nginx -t`, without file and line.
sub warnings_of {
    my ($http, $server) = @_;
    my $check = check_config(http => $http, server => $server . $auth, servers => $auth_server);
    return $check->{exit} ? $check->{stderr} : join "\n", map { s{^.*\[warn\] \d+#\d+: | in \S+:\d+$}{}gr } split /\n/, $check->{stderr};
}
my $set  = 'auth_request /auth; auth_request_set $role $upstream_http_x_role; auth_request_set $auth_user $upstream_http_x_user;';
my $late = 'the key of zone "a" has "$auth_user", which is still empty when limits are checked: auth_request_set sets it afterwards, and "phase=precontent" checks after that';
my $zone = 'rate_limit_zone $auth_user zone=a:1m rate=1r/s;';
my $gif  = 'rate_limit zone=a; empty_gif;';
subtest 'a warning' => sub {
    is warnings_of($zone, "location / { $gif $set }"), "\"rate_limit\": $late", 'in one location';
    is warnings_of($zone, "$set location / { $gif }"), "\"rate_limit\": $late", 'auth_request of the server';
    is warnings_of($zone, "rate_limit zone=a; $set location /a { empty_gif; } location /b { empty_gif; }"), "\"rate_limit\": $late",
        'one warning for an inherited limit';
    is warnings_of('rate_limit_zone "x${AUTH_USER}y" zone=a:1m rate=1r/s;', "location / { $gif $set }"), "\"rate_limit\": $late", 'within a text';
    is warnings_of("rate_limit_key \$k \$auth_user ip; rate_limit_zone \$k zone=a:1m rate=1r/s;", "location / { $gif $set }"), "\"rate_limit\": $late", 'a source of a rate_limit_key';
    is warnings_of("rate_limit_key \$j \$auth_user; rate_limit_key \$k header:x \$j ip; rate_limit_zone \$k zone=a:1m rate=1r/s;", "location / { $gif $set }"), "\"rate_limit\": $late",
        'a key with the variable as a source';
    is warnings_of("$zone rate_limit_zone \$uri zone=b:1m rate=1r/s;", "location / { rate_limit zone=b; $gif $set }"), "\"rate_limit\": $late", 'one of two zones';
};
subtest 'no warning' => sub {
    is warnings_of('rate_limit_zone $uri zone=a:1m rate=1r/s;', "location / { $gif $set }"), '', 'another key';
    is warnings_of('rate_limit_zone $auth_user_id zone=a:1m rate=1r/s;', "location / { $gif $set set \$auth_user_id x; }"), '', 'a longer name';
    is warnings_of($zone, "location /a { $set empty_gif; } location /b { $gif }"), '', 'auth_request in another location';
    is warnings_of($zone, "$set location /b { auth_request off; $gif }"), '', 'auth_request off';
    is warnings_of($zone, "location / { $set try_files \"\" \@b; } location \@b { $gif }"), '', 'a named location';
    is warnings_of($zone, "$set location / { try_files \"\" \@b; } location \@b { $gif }"), '',
        'a named location that inherits auth_request';
    is warnings_of($zone, "$set location / { try_files /b =404; } location = /b { internal; $gif }"), '', 'an internal location';
    is warnings_of('rate_limit_key $k ip; rate_limit_zone $k zone=a:1m rate=1r/s;', "location / { $gif $set }"), '', 'a rate_limit_key of something else';
};

done_testing;
