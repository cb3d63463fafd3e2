# The arithmetic of bench/run: pure functions, which t/ tests.
#
#   use RateLimit::Bench::Figures qw(median quartiles summarize …);
#
# FUNCTIONS
#   median(@numbers)            undef if there is none
#   quartiles(@numbers)         the first and the third quartile, interpolated
#   percentile($share, @sorted) of sorted numbers: the smallest that at least this share does not exceed
#   parse_wrk($text)            the output of bench/wrk.lua: { requests, seconds, p50_ms, p99_ms, p999_ms, rejected, failures }
#   parse_h2load($text, $log)   the same from h2load's output and its log of requests
#   parse_load($text, rate => N, connections => N)
#                               the same from the output of bench/load.cc for this pace, with times counted from when a
#                               request was due, and: late_ms, by how much the load generator itself was late (p99)
#   keeps_pace($rate, $pace)    whether requests/s are those of the pace, but for the last responses
#   parse_strace($text)         number of system calls in the table of strace -c; undef without a table
#   last_line($text)            the last line that is not empty; undef if there is none
#   elsewhere($contestant, $requests, $lookups)
#                               the share of requests that the wrong store decided, computed from the lookups of Redis:
#                               none for a request that the deny cache decides, one for each that Redis decides
#   summarize($rounds, %beside) figures of each contestant over all rounds (SUMMARIES)
#   judge(\%figures)            a row for each goal: { goal, wanted, figure, spread, verdict }, from figures by name: each a
#                               number, or a median and its quartiles
#   by_round($rounds, $contestant, $field, $beside)
#                               a field of each round, or ratio, added_us, p99_added_ms, or one that is divided by that
#                               of $beside: p99_ratio, cpu_ratio (server_us), calls_ratio, redis_ratio (redis_us)
#   added_by_round($rounds, $contestant, $beside)
#                               for each round, the added_us of a contestant divided by those of another, both beside
#                               plain; without rounds in which the other added nothing
#   plan_order($round, @names)  the order of the contestants in a round
#   spelled($number)            an integer with commas between thousands
#   show($number)               with three digits, or as an integer
#   text_table(\@heads, @rows)  an aligned Markdown table
#
# ROUNDS AND SUMMARIES
#   A round is { contestant => [ measurement, … ] }, as returned by measure of RateLimit::Bench::Measure; a round counts
#   with their mean. %beside names the contestant that a contestant is compared with, by default plain.
#   A summary is { contestant => { field => [ median, lower, upper ] } }, with quartiles. Fields are the
#   numbers of a measurement, and, computed for each round, `ratio` (requests/s ÷ requests/s of the compared
#   contestant), `added_us` (server_us minus server_us of the compared contestant) and `p99_added_ms` (the same of p99)
package RateLimit::Bench::Figures;
use strict;
use warnings;
use utf8;

use Exporter qw(import);
use JSON::PP ();
use List::Util qw(max min sum0);
use POSIX qw(ceil floor);

our @EXPORT_OK = qw(median quartiles percentile parse_wrk parse_h2load parse_strace summarize judge plan_order text_table
    by_round added_by_round show spelled elsewhere last_line parse_load keeps_pace);

sub at_rank {
    my ($rank, @sorted) = @_;
    my $low = floor($rank);
    return $sorted[$low] if $low == $rank;
    return $sorted[$low] + ($rank - $low) * ($sorted[ $low + 1 ] - $sorted[$low]);
}

