# Puts load on a contestant of bench/run, and reads its cost from /proc.
#
#   use RateLimit::Bench::Measure qw(visit visit_in_order measure run_load count_calls cpu resident);
#
# FUNCTIONS
#   visit($port, $path, @keys)  one request of each client, many at a time; returns how many were admitted
#   visit_in_order(...)         the same, one after the other
#   measure($stage, $name, %load)
#                               a figure for each of RESULTS. Load: seconds, connections, keys, seed, http2; for an
#                               open loop pace, in requests/s, and generator, the program of bench/load.cc
#   run_load($port, %load)      sends this load to a port; the RESULTS that the load generator counts
#   count_calls($stage, $name, %load)
#                               { server, redis }: system calls per request, by strace; undef if strace cannot attach
#   cpu(@pids)                  CPU time of all threads of these processes, in microseconds
#   resident(@pids)             bytes in memory: { anonymous, shared }
#
# RESULTS of a measurement
#   requests, seconds           counted by the load generator      rate        requests/s
#   p50_ms, p99_ms, p999_ms     time of a request                   failures    lost connections and other errors
#   rejected                    share of the requests               elsewhere   share decided by another store
#   server_us, redis_us         CPU per request: of nginx or HAProxy, and of all Redis servers
#   redis_each_us               of each Redis server                load_us     of the load generator
#   late_ms                     with a pace: by how much the load generator was late (p99)
#   lookups, calls              lookups of keys in Redis, and script calls, per request
#   log                         the last line of nginx's error log during the measurement, or undef
package RateLimit::Bench::Measure;
use strict;
use warnings;

use Carp qw(croak);
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use IO::Select;
use IO::Socket::INET;
use List::Util qw(sum0);
use POSIX qw(WNOHANG);
use RateLimit qw(slurp wait_for);
use RateLimit::Bench::Contestants qw(contestant);
use RateLimit::Bench::Figures qw(elsewhere parse_h2load parse_load parse_strace parse_wrk);
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(visit visit_in_order measure run_load count_calls cpu resident);

my $bench    = dirname(abs_path(__FILE__)) . '/../../..';
my $sockets  = 16;    # connections of visit
my $patience = 60;    # timeout in seconds for work of one or two
my %running;          # 1 by process id

sub visit          { my ($port, $path, @keys) = @_; return visit_over($sockets, $port, $path, @keys) }
sub visit_in_order { my ($port, $path, @keys) = @_; return visit_over(1,        $port, $path, @keys) }

