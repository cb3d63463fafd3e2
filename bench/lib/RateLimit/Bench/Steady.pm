# The tables of bench/run about a steady pace, and the answer that the page of benchmarks begins with.
#
#   use RateLimit::Bench::Steady qw(answer steady_tables);
#
# FUNCTIONS
#   answer(\%results)           three sentences with the figures at 5,000 requests/s; '' if they were not measured
#   steady_tables(@groups)      a table for each pace; below it, the contestants that did not keep the pace. Below all, in
#                               how many measurements the load generator itself was late
package RateLimit::Bench::Steady;
use strict;
use warnings;
use utf8;

use Exporter qw(import);
use List::Util qw(max);
use RateLimit::Bench::Contestants qw(contestant);
use RateLimit::Bench::Figures qw(keeps_pace spelled text_table);
use RateLimit::Bench::Results qw(group spread);

our @EXPORT_OK = qw(answer steady_tables);

my $tolerated_ms = 1;

# Each sentence is left out if one of its figures was not measured.
sub answer {
    my ($results) = @_;
    my $group   = group($results, 'pace_5000') or return '';
    my %summary = %{ $group->{summary} };
    my $is      = sub { my ($name, $field, $format) = @_; return sprintf $format // '%.1f', $summary{$name}{$field}[0] };
    my $adds    = sub { my ($name) = @_; return added(@{ $summary{$name}{added_us} }) };
    my @lines;
    push @lines, '- At 5,000 requests/s over 100,000 keys, a limit in shared memory adds ' . $adds->('memory')
        . ' µs of CPU time to the ' . $is->('plain', 'server_us') . ' µs of a request in nginx; `limit_req` adds '
        . $adds->('limit_req') . " µs.\n"
        if $summary{memory} && $summary{limit_req};
    push @lines, '- A limit in Redis adds ' . $adds->('redis') . ' µs in nginx and takes ' . $is->('redis', 'redis_us')
        . ' µs in Redis; Lua with Redis adds ' . $adds->('openresty') . ' µs and takes '
        . $is->('openresty', 'redis_us') . " µs.\n"
        if $summary{redis} && $summary{openresty};
    push @lines, '- The 99th percentile of a request is ' . $is->('plain', 'p99_ms', '%.2f') . ' ms without a limit, '
        . $is->('redis', 'p99_ms', '%.2f') . ' ms with Redis, and ' . $is->('openresty', 'p99_ms', '%.2f')
        . " ms with Lua and Redis.\n"
        if $summary{redis} && $summary{openresty};
    return @lines ? join('', @lines) . "\n" : '';
}

# A difference whose quartiles include zero is smaller than the noise.
sub added {
    my ($median, $lower, $upper) = @_;
    return $lower > 0 ? sprintf '%.1f', $median : $upper > 0 ? sprintf 'at most %.1f', $upper : 'less than 0.1';
}

sub steady_tables { return join '', (map { steady_table($_) } @_), lateness(@_) }

sub lateness {
    my (@groups) = @_;
    my @late = map { $_->{late_ms} // 0 } map { @{$_} } map { values %{$_} } map { @{ $_->{rounds} } } @groups;
    my $many = grep { $_ > $tolerated_ms } @late or return '';
    return sprintf "In %d of %d measurements the load generator itself was late by more than %d ms (p99), by %.1f ms at most: "
        . "other processes used its CPU, and times are too long.\n\n", $many, scalar @late, $tolerated_ms, max(@late);
}

sub steady_table {
    my ($group) = @_;
    my (@rows, @slow);
    for my $name (@{ $group->{contestants} }) {
        my $is     = $group->{summary}{$name};
        my $number = sub { my ($field) = @_; return sprintf '%.2f', $is->{$field}[0] };
        push @rows,
            [
            contestant($name)->{title},
            $number->('server_us'),
            spread($is->{added_us}, '%.2f'),
            $is->{redis_us}[0] ? spread($is->{redis_us}, '%.2f') : '',
            $number->('p50_ms'),
            spread($is->{p99_ms}, '%.2f'),
            $number->('p999_ms'),
            ];
        push @slow, sprintf '%s did not keep this pace, and reached %s requests/s.', contestant($name)->{title},
            spelled($is->{rate}[0])
            unless keeps_pace($is->{rate}[0], $group->{pace});
    }
    my $count = @{ $group->{rounds} };
    return "### $group->{title}\n\n"
        . text_table([ 'Contestant', 'CPU µs', 'added µs', 'Redis µs', 'p50 ms', 'p99 ms', 'p99.9 ms' ], @rows) . "\n"
        . join(' ', ($count == 1 ? 'One round' : "$count rounds") . " of $group->{seconds} s.", @slow) . "\n\n";
}

1;