sub median {
    my @sorted = sort { $a <=> $b } @_ or return;
    return at_rank($#sorted / 2, @sorted);
}

sub quartiles {
    my @sorted = sort { $a <=> $b } @_ or return;
    return map { at_rank($#sorted * $_, @sorted) } 0.25, 0.75;
}

sub percentile {
    my ($share, @sorted) = @_;
    return unless @sorted;
    return $sorted[ max(0, ceil($share * @sorted) - 1) ];
}

# OUTPUT OF PROGRAMS

sub parse_wrk {
    my ($text) = @_;
    my ($json) = $text =~ /^RESULT (\{.*\})$/m or die "wrk did not say what it measured: $text\n";
    my $is = JSON::PP::decode_json($json);
    return {
        requests => $is->{requests},
        seconds  => $is->{duration} / 1e6,
        p50_ms   => $is->{p50} / 1e3,
        p99_ms   => $is->{p99} / 1e3,
        p999_ms  => $is->{p999} / 1e3,
        rejected => $is->{requests} ? $is->{statuses} / $is->{requests} : 0,
        failures => $is->{failures},
    };
}

# A line of the log has the start, the status (-1: no response) and the duration, times in µs. Requests in flight at the
# end have no response, and are not failures.
sub parse_h2load {
    my ($text, $log) = @_;
    my ($seconds, $failed) = (0, 0);
    $seconds = $1 * { us => 1e-6, ms => 1e-3, s => 1 }->{$2} if $text =~ /^finished in ([\d.]+)(us|ms|s),/m;
    $failed  = $1 if $text =~ /(\d+) failed,/;
    die "h2load did not say what it measured: $text\n" unless $seconds;
    my ($rejected, @times) = (0);
    while ($log =~ /^\d+\t(\d+)\t(\d+)$/mg) {
        $rejected++ if $1 >= 400;
        push @times, $2;
    }
    @times = sort { $a <=> $b } @times;
    return {
        requests => scalar @times,
        seconds  => $seconds,
        p50_ms   => (percentile(0.5,   @times) // 0) / 1e3,
        p99_ms   => (percentile(0.99,  @times) // 0) / 1e3,
        p999_ms  => (percentile(0.999, @times) // 0) / 1e3,
        rejected => @times ? $rejected / @times : 0,
        failures => $failed - $rejected > 0 ? $failed - $rejected : 0,
    };
}

# A line has the times in µs when a request was due, was sent (- if never) and was answered, and its status (0: no
# response). A request without a response counts with the time that it has waited. The load generator is late by itself
# if it sends a request after the request was due and its connection was free.
sub parse_load {
    my ($text, %load) = @_;
    my ($failures, $rejected, $last) = (0, 0, 0);
    my (@waits, @late, @free);
    while ($text =~ /^(\d+) (\d+|-) (\d+) (\d+) /mg) {
        my ($due, $sent, $done, $status) = ($1, $2, $3, $4);
        my $connection = @waits % $load{connections};
        push @waits, $done - $due;
        push @late,  $sent - max($due, $free[$connection] // 0) if $sent ne '-';
        $free[$connection] = $done;
        $failures++ if !$status;
        $rejected++ if $status >= 400;
        $last = max($last, $done) if $status;
    }
    my $answered = @waits - $failures;
    die "load did not say what it measured: $text\n" unless $answered;
    @waits = sort { $a <=> $b } @waits;
    return {
        requests => $answered,
        seconds  => max($last / 1e6, @waits / $load{rate}),
        p50_ms   => percentile(0.5,   @waits) / 1e3,
        p99_ms   => percentile(0.99,  @waits) / 1e3,
        p999_ms  => percentile(0.999, @waits) / 1e3,
        rejected => $rejected / $answered,
        failures => $failures,
        late_ms  => percentile(0.99, sort { $a <=> $b } @late) / 1e3,
    };
}

sub keeps_pace {
    my ($rate, $pace) = @_;
    return $rate >= 0.98 * $pace;
}

# The last line is the total: share, seconds, µs per call, calls, errors if any, "total".
sub parse_strace {
    my ($text) = @_;
    my ($line)  = $text =~ /^(.*) total$/m or return;
    my @columns = split ' ', $line;
    return $columns[3];
}

sub last_line {
    my ($text) = @_;
    my @lines = grep {/\S/} split /\n/, $text;
    return $lines[-1];
}

# With sync= and lease=, Redis gets one lookup for several requests. A few lookups belong to no request: nginx asks
# for changed rates.
sub elsewhere {
    my ($contestant, $requests, $lookups) = @_;
    return 0 unless $contestant->{kind} eq 'ours' && ($contestant->{place} // '') =~ /redis|cluster/;
    return 0 if $contestant->{settle} || !$requests;
    my $share = $lookups / $requests;
    return $contestant->{from_cache} ? min(1, $share) : max(0, 1 - $share);
}

# FIGURES OF ROUNDS

sub mean { return @_ ? sum0(@_) / @_ : undef }

# Merges measurements into one with the mean of each number. The log is dropped.
sub merged {
    my (@measurements) = @_;
    my %mean;
    for my $field (grep { !ref $measurements[0]{$_} && $_ ne 'log' } keys %{ $measurements[0] }) {
        $mean{$field} = mean(map { $_->{$field} } @measurements);
    }
    for my $index (0 .. $#{ $measurements[0]{redis_each_us} // [] }) {
        $mean{"redis_${index}_us"} = mean(map { $_->{redis_each_us}[$index] } @measurements);
    }
    return \%mean;
}

my %divided = (p99_ratio => 'p99_ms', cpu_ratio => 'server_us', calls_ratio => 'calls', redis_ratio => 'redis_us');

# Returns the value of a contestant's field for each round, compared with another contestant; undef if it was not
# measured.
sub by_round {
    my ($rounds, $name, $field, $beside) = @_;
    my @values;
    for my $round (@{$rounds}) {
        my $mine  = merged(@{ $round->{$name}   // next });
        my $other = merged(@{ $round->{$beside} // [ {} ] });
        if ($field eq 'ratio') {
            push @values, $mine->{rate} / $other->{rate} if $other->{rate};
        } elsif ($field eq 'added_us') {
            push @values, $mine->{server_us} - $other->{server_us} if defined $other->{server_us};
        } elsif ($field eq 'p99_added_ms') {
            push @values, $mine->{p99_ms} - $other->{p99_ms} if defined $other->{p99_ms};
        } elsif (my $part = $divided{$field}) {
            push @values, $mine->{$part} / $other->{$part} if $other->{$part};
        } else {
            push @values, $mine->{$field} if defined $mine->{$field};
        }
    }
    return @values;
}

sub added_by_round {
    my ($rounds, $name, $beside) = @_;
    my @mine  = by_round($rounds, $name,   'added_us', 'plain');
    my @other = by_round($rounds, $beside, 'added_us', 'plain');
    return unless @mine && @mine == @other;
    return map { $mine[$_] / $other[$_] } grep { $other[$_] > 0 } 0 .. $#mine;
}

sub summarize {
    my ($rounds, %beside) = @_;
    my %names = map { $_ => 1 } map { keys %{$_} } @{$rounds};
    my %summary;
    for my $name (keys %names) {
        my ($any) = map { @{ $_->{$name} // [] } } @{$rounds};
        for my $field (keys %{ merged($any) }, qw(ratio added_us p99_added_ms)) {
            my @values = by_round($rounds, $name, $field, $beside{$name} // 'plain') or next;
            $summary{$name}{$field} = [ median(@values), quartiles(@values) ];
        }
    }
    return \%summary;
}

# Alternates between forwards and backwards, each time from another start, so that no contestant always follows the same
# one.
sub plan_order {
    my ($round, @names) = @_;
    my $shift = int($round / 2) * 3 % @names;
    @names = (@names[ $shift .. $#names ], @names[ 0 .. $shift - 1 ]);
    return $round % 2 ? reverse @names : @names;
}

# GOALS

# Name of the figure; title; at most or at least; the target, or the name of another figure; unit.
my @goals = (
    [ 'pace_added_ratio',  'Redis, 5,000 requests/s: nginx CPU added ÷ that of Lua and Redis', 'most', 0.6, '' ],
    [ 'pace_p99_added',    'Redis, 5,000 requests/s: p99 added',              'most',  0.7,     'ms' ],
    [ 'pace_native_ratio', 'native, 5,000 requests/s: Redis CPU ÷ that of Lua and Redis', 'most', 0.5, '' ],
    [ 'pace_redis_ratio',  'Redis, 5,000 requests/s: Redis CPU ÷ that of Lua and Redis', undef, undef, '' ],
    [ 'memory_bare_added', 'memory without headers, 100,000 keys: nginx CPU added, compared with limit_req', 'most', 'limit_req_added', 'µs' ],
    [ 'memory_added',      'memory, 100,000 keys: nginx CPU added, compared with limit_req', 'most', 'limit_req_added', 'µs' ],
    [ 'memory_bare_added_one', 'memory without headers, one key: nginx CPU added, compared with limit_req', 'most', 'limit_req_added_one', 'µs' ],
    [ 'memory_added_one',  'memory, one key: nginx CPU added, compared with limit_req', 'most', 'limit_req_added_one', 'µs' ],
    [ 'memory_handler_one', "memory, one key: instructions of the handler, compared with limit_req", 'most', 'limit_req_handler_one', '' ],
    [ 'memory_handler', "memory, many keys: instructions of the handler, compared with limit_req", 'most', 'limit_req_handler', '' ],
    [ 'zone_bytes',        'memory: zone bytes per client',                  'most',  40,      '' ],
    [ 'redis_added',       'Redis: nginx CPU added',                          'most',  2.5,     'µs' ],
    [ 'redis_cpu',         'Redis: Redis CPU per check',                        'most',  5,       'µs' ],
    [ 'redis_p99_8_ratio', 'Redis, 8 connections: p99 ÷ p99 of Lua and Redis', 'most', 0.6,    '' ],
    [ 'one_cpu_redis_cpu', 'Redis, all on one CPU: Redis CPU per check',        'most',  5,       'µs' ],
    [ 'one_cpu_ratio',     'Redis, all on one CPU: requests/s ÷ plain',       'least', 0.72,    '' ],
    [ 'one_cpu_ratio_8',   'Redis, all on one CPU, 8 connections: requests/s ÷ plain', 'least', 0.55, '' ],
    [ 'one_cpu_p99_8_ratio', 'Redis, all on one CPU, 8 connections: p99 ÷ p99 of Lua and Redis', 'most', 0.6, '' ],
    [ 'redis_p99_8',       'Redis, 8 connections: p99',                       'most',  10,      'ms' ],
    [ 'lease_added',       'lease=10000, one key: nginx CPU added, compared with memory', 'most', 0.3, 'µs' ],
    [ 'sync_added',        'sync=100ms: nginx CPU added',                     'most',  1.2,     'µs' ],
    [ 'settle_added',      'memory, settle= that gives back: nginx CPU added to cost=', 'most', 1, 'µs' ],
    [ 'owed_added',        'memory, settle= that charges more: nginx CPU added', 'most', 1, 'µs' ],
    [ 'settle_calls',      'Redis, settle=: calls ÷ calls without settle=', 'most', 1.1, '' ],
    [ 'json_10k_ratio',    'rate_limit_response, 10 kB of JSON: nginx CPU ÷ passing it on', 'most', 1.15, '' ],
    [ 'json_1m_ratio',     'rate_limit_response, 1 MB of JSON: nginx CPU ÷ passing it on', 'most', 1.15, '' ],
    [ 'events_ratio',      'rate_limit_response, 50 kB of events: nginx CPU ÷ passing it on', 'most', 1.15, '' ],
    [ 'denied_bare_ratio', 'deny cache without headers: requests/s ÷ limit_req rejecting', 'least', 0.97, '' ],
    [ 'denied_ratio',      'deny cache: requests/s ÷ limit_req rejecting',    'least', 0.97,    '' ],
    [ 'checks_per_core',   'checks/s through one Redis core',                 'least', 200_000, '' ],
    [ 'shards',            'checks/s of three shards ÷ one Redis, by CPU of the busiest shard', undef, undef, '' ],
);

sub spelled {
    my ($number) = @_;
    return scalar reverse join ',', unpack '(A3)*', reverse sprintf '%.0f', $number;
}

sub show {
    my ($number) = @_;
    return '–' unless defined $number;
    my $places = abs $number >= 100 ? 0 : abs $number >= 10 ? 1 : 2;
    return sprintf('%.*f', $places, $number) =~ s/^-(?=[0.]+$)//r;
}

sub numbers { my ($figure) = @_; return ref $figure ? @{$figure} : $figure }

sub judge {
    my ($figures) = @_;
    my @rows;
    for my $goal (@goals) {
        my ($name, $text, $direction, $wanted, $unit) = @{$goal};
        my ($figure, @spread) = numbers($figures->{$name});
        ($wanted) = numbers($figures->{$wanted}) if defined $wanted && $wanted =~ /^[a-z]/;
        my $verdict = '–';
        if (defined $figure && defined $wanted) {
            $verdict = ($direction eq 'most' ? $figure <= $wanted : $figure >= $wanted) ? 'met' : 'missed';
        }
        push @rows,
            {
            goal    => $text,
            wanted  => !$direction ? 'none' : defined $wanted ? "at $direction " . show($wanted) . ($unit && " $unit") : 'not measured',
            figure  => defined $figure ? show($figure) . ($unit && " $unit") : 'not measured',
            spread  => @spread ? join '–', map { show($_) } @spread : '',
            verdict => $verdict,
            };
    }
    return @rows;
}

# The first column is text, the others are numbers.
sub text_table {
    my ($heads, @rows) = @_;
    my @width = map {
        my $column = $_;
        max(3, map { length $_->[$column] } $heads, @rows)
    } 0 .. $#{$heads};
    my $line = sub {
        my ($row) = @_;
        my @cells = map { sprintf $_ ? '%*s' : '%-*s', $width[$_], $row->[$_] } 0 .. $#{$row};
        return '| ' . join(' | ', @cells) . " |\n";
    };
    my @rule = map { '-' x ($width[$_] + 1) . ($_ ? ':' : '-') } 0 .. $#width;
    return join '', $line->($heads), '|' . join('|', @rule) . "|\n", map { $line->($_) } @rows;
}

1;
