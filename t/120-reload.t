# What a reload keeps, what it changes at once, and that it never breaks requests in progress.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for slurp);
use RateLimit::Async qw(await_answers statuses);
use Test::More;
use Time::HiRes qw(sleep);

# How each algorithm is told to admit so many requests, and practically no more.
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

# A configuration of zones, given as NAME => what follows the size. Each has a location /NAME.
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

# One zone of each of these, all with the same rates.
my @zones = qw(sliding_window token_bucket fixed_window sliding_log);

sub rates {
    my ($rates) = @_;
    return conf(map { $_ => "rate=$rates algorithm=$_" . ($_ eq 'fixed_window' ? ' align=first' : '') } @zones);
}

# Every algorithm, told to admit so many.
sub limits {
    my ($limit) = @_;
    return conf(map { $_ => "algorithm=$_ " . $limited{$_}->($limit) } @algorithms);
}

my $nginx  = start_nginx(limits(10));
my $client = 'a';    # a new one for each subtest

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

subtest 'a new rate holds at once, and what was used stays used' => sub {
    asks($_, 6) for @algorithms;
    reload(limits(20));
    is(remaining($_), '200 13', "$_: raised from 10 to 20, a seventh request leaves 13") for @algorithms;
    reload(limits(8));
    is(remaining($_), '200 0', "$_: lowered to 8, an eighth request leaves none") for @algorithms;
    is(remaining($_), '429 0', "$_: and a ninth is rejected") for @algorithms;
    reload(limits(5));
    for my $algorithm (@algorithms) {
        my $answer = ask($algorithm);
        is($answer->{status}, 429, "$algorithm: lowered to 5, below what was used, it rejects");
        is(asks($algorithm, 6, 'other'), '200 200 200 200 200 429', "$algorithm: another client has the new quota");
        cmp_ok($answer->header('Retry-After'), '<=', 1 + ask($algorithm, 'other')->header('Retry-After'),
            "$algorithm: and having used it up waits no less than the first");
    }
    reload(limits(12));
    for my $algorithm (@algorithms) {
        # A log that was cut to five entries remembers no more than these.
        my $left = $algorithm eq 'sliding_log' ? 6 : 3;
        is(remaining($algorithm), "200 $left", "$algorithm: raised to 12, a ninth request leaves $left");
    }
};

subtest 'the same rate again changes nothing' => sub {
    reload(limits(12)) for 1 .. 3;
    is(asks($_, 4), '200 200 200 429', "$_: three are left") for grep { $_ ne 'sliding_log' } @algorithms;
    is(asks('sliding_log', 7), '200 200 200 200 200 200 429', 'sliding_log: six are left');
};

subtest 'another algorithm or size starts empty' => sub {
    $client++;
    reload(conf(z => 'rate=3r/d algorithm=sliding_log', s => 'rate=3r/d'));
    is(asks($_, 4), '200 200 200 429', 'the quota is used up') for qw(z s);
    reload(conf(z => 'rate=3r/d algorithm=token_bucket', s => '512k rate=3r/d'));
    is(asks('z', 4), '200 200 200 429', 'another algorithm');
    is(asks('s', 4), '200 200 200 429', 'another size');
    reload(conf(z => 'rate=3r/d algorithm=sliding_log', s => 'rate=3r/d'));
    is(asks($_, 4), '200 200 200 429', 'the first algorithm and size again') for qw(z s);
};

subtest 'other shapes of the same algorithm keep the counts' => sub {
    $client++;
    reload(rates('6r/d'));
    asks($_, 3) for @zones;
    reload(rates('6r/d,70r/w'));
    is(remaining($_), '200 2', "$_: a second rate after the first") for @zones;
    reload(rates('6r/d'));
    is(remaining($_), '200 1', "$_: and away again") for @zones;
    reload(rates('6r/d min_interval=10m'));
    is(remaining($_), '200 0', "$_: a least interval") for @zones;
    is(remaining($_, 'third'), '200 5', "$_: of which a new client sees nothing") for @zones;
    is(remaining($_, 'third'), '429 0', "$_: until its second request") for @zones;
    reload(rates('6r/d'));
    is(asks($_, 1), 429, "$_: used up") for @zones;
    is(remaining($_, 'third'), '200 4', "$_: the interval away, the count kept") for @zones;
};

