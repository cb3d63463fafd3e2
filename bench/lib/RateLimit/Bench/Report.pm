# Writes the results of bench/run: tables, JSON, charts.
#
#   use RateLimit::Bench::Report qw(write_report);
#
# FUNCTIONS
#   write_report(\%results, %options)
#                               writes results.json, table.md and the charts; returns the text of the tables
#   instructions_table(\%cases)  the results of bench/costs, compared with limit_req; '' if there are none
#   accuracy_part($text)        the tables of bench/accuracy below a heading; '' if there are none
#   driver_line(\%said)         the result of bench/redis_load.cc; undef: how the figure was estimated
#   replace_part($page, $part)  a page with another text between its two marks; dies if the page has no marks
#
# OPTIONS
#   out         the folder for all files                    chart       the program bench/chart
#   copy        a folder whose benchmarks.md gets the tables, and whose benchmarks/ the charts
#   accuracy    the tables of bench/accuracy
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
use RateLimit::Bench::Contestants qw(algorithms contestant);
use RateLimit::Bench::Figures qw(by_round judge median quartiles text_table);

our @EXPORT_OK = qw(write_report replace_part instructions_table accuracy_part driver_line);

my ($begin, $end) = ('<!-- what make bench wrote -->', '<!-- until here -->');
my @charted = qw(limit_req haproxy openresty memory_bare memory redis sync cluster);

sub write_report {
    my ($results, %options) = @_;
    $results->{machine}  = machine();
    $results->{versions} = versions();
    $results->{finished} = strftime('%Y-%m-%d', gmtime);
    $results->{figures}  = figures($results);
    $results->{goals}    = [ judge($results->{figures}) ];
    my $text = tables($results, $options{accuracy});
    write_text("$options{out}/table.md",     $text);
    write_text("$options{out}/results.json", decode_utf8(JSON::PP->new->utf8->pretty->canonical->encode($results)));
    my @charts = grep { draw($_, %options) } charts($results);

    if ($options{copy}) {
        make_path("$options{copy}/benchmarks");
        for my $chart (@charts) {
            copy("$options{out}/$chart->{name}.svg", "$options{copy}/benchmarks") or croak "$options{copy}: $!";
        }
        my $page     = "$options{copy}/benchmarks.md";
        my $pictures = join "\n", map {"![$_->{title}](benchmarks/$_->{name}.svg)\n"} @charts;
        write_text($page, replace_part(read_text($page), "$pictures\n$text"));
    }
    return $text;
}

sub read_text {
    my ($file) = @_;
    open my $in, '<:encoding(UTF-8)', $file or croak "$file: $!";
    local $/ = undef;
    return <$in>;
}

sub write_text {
    my ($file, $text) = @_;
    open my $out, '>:encoding(UTF-8)', $file or croak "$file: $!";
    print {$out} $text;
    close $out or croak "$file: $!";
    return;
}

