# A scripted server that speaks the Redis protocol, for answers that no real server gives.
#
#   use lib 't/lib';
#   use RateLimit::FakeRedis qw(start_fake raw in_turn after_ms bytewise cut hang_up silence);
#
#   my $fake = start_fake(replies => { EVALSHA => in_turn(silence(), '-BUSY wait', [ 1, 2 ]) });
#
# FUNCTIONS
#   start_fake(%options)        starts one and waits until it listens; returns an object (METHODS). It ends with the
#                               object
#
# OPTIONS
#   port        its port (the next of RL_REDIS_PORTS)
#   replies     by command name in capitals, ANSWERS; '*' is for every other command. By default, AUTH, SELECT, CLIENT
#               and PING are answered as by Redis, SCRIPT with the SHA1 of its last word, and others with an error
#   greeting    an answer (ANSWERS) to a new connection, before its first command
#   mode        'mute': accepts, reads and never answers        'full': listens, and its queue is full
#               'refuse': binds the port and does not listen     'answer': the default
#   phases      a list of replies, of which ->phase selects one; `replies` has the answers that are in no phase
#
# ANSWERS
#   any data                    as encode_reply of RateLimit::RESP takes it: undef, 5, '+OK', '-ERR no', 'bulk', [ … ]
#   raw($bytes)                 these bytes
#   silence()                   nothing
#   hang_up()                   closes the connection
#   after_ms($ms, ANSWER)       after a delay; later answers on the connection wait too
#   bytewise($ms, ANSWER)       byte by byte, with this time between two
#   cut($count, ANSWER)         only $count bytes, then closes the connection
#   in_turn(ANSWER, …)          the first for the first command, and so on; the last is repeated
#   sub { … }                   called with the command's words, in the server's own process; returns an answer
#
# METHODS
#   port, dir, pid, url
#   phase($number)              answers from this phase from now on, the first is 0; connections stay open
#   commands($name)             the commands so far, or only those of this name: a list of
#                               { time, connection => number from 1, words => [NAME, …] }
#   count($name)                the number of these
#   wait_for_count($name, $n)   waits until there are $n
#   connections                 how many were accepted so far
#   stop                        ends the server and its connections
package RateLimit::FakeRedis;
use strict;
use warnings;

use Carp qw(croak);
use Digest::SHA qw(sha1_hex);
use Errno qw(EAGAIN EINTR);
use Exporter qw(import);
use File::Path qw(make_path);
use IO::Select;
use IO::Socket::INET;
use JSON::PP ();
use List::Util qw(max min);
use POSIX ();
use RateLimit qw(slurp wait_for);
use RateLimit::Redis qw(redis_port release_port);
use RateLimit::RESP qw(encode_reply take);
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(start_fake raw in_turn after_ms bytewise cut hang_up silence);

my $answer_class = 'RateLimit::FakeRedis::Answer';
my $json         = JSON::PP->new->latin1;
my $servers      = 0;
my %running;    # 1 by process id

# An answer is a function of the command's words that returns pieces to send: [ms to wait, bytes]. Undefined bytes close
# the connection.
sub answer {
    my ($code) = @_;
    return bless $code, $answer_class;
}

sub pieces {
    my ($answer, @words) = @_;
    return $answer->(@words) if ref $answer eq $answer_class;
    return pieces($answer->(@words), @words) if ref $answer eq 'CODE';
    return [ 0, encode_reply($answer) ];
}

sub raw {
    my ($bytes) = @_;
    return answer(sub { return [ 0, $bytes ] });
}

sub silence { return answer(sub { return }) }
sub hang_up { return answer(sub { return [ 0, undef ] }) }

sub after_ms {
    my ($ms, $answer) = @_;
    return answer(sub { return ([ $ms, '' ], pieces($answer, @_)) });
}

