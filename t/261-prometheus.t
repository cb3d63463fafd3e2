# Prometheus accepts the metrics without warnings, and the rules and the dashboard of docs/ use metrics that exist.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use POSIX ();
use RateLimit qw(start_nginx http_get wait_for slurp decode_json);
use RateLimit::Metrics qw(promtool prometheus_file);
use RateLimit::Redis qw(start_redis);
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};
my $dir   = $ENV{RL_DIR};
my $redis = start_redis();
my $nginx = start_nginx(
    port    => $ports[0],
    workers => 2,
    http    => 'rate_limit_redis main ' . $redis->url . " timeout=10s;\n"
        . "rate_limit_zone \$http_x_client zone=memory:1m rate=3r/d;\n"
        . "rate_limit_zone \$http_x_client zone=shared:1m rate=3r/d redis=main on_error=local;\n"
        . "rate_limit_zone \$http_x_client zone=synced:1m rate=\$http_x_rate redis=main sync=50ms;\n"
        . "rate_limit_zone \$http_x_client zone=leased:1m rate=3r/d redis=main lease=1;\n"
        . "rate_limit_zone \$http_x_client zone=candidate:1m rate=1r/d;\n"
        . "rate_limit_zone \$http_x_client zone=settled:1m rate=1r/d;\n"
        . "rate_limit_response \$number json:number;\n",
    server => join "\n",
    'location = /metrics { rate_limit_metrics; }',
    'location = /settled { rate_limit zone=settled settle=$bytes_sent; empty_gif; }',
    'location = /candidate { rate_limit_shadow zone=candidate; empty_gif; }',
    map {"location = /$_ { rate_limit zone=$_; empty_gif; }"} qw(memory shared synced)
);
$nginx->get('/memory', 'X-Client' => "secret\"\\name") for 1 .. 5;
$nginx->get('/shared', 'X-Client' => 'secret')        for 1 .. 7;
$nginx->get('/synced', 'X-Client' => 'secret', 'X-Rate' => $_) for qw(9r/d none);

my $text = $nginx->get('/metrics')->{body};

subtest 'promtool check metrics' => sub {
    my ($exit, $said) = promtool($text, qw(check metrics));
    is $exit, 0,  'accepts them';
    is $said, '', 'without a warning';
    ($exit, $said) = promtool("# TYPE requests counter\nrequests 1\n", qw(check metrics));
    isnt $exit, 0, 'promtool warns of a metric without help';
    unlike $text, qr/secret/, 'no client name';
    my %help;
    $help{$_}++ for $text =~ /^# HELP (\S+)/mg;
    is_deeply [ grep { $help{$_} != 1 } keys %help ], [], 'each metric begins once';
};

my %known = map { $_ => 1 } $text =~ /^# TYPE (\S+)/mg;

