# What a reload keeps, what it changes at once, and that it never breaks requests in progress.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for slurp);
use RateLimit::Async qw(await_answers statuses);
use Test::More;
use Time::HiRes qw(sleep);

# The parameters with which each algorithm admits a number of requests, and practically no more.
my %limited = (
    fixed_window    => sub {"rate=$_[0]r/d align=first"},
    sliding_window  => sub {"rate=$_[0]r/d"},
    sliding_buckets => sub {"rate=$_[0]r/d"},
    sliding_log     => sub {"rate=$_[0]r/d"},
    token_bucket    => sub {"rate=$_[0]r/d"},
    leaky_bucket    => sub { 'rate=1r/d burst=' . ($_[0] - 1) },
    gcra            => sub { 'rate=1r/d burst=' . ($_[0] - 1) },
);
my @algorithms = sort keys %limited;

# A configuration of zones, given as NAME => the parameters after the size. Each zone has a location /NAME.
sub conf {
    my (%zones) = @_;
    my ($http, $server) = ('', "add_header X-Worker \$pid always; location = /free { empty_gif; }\n");
    for my $name (sort keys %zones) {
        my ($size, $options) = $zones{$name} =~ /^(?:(\d+[km]) )?(.*)$/;
        $http .= "rate_limit_zone \$arg_k zone=$name:" . ($size // '256k') . " $options;\n";
        my $nodelay = $options =~ /leaky_bucket/ ? 'nodelay' : '';
        $server .= "location = /$name { rate_limit zone=$name $nodelay; empty_gif; }\n";
    }
    return (http => $http, server => $server);
}

# One zone for each of these algorithms, all with the same rates.
my @zones = qw(sliding_window token_bucket fixed_window sliding_log);

sub rates {
    my ($rates) = @_;
    return conf(map { $_ => "rate=$rates algorithm=$_" . ($_ eq 'fixed_window' ? ' align=first' : '') } @zones);
}

# A zone for each algorithm that admits a number of requests.
sub limits {
    my ($limit) = @_;
    return conf(map { $_ => "algorithm=$_ " . $limited{$_}->($limit) } @algorithms);
}

my $nginx  = start_nginx(limits(10));
my $client = 'a';    # a new client for each subtest

sub ask {
    my ($zone, $other) = @_;
    return $nginx->get("/$zone?k=" . ($other // $client));
}

sub asks {
    my ($zone, $count, $other) = @_;
    return statuses(map { ask($zone, $other) } 1 .. $count);
}

sub remaining {
    my ($zone, $other) = @_;
    my $answer = ask($zone, $other);
    return $answer->{status} . ' ' . $answer->header('X-RateLimit-Remaining');
}

sub reload {
    my (%conf) = @_;
    return $nginx->reload(%conf);
}

subtest 'a new rate applies at once, and used requests stay used' => sub {
    asks($_, 6) for @algorithms;
    reload(limits(20));
    is(remaining($_), '200 13', "$_: raised from 10 to 20, a seventh request leaves 13") for @algorithms;
    reload(limits(8));
    is(remaining($_), '200 0', "$_: lowered to 8, an eighth request leaves none") for @algorithms;
    is(remaining($_), '429 0', "$_: lowered to 8, a ninth request is rejected") for @algorithms;
    reload(limits(5));
    for my $algorithm (@algorithms) {
        my $answer = ask($algorithm);
        is($answer->{status}, 429, "$algorithm: lowered to 5, below the used requests, it rejects");
        is(asks($algorithm, 6, 'other'), '200 200 200 200 200 429', "$algorithm: another client has the new quota");
        cmp_ok($answer->header('Retry-After'), '<=', 1 + ask($algorithm, 'other')->header('Retry-After'),
            "$algorithm: another client, at its limit, waits no less than the first");
    }
    reload(limits(12));
    for my $algorithm (@algorithms) {
        # A sliding_log that was cut to five entries has only these.
        my $left = $algorithm eq 'sliding_log' ? 6 : 3;
        is(remaining($algorithm), "200 $left", "$algorithm: raised to 12, a ninth request leaves $left");
    }
};

subtest 'a reload with the same rate changes nothing' => sub {
    reload(limits(12)) for 1 .. 3;
    is(asks($_, 4), '200 200 200 429', "$_: three are left") for grep { $_ ne 'sliding_log' } @algorithms;
    is(asks('sliding_log', 7), '200 200 200 200 200 200 429', 'sliding_log: six are left');
};

subtest 'another algorithm or size starts empty' => sub {
    $client++;
    reload(conf(z => 'rate=3r/d algorithm=sliding_log', s => 'rate=3r/d'));
    is(asks($_, 4), '200 200 200 429', 'the quota is exhausted') for qw(z s);
    reload(conf(z => 'rate=3r/d algorithm=token_bucket', s => '512k rate=3r/d'));
    is(asks('z', 4), '200 200 200 429', 'another algorithm');
    is(asks('s', 4), '200 200 200 429', 'another size');
    reload(conf(z => 'rate=3r/d algorithm=sliding_log', s => 'rate=3r/d'));
    is(asks($_, 4), '200 200 200 429', 'the first algorithm and size again') for qw(z s);
};

subtest 'other options of the same algorithm keep the counts' => sub {
    $client++;
    reload(rates('6r/d'));
    asks($_, 3) for @zones;
    reload(rates('6r/d,70r/w'));
    is(remaining($_), '200 2', "$_: a second rate is added") for @zones;
    reload(rates('6r/d'));
    is(remaining($_), '200 1', "$_: the second rate is removed") for @zones;
    reload(rates('6r/d min_interval=10m'));
    is(remaining($_), '200 0', "$_: min_interval is added") for @zones;
    is(remaining($_, 'third'), '200 5',
        "$_: min_interval does not affect the first request of a new client") for @zones;
    is(remaining($_, 'third'), '429 0', "$_: min_interval rejects the second request of a new client") for @zones;
    reload(rates('6r/d'));
    is(asks($_, 1), 429, "$_: used up") for @zones;
    is(remaining($_, 'third'), '200 4', "$_: min_interval is removed, the count is kept") for @zones;
};

subtest 'a rate keeps its counts at any position in the list' => sub {
    $client++;
    reload(rates('4r/d'));
    is(asks($_, 5), '200 200 200 200 429', "$_: used up") for @zones;
    reload(rates('1000r/s,4r/d'));
    is(asks($_, 1), 429, "$_: a shorter rate is added before it") for @zones;
    for (1 .. 4) {
        asks($_, 1, 'new') for @zones;
        sleep 0.01;    # drains the shorter rate
    }
    is(asks($_, 1, 'new'), 429, "$_: a new client exhausts the longer rate") for @zones;
    reload(rates('4r/d'));
    is(asks($_, 1, 'new'), 429, "$_: the shorter rate is removed") for @zones;
    is(asks($_, 1),        429, "$_: the first client is still limited") for @zones;
};

subtest 'a sliding_log of another length' => sub {
    $client++;
    my $log = sub { return conf(z => "rate=$_[0]r/d algorithm=sliding_log") };
    reload($log->(5));
    is(asks('z', 4), '200 200 200 200', 'four of five');
    reload($log->(50));
    is(remaining('z'), '200 45', 'fifty entries: a fifth request leaves 45');
    asks('z', 2);
    reload($log->(5));
    is(remaining('z'), '429 0', 'five: used up');
    reload($log->(50));
    is(remaining('z'), '200 44', 'fifty entries again: the five entries of the shorter log are kept');
};

subtest 'a rate from a variable' => sub {
    $client++;
    my $plan = sub {
        my ($rate) = @_;
        my %conf = conf(z => 'rate=$plan');
        $conf{http} = "map \$arg_k \$plan { default $rate; }\n$conf{http}";
        return %conf;
    };
    reload(conf(z => 'rate=9r/d'));
    asks('z', 3);
    reload($plan->('5r/d'));
    is(remaining('z'), '200 1', 'a fixed rate becomes a variable one');
    reload($plan->('10r/d'));
    is(remaining('z'), '200 5', 'the variable has a higher rate');
    reload($plan->('3r/d'));
    is(remaining('z'), '429 0', 'the variable has a lower rate');
    reload(conf(z => 'rate=6r/d'));
    is(remaining('z'), '200 0', 'the variable rate becomes a fixed one again');
};

# Returns the shared mappings of the master, by size.
sub mappings {
    my @sizes;
    for (split /\n/, slurp('/proc/' . $nginx->pid . '/maps')) {
        no warnings 'portable';    # addresses have more than 32 bits
        push @sizes, hex($2) - hex($1) if m{^([0-9a-f]+)-([0-9a-f]+) rw-s .*/dev/zero};
    }
    return join ' ', sort @sizes;
}

subtest 'many reloads' => sub {
    $client++;
    my @shapes = (
        conf_of('rate=1000r/d'), conf_of('rate=1000r/d,5000r/w'), conf_of('rate=1000r/d algorithm=sliding_log'),
        conf_of('1m rate=1000r/d'), conf_of('rate=1000r/d min_interval=1ms'),
    );
    reload(@{ $shapes[0] });
    my $before = mappings();
    isnt($before, '', 'the zones are among the mappings of the master');
    for my $round (1 .. 3) {
        reload(@$_) for @shapes[ 1 .. $#shapes, 0 ];
        is(mappings(), $before, "round $round of five layouts leaks no memory");
    }
    asks('z', 3);
    reload(@{ $shapes[0] }) for 1 .. 5;
    is(mappings(),     $before,   'reloads without a change leak no memory');
    is(remaining('z'), '200 996', 'reloads without a change keep the counts');
};

sub conf_of {
    my ($options) = @_;
    return [ conf(z => $options, other => 'rate=10r/s') ];
}

sub fail_to_reload {
    my ($why, %conf) = @_;
    my $seen   = length $nginx->error_log;
    my @before = $nginx->workers;
    RateLimit::write_config($nginx->dir, $nginx->port, %conf);
    $nginx->signal('HUP');
    wait_for("\"$why\" in the error log", sub { substr($nginx->error_log, $seen) =~ $why });
    is(join(' ', $nginx->workers), "@before", 'the workers are still running');
    return;
}

subtest 'a reload that fails' => sub {
    $client++;
    my $taken = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1) or die "listen: $@\n";
    my $port  = $taken->sockport;
    my $late  = "server { listen 127.0.0.1:$port; }";
    my %shape = (one => 'rate=4r/d', two => 'rate=4r/d,20r/w', log => 'rate=4r/d algorithm=sliding_log');
    reload(conf(z => $shape{one}));
    my $before = mappings();
    is(asks('z', 2), '200 200', 'two of four are used');

    fail_to_reload(qr/unknown directive "nonsense"/, conf(z => $shape{two}), main => 'nonsense;');
    is(remaining('z'), '200 1', 'an invalid directive: the old limit stays in force');
    fail_to_reload(qr/\Qstill could not bind()\E/, conf(z => $shape{two}), servers => $late);
    is(mappings(),     $before, 'a port in use: no memory is leaked');
    is(remaining('z'), '200 0', 'a port in use: the old limit stays in force');
    reload(conf(z => $shape{one}));
    is(asks('z', 1), 429, 'the next reload works, and keeps the counts');

    fail_to_reload(qr/\Qstill could not bind()\E/, conf(z => $shape{log}), servers => $late);
    reload(conf(z => $shape{two}));
    is(asks('z', 1),      429,                   'a reload that changes the layout works');
    is(asks('z', 5, 'fourth'), '200 200 200 200 429', 'a new client has its quota');
    reload(conf(z => $shape{one}));
    is(asks('z', 1),      429, 'a reload back to the first layout');
    is(asks('z', 1, 'fourth'), 429, 'for both clients');
    is(mappings(), $before, 'the memory is as before');
};

# Opens connections to the current worker, each with an incomplete request.
sub unfinished {
    my ($uri, $count) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. $count;
    for (@connections) {
        $_->request('GET', '/free');
        await_answers(20, $_);
        $_->answers;
        $_->raw("GET $uri HTTP/1.1\r\nHost: localhost\r\n", 'GET');
    }
    return @connections;
}

sub finish {
    my (@connections) = @_;
    $_->raw("\r\n") for @connections;
    await_answers(20, @connections);
    return map { $_->answers } @connections;
}

subtest 'workers of two configurations share a zone' => sub {
    for my $new ('rate=7r/d', 'rate=7r/d,70r/w') {
        $client++;
        reload(conf(z => 'rate=10r/d'));
        my ($old) = $nginx->workers;
        my @held = unfinished("/z?k=$client", 5);
        ask('free');    # the worker has read all earlier requests
        RateLimit::write_config($nginx->dir, $nginx->port, conf(z => $new));
        $nginx->signal('HUP');
        wait_for('a worker that stops', sub { slurp("/proc/$old/cmdline") =~ /shutting down/ });
        is(asks('z', 2), '200 200', "$new: the new worker admits two");
        my @answers = finish(@held[ 0 .. 3 ]);
        is(statuses(@answers), '200 200 200 200', "$new: the old worker admits four");
        is($answers[-1]->header('X-Worker'), $old, "$new: the response comes from the old worker");
        if ($new eq 'rate=7r/d') {
            is(asks('z', 2), '200 429', "$new: the new worker has only one left");
        }
        is(statuses(finish($held[4])), 200, "$new: the old worker keeps its own limit");
        $_->close for @held;
        wait_for('the end of the old worker', sub { !grep { $_ == $old } $nginx->workers });
    }
};

subtest 'a zone that is removed and added again' => sub {
    $client++;
    reload(conf(z => 'rate=3r/d', other => 'rate=3r/d'));
    is(asks($_, 4), '200 200 200 429', "$_ is exhausted") for qw(z other);
    reload(conf(other => 'rate=3r/d'));
    is(ask('z')->{status}, 404, 'one zone is removed');
    is(asks('other', 1), 429, 'the other zone is not affected');
    reload(conf(z => 'rate=3r/d', other => 'rate=3r/d'));
    is(asks('z',     4), '200 200 200 429', 'the removed zone is empty when it is added again');
    is(asks('other', 1), 429,               'the other zone is still not affected');
};

unlike($nginx->error_log, qr/\[alert\]|exited on signal/, 'no process crashed, and the log has no critical errors');

done_testing;
