# bench/run: it parses the output of other programs, combines its rounds, and decides which goals are met.
use strict;
use warnings;
use utf8;

use lib 't/lib', 'bench/lib';

# No module for Redis is built here.
BEGIN { $ENV{RL_BUILD} = "$ENV{RL_DIR}/build" }
use RateLimit::Bench::Figures
    qw(added_by_round by_round elsewhere judge keeps_pace last_line median parse_h2load parse_load parse_strace parse_wrk
    percentile plan_order quartiles show spelled summarize text_table);
use RateLimit::Bench::Charts qw(steady_charts);
use RateLimit::Bench::Contestants qw(contestant);
use RateLimit::Bench::Groups qw(groups);
use RateLimit::Bench::Report qw(accuracy_part driver_line figures instructions_table replace_part);
use RateLimit::Bench::Steady qw(answer steady_tables);
use Test::More;

binmode Test::More->builder->$_, ':encoding(UTF-8)' for qw(output failure_output);

subtest 'middles and spreads' => sub {
    is median(3, 1, 2), 2, 'the middle one';
    is median(4, 1, 2, 3), 2.5, 'between two';
    is median(), undef, 'of none';
    is_deeply [ quartiles(1 .. 5) ], [ 2, 4 ], 'quartiles';
    is_deeply [ quartiles(1, 2) ], [ 1.25, 1.75 ], 'between two';
    is_deeply [ quartiles(7) ], [ 7, 7 ], 'of one';
    is percentile(0.99, 1 .. 100), 99, 'p99';
    is percentile(0.999, 1 .. 100), 100, 'p99.9';
    is percentile(0.5, 5), 5, 'of one';
};

subtest 'the output of wrk' => sub {
    my $text = "Running 1s test\nRESULT {\"requests\":2000,\"duration\":1100000,\"p50\":640,\"p99\":2100,\"p999\":9000,"
        . "\"statuses\":500,\"failures\":3}\n";
    is_deeply parse_wrk($text),
        { requests => 2000, seconds => 1.1, p50_ms => 0.64, p99_ms => 2.1, p999_ms => 9, rejected => 0.25, failures => 3 },
        'all of it';
    is eval { parse_wrk('unable to connect') }, undef, 'output without figures';
    like $@, qr/unable to connect/, 'with its words';
};

subtest 'the output of h2load' => sub {
    my $text = "finished in 1.50s, 4 req/s, 1KB/s\n"
        . "requests: 5 total, 5 started, 4 done, 3 succeeded, 2 failed, 1 errored, 0 timeout\n";
    my $log = "1000\t200\t400\n1001\t200\t100\n1002\t429\t200\n1003\t200\t300\n1004\t-1\t900\n";
    is_deeply parse_h2load($text, $log),
        { requests => 4, seconds => 1.5, p50_ms => 0.2, p99_ms => 0.4, p999_ms => 0.4, rejected => 0.25, failures => 1 },
        'all of it';
    is parse_h2load($text =~ s/1\.50s/900.00ms/r, $log)->{seconds}, 0.9, 'in milliseconds';
    is eval { parse_h2load('could not connect', '') }, undef, 'output without figures';
};

subtest 'the output of the open loop' => sub {
    # Two connections, a request due each millisecond. The server stalls for 10 ms, and the last request is sent late.
    my $text = "0 0 400 200 - - 7\n1000 1000 11000 200 - - 8\n2000 2100 2500 429 - - 7\n3000 11000 11500 200 - - 9\n"
        . "4000 4900 5400 200 - - 9\n";
    my %pace = (rate => 1000, connections => 2);
    my $is   = parse_load($text, %pace);
    is $is->{requests}, 5, 'all requests';
    is $is->{p50_ms}, 1.4, 'a request counts from when it was due, not from when it was sent';
    is $is->{p99_ms}, 10, 'the stalled request';
    is $is->{late_ms}, 0.9, 'the load generator is late if the connection was free';
    is $is->{rejected}, 0.2, 'rejected requests';
    is $is->{failures}, 0, 'no failures';
    is $is->{seconds}, 0.0115, 'until the last response';
    $is = parse_load($text . "5000 - 2005000 0 - - 1\n", %pace);
    is "$is->{requests} $is->{failures}", '5 1', 'a request without a response is a failure';
    is $is->{p99_ms}, 2000, 'which counts with the time that it waited';
    is $is->{seconds}, 0.0115, 'but does not make the measurement longer';
    is parse_load("0 0 100 200 - - 1\n", %pace)->{seconds}, 0.001, 'each request has its part of the time';
    is eval { parse_load('', %pace) }, undef, 'no requests';
    ok keeps_pace(4950, 5000), 'a pace is kept but for the last responses';
    ok !keeps_pace(4850, 5000), 'a pace is not kept';
};