sub bytewise {
    my ($ms, $answer) = @_;
    return answer(
        sub {
            return map { my $piece = $_; map { [ $ms, $_ ] } split //, $piece->[1] } pieces($answer, @_);
        }
    );
}

sub cut {
    my ($count, $answer) = @_;
    return answer(
        sub {
            my $whole = join '', map { $_->[1] } pieces($answer, @_);
            return ([ 0, substr $whole, 0, $count ], [ 0, undef ]);
        }
    );
}

sub in_turn {
    my (@answers) = @_;
    return answer(
        sub {
            my $answer = @answers > 1 ? shift @answers : $answers[0];
            return pieces($answer, @_);
        }
    );
}

my %usual = (
    AUTH   => '+OK',
    SELECT => '+OK',
    CLIENT => '+OK',
    PING   => '+PONG',
    SCRIPT => sub { return sha1_hex($_[-1]) },
    '*'    => sub { return "-ERR unknown command '$_[0]'" },
);

sub start_fake {
    my (%options) = @_;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/fake-redis-' . ++$servers;
    make_path($dir);
    my $port   = $options{port} // redis_port();
    my $self   = bless { dir => $dir, port => $port, options => \%options, phase => 0, owner => $$ }, __PACKAGE__;
    my $mode   = $options{mode} // 'answer';
    my $socket = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1',
        LocalPort => $port,
        ReuseAddr => 1,
        ($mode eq 'refuse' ? () : (Listen => $mode eq 'full' ? 1 : 128)),
    ) or croak "port $port: $!";
    $self->{full} = fill($port) if $mode eq 'full';
    return $self->hold($socket) if $mode =~ /^(?:full|refuse)$/;

    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM);
        $SIG{PIPE} = 'IGNORE';
        close_others($socket);
        eval { $self->serve($socket); 1 } or print {*STDERR} "# fake Redis: $@";
        POSIX::_exit(1);
    }
    $self->{pid} = $pid;
    $running{$pid} = 1;
    return $self;
}

# A socket that accepts no connection needs no process.
sub hold {
    my ($self, $socket) = @_;
    $self->{socket} = $socket;
    return $self;
}

# A connection that the test closes must not stay open in this process.
sub close_others {
    my ($socket) = @_;
    POSIX::close($_) for grep { $_ > 2 && $_ != $socket->fileno } map {m{(\d+)$}} glob '/proc/self/fd/*';
    return;
}

# Connects until the listen queue of a port is full.
sub fill {
    my ($port) = @_;
    my @sockets;
    for (1 .. 20) {
        my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Blocking => 0)
            or croak "connect: $!";
        push @sockets, $socket;
        return \@sockets unless IO::Select->new($socket)->can_write(0.1);
    }
    croak "port $port accepts more connections than its queue should hold";
}

sub serve {
    my ($self, $listener) = @_;
    $self->{listener} = $listener;
    my %connections;    # by file descriptor
    while (1) {
        my $now = time;
        for my $connection (values %connections) {
            delete $connections{ $connection->{number} } unless flush($connection, $now);
        }
        my @due     = map { $_->{queue}[0][0] } grep { @{ $_->{queue} } } values %connections;
        my $wait    = @due ? max(0, min(@due) - time) : undef;
        my $readers = IO::Select->new($listener, map { $_->{socket} } values %connections);
        for my $socket ($readers->can_read($wait)) {
            if ($socket == $listener) {
                my $connection = $self->accept_one or next;
                $connections{ $connection->{number} } = $connection;
                next;
            }
            my ($connection) = grep { $_->{socket} == $socket } values %connections;
            delete $connections{ $connection->{number} } unless $self->read_from($connection);
        }
    }
    return;
}

sub accept_one {
    my ($self) = @_;
    my $socket = $self->{listener}->accept or return;
    $socket->blocking(0);
    my $connection = { socket => $socket, number => ++$self->{accepted}, in => '', queue => [] };
    $self->record({ time => time, connection => $connection->{number}, words => [] });
    queue($connection, pieces($self->{options}{greeting})) if exists $self->{options}{greeting};
    return $connection;
}

