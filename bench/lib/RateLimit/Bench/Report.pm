# Writes the results of bench/run: tables, JSON, charts.
#
#   use RateLimit::Bench::Report qw(write_report);
#
# FUNCTIONS
#   write_report(\%results, %options)
#                               writes results.json, table.md and the charts; returns the text of the tables
#   figures(\%results)          the figures of goals by name: numbers, or a median and its quartiles
#   instructions_table(\%cases)  the results of bench/costs, compared with limit_req; '' if there are none
#   accuracy_part($text)        the tables of bench/accuracy below a heading; '' if there are none
#   driver_line(\%said)         the result of bench/redis_load.cc; undef: how the figure was estimated
#   replace_part($page, $name, $part)
#                               a page with another text between the two marks of a part; dies if the page has no marks
#
# OPTIONS
#   out         the folder for all files                    chart       the program bench/chart
#   copy        a folder whose benchmarks.md gets the tables of the measured parts, and whose benchmarks/ the charts
#   partial     1: not all parts were selected, so goals are not copied
#   accuracy    the tables of bench/accuracy                growth      those of bench/growth
package RateLimit::Bench::Report;
use strict;
use warnings;
use utf8;

use Carp qw(croak);
use Encode qw(decode_utf8);
use Exporter qw(import);
use File::Copy qw(copy);
use File::Path qw(make_path);
use JSON::PP;
use List::Util qw(max);
use POSIX qw(strftime uname);
use Text::Wrap ();
use RateLimit::Bench::Charts qw(closed_charts draw steady_charts);
use RateLimit::Bench::Contestants qw(contestant);
use RateLimit::Bench::Figures qw(added_by_round judge median quartiles text_table);
use RateLimit::Bench::Results qw(figure group read_text spread write_text);
use RateLimit::Bench::Steady qw(answer steady_tables);

our @EXPORT_OK = qw(write_report replace_part figures instructions_table accuracy_part driver_line);

my @marks = ('<!-- %s: make bench writes this part -->', '<!-- end of %s -->');
my @parts = qw(answer steady closed growth goals);    # of the page, in its order