subtest 'the output of strace' => sub {
    my $table = <<'TEXT';
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 50.00    0.000020           2        10           writev
 50.00    0.000020           2        10         4 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.000040           2        20         4 total
TEXT
    is parse_strace($table), 20, 'calls, with errors';
    is parse_strace($table =~ s/  4 total/    total/r), 20, 'a table without errors';
    is parse_strace(''), undef, 'nothing';
};

subtest 'where requests were decided' => sub {
    my %of = map { $_ => contestant($_) } qw(redis cluster redis_denied cache_denied sync memory openresty);
    is elsewhere($of{redis}, 1000, 1003), 0, 'each client has a key, and a few extra keys';
    is elsewhere($of{redis}, 1000, 750), 0.25, 'a quarter of the requests never reached Redis';
    is elsewhere($of{cluster}, 1000, 900), 0.1, 'a tenth of the requests never reached the nodes';
    is elsewhere($of{redis_denied}, 1000, 0), 1, 'none without a deny cache';
    is elsewhere($of{cache_denied}, 1000, 0), 0, 'no request had to reach Redis';
    is elsewhere($of{cache_denied}, 1000, 20), 0.02, 'some were not in the cache';
    is elsewhere($of{sync}, 1000, 10), 0, 'with local counting, Redis gets the counts of clients';
    is elsewhere($of{$_}, 1000, 0), 0, "$_ is not called" for qw(memory openresty);
    is elsewhere($of{redis}, 0, 0), 0, 'without requests';
};

subtest 'the content of a log' => sub {
    is last_line("one\ntwo\n"), 'two', 'its last line';
    is last_line("one\n\n"), 'one', 'a log that is not empty';
    is_deeply [ last_line('') ], [undef], 'nothing';
};

subtest 'contestants with metrics' => sub {
    is contestant('memory_observed')->{kind}, 'observed', 'only lines with this name';
    is contestant($_)->{kind}, 'ours', "$_ has no metrics" for qw(plain limit_req memory memory_bare redis sync cluster cache_denied);
    is contestant('memory_observed')->{$_}, contestant('memory')->{$_}, "with the same $_" for qw(http location);
};

subtest 'contestants beside the same without a feature' => sub {
    is contestant('memory_settle')->{beside}, 'memory_estimate', 'settle= beside its estimate';
    is contestant('memory_owed')->{beside}, 'memory', 'settle= for more beside a cost of 1';
    like contestant('redis_settle')->{location}, qr/cost=2 settle=\$actual_%s/, 'each request is corrected';
    is contestant("${_}_read")->{beside}, $_, "rate_limit_response beside passing $_ on" for qw(json_10k json_1m events);
};

my @rounds = (
    {
        plain => [ { rate => 90, server_us => 9, p99_ms => 1 }, { rate => 110, server_us => 11, p99_ms => 1 } ],
        redis => [ { rate => 50, server_us => 12, p99_ms => 3, redis_each_us => [ 4, 2 ], log => 'timeout' } ],
        other => [ { rate => 20, server_us => 22, p99_ms => 6 } ],
    },
    {
        plain => [ { rate => 200, server_us => 5, p99_ms => 1 } ],
        redis => [ { rate => 120, server_us => 8, p99_ms => 2, redis_each_us => [ 2, 2 ] } ],
        other => [ { rate => 60, server_us => 20, p99_ms => 8 } ],
    },
);

