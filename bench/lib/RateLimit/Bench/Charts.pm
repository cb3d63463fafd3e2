# The charts of bench/run.
#
#   use RateLimit::Bench::Charts qw(steady_charts closed_charts draw);
#
# FUNCTIONS
#   steady_charts(\%results), closed_charts(\%results)
#                               { name, title, spec, columns, rows } of each chart whose groups were measured: at a
#                               steady pace, and in a closed loop
#   draw(\%chart, %options)     writes NAME.csv, NAME.json and NAME.svg into the folder `out`, with the program `chart`
package RateLimit::Bench::Charts;
use strict;
use warnings;
use utf8;

use Carp qw(croak);
use Encode qw(decode_utf8);
use Exporter qw(import);
use JSON::PP;
use List::Util qw(max);
use RateLimit::Bench::Contestants qw(algorithms contestant);
use RateLimit::Bench::Figures qw(keeps_pace);
use RateLimit::Bench::Results qw(group number write_text);

our @EXPORT_OK = qw(steady_charts closed_charts draw);

my @charted = qw(limit_req haproxy openresty memory_bare memory redis sync cluster);
my @steady  = qw(limit_req memory sync native redis openresty);

sub steady_charts { my ($results) = @_; return grep {$_} map { $_->($results) } \&pace_chart, \&paces_chart }

sub closed_charts {
    my ($results) = @_;
    return grep {$_} map { $_->($results) } \&cost_chart, \&speed_chart, \&connections_chart, \&rejected_chart, \&algorithms_chart;
}

# Shows the answer: CPU time and p99 at the pace that most sites are below.
sub pace_chart {
    my ($results) = @_;
    my $group = group($results, 'pace_5000') or return;
    my $title = "What a limit costs at $group->{title}";
    my @rows  = ([ contestant('plain')->{title}, ('') x 3 ], cost_rows($group, @steady));    # plain adds nothing to itself
    my @p99   = map { $_->{p99_ms} } grep {$_} map { $group->{summary}{$_} } 'plain', @steady;
    @rows = map { [ @{ $rows[$_] }, (map { number($_) } @{ $p99[$_] }), number($p99[$_][0], '%.2f') ] } 0 .. $#rows;
    return {
        name    => 'pace',
        title   => $title,
        columns => [qw(name server redis label p99 low high p99_label)],
        rows    => \@rows,
        spec    => {
            title    => $title,
            subtitle => '64 connections, 100,000 keys, all admitted. An open loop: times are counted from when a request was due. '
                . 'Medians of rounds.',
            x        => { column => 'name' },
            panels   => [
                cost_panel('CPU µs added to a request', 'nginx'),
                {
                    title  => 'p99 in ms, with quartiles',
                    kind   => 'rows',
                    low    => 'low',
                    high   => 'high',
                    label  => 'p99_label',
                    series => [ { column => 'p99', name => '', color => 'green' } ],
                },
            ],
        },
    };
}

my %color = (
    openresty => 'orange', memory => 'green', redis => 'blue', sync => 'purple', plain => 'grey', native => 'red',
);

# Lines from a slow pace to a fast one. A point is left out where the pace was not kept: its times only tell how long
# the measurement took.
sub paces_chart {
    my ($results) = @_;
    my @groups = grep { $_->{pace} } @{ $results->{groups} // [] };
    return if @groups < 3;
    my @names = grep { $groups[0]{summary}{$_} } qw(plain openresty memory redis native sync);
    my $title = 'From a slow pace to a fast one';
    my @rows;
    for my $group (@groups) {
        my $of = sub { my ($name) = @_; return $group->{summary}{$name} // {} };
        push @rows,
            [
            "$group->{pace}/s",
            (map { number(($of->($_)->{server_us}[0] // 0) + ($of->($_)->{redis_us}[0] // 0)) } @names),
            map { keeps_pace($of->($_)->{rate}[0], $group->{pace}) ? number($of->($_)->{p99_ms}[0]) : '' } @names,
            ];
    }
    my $series = sub {
        my ($field) = @_;
        return [ map { { column => "${field}_$_", name => contestant($_)->{title}, color => $color{$_} } } @names ];
    };
    return {
        name    => 'paces',
        title   => $title,
        columns => [ 'pace', (map {"cpu_$_"} @names), map {"p99_$_"} @names ],
        rows    => \@rows,
        spec    => {
            title  => $title,
            x      => { column => 'pace' },
            panels => [
                { title => 'CPU µs a request: nginx and Redis', kind => 'lines', series => $series->('cpu') },
                { title => 'p99 in ms', kind => 'lines', scale => 'log', series => $series->('p99') },
            ],
        },
    };
}

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
    my ($title, $server) = @_;
    return {
        title  => $title,
        kind   => 'rows',
        label  => 'label',
        series => [
            { column => 'server', name => $server // 'nginx or HAProxy', color => 'blue' },
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

# Writes the data, the description and the picture of a chart.
sub draw {
    my ($chart, %options) = @_;
    my $base = "$options{out}/$chart->{name}";
    write_text("$base.csv", join '', map { join(',', @{$_}) . "\n" } $chart->{columns}, @{ $chart->{rows} });
    write_text("$base.json", decode_utf8(JSON::PP->new->utf8->pretty->canonical->encode($chart->{spec})));
    system("$options{chart} $base.json $base.csv >$base.svg") == 0 or croak "bench/chart ended with $?";
    return 1;
}

1;
