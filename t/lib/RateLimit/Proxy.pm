# A proxy in front of a real Redis that drops selected calls, or replies to calls.
#
#   use lib 't/lib';
#   use RateLimit::Proxy qw(start_proxy);
#
# FUNCTIONS
#   start_proxy($redis)         starts one and waits until it listens; returns an object (METHODS). It ends with the
#                               object
#
# METHODS
#   port, url
#   lose_replies($name, $count) the next $count commands of this name reach Redis, but their replies are dropped, and
#                               their connections are closed
#   lose_calls($name, $count)   the next $count do not reach Redis; their connections are closed
#   hold_replies($name, $count) the next $count reach Redis, and all later bytes of Redis to their connections are held
#                               until ->release
#   release                     forwards everything, also the held bytes
#   happened                    how many commands were affected since the last lose_… or hold_…
#   wait_until_happened($count) waits until there are $count
#   callers($name)              the ports from which commands of this name came, in their order
# With RL_NATIVE=1, a call of the native module is named EVALSHA: see RateLimit::Redis.
package RateLimit::Proxy;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Path qw(make_path);
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use RateLimit qw(slurp wait_for);
use RateLimit::Redis qw(redis_port release_port);
use RateLimit::RESP qw(take);
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(sleep);

our @EXPORT_OK = qw(start_proxy);

my $proxies = 0;
my %running;    # 1 by process id

sub start_proxy {
    my ($redis) = @_;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/proxy-' . ++$proxies;
    make_path($dir);
    my $self     = bless { dir => $dir, port => redis_port(), to => $redis->port, orders => 0, owner => $$ }, __PACKAGE__;
    my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $self->{port}, ReuseAddr => 1, Listen => 64)
        or croak "port $self->{port}: $!";
    $self->release;
    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM);
        $SIG{PIPE} = 'IGNORE';
        POSIX::close($_) for grep { $_ > 2 && $_ != $listener->fileno } map {m{(\d+)$}} glob '/proc/self/fd/*';
        eval { $self->serve($listener); 1 } or print {*STDERR} "# proxy: $@";
        POSIX::_exit(1);
    }
    $self->{pid} = $pid;
    $running{$pid} = 1;
    return $self;
}

sub port { my ($self) = @_; return $self->{port} }
sub url  { my ($self) = @_; return "redis://127.0.0.1:$self->{port}" }

sub lose_replies { my ($self, @what) = @_; return $self->order('reply', @what) }
sub lose_calls   { my ($self, @what) = @_; return $self->order('call',  @what) }
sub hold_replies { my ($self, @what) = @_; return $self->order('hold',  @what) }
sub release      { my ($self) = @_; return $self->order('none', '-', 0) }

# The proxy process reads its orders from a file, and reports each order in a file of its own.
sub order {
    my ($self, $what, $name, $count) = @_;
    my $file = "$self->{dir}/order";
    open my $out, '>', "$file.new" or croak "$file: $!";
    print {$out} join ' ', ++$self->{orders}, $what, uc $name, $count;
    close $out or croak "$file: $!";
    rename "$file.new", $file or croak "$file: $!";
    return;
}

sub happened {
    my ($self) = @_;
    return length slurp("$self->{dir}/done-$self->{orders}");
}

sub wait_until_happened {
    my ($self, $count) = @_;
    wait_for("$count calls at the proxy", sub { $self->happened >= $count });
    return;
}

sub callers {
    my ($self, $name) = @_;
    return slurp("$self->{dir}/calls") =~ /^\Q$name\E (\d+)$/mgi;
}