my @pace_rounds = (
    {
        plain     => [ { rate => 5000, server_us => 10, p99_ms => 0.5 } ],
        redis     => [ { rate => 5000, server_us => 20, p99_ms => 1,   redis_us => 9 } ],
        openresty => [ { rate => 5000, server_us => 30, p99_ms => 1.5, redis_us => 6 } ],
    }
);

subtest 'rounds' => sub {
    is_deeply [ by_round(\@rounds, 'redis', 'ratio', 'plain') ], [ 0.5, 0.6 ],
        'compared with the mean of the same round';
    is_deeply [ by_round(\@rounds, 'redis', 'added_us', 'plain') ], [ 2, 3 ], 'CPU time beyond the baseline';
    is_deeply [ by_round(\@rounds, 'redis', 'p99_ratio', 'other') ], [ 0.5, 0.25 ], 'compared with another contestant';
    is_deeply [ by_round(\@rounds, 'other', 'cpu_ratio', 'redis') ], [ 22 / 12, 20 / 8 ], 'CPU time, divided';
    is_deeply [ by_round(\@rounds, 'other', 'calls_ratio', 'redis') ], [], 'calls that were not counted';
    is_deeply [ by_round(\@rounds, 'redis', 'p99_added_ms', 'plain') ], [ 2, 1 ], 'p99 beyond that of another';
    is_deeply [ added_by_round(\@rounds, 'redis', 'other') ], [ 2 / 12, 3 / 15 ], 'CPU time added, divided by that of another';
    is_deeply [ added_by_round(\@rounds, 'redis', 'plain') ], [], 'nothing is divided by nothing';
    is_deeply [ by_round(\@rounds, 'absent', 'ratio', 'plain') ], [], 'a contestant that was not measured';
    my $summary = summarize(\@rounds, other => 'redis');
    is_deeply $summary->{redis}{rate}, [ 85, 67.5, 102.5 ], 'median and quartiles';
    is_deeply $summary->{redis}{redis_0_us}, [ 3, 2.5, 3.5 ], 'each Redis by itself';
    is $summary->{other}{added_us}[0], 11, 'each beside its own baseline';
    is $summary->{plain}{ratio}[0], 1, 'no contestant is faster than itself';
    is $summary->{redis}{log}, undef, 'a line of a log has no median';
};

subtest 'orders' => sub {
    my @names = qw(a b c d e);
    my %seen;
    for my $round (0 .. 5) {
        my @order = plan_order($round, @names);
        is "@{[ sort @order ]}", "@names", "round $round has all contestants";
        $seen{"@order"}++;
    }
    is scalar(keys %seen), 6, 'each round has another order';
};

subtest 'goals' => sub {
    my %row = map { $_->{goal} => $_ } judge(
        { redis_added => 2.5, redis_cpu => 5.01, one_cpu_ratio => [ 0.72, 0.6, 0.8 ], memory_added => 0.5, limit_req_added => [ 0.4, 0, 1 ], shards => 2 });
    is $row{'Redis: nginx CPU added'}{verdict}, 'met', 'at most';
    is $row{'Redis: Redis CPU per check'}{verdict}, 'missed', 'above the goal';
    is $row{'Redis, all on one CPU: requests/s ÷ plain'}{verdict}, 'met', 'at least';
    is $row{'Redis, all on one CPU: requests/s ÷ plain'}{spread}, '0.60–0.80', 'the quartiles';
    is $row{'Redis: nginx CPU added'}{spread}, '', 'if it has a value';
    my $beside = $row{'memory, 100,000 keys: nginx CPU added, compared with limit_req'};
    is "$beside->{wanted}: $beside->{figure}, $beside->{verdict}", 'at most 0.40 µs: 0.50 µs, missed', 'compared with another figure';
    is $row{'Redis, 8 connections: p99'}{figure}, 'not measured', 'a figure that was not measured';
    is $row{'Redis, 8 connections: p99'}{verdict}, '–', 'a figure that was not measured has no verdict';
    my @handlers = map { $_->{verdict} } grep { $_->{goal} =~ /instructions of the handler/ } judge(
        { memory_handler_one => 820, limit_req_handler_one => 895, memory_handler => 990, limit_req_handler => 984 });
    is "@handlers", 'met missed', "instructions compared with limit_req, for one key and for many";
    my ($shards) = map { $row{$_} } grep {/three shards/} keys %row;
    is "$shards->{figure} $shards->{verdict}", '2.00 –', 'a figure that is only stated is not a goal';
};

