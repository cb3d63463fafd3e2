# A limit in Redis is exact: two instances with all their workers admit N requests in a window, never N + 1.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(sum);
use POSIX ();
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers request_text);
use RateLimit::Parallel qw(in_parallel exact_rate @algorithms);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

my $limit   = 40;     # of the 64 requests that each window gets
my $windows = $ENV{RL_LONG} ? 100 : 30;    # concurrent windows, one for each client
my $asking  = 4;      # client processes, each with
my $each    = 16;     # connections, half to each instance
my $seconds = $ENV{RL_LONG} ? 8 : 4;       # of consecutive windows

# The parameters of a limit of this many requests a second.
my %running = (
    fixed_window    => sub {"rate=$_[0]r/s"},
    sliding_window  => sub {"rate=$_[0]r/s"},
    sliding_buckets => sub {"rate=$_[0]r/s"},
    sliding_log     => sub {"rate=$_[0]r/s"},
    token_bucket    => sub {"rate=$_[0]r/s"},
    leaky_bucket    => sub { "rate=$_[0]r/s burst=" . ($_[0] - 1) },
    gcra            => sub { "rate=$_[0]r/s burst=" . ($_[0] - 1) },
);

# The clocks of Redis and nginx are frozen unless a subtest advances them.
my $redis = start_redis(clock => 'stopped');

my ($http, $server) = ("rate_limit_redis fleet @{[ $redis->url ]} timeout=20s connect_timeout=20s;\n", 'add_header X-Store $rate_limit_store always;');
for my $name (@algorithms) {
    my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
    my %zones   = (
        $name          => exact_rate($name, $limit),
        "asked_$name"  => exact_rate($name, $limit) . ' deny_cache=off',
        "second_$name" => $running{$name}->($limit),
        "hour_$name"   => $running{$name}->($limit) =~ s{r/s}{r/h}r . ' deny_cache=off',
    );
    for my $zone (sort keys %zones) {
        $http   .= "rate_limit_zone \$http_x_client zone=$zone:1m algorithm=$name redis=fleet $zones{$zone};\n";
        $server .= "location = /$zone { rate_limit zone=$zone $nodelay; empty_gif; }\n";
    }
}

sub start_fleet {
    my ($workers) = @_;
    return map {
        start_nginx(
            http   => "access_log off;\nkeepalive_requests 1000000;\nrate_limit_log_level info;\n$http", server => $server,
            workers => $workers, log_level => 'notice', clock => 1
        )
    } 1, 2;
}

sub open_all {
    my (@fleet) = @_;
    return map { RateLimit::Async->new($fleet[ $_ % @fleet ]->port) } 1 .. $each;
}

