# The log, the API, the metrics, both shared objects, Redis, the changelog and a package have the version in VERSION.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config decode_json slurp start_nginx);
use RateLimit::Metrics qw(metrics);
use RateLimit::Native qw(native_module);
use RateLimit::Redis qw(start_redis);
use Test::More;

my ($version) = slurp('VERSION') =~ /^(\d+\.\d+\.\d+)\n\z/ or BAIL_OUT('VERSION is not MAJOR.MINOR.PATCH');
my $name = "ngx_http_rate_limit_module/$version";
my %conf = (
    log_level => 'notice',
    http      => 'rate_limit_zone $binary_remote_addr zone=api:1m rate=5r/s;',
    server    => <<'SERVER',
location = /        { rate_limit zone=api; empty_gif; }
location /limits/   { rate_limit_api; }
location = /metrics { rate_limit_metrics; }
SERVER
);

# The versions that a file's printable text has after a name.
sub versions_in {
    my ($file, $before) = @_;
    my %seen = map { $_ => 1 } slurp($file) =~ m{\Q$before\E(\d[\w.~+-]*)}g;
    return join ' ', sort keys %seen;
}

subtest 'nginx' => sub {
    my $nginx = start_nginx(%conf);
    is_deeply [ $nginx->error_log =~ m{\[notice\] .*?: (ngx_http_rate_limit_module/.*)$}mg ], [$name], 'the log has it once';
    is decode_json($nginx->get('/limits/zones')->{body})->{version}, $version, 'zones';
    my ($built) = qx($ENV{TEST_NGINX_BINARY} -v 2>&1) =~ m{nginx/([\d.]+)};
    my $metrics = metrics($nginx);
    is_deeply [ grep {/build_info/} keys %{$metrics} ],
        [qq(rate_limiter_build_info{version="$version",nginx="$built"})], 'the metric, with the version of nginx';
    $nginx->reload(%conf);
    is scalar(() = $nginx->error_log =~ m{\Q$name\E$}mg), 2, 'each configuration that is loaded logs it';
    is check_config(%conf)->{exit}, 0, 'a test of the configuration passes';
    is versions_in($ENV{RL_MODULE} || $ENV{TEST_NGINX_BINARY}, 'ngx_http_rate_limit_module/'), $version,
        'strings finds it in the file';
};

subtest 'Redis' => sub {
    my $so     = native_module();
    my $redis  = start_redis(config => "loadmodule $so\n");
    my %listed = @{ $redis->command('MODULE', 'LIST')->[0] };
    my ($major, $minor, $patch) = split /[.]/, $version;
    is $listed{ver}, $major * 10_000 + $minor * 100 + $patch, 'MODULE LIST has the number';
    like $redis->log, qr{rate_limit\.so of \Q$name\E$}m, 'the log has it';
    is versions_in($so, 'ngx_http_rate_limit_module/'), $version, 'strings finds it in the file';
};

subtest 'files' => sub {
    my ($released) = slurp('CHANGELOG.md') =~ /^## \[(\d[^]]*)\]/m;
    is $released, $version, 'the newest release of CHANGELOG.md';
    like qx(scripts/package changelog), qr/\A\S+ \(\Q$version\E-1[^)]*\) /, 'the package';
    is qx(scripts/dist name), "ngx_http_rate_limit_module-$version\n", 'the source archive';
};

done_testing;