subtest 'figures' => sub {
    is_deeply figures({}), {}, 'none without measurements';
    my $is = figures({ groups => [ { name => 'pace_5000', rounds => \@pace_rounds } ], zone_bytes => { ours => 28 } });
    is_deeply $is->{pace_added_ratio}, [ 0.5, 0.5, 0.5 ], 'nginx CPU added, divided by that of Lua and Redis';
    is_deeply $is->{pace_p99_added}, [ 0.5, 0.5, 0.5 ], 'p99 added';
    is_deeply $is->{pace_native_ratio}, undef, 'a contestant that was not measured';
    is $is->{zone_bytes}, 28, 'others';
};

subtest 'texts' => sub {
    is join(' ', map { show($_) } 0.123, -0.001, 12.34, 197_284.4), '0.12 0.00 12.3 197284', 'numbers';
    is text_table([ 'Name', 'µs' ], [ 'one', '1.00' ], [ 'another', '22.00' ]), <<'TABLE', 'a table';
| Name    |    µs |
|---------|------:|
| one     |  1.00 |
| another | 22.00 |
TABLE
    my %case = (
        plain                  => { instructions => 8000, added => 0 },
        limit_req              => { instructions => 8860, added => 860, handler => 895.4 },
        'limit_req, many keys' => { instructions => 8950, added => 950, handler => 984 },
        memory                 => { instructions => 9490, added => 1490, handler => 820 },
    );
    my $table = instructions_table(\%case);
    like $table, qr/^\| limit_req \| +895 \| +984 \| +860 \| +950 \|$/m, 'instructions of one key and of many';
    like $table, qr/^\| memory +\| +820 \| +\| +1490 \| +\|$/m, 'only counted figures';
    like $table, qr/the 8000 of a request without a limit/, 'compared with plain';
    is instructions_table(undef), '', 'no table without counts';
    is accuracy_part(undef), '', 'nothing of accuracy';
    like accuracy_part("Traces\n\n| a |\n| --- |\n| b |\n"), qr/^### Accuracy\n.*`docs\/accuracy\.md`.*\n#### Traces\n\n\| a \|\n/s,
        'tables below a heading';
    like driver_line({ batch => 64, redis_busy => 0.857, checks_per_cpu_second => 303_850 }),
        qr/calls of 64 checks.* 86 % .*303850 per second of its CPU time/, 'the output of the driver';
    like driver_line(undef), qr/256 connections/, 'how its figure was estimated';
    is spelled(1_234_567), '1,234,567', 'thousands';
    is spelled(-12.4), '-12', 'a small number';
    my $part = sub { my ($name, $text) = @_; return "<!-- $name: make bench writes this part -->\n$text<!-- end of $name -->\n" };
    my $page = $part->('one', "old\n") . "between\n" . $part->('two', "same\n");
    is replace_part($page, 'one', "new\n"), $part->('one', "\nnew\n\n") . "between\n" . $part->('two', "same\n"),
        'a generated part of a page is replaced, and no other';
    is eval { replace_part($page, 'three', 'new') }, undef, 'only if the page has its marks';
};