subtest 'a rate keeps its counts wherever it stands in the list' => sub {
    $client++;
    reload(rates('4r/d'));
    is(asks($_, 5), '200 200 200 200 429', "$_: used up") for @zones;
    reload(rates('1000r/s,4r/d'));
    is(asks($_, 1), 429, "$_: a shorter rate before it") for @zones;
    for (1 .. 4) {
        asks($_, 1, 'new') for @zones;
        sleep 0.01;    # drains what the shorter rate remembers
    }
    is(asks($_, 1, 'new'), 429, "$_: a new client has used up the longer rate") for @zones;
    reload(rates('4r/d'));
    is(asks($_, 1, 'new'), 429, "$_: the shorter rate taken away") for @zones;
    is(asks($_, 1),        429, "$_: and the first client is limited still") for @zones;
};

subtest 'a log of another length' => sub {
    $client++;
    my $log = sub { return conf(z => "rate=$_[0]r/d algorithm=sliding_log") };
    reload($log->(5));
    is(asks('z', 4), '200 200 200 200', 'four of five');
    reload($log->(50));
    is(remaining('z'), '200 45', 'fifty: a fifth leaves 45');
    asks('z', 2);
    reload($log->(5));
    is(remaining('z'), '429 0', 'five: used up');
    reload($log->(50));
    is(remaining('z'), '200 44', 'fifty again: what a log of five could hold is remembered');
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
    is(remaining('z'), '200 5', 'the variable says more');
    reload($plan->('3r/d'));
    is(remaining('z'), '429 0', 'or less');
    reload(conf(z => 'rate=6r/d'));
    is(remaining('z'), '200 0', 'and becomes a fixed one again');
};

# Shared mappings of the master, by size.
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
    isnt($before, '', 'the zones are found in the mappings of the master');
    for my $round (1 .. 3) {
        reload(@$_) for @shapes[ 1 .. $#shapes, 0 ];
        is(mappings(), $before, "round $round of five shapes leaves no memory behind");
    }
    asks('z', 3);
    reload(@{ $shapes[0] }) for 1 .. 5;
    is(mappings(),     $before,   'nor do reloads without a change');
    is(remaining('z'), '200 996', 'which keep the counts');
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
    is(join(' ', $nginx->workers), "@before", 'the workers are the same');
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
    is(remaining('z'), '200 1', 'a wrong directive: the old limit is in force');
    fail_to_reload(qr/\Qstill could not bind()\E/, conf(z => $shape{two}), servers => $late);
    is(mappings(),     $before, 'a port that is taken: no memory is left behind');
    is(remaining('z'), '200 0', 'and the old limit is in force');
    reload(conf(z => $shape{one}));
    is(asks('z', 1), 429, 'the next reload works, and keeps the counts');

    fail_to_reload(qr/\Qstill could not bind()\E/, conf(z => $shape{log}), servers => $late);
    reload(conf(z => $shape{two}));
    is(asks('z', 1),      429,                   'so does one that changes the shape');
    is(asks('z', 5, 'fourth'), '200 200 200 200 429', 'where a new client has its quota');
    reload(conf(z => $shape{one}));
    is(asks('z', 1),      429, 'and back');
    is(asks('z', 1, 'fourth'), 429, 'for both clients');
    is(mappings(), $before, 'with as much memory as before');
};

# Connections to the worker that runs now, each with a request that lacks its end.
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
        ask('free');    # the worker has read all that came before
        RateLimit::write_config($nginx->dir, $nginx->port, conf(z => $new));
        $nginx->signal('HUP');
        wait_for('a worker that stops', sub { slurp("/proc/$old/cmdline") =~ /shutting down/ });
        is(asks('z', 2), '200 200', "$new: the new worker admits two");
        my @answers = finish(@held[ 0 .. 3 ]);
        is(statuses(@answers), '200 200 200 200', "$new: the old one four");
        is($answers[-1]->header('X-Worker'), $old, "$new: it is the old one");
        if ($new eq 'rate=7r/d') {
            is(asks('z', 2), '200 429', "$new: and the new one has only one left");
        }
        is(statuses(finish($held[4])), 200, "$new: while the old one holds to its own limit");
        $_->close for @held;
        wait_for('the end of the old worker', sub { !grep { $_ == $old } $nginx->workers });
    }
};

subtest 'a zone that goes and comes back' => sub {
    $client++;
    reload(conf(z => 'rate=3r/d', other => 'rate=3r/d'));
    is(asks($_, 4), '200 200 200 429', "$_ is used up") for qw(z other);
    reload(conf(other => 'rate=3r/d'));
    is(ask('z')->{status}, 404, 'one of them goes');
    is(asks('other', 1), 429, 'the other is not touched');
    reload(conf(z => 'rate=3r/d', other => 'rate=3r/d'));
    is(asks('z',     4), '200 200 200 429', 'it comes back empty');
    is(asks('other', 1), 429,               'and the other is still not touched');
};

unlike($nginx->error_log, qr/\[alert\]|exited on signal/, 'no process died, and nginx found nothing wrong');

done_testing;