sub replace_part {
    my ($page, $part) = @_;
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

sub group {
    my ($results, $name) = @_;
    my ($found) = grep { $_->{name} eq $name } @{ $results->{groups} // [] };
    return $found;
}

# Returns a figure of a group: [ median, first quartile, third quartile ]; undef if it was not measured.
sub figure {
    my ($results, $group, $name, $field, $beside) = @_;
    my $is     = group($results, $group) or return;
    my @values = by_round($is->{rounds}, $name, $field, $beside // contestant($name)->{beside} // 'plain') or return;
    return [ median(@values), quartiles(@values) ];
}

sub figures {
    my ($results) = @_;
    my $get     = sub { return scalar figure($results, @_) };
    my $at_load = $get->('connections_256', 'redis', 'redis_us');
    my $driver  = $results->{driver} // {};
    my %is      = (
        (map { ("${_}_added"     => $get->('base',    $_, 'added_us')) } qw(limit_req memory memory_bare redis sync)),
        (map { ("${_}_added_one" => $get->('one_key', $_, 'added_us')) } qw(limit_req memory memory_bare)),
        redis_cpu         => $get->('base',          'redis', 'redis_us'),
        redis_ratio       => $get->('base',          'redis', 'ratio'),
        redis_ratio_8     => $get->('connections_8', 'redis', 'ratio'),
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

# TABLES

# Formats a median and its quartiles.
sub spread {
    my ($values, $format) = @_;
    return '' unless $values;
    return sprintf("$format ($format–$format)", @{$values}) =~ s/-(?=[0.]+(?![\d.]))//gr;
}

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

sub tables {
    my ($results, $accuracy) = @_;
    my ($machine, $version) = @{$results}{qw(machine versions)};
    my $text = "Measured on $results->{finished}: $machine->{cpus} CPUs ($machine->{cpu}), $machine->{memory_gb} GB, "
        . "$machine->{kernel}; nginx $version->{nginx}, Redis $version->{redis}, HAProxy $version->{haproxy}, wrk $version->{wrk}, "
        . "h2load $version->{h2load}, the module at $version->{module}. "
        . ($results->{pinned} ? 'Servers on one CPU, load and Redis on another. ' : 'Nothing was pinned to a CPU unless a heading says so. ')
        . sprintf "It took %d min %d s.\n\n", $results->{seconds} / 60, $results->{seconds} % 60;
    for my $group (@{ $results->{groups} // [] }) {
        $text .= group_table($group);
        my $line = { base => \&shards_line, settle => \&settle_line, bodies => \&bodies_line }->{ $group->{name} };
        $text .= $line->($results) if $line;
    }
    $text .= alone_table($results) . instructions_table($results->{instructions}) . accuracy_part($accuracy) . goals_table($results);
    if (@{ $results->{warnings} }) {
        $text .= "\nDeviations in single measurements:\n\n" . join '', map {"- $_\n"} @{ $results->{warnings} };
    }
    return join '', map { wrapped($_) } split /^/m, $text;
}

# Breaks a long line of prose, as the documentation does.
sub wrapped {
    my ($line) = @_;
    local $Text::Wrap::columns = 101;
    local $Text::Wrap::huge    = 'overflow';
    return $line =~ /^[^|#!-].{100}/ ? Text::Wrap::wrap('', '', $line) : $line;
}

# CHARTS

# Returns { name, title, spec, columns, rows } of each chart whose groups were measured.
sub charts {
    my ($results) = @_;
    return grep {$_} map { $_->($results) } \&cost_chart, \&speed_chart, \&connections_chart, \&rejected_chart, \&algorithms_chart;
}

sub number { my ($value, $format) = @_; return defined $value ? sprintf $format // '%.4f', $value : '' }

# Returns rows of the added CPU time, in nginx or HAProxy and in Redis, with quartiles of the former.
sub cost_rows {
    my ($group, @names) = @_;
    my @rows;
    for my $name (@names) {
        my $is = $group->{summary}{$name} or next;
        my ($added, $redis) = ($is->{added_us}[0], $is->{redis_us}[0]);
        push @rows,
            [
            contestant($name)->{title}, number(max(0, $added)), $redis ? number($redis) : '',
            sprintf $redis ? '%.2f + %.2f' : '%.2f', $added, $redis || (),
            ];
    }
    return @rows;
}

sub cost_panel {
    my ($title) = @_;
    return {
        title  => $title,
        kind   => 'rows',
        label  => 'label',
        series => [
            { column => 'server', name => 'nginx or HAProxy', color => 'blue' },
            { column => 'redis',  name => 'Redis',            color => 'orange' },
        ],
    };
}

sub cost_chart {
    my ($results) = @_;
    my $group = group($results, 'base') or return;
    my $title = 'What a limit costs: CPU µs added to a request';
    return {
        name    => 'cost',
        title   => $title,
        columns => [qw(name server redis label)],
        rows    => [ cost_rows($group, @charted) ],
        spec    => {
            title    => $title,
            subtitle => "$group->{title}. Compared with no limit; medians of rounds.",
            x        => { column => 'name' },
            panels   => [ cost_panel('µs a request') ],
        },
    };
}

sub speed_chart {
    my ($results) = @_;
    my @groups = grep {$_} map { group($results, $_) } qw(base one_key connections_8) or return;
    my $title  = 'Requests/s compared with no limit';
    my (@rows, @columns, @panels);
    for my $group (@groups) {
        my $id = $group->{name};
        push @columns, $id, "${id}_low", "${id}_high", "${id}_label";
        push @panels,
            {
            title  => $group->{title},
            kind   => 'rows',
            low    => "${id}_low",
            high   => "${id}_high",
            label  => "${id}_label",
            series => [ { column => $id, name => '', color => 'green' }, { level => 1, name => 'no limit', color => 'plain' } ],
            };
    }
    for my $name (@charted) {
        my @row = (contestant($name)->{title});
        for my $group (@groups) {
            my $ratio = ($group->{summary}{$name} // {})->{ratio};
            push @row, (map { number($_) } $ratio ? @{$ratio} : (undef) x 3), number($ratio ? $ratio->[0] : undef, '%.2f');
        }
        push @rows, \@row;
    }
    return {
        name    => 'speed',
        title   => $title,
        columns => [ 'name', @columns ],
        rows    => \@rows,
        spec    => {
            title    => $title,
            subtitle => 'Medians and quartiles of rounds; nginx or HAProxy, Redis and the load generator share the machine.',
            x        => { column => 'name' },
            panels   => \@panels,
        },
    };
}

sub connections_chart {
    my ($results) = @_;
    my %group = (1 => 'connections_1', 8 => 'connections_8', 64 => 'base', 256 => 'connections_256');
    my @at    = grep { group($results, $group{$_}) } sort { $a <=> $b } keys %group;
    return if @at < 3;
    my %color = (openresty => 'orange', memory => 'green', redis => 'blue', sync => 'purple', plain => 'grey');
    my @names = qw(plain openresty memory redis sync);
    my $title = 'From 1 to 256 connections';
    my @rows  = map {
        my $is = group($results, $group{$_})->{summary};
        $is->{$_} //= {} for @names;
        [ $_ == 1 ? '1 connection' : $_, (map { number($is->{$_}{ratio}[0]) } @names), map { number($is->{$_}{p99_ms}[0]) } @names ]
    } @at;
    my $series = sub {
        my ($field) = @_;
        return [ map { { column => "${field}_$_", name => contestant($_)->{title}, color => $color{$_} } } @names ];
    };
    return {
        name    => 'connections',
        title   => $title,
        columns => [ 'connections', (map {"ratio_$_"} @names), map {"p99_$_"} @names ],
        rows    => \@rows,
        spec    => {
            title  => $title,
            x      => { column => 'connections' },
            panels => [
                { title => 'Requests/s ÷ no limit', kind => 'lines', series => $series->('ratio') },
                { title => 'p99 in ms',             kind => 'lines', scale => 'log', series => $series->('p99') },
            ],
        },
    };
}

sub rejected_chart {
    my ($results) = @_;
    my $group = group($results, 'rejected') or return;
    my $title = 'Rejecting: requests/s';
    my @names = qw(limit_req_denied haproxy_denied openresty_denied memory_denied redis_denied cache_denied cache_denied_bare);
    my @rows  = map {
        my $rate = $group->{summary}{$_}{rate};
        [ contestant($_)->{title}, (map { number($_, '%.0f') } @{$rate}), sprintf '%.1fk', $rate->[0] / 1000 ]
    } grep { $group->{summary}{$_} } @names;
    return {
        name    => 'rejected',
        title   => $title,
        columns => [qw(name rate low high label)],
        rows    => \@rows,
        spec    => {
            title    => $title,
            subtitle => '64 connections, 100,000 keys, all over their limit. Medians and quartiles of rounds.',
            x        => { column => 'name' },
            panels   => [
                {
                    title  => '429 responses per second',
                    kind   => 'rows',
                    low    => 'low',
                    high   => 'high',
                    label  => 'label',
                    series => [ { column => 'rate', name => '', color => 'red' } ],
                }
            ],
        },
    };
}

sub algorithms_chart {
    my ($results) = @_;
    my $group = group($results, 'algorithms') or return;
    my $title = 'Each algorithm: CPU µs added to a request';
    my @names = map { my $place = $_; map {"${_}_$place"} algorithms() } qw(memory redis);
    return {
        name    => 'algorithms',
        title   => $title,
        columns => [qw(name server redis label)],
        rows    => [ cost_rows($group, @names) ],
        spec    => {
            title    => $title,
            subtitle => '64 connections, 100,000 keys, all admitted. Medians of rounds.',
            x        => { column => 'name' },
            panels   => [ cost_panel('µs a request') ],
        },
    };
}

sub draw {
    my ($chart, %options) = @_;
    my $base = "$options{out}/$chart->{name}";
    write_text("$base.csv", join '', map { join(',', @{$_}) . "\n" } $chart->{columns}, @{ $chart->{rows} });
    write_text("$base.json", decode_utf8(JSON::PP->new->utf8->pretty->canonical->encode($chart->{spec})));
    system("$options{chart} $base.json $base.csv >$base.svg") == 0 or croak "bench/chart ended with $?";
    return 1;
}

1;
