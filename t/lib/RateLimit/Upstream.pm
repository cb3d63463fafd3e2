package RateLimit::Upstream;

# An application behind nginx that records each request, and replies with a description of the request.
use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use RateLimit qw(slurp);

# Starts on a port of 127.0.0.1. `answers` has complete responses by path. Any other path gets 200 and "METHOD URI BYTES
# MD5" of the request body. After a response of 101, the connection is an echo.
sub start {
    my ($class, $port, %answers) = @_;
    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 128, ReuseAddr => 1)
        or die "listen on $port: $@\n";
    my $self = bless { log => "$ENV{RL_DIR}/upstream-$port.log", owner => $$ }, $class;
    defined($self->{pid} = fork) or die "fork: $!\n";
    if (!$self->{pid}) {
        $SIG{PIPE} = 'IGNORE';
        eval { _serve($listen, $self->{log}, \%answers); 1 } or warn $@;
        POSIX::_exit(1);
    }
    return $self;
}

# Returns the received requests, a line for each: "CONNECTION METHOD URI BYTES MD5".
sub requests {
    my ($self, $pattern) = @_;
    return grep { !defined $pattern || /$pattern/ } split /\n/, slurp($self->{log});
}

sub stop {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    kill 'KILL', $pid;
    local $? = 0;
    waitpid $pid, 0;
    return;
}

sub DESTROY {
    my ($self) = @_;
    $self->stop if $self->{owner} == $$;
    return;
}

sub _serve {
    my ($listen, $file, $answers) = @_;
    open my $log, '>>', $file or die "$file: $!\n";
    $log->autoflush;
    my $ready = IO::Select->new($listen);
    my %connections;
    my $number = 0;
    while (1) {
        for my $socket ($ready->can_read) {
            if ($socket == $listen) {
                my $new = $listen->accept or next;
                $ready->add($new);
                $connections{$new} = { socket => $new, number => ++$number, in => '' };
                next;
            }
            my $connection = $connections{$socket};
            my $size       = sysread $socket, $connection->{in}, 1 << 20, length $connection->{in};
            if (!$size) {
                delete $connections{$socket};
                $ready->remove($socket);
                close $socket;
                next;
            }
            _answer($connection, $log, $answers);
        }
    }
    return;
}

sub _answer {
    my ($connection, $log, $answers) = @_;
    if ($connection->{echo}) {
        _write($connection, substr $connection->{in}, 0, length $connection->{in}, '');
        return;
    }
    while (my ($method, $uri, $body) = _take($connection)) {
        my $told = join ' ', $method, $uri, length $body, md5_hex($body);
        print {$log} "$connection->{number} $told\n";
        my ($path) = $uri =~ /^([^?]*)/;
        my $answer = $answers->{$path}
            // "HTTP/1.1 200 OK\r\nContent-Length: " . (1 + length $told) . "\r\n\r\n$told\n";
        $answer =~ s/\r\n\r\n.*/\r\n\r\n/s if $method eq 'HEAD';
        _write($connection, $answer);
        $connection->{echo} = $answer =~ m{^HTTP/1.1 101 };
    }
    return;
}

# Removes a complete request from the input, if there is one.
sub _take {
    my ($connection) = @_;
    my $end = index $connection->{in}, "\r\n\r\n";
    return if $end < 0;
    my $head = substr $connection->{in}, 0, $end;
    my ($method, $uri) = $head =~ /^(\S+) (\S+)/;
    my $body = '';
    my $size;
    if ($head =~ /^Transfer-Encoding: chunked/mi) {
        my $chunks = substr $connection->{in}, $end + 4;
        return if $chunks !~ /^((?:.*\r\n)?0\r\n\r\n)/s;
        $size = length $1;
        while ($chunks =~ s/^([0-9a-f]+)\r\n//i && hex $1) {
            $body .= substr $chunks, 0, hex $1, '';
            $chunks =~ s/^\r\n//;
        }
    } else {
        ($size) = $head =~ /^Content-Length: (\d+)/mi;
        $size //= 0;
        return if length($connection->{in}) < $end + 4 + $size;
        $body = substr $connection->{in}, $end + 4, $size;
    }
    substr $connection->{in}, 0, $end + 4 + $size, '';
    return ($method, $uri, $body);
}

sub _write {
    my ($connection, $text) = @_;
    my $at = 0;
    while ($at < length $text) {
        my $size = syswrite $connection->{socket}, $text, length($text) - $at, $at;
        return if !$size;
        $at += $size;
    }
    return;
}

1;