subtest 'a steady pace' => sub {
    my $contestant = sub {
        my ($rate, $added, $redis, $p99) = @_;
        my %is = (rate => $rate, server_us => 10 + $added, added_us => $added, redis_us => $redis, p99_ms => $p99);
        return { p50_ms => [ 0.1, 0.1, 0.1 ], p999_ms => [ 9, 9, 9 ], map { $_ => [ $is{$_}, $is{$_}, $is{$_} ] } keys %is };
    };
    my %summary = (
        plain     => $contestant->(5000, 0,  0,  0.3),
        limit_req => $contestant->(5000, 1,  0,  0.3),
        memory    => $contestant->(5000, 2,  0,  0.4),
        redis     => $contestant->(5000, 30, 40, 0.6),
        openresty => $contestant->(4000, 50, 60, 800),
    );
    my @names = qw(plain limit_req memory redis openresty);
    my %group = (contestants => \@names, summary => \%summary, rounds => [ {}, {} ], seconds => 2, pace => 5000);
    my @groups = map { +{ %group, name => "pace_$_", title => "$_ requests/s" } } 1000, 5000, 'half';
    my $table = steady_tables($groups[1]);
    like $table, qr/^\| ours: Redis +\| +40\.00 \| 30\.00 \(30\.00–30\.00\) \| 40\.00 \(.*\| +0\.60 \(.*\| +9\.00 \|$/m, 'a row';
    like $table, qr/^2 rounds of 2 s\. Lua and Redis did not keep this pace, and reached 4,000 requests\/s\.$/m,
        'a contestant that did not keep the pace';
    unlike $table, qr/(?:limit|ours)[^\n]* did not keep/, 'and no other';
    unlike $table, qr/load generator/, 'a load generator that was in time';
    my @late = ({ plain => [ { late_ms => 0.9 }, { late_ms => 3.25 } ] }, { plain => [ { late_ms => 1.5 } ] });
    like steady_tables({ %{ $groups[0] }, rounds => \@late }), qr/^In 2 of 3 .* late by more than 1 ms \(p99\), by 3\.2 ms at most/m,
        'a load generator that was late';
    my $answer = answer({ groups => \@groups });
    is scalar(() = $answer =~ /\.\n/g), 3, 'the answer has three lines';
    like $answer, qr/adds 2\.0 µs of CPU time to the 10\.0 µs .*`limit_req` adds 1\.0 µs/, 'of shared memory';
    like $answer, qr/adds 30\.0 µs in nginx and takes 40\.0 µs in Redis; Lua with Redis adds 50\.0 µs and takes 60\.0 µs/, 'of Redis';
    $summary{memory}{added_us} = [ 0.2, -0.1, 0.4 ];
    like answer({ groups => \@groups }), qr/shared memory adds at most 0\.4 µs/, 'a difference that is smaller than the noise';
    delete $summary{openresty};
    is scalar(() = answer({ groups => \@groups }) =~ /\.\n/g), 1, 'only what was measured';
    is answer({}), '', 'no answer without measurements';

    $summary{openresty} = $contestant->(4000, 50, 60, 800);
    my ($pace, $paces) = steady_charts({ groups => \@groups });
    is_deeply [ map { $_->[0] } @{ $pace->{rows} } ], [ 'no limit', 'limit_req', 'ours: memory', 'ours: Redis', 'Lua and Redis' ],
        'bars';
    is_deeply [ @{ $pace->{rows}[3] }[ 1 .. 4 ] ], [ '30.0000', '40.0000', '30.00 + 40.00', '0.6000' ], 'CPU time and p99 of a bar';
    is_deeply [ @{ $pace->{rows}[0] }[ 1 .. 4 ] ], [ '', '', '', '0.3000' ], 'only the p99 of no limit';
    is @{ $paces->{columns} }, @{ $paces->{rows}[0] }, 'lines';
    is scalar(grep {/,/} map { @{$_} } @{ $pace->{rows} }, @{ $paces->{rows} }), 0, 'data without commas';
    my ($at) = grep { $paces->{columns}[$_] eq 'p99_openresty' } 0 .. $#{ $paces->{columns} };
    is $paces->{rows}[0][$at], '', 'no time where the pace was not kept';
};

subtest 'groups' => sub {
    my ($full)  = grep { $_->{name} eq 'pace' } groups(0);
    my ($quick) = grep { $_->{name} eq 'pace' } groups(1);
    is "@{ $full->{paces} }", '1000 5000 20000 half', 'all paces';
    is "@{ $quick->{paces} }", '5000 20000', 'the paces of a quick run';
    my @names = map { @{ $_->{contestants} } } groups(0);
    ok !grep({ $_ eq 'native' } @names), 'native is left out without a module for Redis';
    ok grep({ $_ eq 'redis' } @names), 'others are not';
};

done_testing;