# Returns the names of metrics in an expression, without the suffixes of histograms.
sub unknown_in {
    my ($expression, @recorded) = @_;
    my %recorded = map { $_ => 1 } @recorded;
    return grep { !$known{$_} && !$known{s/_(?:bucket|sum|count)$//r} && !$recorded{$_} }
        $expression =~ /\b((?:zone:|redis:|instance:)?rate_limiter_[a-z0-9_:]+)/g;
}

subtest 'docs/metrics.md has every metric, and no other' => sub {
    my %documented = map { $_ => 1 } slurp('docs/metrics.md') =~ /^\| `(rate_limiter_\w+)` \|/mg;
    is_deeply [ sort keys %documented ], [ sort keys %known ], 'the same names';
};

subtest 'the rules' => sub {
    my ($exit, $said) = promtool('', qw(check rules docs/prometheus/rules.yml));
    is $exit, 0, 'promtool check rules';
    note $said;
    ($exit, $said) = promtool('', qw(test rules docs/prometheus/rules_test.yml));
    is $exit, 0, 'promtool test rules';
    note $said;
    my $rules    = slurp('docs/prometheus/rules.yml');
    my @recorded = $rules =~ /record: (\S+)/g;
    cmp_ok scalar @recorded, '>', 3, 'some are recorded';
    is_deeply [ unknown_in($rules, @recorded) ], [], 'all metrics in the rules exist';
    my @untested = grep { slurp('docs/prometheus/rules_test.yml') !~ /alertname: $_\b/ } $rules =~ /alert: (\S+)/g;
    is_deeply \@untested, [], 'each alert is tested';
};

subtest 'the dashboard' => sub {
    my $board = decode_json(slurp('docs/grafana/dashboard.json'));
    my @panels = @{ $board->{panels} };
    cmp_ok scalar @panels, '>', 5, 'the dashboard has panels';
    my @expressions = map { $_->{expr} } map { @{ $_->{targets} // [] } } @panels;
    my $file = "$dir/dashboard.yml";
    open my $out, '>', $file or die "$file: $!\n";
    print {$out} "groups:\n- name: dashboard\n  rules:\n";
    for my $number (0 .. $#expressions) {
        # Replaces the variables of Grafana.
        my $expression = $expressions[$number] =~ s/\$__rate_interval/1m/gr =~ s/\$\w+/.*/gr =~ s/'/''/gr;
        print {$out} "  - record: panel:$number\n    expr: '$expression'\n";
    }
    close $out or die "$file: $!\n";
    my ($exit, $said) = promtool('', 'check', 'rules', $file);
    is $exit, 0, 'Prometheus can parse all expressions' or diag $said;
    is_deeply [ map { unknown_in($_) } @expressions ], [], 'all metrics in the dashboard exist';
    my %ids;
    $ids{ $_->{id} }++ for @panels;
    is scalar keys %ids, scalar @panels, 'each panel has its own id';
};

# Starts Prometheus, and waits until it answers.
sub start_prometheus {
    my ($port, $target) = @_;
    open my $out, '>', "$dir/prometheus.yml" or die "prometheus.yml: $!\n";
    print {$out} <<"YAML";
global: { scrape_interval: 200ms, evaluation_interval: 200ms }
rule_files: [ @{[ POSIX::getcwd() ]}/docs/prometheus/rules.yml ]
scrape_configs:
- job_name: nginx
  static_configs: [ { targets: [ '127.0.0.1:$target' ] } ]
YAML
    close $out or die "prometheus.yml: $!\n";
    my $pid = fork // die "fork: $!\n";
    if (!$pid) {
        open STDERR, '>', "$dir/prometheus.log" or die "log: $!\n";
        open STDOUT, '>&', \*STDERR or die "stdout: $!\n";
        exec prometheus_file('prometheus'), "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/prometheus",
            "--web.listen-address=127.0.0.1:$port"
            or POSIX::_exit(127);
    }
    my $started = eval {
        wait_for('Prometheus', sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) });
    };
    diag slurp("$dir/prometheus.log") if !$started;
    return $pid;
}

# Returns the only value of a query; undef while there is none.
sub query {
    my ($port, $expression) = @_;
    my $escaped = $expression =~ s/([^A-Za-z0-9_])/sprintf '%%%02X', ord $1/ger;
    my $answer = http_get($port, "/api/v1/query?query=$escaped");
    return if $answer->{status} != 200;
    my $results = decode_json($answer->{body})->{data}{result};
    return @{$results} == 1 ? $results->[0]{value}[1] : undef;
}

subtest 'a real Prometheus' => sub {
    my $port = $ports[1];
    my $pid  = start_prometheus($port, $nginx->port);
    my %expected = (
        'rate_limiter_requests_total{zone="memory",allowed="true"}'          => 3,
        'rate_limiter_requests_total{zone="memory",allowed="false"}'         => 2,
        'sum(rate_limiter_requests_total{zone="shared"})'                    => 7,
        'rate_limiter_errors_total{zone="synced",reason="rate"}'             => 1,
        'rate_limiter_redis_up'                                              => 1,
        'up{job="nginx"}'                                                    => 1,
        'rate_limiter_check_seconds_bucket{zone="memory",le="+Inf"}'         => 5,
        'histogram_quantile(0.99, rate_limiter_check_seconds_bucket{zone="memory"}) < bool 1' => 1,
    );
    for my $expression (sort keys %expected) {
        my $value = eval { wait_for($expression, sub { defined query($port, $expression) && query($port, $expression) . ' ' } ) };
        is $value, "$expected{$expression} ", $expression;
    }
    $nginx->get('/memory', 'X-Client' => 'another') for 1 .. 4;
    my $new = 'rate_limiter_requests_total{zone="memory",allowed="true"}';
    ok eval { wait_for('the next scrape', sub { (query($port, $new) // 0) == 6 }) },
        'the next scrape has the new value';
    my $recorded = 'zone:rate_limiter_requests:rate5m{zone="memory"}';
    ok eval { wait_for('a rule', sub { defined query($port, "sum($recorded)") }) }, 'a recorded rule has a value';
    kill 'TERM', $pid;
    waitpid $pid, 0;
    is $? & 127, 0, 'Prometheus ends';
};

$nginx->stop;
done_testing;
