# Redis and Valkey servers for tests, each in its own folder, and operations on them.
#
#   use lib 't/lib';
#   use RateLimit::Redis qw(start_redis tls_files);
#
# FUNCTIONS
#   start_redis(%options)       starts a server and waits until it answers; returns an object (METHODS). Dies with the
#                               server's messages if it does not start. The server ends with the object. A restarted
#                               server is empty, since nothing is saved to disk by default; see `config`
#   tls_files                   that of RateLimit::Certificates
#   redis_port                  the next free port of RL_REDIS_PORTS; release_port(PORT, …) gives some back
#   control_user                name and password of a user with all rights on every server, who is not counted
#
# OPTIONS
#   server      'redis' (default), 'valkey', or a file      config      further lines of the configuration
#   password    of the default user                         acl         lines of users, without the word `user`
#   tls         1, or the name of a certificate (RateLimit::Certificates): TLS on the port, and no plain TCP
#   tls_clients 1: a client must show a certificate         unixsocket  1: no TCP at all
#   port        its port (the next of RL_REDIS_PORTS)       replicaof   an object: replicates it, and waits until it does
#   maxmemory   with noeviction, '1' refuses every write    databases   how many (16)
#   cluster     1 (all slots are its own), or slots, as '0-8191'; see meet
#   clock       1: a clock that the test may set; see clock. 'stopped': a frozen clock; see advance
#   ahead       initial seconds by which such a clock is ahead (0)
#   native      0: does not load the native module, whatever RL_NATIVE says
#   ready       0: wait only until it listens, not until it has loaded its data or, two seconds after its start, joins
#               a cluster
#
# RL_NATIVE
#   With RL_NATIVE=1 in the environment, each server loads the native module, build/rate_limit.so, and nginx decides by it.
#   Tests count and intercept calls of the script, EVALSHA, so a call of the module counts as one: commandstats('evalsha')
#   includes both commands of the module, MONITORS show `EVALSHA ratelimit.check N …` for `RATELIMIT.CHECK N …`, the
#   module's own calls have the client 'lua', and a user with +evalsha may call both commands. nginx's question for the
#   module, a call without keys, is shown as it is, but counted. RateLimit::Native clears the variable, because its tests
#   choose the servers that have the module.
#
# METHODS
#   port, dir, pid, socket      socket is a Unix socket, which every server has
#   url(%parts)                 for rate_limit_redis; parts: user, password, db, host (127.0.0.1)
#   command(@words)             sends a command, and returns the answer as Perl data (RateLimit::RESP); dies if it is an
#                               error
#   connect(%options)           a RateLimit::RESP connection for several commands, as a user with all rights; with plain
#                               => 1 over TCP like a client, without AUTH
#   cli(@command)               the same through redis-cli; returns its text
#   info($field)                a field of INFO
#   commandstats($name)         how often a command was called since the start or CONFIG RESETSTAT
#   connections                 the number of connections, without those of this package
#   clients                     the same without those whose last command was nginx's question for changed rates, which
#                               it sends twice a second
#   monitor                     records all commands (MONITORS)
#   pause, resume               SIGSTOP and SIGCONT
#   clock($seconds)             sets its clock ahead of the real one
#   advance($seconds)           advances a frozen clock
#   kill                        SIGKILL, and waits for the end
#   stop                        ends the server gracefully
#   restart(%changes)           stop, unless it has ended, and start on the same port; changes are options
#   await_replicas(@replicas)   waits until these replicas have all that was written before
#   meet($other)                joins two servers with `cluster` into one cluster, and waits until both agree
#   log                         its log so far
#   wait_for_log($pattern)      waits until the log matches; returns what the pattern captured, or 1
#
# MONITORS
#   lines                       what MONITOR has shown so far, including all earlier commands
#   commands                    the same as a list of { time, db, client, words => [NAME, …] }; a script's calls have
#                               the client 'lua'
#   wait_for($pattern)          waits until a line matches, and returns it
package RateLimit::Redis;
use strict;
use warnings;

use Carp qw(croak);
use Cwd qw(abs_path);
use Digest::MD5 qw(md5_hex);
use Exporter qw(import);
use File::Path qw(make_path);
use List::Util qw(sum0);
use POSIX qw(:sys_wait_h);
use RateLimit qw(slurp wait_for);
use RateLimit::Certificates qw(tls_files);
use RateLimit::Clock ();
use RateLimit::RESP;
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(start_redis tls_files redis_port release_port control_user);

