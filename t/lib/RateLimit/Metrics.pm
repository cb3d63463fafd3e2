# The metrics of an nginx at /metrics, parsed as Prometheus does.
#
#   use lib 't/lib';
#   use RateLimit::Metrics qw(metrics sum_of promtool prometheus_file);
#
# FUNCTIONS
#   metrics($nginx)             a hash of all values by name and labels, as in 'rate_limiter_keys{zone="api"}'
#   sum_of($metrics, $name, %labels)
#                               the sum of all values of this name with these labels; undef if there is none
#   promtool($input, @words)    runs promtool; returns its exit status and its output
#   prometheus_file($name)      the file of `prometheus` or `promtool`
package RateLimit::Metrics;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use IPC::Run ();

our @EXPORT_OK = qw(metrics sum_of promtool prometheus_file);

sub metrics {
    my ($nginx) = @_;
    my $answer = $nginx->get('/metrics');
    croak "/metrics: $answer->{status}" if $answer->{status} != 200;
    return { map { /^([a-z_]+(?:\{.*\})?) (\S+)$/ ? ($1 => $2) : () } split /\n/, $answer->{body} };
}

sub sum_of {
    my ($metrics, $name, %labels) = @_;
    my $sum;
SERIES: for my $series (keys %{$metrics}) {
        next if $series !~ /^\Q$name\E(?:\{|$)/;
        for my $label (keys %labels) {
            next SERIES if $series !~ /[{,]\Q$label\E="\Q$labels{$label}\E"/;
        }
        $sum = ($sum // 0) + $metrics->{$series};
    }
    return $sum;
}

sub prometheus_file {
    my ($name) = @_;
    return ($ENV{RL_PROMETHEUS} // croak 'run this test by `make test T=…`') . "/$name";
}

sub promtool {
    my ($input, @words) = @_;
    my $said = '';
    IPC::Run::run([ prometheus_file('promtool'), @words ], '<', \$input, '>&', \$said);
    return ($? >> 8 || $? & 127, $said);
}

1;