sub write_report {
    my ($results, %options) = @_;
    $results->{machine}  = machine();
    $results->{versions} = versions();
    $results->{finished} = strftime('%Y-%m-%d', gmtime);
    $results->{figures}  = figures($results);
    $results->{goals}    = [ judge($results->{figures}) ];
    my %part = parts($results, %options);
    my $text = join '', map { $part{$_} // () } @parts;
    write_text("$options{out}/table.md",     $text);
    write_text("$options{out}/results.json", decode_utf8(JSON::PP->new->utf8->pretty->canonical->encode($results)));
    my @steady = steady_charts($results);
    my @closed = closed_charts($results);
    draw($_, %options) for @steady, @closed;
    return $text unless $options{copy};

    make_path("$options{copy}/benchmarks");
    for my $chart (@steady, @closed) {
        copy("$options{out}/$chart->{name}.svg", "$options{copy}/benchmarks") or croak "$options{copy}: $!";
    }
    $part{answer} .= pictures(shift @steady)             if $part{answer};
    $part{steady} = pictures(@steady) . $part{steady} if $part{steady};
    $part{closed} = pictures(@closed) . $part{closed} if $part{closed};
    my $file = "$options{copy}/benchmarks.md";
    my $page = read_text($file);
    delete $part{goals} if $options{partial};
    $page = replace_part($page, $_, $part{$_}) for grep { $part{$_} } @parts;
    write_text($file, $page);
    return $text;
}

# Returns the text of each part that was measured.
sub parts {
    my ($results, %options) = @_;
    my $measured = measured($results);
    my @steady   = grep { $_->{pace} } @{ $results->{groups} // [] };
    my @closed   = grep { !$_->{pace} } @{ $results->{groups} // [] };
    my $closed   = join('', map { closed_part($results, $_) } @closed) . alone_table($results);
    my $counted  = instructions_table($results->{instructions}) . accuracy_part($options{accuracy});
    my $others   = $closed || $counted;
    my %text     = (
        answer => answer($results),
        steady => @steady  ? $measured . steady_tables(@steady) : '',
        closed => $others  ? $measured . $closed . $counted : '',
        growth => $options{growth} ? $measured . $options{growth} : '',
        goals  => goals_table($results) . deviations($results),
    );
    return map { $_ => wrapped($text{$_}) } grep { $text{$_} } keys %text;
}

sub pictures { return join '', map {"![$_->{title}](benchmarks/$_->{name}.svg)\n\n"} @_ }

sub replace_part {
    my ($page, $name, $part) = @_;
    my ($begin, $end) = map { sprintf $_, $name } @marks;
    $part =~ s/\n+\z/\n/;
    $page =~ s/\Q$begin\E\n.*\Q$end\E/$begin\n\n$part\n$end/s or croak "there is no part between $begin and $end";
    return $page;
}

# MACHINE

sub first_line {
    my ($command) = @_;
    my ($line) = split /\n/, decode_utf8(qx($command 2>&1) // '');
    return $line // '';
}

sub machine {
    my ($model)  = read_text('/proc/cpuinfo') =~ /^model name\s*:\s*(.*)$/m;
    my ($memory) = read_text('/proc/meminfo') =~ /^MemTotal:\s*(\d+)/m;
    my ($system, undef, $release) = uname();
    my $count = () = read_text('/proc/cpuinfo') =~ /^processor\s*:/mg;
    return { cpu => $model // 'unknown', cpus => $count, memory_gb => sprintf('%.1f', $memory / 2**20), kernel => "$system $release" };
}

# Returns the versions of the measured programs: the first word of each that looks like a version.
sub versions {
    my %command = (
        nginx   => "$ENV{TEST_NGINX_BINARY} -v",
        redis   => ($ENV{RL_REDIS_SERVER} // 'redis-server') . ' --version',
        haproxy => 'haproxy -v',
        wrk     => 'wrk -v',
        h2load  => 'h2load --version',
    );
    my %version = map { $_ => first_line($command{$_}) =~ /(\d+(?:\.\d+)+)/ ? $1 : 'unknown' } keys %command;
    $version{module} = first_line('git describe --always --dirty');
    return \%version;
}

# GOALS

sub figures {
    my ($results) = @_;
    my $get     = sub { return scalar figure($results, @_) };
    my $at_load = $get->('connections_256', 'redis', 'redis_us');
    my $driver  = $results->{driver} // {};
    my %is      = (
        (map { ("${_}_added"     => $get->('base',    $_, 'added_us')) } qw(limit_req memory memory_bare redis sync)),
        (map { ("${_}_added_one" => $get->('one_key', $_, 'added_us')) } qw(limit_req memory memory_bare)),
        redis_cpu         => $get->('base',          'redis', 'redis_us'),
        pace_added_ratio  => scalar added_ratio($results, 'pace_5000', 'redis', 'openresty'),
        pace_p99_added    => $get->('pace_5000', 'redis',  'p99_added_ms'),
        pace_redis_ratio  => $get->('pace_5000', 'redis',  'redis_ratio', 'openresty'),
        pace_native_ratio => $get->('pace_5000', 'native', 'redis_ratio', 'openresty'),
        lease_added       => $get->('one_key', 'lease', 'added_us', 'memory'),
        redis_p99_8       => $get->('connections_8', 'redis', 'p99_ms'),
        redis_p99_8_ratio => $get->('connections_8', 'redis', 'p99_ratio', 'openresty'),
        one_cpu_redis_cpu   => $get->('one_cpu',   'redis', 'redis_us'),
        one_cpu_ratio       => $get->('one_cpu',   'redis', 'ratio'),
        one_cpu_ratio_8     => $get->('one_cpu_8', 'redis', 'ratio'),
        one_cpu_p99_8_ratio => $get->('one_cpu_8', 'redis', 'p99_ratio', 'openresty'),
        denied_ratio      => $get->('rejected', 'cache_denied',      'ratio', 'limit_req_denied'),
        denied_bare_ratio => $get->('rejected', 'cache_denied_bare', 'ratio', 'limit_req_denied'),
        settle_added      => $get->('settle', 'memory_settle', 'added_us'),
        owed_added        => $get->('settle', 'memory_owed',   'added_us'),
        settle_calls      => $get->('settle', 'redis_settle',  'calls_ratio'),
        (map { ("${_}_ratio" => $get->('bodies', "${_}_read", 'cpu_ratio')) } qw(json_10k json_1m events)),
        zone_bytes        => ($results->{zone_bytes} // {})->{ours},
        checks_per_core   => $driver->{checks_per_second} // ($at_load ? [ map { 1e6 / $_ } @{$at_load}[ 0, 2, 1 ] ] : undef),
    );
    my $counted = $results->{instructions} // {};
    for my $name (qw(limit_req memory)) {
        $is{"${name}_handler_one"} = ($counted->{$name}              // {})->{handler};
        $is{"${name}_handler"}     = ($counted->{"$name, many keys"} // {})->{handler};
    }
    my @shards = map { $get->('base', 'cluster', "redis_${_}_us") // () } 0 .. 2;
    $is{shards} = $is{redis_cpu}[0] / max(map { $_->[0] } @shards) if $is{redis_cpu} && @shards;
    delete @is{ grep { !defined $is{$_} } keys %is };
    return \%is;
}

# Returns how much more nginx CPU a contestant adds to plain than another one.
sub added_ratio {
    my ($results, $group, $name, $beside) = @_;
    my $is     = group($results, $group)                                 or return;
    my @values = added_by_round($is->{rounds}, $name, $beside) or return;
    return [ median(@values), quartiles(@values) ];
}

# TABLES

sub group_table {
    my ($group) = @_;
    my @rows;
    for my $name (@{ $group->{contestants} }) {
        my $is     = $group->{summary}{$name};
        my $number = sub { my ($field, $format) = @_; return sprintf $format, $is->{$field}[0] };
        push @rows,
            [
            contestant($name)->{title}, $number->('rate', '%.0f'), spread($is->{ratio}, '%.2f'),
            (map { $number->($_, '%.2f') } qw(p50_ms p99_ms p999_ms)), $number->('server_us', '%.2f'),
            spread($is->{added_us}, '%.2f'), $is->{redis_us}[0] ? $number->('redis_us', '%.2f') : '',
            ];
    }
    my $count = @{ $group->{rounds} };
    return "### $group->{title}\n\n" . text_table(
        [ 'Contestant', 'requests/s', '÷ no limit', 'p50 ms', 'p99 ms', 'p99.9 ms', 'CPU µs', 'added µs', 'Redis µs' ],
        @rows
    ) . "\n" . ($count == 1 ? 'One round' : "$count rounds") . " of $group->{seconds} s.\n\n";
}

sub shards_line {
    my ($results) = @_;
    my $alone = figure($results, 'base', 'redis', 'redis_us');
    my @each  = map { figure($results, 'base', 'cluster', "redis_${_}_us") // () } 0 .. 2;
    return '' unless @each && $alone;
    return sprintf "Redis CPU per check: %s µs on each of three shards, %.2f µs on one Redis.\n\n",
        join(', ', map { sprintf '%.2f', $_->[0] } @each), $alone->[0];
}

sub settle_line {
    my ($results) = @_;
    my ($without, $with) = map { figure($results, 'settle', "redis_$_", 'calls') } qw(estimate settle);
    return '' unless $with;
    return sprintf "Calls of Redis per request: %.3f with settle=, %.3f without. In this table, ours with settle= is "
        . "compared with the same limit without it.\n\n", $with->[0], $without->[0];
}

sub bodies_line {
    my ($results) = @_;
    return '' unless group($results, 'bodies');
    return "In this table, ÷ and added compare rate_limit_response with passing on the same body.\n\n";
}

sub alone_table {
    my ($results) = @_;
    my $alone = $results->{alone} or return '';
    my $mb    = sub { return sprintf '%.1f', $_[0] / 2**20 };
    my $known = sub { my ($value) = @_; return defined $value ? sprintf '%.2f', $value : '' };
    my @rows;
    for my $name (grep { $alone->{$_} } qw(plain limit_req haproxy_plain haproxy openresty memory redis sync cluster)) {
        my $is   = $alone->{$name};
        my $zone = { limit_req => 'limit_req', memory => 'ours' }->{$name};
        push @rows,
            [
            contestant($name)->{title},
            $known->($is->{calls}{server}),
            $known->($is->{calls}{redis}),
            $mb->($is->{resident}{anonymous}),
            $mb->($is->{resident}{shared}),
            $zone                ? sprintf '%.0f', $results->{zone_bytes}{$zone}
            : $name eq 'haproxy' ? sprintf '%.0f', $is->{grown}{anonymous} / 100_000
            : '',
            $is->{bytes_in_redis} > 1 ? sprintf '%.0f', $is->{bytes_in_redis} : '',
            ];
    }
    return "### System calls and memory\n\n" . text_table(
        [
            'Contestant', 'calls per request', 'calls of Redis', 'private MB', 'shared MB', 'bytes per client', 'bytes in Redis',
        ],
        @rows
    ) . "\nSystem calls at 64 connections and 100,000 keys, under strace, which slows down all contestants. Memory of nginx's "
        . "worker or of HAProxy after a request of each of 100,000 clients: private, and shared with other processes. "
        . "Bytes per client: those of a full zone; for HAProxy, the growth of its memory.\n\n";
}

# One key and many keys side by side.
sub instructions_table {
    my ($cases) = @_;
    return '' unless $cases && $cases->{plain};
    my $number = sub { my ($name, $field) = @_; my $is = ($cases->{$name} // {})->{$field}; return defined $is ? sprintf '%.0f', $is : '' };
    my @rows   = map {
        my $name = $_;
        [ $name, map { my $field = $_; map { $number->($_, $field) } $name, "$name, many keys" } qw(handler added) ]
    } grep { $_ ne 'plain' && !/, many keys$/ } sort keys %{$cases};
    return "### Instructions\n\n" . text_table(
        [ 'Limit', 'handler, one key', 'many keys', 'added, one key', 'many keys' ], @rows
    ) . sprintf "\nInstructions per request, counted by callgrind: those of the handler with the functions that it calls, and "
        . "those added to the %.0f of a request without a limit, including the headers.\n\n", $cases->{plain}{instructions};
}

sub accuracy_part {
    my ($text) = @_;
    return '' unless $text;
    $text =~ s/^(?=[^|\s])/#### /mg;
    return "### Accuracy\n\nA tenth of the traffic of `docs/accuracy.md`, which explains the columns and has the results of all traffic.\n\n$text\n";
}

sub driver_line {
    my ($said) = @_;
    return 'Checks/s through one Redis core: 1,000,000 ÷ Redis CPU of a check at 256 connections, in µs.' unless $said;
    return sprintf 'Checks/s through one Redis core: in calls of %d checks, while Redis had a CPU for %.0f %% of the time; '
        . '%.0f per second of its CPU time.', $said->{batch}, 100 * $said->{redis_busy}, $said->{checks_per_cpu_second};
}

sub goals_table {
    my ($results) = @_;
    my @rows = map { [ @{$_}{qw(goal wanted figure spread verdict)} ] } @{ $results->{goals} };
    return "### Goals\n\n" . text_table([ 'Goal', 'target', 'measured', 'quartiles', 'result' ], @rows) . "\n" . driver_line($results->{driver}) . "\n";
}

sub measured {
    my ($results) = @_;
    my ($machine, $version) = @{$results}{qw(machine versions)};
    return "Measured on $results->{finished}: $machine->{cpus} CPUs ($machine->{cpu}), $machine->{memory_gb} GB, "
        . "$machine->{kernel}; nginx $version->{nginx}, Redis $version->{redis}, HAProxy $version->{haproxy}, wrk $version->{wrk}, "
        . "h2load $version->{h2load}, the module at $version->{module}. "
        . ($results->{pinned} ? 'Servers on one CPU, load and Redis on another. ' : 'Nothing was pinned to a CPU unless a heading says so. ')
        . sprintf "The%s run took %d min %d s.\n\n", $results->{quick} ? ' quick' : '', $results->{seconds} / 60, $results->{seconds} % 60;
}

sub closed_part {
    my ($results, $group) = @_;
    my $line = { base => \&shards_line, settle => \&settle_line, bodies => \&bodies_line }->{ $group->{name} };
    return group_table($group) . ($line ? $line->($results) : '');
}

sub deviations {
    my ($results) = @_;
    return '' unless @{ $results->{warnings} };
    return "\nDeviations in single measurements:\n\n" . join '', map {"- $_\n"} @{ $results->{warnings} };
}

# Breaks long lines of prose, as the documentation does.
sub wrapped {
    my ($text) = @_;
    local $Text::Wrap::columns = 101;
    local $Text::Wrap::huge    = 'overflow';
    return join '', map { /^[^|#!].{100}/ ? Text::Wrap::wrap('', /^- / ? '  ' : '', $_) : $_ } split /^/m, $text;
}

1;
