# Two limits of a request give the same decisions whether each is in memory, in one Redis or in another.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $pairs = 28;    # pairs of kinds, chosen at random
my $steps = 10;    # requests to each pair

# Kinds of zones, each of which admits few requests and practically no more.
my %kinds = (
    token_bucket    => 'algorithm=token_bucket rate=1r/d capacity=6',
    leaky_bucket    => 'algorithm=leaky_bucket rate=1r/d burst=5',
    gcra            => 'algorithm=gcra rate=1r/d burst=4',
    fixed_clock     => 'algorithm=fixed_window rate=7r/366d',
    fixed_first     => 'algorithm=fixed_window rate=6r/d align=first',
    sliding_window  => 'algorithm=sliding_window rate=5r/366d',
    sliding_buckets => 'algorithm=sliding_buckets rate=6r/366d',
    sliding_log     => 'algorithm=sliding_log rate=6r/d',
    several_rates   => 'algorithm=token_bucket rate=5r/h,7r/d',
    several_logs    => 'algorithm=sliding_log rate=7r/d,5r/h',
    all_logged      => 'algorithm=sliding_log rate=9r/d count=all',
    all_in_window   => 'algorithm=fixed_window rate=9r/d align=first count=all',
    all_in_bucket   => 'algorithm=token_bucket rate=1r/d capacity=9 count=all',
    interval        => 'algorithm=token_bucket rate=1r/d capacity=6 min_interval=1h',
);
my @names = sort keys %kinds;
my %where = (memory => '', one => 'redis=one', two => 'redis=two');
my @placements = ([qw(memory memory)], [qw(one one)], [qw(one two)], [qw(two one)], [qw(memory one)], [qw(one memory)]);

my $seed = $ENV{RL_SEED} // 825003;
note "RL_SEED=$seed repeats this";
srand $seed;

sub nodelay { my ($kind) = @_; return $kind eq 'leaky_bucket' ? 'nodelay' : '' }

my ($one, $two) = (start_redis(), start_redis(server => 'valkey'));
my ($http, $server) = ("rate_limit_redis one @{[ $one->url ]} timeout=1h connect_timeout=1h;\nrate_limit_redis two @{[ $two->url ]} timeout=1h connect_timeout=1h;\n", <<'SERVER');
add_header X-Zone $rate_limit_zone always;
add_header X-Status $rate_limit_status always;
add_header X-Error $rate_limit_error always;
SERVER
$http .= "map \$arg_cost \$cost { '' 1; default \$arg_cost; }\n";
for my $kind (@names) {
    for my $place (sort keys %where) {
        my $off = $place eq 'memory' ? '' : 'deny_cache=off';
        $http .= "rate_limit_zone \$http_x_client zone=${kind}_$place:256k $kinds{$kind} $where{$place} $off;\n";
        $server .= "location = /look/${kind}_$place { rate_limit zone=${kind}_$place cost=0 @{[ nodelay($kind) ]}; empty_gif; }\n";
    }
}
for my $placement (@placements) {
    my ($all, $other) = @{$placement};
    my @limits = ("rate_limit zone=all_in_bucket_$all;", "rate_limit zone=two_$other;");
    $server .= "location = /all-first/$all/$other { $limits[0] $limits[1] empty_gif; }\n"
        . "location = /all-last/$all/$other { $limits[1] $limits[0] empty_gif; }\n";
}
$http .= "rate_limit_zone \$http_x_client zone=two_$_:256k algorithm=token_bucket rate=2r/d $where{$_};\n" for sort keys %where;
my @chosen;
for my $number (1 .. $pairs) {
    my $first = $names[ $number % @names ];
    my ($second) = grep { $_ ne $first } map { $names[ rand @names ] } 1 .. 20;
    push @chosen, [ $first, $second ];
    for my $placement (@placements) {
        my @zones = ("${first}_$placement->[0]", "${second}_$placement->[1]");
        $server .= "location = /$number/" . join('/', @{$placement}) . " { rate_limit zone=$zones[0] cost=\$cost @{[ nodelay($first) ]};"
            . " rate_limit zone=$zones[1] cost=\$cost @{[ nodelay($second) ]}; empty_gif; }\n";
    }
}
my $nginx = start_nginx(http => $http, server => $server);

# Returns what a client sees of a request, and of each zone after it. If both zones reject, stores that are asked one
# after the other report the zone that was asked first.
sub seen {
    my ($number, $placement, $client, $cost) = @_;
    my $answer = $nginx->get("/$number/" . join('/', @{$placement}) . "?cost=$cost", 'X-Client' => $client);
    my $zone   = ($answer->header('X-Zone') // '-') =~ s/_(?:memory|one|two)$//r;
    my @left   = map {
        $nginx->get("/look/$chosen[ $number - 1 ][$_]_$placement->[$_]", 'X-Client' => $client)->header('X-RateLimit-Remaining') // '-'
    } 0, 1;
    my @told = map { $_ // '-' } $zone, $answer->header('X-RateLimit-Limit'), $answer->header('X-RateLimit-Remaining');
    return {
        decision => join(' ', $answer->{status}, $answer->header('X-Status') // '-', $answer->header('X-Error') // (), 'and leaves', @left),
        told     => $answer->{status} == 429 && "@{$placement}" !~ /^(\w+) \1$/ ? undef : "@told",
    };
}

my %statuses;
for my $number (1 .. $pairs) {
    my ($first, $second) = @{ $chosen[ $number - 1 ] };
    my @costs = map { (1, 1, 1, 2, 3, 0)[ rand 6 ] } 1 .. $steps;
    my @wrong;
    # count=all across stores has its own rows below.
    my @compared = "$first $second" =~ /all_/ ? @placements[ 0, 1 ] : @placements;
    for my $step (0 .. $#costs) {
        my ($expected, @others) = map { seen($number, $_, "$number-@{$_}", $costs[$step]) } @compared;
        $statuses{ substr $expected->{decision}, 0, 3 }++;
        for my $other (0 .. $#others) {
            for my $what (qw(decision told)) {
                my ($memory, $here) = ($expected->{$what}, $others[$other]{$what} // next);
                push @wrong, 'request ' . ($step + 1) . " of costs @costs: memory $memory; @{ $compared[ $other + 1 ] } $here"
                    if $here ne $memory;
            }
        }
        last if @wrong;
    }
    is_deeply \@wrong, [], "$first and $second";
}
is join(' ', sort keys %statuses), '200 429', 'some requests were admitted, some were rejected';
for my $placement (@placements) {
    my ($all, $other) = @{$placement};
    for my $order (qw(all-first all-last)) {
        my $client = "$all $other $order";
        $nginx->get("/$order/$all/$other", 'X-Client' => $client) for 1 .. 5;
        is $nginx->get("/look/all_in_bucket_$all", 'X-Client' => $client)->header('X-RateLimit-Remaining'), 4,
            "count=all in $all counts what a limit in $other rejects, $order";
    }
}
unlike $nginx->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