sub serve {
    my ($self, $listener) = @_;
    open $self->{calls}, '>>', "$self->{dir}/calls" or die "$self->{dir}: $!\n";
    $self->{calls}->autoflush;
    my %pairs;    # by number of the client's descriptor
    while (1) {
        $self->read_order;
        if ($self->{what} ne 'hold') {
            $self->pass_replies($_) for grep { delete $_->{held} } values %pairs;
        }
        for my $socket (IO::Select->new($listener, map { @{$_}{qw(client server)} } values %pairs)->can_read(0.005)) {
            if ($socket == $listener) {
                my $pair = $self->accept_one($listener) or next;
                $pairs{ $pair->{client}->fileno } = $pair;
                next;
            }
            my ($pair) = grep { $_->{client} == $socket || $_->{server} == $socket } values %pairs or next;
            next if $socket == $pair->{client} ? $self->from_client($pair) : $self->from_server($pair);
            delete $pairs{ $pair->{client}->fileno };
            $self->note_done for grep { $_ ne 'none' } @{ $pair->{fates} };
            shutdown $_, 2 for @{$pair}{qw(client server)};
        }
    }
    return;
}

sub read_order {
    my ($self) = @_;
    my ($number, $what, $name, $count) = split ' ', slurp("$self->{dir}/order");
    return if $number == ($self->{number} // 0);
    @{$self}{qw(number what name count)} = ($number, $what, $name, $count);
    return;
}

sub accept_one {
    my ($self, $listener) = @_;
    my $client = $listener->accept or return;
    my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{to});
    # Perl does not close a descriptor whose number belonged to a handle of the test when this process began.
    return shutdown($client, 2) && undef unless $server;
    setsockopt $_, IPPROTO_TCP, TCP_NODELAY, 1 for $client, $server;
    return { client => $client, server => $server, port => $client->peerport, calls => '', replies => '', fates => [] };
}

# Forwards each complete command. Returns false if the connection is to be closed.
sub from_client {
    my ($self, $pair) = @_;
    sysread($pair->{client}, $pair->{calls}, 65_536, length $pair->{calls}) or return 0;
    my $before = $pair->{calls};
    while (my $command = take(\$pair->{calls})) {
        my $bytes = substr $before, 0, length($before) - length $pair->{calls}, '';
        $self->read_order;
        my $name = name_of(@{ ${$command} });
        print { $self->{calls} } "$name $pair->{port}\n";
        my $fate = $self->{count} > 0 && $name eq $self->{name} ? $self->{what} : 'none';
        if ($fate ne 'none') {
            $self->{count}--;
            $self->note_done if $fate eq 'call';
        }
        return 0 if $fate eq 'call';
        push @{ $pair->{fates} }, $fate;
        send_all($pair->{server}, $bytes) or return 0;
    }
    return 1;
}

sub name_of {
    my ($name, $keys) = @_;
    return $ENV{RL_NATIVE} && $name =~ /^RATELIMIT[.]/i && $keys ne '0' ? 'EVALSHA' : uc $name;
}

sub from_server {
    my ($self, $pair) = @_;
    sysread($pair->{server}, $pair->{replies}, 65_536, length $pair->{replies}) or return 0;
    return 1 if $pair->{held};
    return $self->pass_replies($pair);
}

sub pass_replies {
    my ($self, $pair) = @_;
    my $before = $pair->{replies};
    while (my $reply = take(\$pair->{replies})) {
        my $bytes = substr $before, 0, length($before) - length $pair->{replies}, '';
        my $fate  = shift @{ $pair->{fates} } // 'none';
        $self->note_done if $fate ne 'none';
        return 0 if $fate eq 'reply';
        if ($fate eq 'hold') {
            @{$pair}{qw(held replies)} = (1, $bytes . $pair->{replies});
            unshift @{ $pair->{fates} }, 'none';
            return 1;
        }
        send_all($pair->{client}, $bytes) or return 0;
    }
    return 1;
}

sub send_all {
    my ($socket, $bytes) = @_;
    while (length $bytes) {
        my $sent = syswrite $socket, $bytes or return 0;
        substr $bytes, 0, $sent, '';
    }
    return 1;
}

sub note_done {
    my ($self) = @_;
    open my $out, '>>', "$self->{dir}/done-$self->{number}" or die "$self->{dir}: $!\n";
    print {$out} 'x';
    close $out or die "$self->{dir}: $!\n";
    return;
}

sub stop {
    my ($self) = @_;
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
    release_port($self->{port});
    return;
}

# If the test dies, its proxy is stopped.
my $test = $$;

END {
    if ($$ == $test) {
        end_process($_) for keys %running;
    }
}

1;