my @ports   = split ' ', $ENV{RL_REDIS_PORTS} // '';
my $control = 'test_control';                          # a user with all rights, for the test itself
my $secret  = 'let the test in';
my $servers = 0;
my %running;                                           # 1 by process id

sub redis_port { return shift @ports // croak 'RL_REDIS_PORTS has too few ports' }

sub control_user { return ($control, $secret) }

# A released port goes to the end of the list, so that a client that still retries the old server does not reach a new
# one.
sub release_port {
    my (@old) = @_;
    push @ports, @old;
    return;
}

sub start_redis {
    my (%options) = @_;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/redis-' . ++$servers;
    make_path($dir);
    my $self = bless { dir => $dir, options => \%options, owner => $$ }, __PACKAGE__;
    $self->{taken} = [ map { redis_port() } 1 .. !($options{unixsocket} || $options{port}) + !!$options{cluster} ];
    $self->{bus}   = $self->{taken}[-1] if $options{cluster};
    $self->{port}  = $options{unixsocket} ? 0 : $options{port} // $self->{taken}[0];
    croak "the path of $dir is too long for a Unix socket" if length $self->socket > 107;
    $self->launch;
    return $self;
}

sub configuration {
    my ($self) = @_;
    my %is     = %{ $self->{options} };
    my $dir    = $self->{dir};
    my $source = $is{replicaof};
    my @lines  = (
        "dir $dir",
        'bind 127.0.0.1',
        'protected-mode no',
        "unixsocket $dir/redis.sock",
        "pidfile $dir/redis.pid",
        "logfile $dir/redis.log",
        'save ""',
        'repl-diskless-sync yes',
        'repl-diskless-sync-delay 0',
        'repl-ping-replica-period 1',
        'databases ' . ($is{databases} // 16),
        ($is{tls} ? 'tls-port ' : 'port ') . $self->{port},
        qq(user $control on ">$secret" allkeys allchannels allcommands),
    );
    my $users = $is{acl} // '';
    if ($self->uses_native) {
        push @lines, 'loadmodule ' . (abs_path('build/rate_limit.so') // croak 'build/rate_limit.so is missing: make redis-module');
        $users =~ s/\+evalsha\b/+evalsha +ratelimit.check +ratelimit.sync/g;
    }
    push @lines, map {"user $_"} grep {/\S/} split /\n/, $users;
    push @lines, qq(requirepass "$is{password}")               if defined $is{password};
    push @lines, "maxmemory $is{maxmemory}", 'maxmemory-policy noeviction' if defined $is{maxmemory};
    push @lines, 'port 0' if $is{tls};
    if ($is{tls} || $source && $source->{options}{tls}) {
        my $files = tls_files();
        my $name  = ($is{tls} // 1) eq '1' ? 'server'      : $is{tls};
        my $ca    = $name eq 'stranger'    ? 'stranger_ca' : 'ca';
        push @lines, "tls-cert-file $files->{$name}", "tls-key-file $files->{ $name . '_key' }",
            "tls-ca-cert-file $files->{$ca}", 'tls-auth-clients ' . ($is{tls_clients} ? 'yes' : 'no');
    }
    if ($source) {
        push @lines, 'replicaof 127.0.0.1 ' . $source->port, "masteruser $control", qq(masterauth "$secret");
        push @lines, 'tls-replication yes' if $source->{options}{tls};
    }
    if ($is{cluster}) {
        push @lines, 'cluster-enabled yes', "cluster-port $self->{bus}", 'cluster-node-timeout 2000',
            'cluster-require-full-coverage no';
    }
    return join "\n", @lines, $is{config} // '', '';
}

# Whether RL_NATIVE gives this server the native module.
sub uses_native {
    my ($self) = @_;
    return $ENV{RL_NATIVE} && ($self->{options}{native} // 1);
}

sub binary {
    my ($self) = @_;
    my $server = $self->{options}{server} // 'redis';
    return $ENV{RL_REDIS_SERVER}  // 'redis-server' if $server eq 'redis';
    return $ENV{RL_VALKEY_SERVER} // 'valkey-server' if $server eq 'valkey';
    return $server;
}

sub launch {
    my ($self) = @_;
    my ($dir, %is) = ($self->{dir}, %{ $self->{options} });
    open my $out, '>', "$dir/redis.conf" or croak "$dir/redis.conf: $!";
    print {$out} $self->configuration;
    close $out or croak "$dir/redis.conf: $!";
    unlink "$dir/redis.sock";

    # Programs that measure servers (bench/run and others) use unmodified servers.
    my $library = $is{clock} || $ENV{RL_BUILD} ? server_library() : undef;
    my $stopped = ($is{clock} // '') eq 'stopped';
    $self->{stopped} //= RateLimit::Clock->new("$dir/clock") if $stopped;
    $self->clock(delete $self->{options}{ahead} // 0) if $is{clock} && !$stopped;

    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        open STDIN,  '<', '/dev/null'   or die "stdin: $!\n";
        open STDOUT, '>', "$dir/output" or die "output: $!\n";
        open STDERR, '>&', \*STDOUT or die "stderr: $!\n";
        %ENV = (%ENV, $self->{stopped}->environment(1)) if $stopped;
        $ENV{LD_PRELOAD} = join ' ', grep {defined} $ENV{LD_PRELOAD}, $library if $library;
        $ENV{CLOCK_OFFSET} = "$dir/clock" if $is{clock} && !$stopped;
        exec $self->binary, "$dir/redis.conf" or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    $running{$pid} = 1;
    wait_for("a Redis in $dir", sub { $self->answers });
    $self->join_cluster if $is{cluster} && !$self->{joined}++;
    wait_for("$dir to replicate", sub { $self->info('master_link_status') eq 'up' })
        if $is{replicaof} && ($is{ready} // 1);
    return;
}

# Returns true if the started server listens and has loaded its data.
sub answers {
    my ($self) = @_;
    if (waitpid($self->{pid}, WNOHANG) == $self->{pid}) {
        delete $running{ delete $self->{pid} };
        croak 'Redis did not start: ' . slurp("$self->{dir}/output") . $self->log;
    }
    return unless -S $self->socket;
    my $connection = eval { $self->connect } or return;
    return 1 unless $self->{options}{ready} // 1;
    $connection->send('PING');
    return $connection->receive eq 'PONG';
}

sub join_cluster {
    my ($self) = @_;
    my $slots  = $self->{options}{cluster};
    my @ranges = $slots eq '1' ? (0, 16_383) : split /[-,]/, $slots;
    $self->command('CLUSTER', 'ADDSLOTSRANGE', @ranges);
    wait_for('the cluster', sub { $self->command('CLUSTER', 'INFO') =~ /^cluster_state:ok/ })
        if $self->{options}{ready} // 1;
    return;
}

# WAIT does not help: it waits for the writes of its own connection only.
sub await_replicas {
    my ($self, @replicas) = @_;
    my $end = $self->info('master_repl_offset');
    wait_for('replicas', sub { !grep { ($_->info('slave_repl_offset') || 0) < $end } @replicas });
    return;
}

sub meet {
    my ($self, $other) = @_;
    my ($mine, $its) = map { $_->command('CLUSTER', 'INFO') =~ /^cluster_slots_assigned:(\d+)/m } $self, $other;
    my $agreed = qr/^cluster_state:ok\r\ncluster_slots_assigned:@{[ $mine + $its ]}\r$/m;
    # If a handshake takes too long, one node forgets it, and the other does not repeat it: CLUSTER MEET is retried.
    my $next = 0;
    wait_for(
        'the cluster to agree',
        sub {
            if (time >= $next) {
                $self->command('CLUSTER', 'MEET', '127.0.0.1', $other->{port}, $other->{bus});
                $next = time + 3;
            }
            return 2 == grep { $_->command('CLUSTER', 'INFO') =~ $agreed } $self, $other;
        }
    );
    return;
}

sub port   { my ($self) = @_; return $self->{port} }
sub dir    { my ($self) = @_; return $self->{dir} }
sub pid    { my ($self) = @_; return $self->{pid} }
sub socket { my ($self) = @_; return "$self->{dir}/redis.sock" }    ## no critic (ProhibitBuiltinHomonyms)
sub log    { my ($self) = @_; return slurp("$self->{dir}/redis.log") }    ## no critic (ProhibitBuiltinHomonyms)

sub url {
    my ($self, %parts) = @_;
    return 'unix:' . $self->socket if $self->{options}{unixsocket};
    my $password = $parts{password} // $self->{options}{password};
    my $url      = $self->{options}{tls} ? 'rediss://' : 'redis://';
    $url .= ($parts{user} // '') . ":$password@" if defined $password;
    $url .= ($parts{host} // '127.0.0.1') . ":$self->{port}";
    return $url . (defined $parts{db} ? "/$parts{db}" : '');
}

sub connect {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self, %options) = @_;
    return RateLimit::RESP->new(port => $self->{port}) if $options{plain};
    my $connection = RateLimit::RESP->new(path => $self->socket);
    $connection->send('AUTH', $control, $secret);
    my $reply = $connection->receive;
    croak "AUTH: $reply" if $reply ne 'OK' && $reply !~ /^(?:LOADING|BUSY|MASTERDOWN)/;
    return $connection;
}

sub command {
    my ($self, @words) = @_;
    delete $self->{control} if $self->{control} && $self->{control}->is_over;
    $self->{control} //= $self->connect;
    my $reply = eval { $self->{control}->command(@words) };
    return $reply unless $@;
    my $error = $@;
    delete $self->{control} if $error =~ /closed|timed out|send:/;
    croak $error;
}

sub cli {
    my ($self, @command) = @_;
    local $ENV{REDISCLI_AUTH} = $secret;
    open my $in, '-|', 'redis-cli', '-s', $self->socket, '--user', $control, @command or croak "redis-cli: $!";
    local $/ = undef;
    my $text = <$in> // '';
    close $in;
    return $text =~ s/\n\z//r;
}

sub info {
    my ($self, $field) = @_;
    my ($value) = $self->command('INFO', 'everything') =~ /^\Q$field\E:(.*?)\r$/m;
    return $value // '';
}

sub commandstats {
    my ($self, $name) = @_;
    my @names = lc $name;
    push @names, qw(ratelimit.check ratelimit.sync) if $names[0] eq 'evalsha' && $self->uses_native;
    return sum0(map { $self->info("cmdstat_$_") =~ /calls=(\d+)/ } @names);
}

sub client_lines {
    my ($self) = @_;
    return grep { !/ user=$control / && !/ flags=[MS]/ } split /\n/, $self->command('CLIENT', 'LIST');
}

sub connections { my ($self) = @_; return scalar(my @all = $self->client_lines) }
sub clients     { my ($self) = @_; return scalar grep { !/ cmd=eval / } $self->client_lines }

sub monitor {
    my ($self) = @_;
    return RateLimit::Redis::Monitor->new($self);
}

sub pause {
    my ($self) = @_;
    CORE::kill 'STOP', $self->{pid};
    waitpid $self->{pid}, WUNTRACED;
    $self->{paused} = 1;
    return;
}

sub resume {
    my ($self) = @_;
    delete $self->{paused};
    CORE::kill 'CONT', $self->{pid};
    return;
}

sub clock {
    my ($self, $seconds) = @_;
    my $file = "$self->{dir}/clock";
    open my $out, -e $file ? '+<:raw' : '>:raw', $file or croak "$file: $!";
    print {$out} pack 'q', $seconds;
    close $out or croak "$file: $!";
    return;
}

sub advance {
    my ($self, $seconds) = @_;
    $self->{stopped}->advance($seconds);
    return;
}

# Builds, once for all tests, a library that servers preload. The library adds an offset from a mapped file to the real
# time. It also makes fsync return at once: data that a server wrote survives its process without fsync, and a busy disk
# would block a cluster node whenever the node saves its configuration.
sub server_library {
    my $source = <<'C';
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t* offset;

__attribute__((constructor)) static void start(void)
{
    const char* name = getenv("CLOCK_OFFSET");
    if (name != NULL) {
        int file = open(name, O_RDONLY);
        offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    }
}

int fsync(int file)
{
    (void) file;
    return 0;
}

int fdatasync(int file)
{
    (void) file;
    return 0;
}

int clock_gettime(clockid_t id, struct timespec* now)
{
    static int (*real)(clockid_t, struct timespec*);
    if (real == NULL) {
        real = dlsym(RTLD_NEXT, "clock_gettime");
    }
    int result = real(id, now);
    if (id == CLOCK_REALTIME && offset != NULL) {
        now->tv_sec += *offset;
    }
    return result;
}

int gettimeofday(struct timeval* now, void* zone)
{
    struct timespec precise;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL) {
        *now = precise.tv_sec;
    }
    return precise.tv_sec;
}
C
    my $library = ($ENV{RL_BUILD} // $ENV{RL_DIR}) . '/server-' . md5_hex($source) . '.so';
    return $library if -e $library;
    open my $compiler, '|-', qw(cc -shared -fPIC -x c -o), "$library.$$", '-', '-ldl' or croak "cc: $!";
    print {$compiler} $source;
    close $compiler or croak 'the library for servers cannot be built';
    rename "$library.$$", $library or croak "$library: $!";
    return $library;
}

sub kill {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    $self->end('KILL');
    return;
}

sub stop {
    my ($self) = @_;
    $self->resume if $self->{paused};
    $self->end('TERM');
    return;
}

sub end {
    my ($self, $signal) = @_;
    delete @{$self}{qw(control paused)};
    my $pid = delete $self->{pid} or return;
    delete $running{$pid};
    end_process($pid, $signal);
    return;
}

sub end_process {
    my ($pid, $signal) = @_;
    local ($?, $!) = (0, 0);
    CORE::kill $signal, $pid;
    my $deadline = time + 10;
    while (waitpid($pid, WNOHANG) == 0) {
        CORE::kill 'KILL', $pid if time > $deadline;
        sleep 0.002;
    }
    return;
}

sub restart {
    my ($self, %changes) = @_;
    $self->stop;
    %{ $self->{options} } = (%{ $self->{options} }, %changes);
    $self->launch;
    return;
}

sub wait_for_log {
    my ($self, $pattern) = @_;
    my @found;
    wait_for("$pattern in $self->{dir}/redis.log", sub { @found = $self->log =~ $pattern });
    return wantarray ? @found : $found[0];
}

sub DESTROY {
    my ($self) = @_;
    return if $self->{owner} != $$;
    $self->end('KILL');
    release_port(@{ $self->{taken} });
    return;
}

# If the test dies, its server is stopped.
my $test = $$;

END {
    if ($$ == $test) {
        end_process($_, 'KILL') for keys %running;
    }
}

package RateLimit::Redis::Monitor;
use strict;
use warnings;

use RateLimit ();

my $marks = 0;

sub new {
    my ($class, $server) = @_;
    my $connection = $server->connect;
    $connection->command('MONITOR');
    return bless { server => $server, connection => $connection, lines => [] }, $class;
}

# Reads available lines, without waiting.
sub collect {
    my ($self) = @_;
    my $connection = $self->{connection};
    my $before     = -1;
    while (length $connection->{in} != $before) {
        $before = length $connection->{in};
        $connection->more or last;
    }
    my $native = $self->{server}->uses_native;
    while (my $line = RateLimit::RESP::take(\$connection->{in})) {
        ${$line} =~ s/ \?:0\] / lua] / if $native;
        ${$line} =~ s/ "RATELIMIT\.(CHECK|SYNC)" (?!"0" "" ""$)/ "EVALSHA" "ratelimit.\L$1" / if $native;
        push @{ $self->{lines} }, ${$line};
    }
    return;
}

# When the server answers a command, it has shown all earlier ones. A server that is paused or has ended shows nothing
# more.
sub lines {
    my ($self) = @_;
    my $mark = 'monitor_mark_' . ++$marks;
    if (!$self->{server}{paused} && $self->{server}{pid}) {
        $self->{server}->command('ECHO', $mark);
        RateLimit::wait_for('MONITOR', sub { $self->collect; grep {/$mark/} @{ $self->{lines} } });
    }
    $self->collect;
    @{ $self->{lines} } = grep { !/"monitor_mark_\d+"$/ } @{ $self->{lines} };
    return @{ $self->{lines} };
}

sub commands {
    my ($self) = @_;
    my %special = (n => "\n", r => "\r", t => "\t", a => "\a", b => "\b");
    my @commands;
    for my $line ($self->lines) {
        my ($time, $db, $client, $rest) = $line =~ /^([\d.]+) \[(\d+) (\S+)\] (.*)/s or next;
        my @words = $rest =~ /"((?:[^"\\]|\\.)*)"/gs;
        s/\\(?:x([0-9a-f]{2})|(.))/defined $1 ? chr hex $1 : $special{$2} \/\/ $2/gie for @words;
        push @commands, { time => $time, db => $db, client => $client, words => \@words };
    }
    return @commands;
}

sub wait_for {
    my ($self, $pattern) = @_;
    return RateLimit::wait_for(
        "$pattern from MONITOR",
        sub {
            $self->collect;
            my ($found) = grep {/$pattern/} @{ $self->{lines} };
            return $found;
        }
    );
}

1;
