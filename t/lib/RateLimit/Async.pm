package RateLimit::Async;

# Concurrent HTTP/1.1 connections in one process, with the time of each response.
use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use Exporter qw(import);
use IO::Select;
use IO::Socket::INET;
use RateLimit ();
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

our @EXPORT_OK = qw(exchange request_text await_answers await_reading statuses);

# Connects to a port of 127.0.0.1.
sub new {
    my ($class, $port) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 10)
        or die "connect to $port: $@\n";
    setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1;
    $socket->blocking(0);
    binmode $socket;
    return bless { socket => $socket, in => '', out => '', methods => [], answers => [], closed => 0 }, $class;
}

# Returns the text of a request. Headers are a list of names and values.
sub request_text {
    my ($method, $uri, $headers, $body) = @_;
    my @headers = @{ $headers // [] };
    my $text    = "$method $uri HTTP/1.1\r\nHost: localhost\r\n";
    while (@headers) {
        my ($name, $value) = splice @headers, 0, 2;
        $text .= "$name: $value\r\n";
    }
    $text .= 'Content-Length: ' . length($body) . "\r\n" if defined $body;
    return "$text\r\n" . ($body // '');
}

# Sends a request, or as many of its bytes as the socket accepts now.
sub request {
    my ($self, $method, $uri, $headers, $body) = @_;
    return $self->raw(request_text($method, $uri, $headers, $body), $method);
}

# Sends bytes. `methods` are the methods of the requests in them; each request gets one response.
sub raw {
    my ($self, $bytes, @methods) = @_;
    $self->{out} .= $bytes;
    push @{ $self->{methods} }, @methods;
    $self->{sent_at} = time if @methods;
    return $self->flush;
}

sub flush {
    my ($self) = @_;
    local $SIG{PIPE} = 'IGNORE';
    while (length $self->{out}) {
        my $size = syswrite $self->{socket}, $self->{out};
        if (!defined $size) {
            next if $! == EINTR;
            $self->{out} = '' if $! != EAGAIN;
            last;
        }
        substr $self->{out}, 0, $size, '';
    }
    return $self;
}

# Reads the bytes that have arrived.
sub fill {
    my ($self) = @_;
    while (!$self->{closed}) {
        my $size = sysread $self->{socket}, $self->{in}, 65536, length $self->{in};
        if (!defined $size) {
            next if $! == EINTR;
            last if $! == EAGAIN;
        }
        $self->{closed} = 1 if !$size;
    }
    while (@{ $self->{methods} } && (my $answer = $self->_parse)) {
        $answer->{at}    = time;
        $answer->{after} = $answer->{at} - $self->{sent_at};
        if ($answer->{status} < 200 && $answer->{status} != 101) {
            push @{ $self->{interim} }, $answer;
            next;
        }
        shift @{ $self->{methods} };
        push @{ $self->{answers} }, $answer;
    }
    return;
}

# Removes and returns the responses so far.
sub answers {
    my ($self) = @_;
    return splice @{ $self->{answers} };
}

sub waits {
    my ($self) = @_;
    return @{ $self->{methods} } && !$self->{closed};
}

sub close {
    my ($self) = @_;
    return close $self->{socket};
}

# Removes one complete response from the input.
sub _parse {
    my ($self) = @_;
    my $end = index $self->{in}, "\r\n\r\n";
    return if $end < 0;
    my ($line, @lines) = split /\r\n/, substr $self->{in}, 0, $end;
    my ($status) = $line =~ m{^HTTP/1\.[01] (\d{3})} or die "not an answer: $line\n";
    my @headers = map { [/\A([^:]*): ?(.*)\z/s] } @lines;
    my $answer  = bless { status => $status, headers => \@headers, body => '' }, 'RateLimit::Response';
    my $size    = $self->_body($answer, $end + 4);
    return if !defined $size;
    substr $self->{in}, 0, $end + 4 + $size, '';
    return $answer;
}

# Reads the body of a response at an offset. Returns its length in the input, or undef if it is incomplete.
sub _body {
    my ($self, $answer, $at) = @_;
    my $status = $answer->{status};
    return 0 if $status < 200 || $status == 204 || $status == 304 || $self->{methods}[0] eq 'HEAD';
    if (($answer->header('Transfer-Encoding') // '') eq 'chunked') {
        return $self->_chunks($answer, $at);
    }
    my $size = $answer->header('Content-Length');
    my $rest = length($self->{in}) - $at;
    if (!defined $size) {
        return if !$self->{closed};
        $size = $rest;
    }
    return if $rest < $size;
    $answer->{body} = substr $self->{in}, $at, $size;
    return $size;
}

sub _chunks {
    my ($self, $answer, $at) = @_;
    my $from = $at;
    while (substr($self->{in}, $at, 20) =~ /^([0-9a-f]+)\r\n/i) {
        my ($size, $line) = (hex $1, length($1) + 2);
        return if length($self->{in}) < $at + $line + $size + 2;
        $answer->{body} .= substr $self->{in}, $at + $line, $size;
        $at += $line + $size + 2;
        return $at - $from if $size == 0;
    }
    return;
}

# Reads and writes connections until each has all its responses or is closed. Returns true if that took less than
# `timeout` seconds.
sub await_answers {
    my ($timeout, @connections) = @_;
    my $deadline = time + $timeout;
    while (my @open = grep { $_->waits } @connections) {
        my %by_socket = map { $_->{socket} => $_ } @open;
        my $readers   = IO::Select->new(map { $_->{socket} } @open);
        my $writers   = IO::Select->new(map { $_->{socket} } grep { length $_->{out} } @open);
        my $left      = $deadline - time;
        return 0 if $left <= 0;
        my ($readable, $writable) = IO::Select->select($readers, $writers, undef, $left);
        $by_socket{$_}->flush for @{ $writable // [] };
        $by_socket{$_}->fill  for @{ $readable // [] };
    }
    return 1;
}

# Waits until the server has read all bytes: none is in flight or in the sockets of the server.
sub await_reading {
    my (@connections) = @_;
    my %ours = map { sprintf('%04X', $_->{socket}->sockport) => sprintf '%04X', $_->{socket}->peerport } @connections;
    RateLimit::wait_for(
        'the server to read',
        sub {
            my $unread = 0;
            for (split /\n/, RateLimit::slurp('/proc/net/tcp')) {
                my ($local, $peer, $unsent, $waiting) = /^ *\d+: \w+:(\w+) \w+:(\w+) \w+ (\w+):(\w+) / or next;
                $unread += hex $unsent  if ($ours{$local} // '') eq $peer;
                $unread += hex $waiting if ($ours{$peer}  // '') eq $local;
            }
            return $unread == 0;
        }
    );
    return;
}

# Sends requests at once, each [METHOD, URI, HEADERS, BODY] on its own connection. Returns the responses in order; undef
# for a missing one.
sub exchange {
    my ($port, @requests) = @_;
    my @connections = map { __PACKAGE__->new($port) } @requests;
    $connections[$_]->request(@{ $requests[$_] }) for 0 .. $#requests;
    await_answers(30, @connections);
    return map { scalar(($_->answers)[0]) } @connections;
}

# Returns the statuses of responses in one line, "-" for a missing one.
sub statuses {
    return join ' ', map { $_ ? $_->{status} : '-' } @_;
}

1;