# Sends one request on every connection to each window, five windows at a time, in another order on each connection.
sub ask_windows {
    my ($fleet, $zone, $run) = @_;
    my @connections = open_all(@{$fleet});
    my %count;
    for my $round (0 .. $windows / 5 - 1) {
        my @order;
        for my $number (0 .. $#connections) {
            $order[$number] = [ map { $round * 5 + ($_ + $number) % 5 } 0 .. 4 ];
            my $text = join '', map { request_text('GET', "/$zone", [ 'X-Client' => "$run-$_" ]) } @{ $order[$number] };
            $connections[$number]->raw($text, ('GET') x 5);
        }
        await_answers(60, @connections) or $count{late}++;
        for my $number (0 .. $#connections) {
            my @answers = $connections[$number]->answers;
            for my $place (0 .. $#answers) {
                my ($status, $store) = ($answers[$place]{status}, $answers[$place]->header('X-Store') // 'none');
                $count{"window $order[$number][$place]"}++ if $status == 200;
                $count{"$status by $store"}++;
            }
        }
    }
    return \%count;
}

my @table = (sprintf '%-16s %9s %8s %6s %9s %5s %6s', qw(algorithm instances windows limit admitted over under));

# Asserts that each window admitted exactly the limit.
sub exact {
    my ($fleet, $title, $zone, $algorithm) = @_;
    my $began = time;
    my $count = in_parallel($asking, sub { ask_windows($fleet, $zone, $title) });
    my @admitted = map { $count->{"window $_"} // 0 } 0 .. $windows - 1;
    my ($total, $over, $under) = (0, 0, 0);
    for my $number (@admitted) {
        $total += $number;
        $over++  if $number > $limit;
        $under++ if $number < $limit;
    }
    push @table, sprintf '%-16s %9s %8d %6d %9d %5d %6d', $algorithm, $title, $windows, $limit, $total, $over, $under;
    my $sent = 0;
    $sent += $count->{$_} for grep {/ by /} keys %{$count};
    is $sent, $windows * $asking * $each, "$title $zone: every request gets a response";
    is $over,  0, "$title $zone: no window of $windows admits more than $limit";
    is $under, 0, "$title $zone: no window admits less";
    is scalar(grep {/none|fallback|memory|late|died|503/} keys %{$count}), 0, "$title $zone: Redis decided all requests"
        or diag join ', ', map {"$_: $count->{$_}"} grep { !/window/ } sort keys %{$count};
    note sprintf '%s %s: %.1f s', $title, $zone, time - $began;
    return;
}

# Consecutive windows: every connection sends as fast as it gets responses, to all zones in turn, until the file $stop
# exists. A file grows with each round.
my $stop = "$ENV{RL_DIR}/stop";
my @rounds = map {"$ENV{RL_DIR}/rounds-$_"} 1 .. $asking;

sub ask_seconds {
    my ($fleet, $number) = @_;
    my @connections = open_all(@{$fleet});
    open my $rounds, '>', $rounds[ $number - 1 ] or die "rounds: $!\n";
    $rounds->autoflush;
    my %count;
    while (!-e $stop) {
        my $text = join '', map { request_text('GET', "/second_$_", [ 'X-Client' => 'seconds' ]) } @algorithms;
        $_->raw($text, ('GET') x @algorithms) for @connections;
        await_answers(60, @connections) or $count{late}++;
        for my $connection (@connections) {
            my @answers = $connection->answers;
            for my $place (0 .. $#answers) {
                my $answer = $answers[$place];
                my $name   = $algorithms[$place];
                $count{"$name by " . ($answer->header('X-Store') // 'none')}++;
                next if $answer->{status} != 200;
                $count{"$name admitted"}++;
                $count{"$name until " . $answer->header('X-RateLimit-Reset')}++;
            }
        }
        print {$rounds} '.';
    }
    return \%count;
}

# Advances the clocks in steps. After each step, all processes send at least one whole round.
sub pass_seconds {
    my (@fleet) = @_;
    my $asked = sub {
        my @before = map { -s || 0 } @rounds;
        wait_for('two rounds of each', sub { !grep { (-s $rounds[$_] || 0) < $before[$_] + 2 } 0 .. $#rounds });
    };
    $asked->();
    for (1 .. $seconds * 4) {
        $_->advance(0.25) for $redis, @fleet;
        $asked->();
    }
    open my $out, '>', $stop or die "$stop: $!\n";
    close $out;
    return;
}

my @small = start_fleet(2);

subtest 'a hundred windows of each algorithm, two instances of two workers' => sub {
    exact(\@small, '2 x 2', $_, $_) for @algorithms;
};

subtest "windows of a second, for $seconds seconds" => sub {
    my $count = in_parallel($asking, sub { ask_seconds(\@small, @_) }, sub { pass_seconds(@small) });
    is scalar(grep {/none|fallback|memory|late|died/} keys %{$count}), 0, 'Redis decided all requests';

    # The responses name the end of a window that is aligned to the clock. The first and the last window may be
    # incomplete.
    my @ends = sort { $a <=> $b } map {/^fixed_window until (\d+)/} keys %{$count};
    my @whole = @ends[ 1 .. $#ends - 1 ];
    cmp_ok scalar @whole, '>=', $seconds - 2, 'fixed_window: complete windows';
    is join(' ', map { $count->{"fixed_window until $_"} } @whole), join(' ', ($limit) x @whole),
        "fixed_window: each complete window admits $limit";
    cmp_ok $count->{"fixed_window until $_"}, '<=', $limit,
        'fixed_window: incomplete windows admit no more' for @ends[ 0, -1 ];
    my @counts = map { $count->{"fixed_window until $_"} } @whole;
    push @table, sprintf '%-16s %9s %8d %6d %9d %5d %6d', 'fixed_window', '2 x 2, 1s', scalar @whole, $limit, sum(@counts),
        scalar(grep { $_ > $limit } @counts), scalar(grep { $_ < $limit } @counts);

    # The most that an algorithm may admit in $seconds seconds, and the least for clients that send without a pause.
    my %most = (
        (map { $_ => $limit * (1 + $seconds) } qw(token_bucket gcra leaky_bucket)),
        sliding_log     => $limit * (1 + $seconds),
        sliding_window  => $limit * (1 + $seconds),
        sliding_buckets => $limit * POSIX::ceil($seconds + 0.1),    # one of ten sub-windows more
    );
    for my $name (sort keys %most) {
        my $admitted = $count->{"$name admitted"};
        cmp_ok $admitted, '<=', $most{$name}, "$name: at most $most{$name} in $seconds s";
        my $least = $name =~ /window|buckets/ ? $limit * ($seconds - 1.5) * 0.8 : $most{$name};
        cmp_ok $admitted, '>=', $least, "$name: and " . ($least < $most{$name} ? 'not much' : 'no') . " less ($admitted)";
        push @table, sprintf '%-16s %9s %8d %6d %9d at most %d', $name, '2 x 2, 1s', $seconds, $limit, $admitted, $most{$name};
    }
};
# The seconds after which the whole quota of an exhausted window is back.
my %later = ((map { $_ => 3600 } @algorithms), sliding_window => 7200, sliding_buckets => 3960);

subtest 'a hundred consecutive windows of an hour, two instances of two workers' => sub {
    my @connections = map { RateLimit::Async->new($small[ $_ % 2 ]->port) } 1 .. $asking * $each;
    $redis->advance(3600 - $redis->command('TIME')->[0] % 3600);    # the next whole hour
    for my $name (@algorithms) {
        my ($total, $over, $under, $other) = (0, 0, 0, 0);
        for my $window (1 .. $windows) {
            $_->request('GET', "/hour_$name", [ 'X-Client' => 'hours' ]) for @connections;
            await_answers(60, @connections) or $other++;
            my @answers  = map { $_->answers } @connections;
            my $admitted = grep { $_->{status} == 200 } @answers;
            $other += @connections - grep { $_->header('X-Store') eq 'redis' } @answers;
            $total += $admitted;
            $over++  if $admitted > $limit;
            $under++ if $admitted < $limit;
            $redis->advance($later{$name});
        }
        push @table, sprintf '%-16s %9s %8d %6d %9d %5d %6d', $name, '2 x 2, 1h', $windows, $limit, $total, $over, $under;
        is $over,  0, "$name: no window of $windows admits more than $limit";
        is $under, 0, "$name: no window admits less";
        is $other, 0, "$name: Redis decided all requests";
    }
};
$_->stop for @small;

my @large = start_fleet(4);
subtest 'the same with four workers each, and without a deny cache' => sub {
    exact(\@large, '2 x 4', "asked_$_", $_) for @algorithms;
};

unlike $_->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @small, @large;
note $_ for @table;
done_testing;