# Answers each complete command. Returns false if the client has disconnected.
sub read_from {
    my ($self, $connection) = @_;
    my $count = sysread $connection->{socket}, $connection->{in}, 65_536, length $connection->{in};
    return $!{EAGAIN} || $!{EINTR} unless defined $count;
    return 0 unless $count;
    return 1 if ($self->{options}{mode} // '') eq 'mute';
    while (my $command = take(\$connection->{in})) {
        my @words = @{ ${$command} };
        $self->record({ time => time, connection => $connection->{number}, words => \@words });
        queue($connection, pieces($self->answer_to(uc $words[0]), @words));
    }
    return 1;
}

sub answer_to {
    my ($self, $name) = @_;
    my $phases = $self->{options}{phases} // [ {} ];
    my $told   = { %{ $self->{options}{replies} // {} }, %{ $phases->[ slurp("$self->{dir}/phase") || 0 ] } };
    for my $book ($told, \%usual) {
        for my $key ($name, '*') {
            return $book->{$key} if exists $book->{$key};
        }
    }
    return;
}

# Appends pieces to the output queue of the connection.
sub queue {
    my ($connection, @pieces) = @_;
    my $time = @{ $connection->{queue} } ? $connection->{queue}[-1][0] : time;
    for my $piece (@pieces) {
        my ($ms, $bytes) = @{$piece};
        $time += $ms / 1000;
        push @{ $connection->{queue} }, [ $time, $bytes ];
    }
    return;
}

# Sends the pieces that are due. Returns false if the connection is to be closed.
sub flush {
    my ($connection, $now) = @_;
    my $queue = $connection->{queue};
    while (@{$queue} && $queue->[0][0] <= $now) {
        my ($time, $bytes) = @{ shift @{$queue} };
        # Perl does not close a descriptor whose number belonged to a handle of the test when this process began.
        return shutdown($connection->{socket}, 2) && 0 unless defined $bytes;
        next unless length $bytes;
        my $sent = syswrite $connection->{socket}, $bytes;
        return 0 unless defined $sent || $!{EAGAIN};
        next if ($sent // 0) == length $bytes;
        unshift @{$queue}, [ $now + 0.005, substr $bytes, $sent // 0 ];
        last;
    }
    return 1;
}

sub record {
    my ($self, $event) = @_;
    open my $out, '>>:raw', "$self->{dir}/events" or die "$self->{dir}/events: $!\n";
    print {$out} $json->encode($event), "\n";
    close $out or die "$self->{dir}/events: $!\n";
    return;
}

sub events {
    my ($self) = @_;
    return map { $json->decode($_) } slurp("$self->{dir}/events") =~ /^(.*)\n/mg;
}

sub port { my ($self) = @_; return $self->{port} }
sub dir  { my ($self) = @_; return $self->{dir} }
sub pid  { my ($self) = @_; return $self->{pid} }
sub url  { my ($self) = @_; return "redis://127.0.0.1:$self->{port}" }

sub phase {
    my ($self, $number) = @_;
    my $file = "$self->{dir}/phase";
    open my $out, '>', "$file.new" or croak "$file: $!";
    print {$out} $number;
    close $out or croak "$file: $!";
    rename "$file.new", $file or croak "$file: $!";
    return;
}

sub commands {
    my ($self, $name) = @_;
    return grep { @{ $_->{words} } && (!defined $name || uc $_->{words}[0] eq uc $name) } $self->events;
}

sub count {
    my ($self, $name) = @_;
    return scalar(my @all = $self->commands($name));
}

sub wait_for_count {
    my ($self, $name, $count) = @_;
    wait_for("$count times $name", sub { $self->count($name) >= $count });
    return;
}

sub connections {
    my ($self) = @_;
    return scalar grep { !@{ $_->{words} } } $self->events;
}

sub stop {
    my ($self) = @_;
    delete @{$self}{qw(socket full)};
    my $pid = delete $self->{pid} or return;
    delete $running{$pid};
    end_process($pid);
    return;
}

sub end_process {
    my ($pid) = @_;
    local ($?, $!) = (0, 0);
    kill 'KILL', $pid;
    waitpid $pid, 0;
    return;
}

sub DESTROY {
    my ($self) = @_;
    return if $self->{owner} != $$;
    $self->stop;
    release_port($self->{port}) unless $self->{options}{port};
    return;
}

# If the test dies, its server is stopped.
my $test = $$;

END {
    if ($$ == $test) {
        end_process($_) for keys %running;
    }
}

1;