# Uses HEAD, so that each response ends with an empty line.
sub visit_over {
    my ($sockets, $port, $path, @keys) = @_;
    my $select = IO::Select->new;
    my %of;
    for my $number (0 .. $sockets - 1) {
        my @mine = map { $keys[ $number + $sockets * $_ ] } 0 .. int(($#keys - $number) / $sockets);
        next if $number > $#keys;
        my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or croak "port $port: $!";
        $of{$socket} = { keys => \@mine, awaited => 0, tail => '' };
        send_some($socket, $of{$socket}, $path);
        $select->add($socket);
    }
    my $admitted = 0;
    my $deadline = time + $patience;
    while ($select->count) {
        croak "port $port does not answer" if time > $deadline;
        for my $socket ($select->can_read(1)) {
            my $state = $of{$socket};
            sysread $socket, $state->{tail}, 65_536, length $state->{tail} or croak "port $port closed a connection";
            next unless $state->{tail} =~ s/\A(.*\r\n\r\n)//s;
            my $answers = $1;
            $admitted         += () = $answers =~ /^HTTP\/1\.1 200/mg;
            $state->{awaited} -= () = $answers =~ /\r\n\r\n/g;
            next if $state->{awaited} > 0;
            $select->remove($socket) unless send_some($socket, $state, $path);
        }
    }
    return $admitted;
}

sub send_some {
    my ($socket, $state, $path) = @_;
    my @some = splice @{ $state->{keys} }, 0, 200 or return;
    my $text = join '', map {"HEAD $path?k=$_ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"} @some;
    $state->{awaited} += @some;
    croak "send: $!" if (syswrite($socket, $text) // 0) != length $text;
    return 1;
}

# CPU

sub cpu {
    my (@pids) = @_;
    my $all = 0;
    for my $file (map { glob "/proc/$_/task/*/schedstat" } @pids) {
        $all += (split ' ', slurp($file))[0] // 0;
    }
    return $all / 1000;
}

sub children_cpu {
    my (undef, undef, $user, $system) = times;
    return ($user + $system) * 1e6;
}

sub resident {
    my (@pids) = @_;
    my %is = (anonymous => 0, shared => 0);
    for my $pid (@pids) {
        my $status = slurp("/proc/$pid/status");
        my %kb = $status =~ /^(Rss\w+):\s+(\d+) kB$/mg;
        $is{anonymous} += 1024 * $kb{RssAnon};
        $is{shared}    += 1024 * $kb{RssShmem};
    }
    return \%is;
}

# LOAD

# Starts a program whose output goes to a file. Returns its process id.
sub spawn {
    my ($file, @command) = @_;
    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        %running = ();
        open STDOUT, '>', $file or POSIX::_exit(127);
        open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
        exec {$command[0]} @command or POSIX::_exit(127);
    }
    $running{$pid} = 1;
    return $pid;
}

# Waits for the end of a program that should take this many seconds.
sub await {
    my ($pid, $seconds) = @_;
    my $deadline = time + $seconds + $patience;
    while (waitpid($pid, WNOHANG) == 0) {
        kill 'KILL', $pid if time > $deadline;
        sleep 0.005;
    }
    delete $running{$pid};
    return $?;
}

sub run_load {
    my ($port, %load) = @_;
    my $file    = "$ENV{RL_DIR}/load";
    my @pin     = defined $load{cpu} ? ('taskset', '-c', $load{cpu}) : ();
    my $url     = "http://127.0.0.1:$port/";
    my $seconds = $load{seconds};
    if ($load{pace}) {
        my @words  = ("port=$port", "rate=$load{pace}", map {"$_=$load{$_}"} qw(seconds connections keys seed));
        my $status = await(spawn($file, @pin, $load{generator}, @words), $seconds);
        croak "the load generator ended with $status: " . slurp($file) if $status;
        return parse_load(slurp($file), rate => $load{pace}, connections => $load{connections});
    }
    if (!$load{http2}) {
        my @command = (
            qw(wrk -t1), "-c$load{connections}", "-d${seconds}s", '-s', "$bench/wrk.lua", $url, '--', $load{keys},
            $load{seed},
        );
        my $status = await(spawn($file, @pin, @command), $seconds);
        croak "wrk ended with $status: " . slurp($file) if $status;
        return parse_wrk(slurp($file));
    }
    unlink "$file.log";
    my @command = (
        qw(h2load -t1 -m1), "-c$load{connections}", "-D$seconds", "--log-file=$file.log", '-i', uris($load{keys}, $port),
    );
    my $status = await(spawn($file, @pin, @command), $seconds);
    croak "h2load ended with $status: " . slurp($file) if $status;
    return parse_h2load(slurp($file), slurp("$file.log"));
}

# Writes a file with the URI of each client, in random order.
sub uris {
    my ($keys, $port) = @_;
    my $file = "$ENV{RL_DIR}/uris";
    open my $out, '>', $file or croak "$file: $!";
    my @order = map { 1 + ($_ * 61_803) % $keys } 0 .. $keys - 1;
    print {$out} map {"http://127.0.0.1:$port/?k=$_\n"} @order;
    close $out or croak "$file: $!";
    return $file;
}

# Sends a few requests before the measurement, for connections to Redis and the caches of the CPU.
sub warm_up {
    my ($stage, $name, %load) = @_;
    return if $load{http2};
    visit($stage->port($name), '/', map { 1 + int rand $load{keys} } 1 .. 3000);
    return;
}

sub measure {
    my ($stage, $name, %load) = @_;
    my $is      = contestant($name);
    my @servers = $stage->servers($name);
    my @redis   = map { $_->pid } $stage->redis($name);
    warm_up($stage, $name, %load);
    my ($lookups, $calls) = ($stage->lookups($name), $stage->calls($name));
    my @before = (cpu(@servers), (map { cpu($_) } @redis), children_cpu());
    my $said   = run_load($stage->port($name), %load);
    sleep $is->{settle} if $is->{settle};
    my @spent = (cpu(@servers), (map { cpu($_) } @redis), children_cpu());
    $spent[$_] -= $before[$_] for 0 .. $#spent;
    croak "$name answered nothing" unless $said->{requests};
    @spent = map { $_ / $said->{requests} } @spent;
    my ($server, @each) = @spent;
    my $load = pop @each;
    $lookups = $stage->lookups($name) - $lookups;
    $calls   = $stage->calls($name) - $calls;
    return {
        %{$said},
        rate          => $said->{requests} / $said->{seconds},
        server_us     => $server,
        redis_us      => sum0(@each),
        redis_each_us => \@each,
        load_us       => $load,
        lookups       => $lookups / $said->{requests},
        calls         => $calls / $said->{requests},
        elsewhere     => elsewhere($is, $said->{requests}, $lookups),
        log           => $stage->news($name),
    };
}

# strace prints the number of calls when it is interrupted.
sub count_calls {
    my ($stage, $name, %load) = @_;
    my %traced = (server => [ $stage->servers($name) ], redis => [ map { $_->pid } $stage->redis($name) ]);
    my %strace;
    for my $side (grep { @{ $traced{$_} } } sort keys %traced) {
        my $file = "$ENV{RL_DIR}/strace_$side";
        unlink $file;
        my $pid = spawn("$file.messages", 'strace', '-c', '-f', '-o', $file, map { ('-p', $_) } @{ $traced{$side} });
        $strace{$side} = { pid => $pid, file => $file };
        my $attached = eval {
            wait_for('strace', sub { slurp("$file.messages") =~ /attached/ || waitpid($pid, WNOHANG) == $pid });
            slurp("$file.messages") =~ /attached/;
        };
        delete $running{$pid} if !$attached;
        delete $strace{$side} if !$attached;
    }
    my $said = run_load($stage->port($name), %load);
    my %calls;
    for my $side (sort keys %strace) {
        kill 'INT', $strace{$side}{pid};
        await($strace{$side}{pid}, 1);
        my $count = parse_strace(slurp($strace{$side}{file}));
        $calls{$side} = $count / $said->{requests} if defined $count;
    }
    return \%calls;
}

my $owner = $$;

END {
    if ($$ == $owner) {
        kill 'KILL', keys %running;
    }
}

1;
