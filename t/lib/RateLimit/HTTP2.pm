package RateLimit::HTTP2;

# HTTP/2 without TLS over one connection: many streams in one write, and the response on each.
use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

my %frame       = (DATA => 0, HEADERS => 1, RST_STREAM => 3, SETTINGS => 4, PING => 6, GOAWAY => 7, WINDOW => 8);
my $end_stream  = 1;
my $end_headers = 4;
my $ack         = 1;

# The status that a first byte of a header block stands for (RFC 7541, appendix A).
my %static_status = (0x88 => 200, 0x89 => 204, 0x8a => 206, 0x8b => 304, 0x8c => 400, 0x8d => 404, 0x8e => 500);

# Connects to a port of 127.0.0.1.
sub new {
    my ($class, $port) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 10)
        or die "connect to $port: $@\n";
    setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1;
    binmode $socket;
    my $self = bless { socket => $socket, port => $port, next => 1, in => '', out => '', streams => {} }, $class;
    $self->{out} = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" . _frame('SETTINGS', 0, 0, '');
    return $self;
}

sub _frame {
    my ($type, $flags, $stream, $payload) = @_;
    return substr(pack('N', length $payload), 1) . pack('CCN', $frame{$type}, $flags, $stream) . $payload;
}

# A length in a prefix of seven bits, then the unencoded text.
sub _string {
    my ($text) = @_;
    my $size = length $text;
    return pack('C', $size) . $text if $size < 127;
    my $head = pack 'C', 127;
    $size -= 127;
    while ($size >= 128) {
        $head .= pack 'C', 128 | ($size & 127);
        $size >>= 7;
    }
    return $head . pack('C', $size) . $text;
}

# Prepares a request for the next send. Returns the number of its stream. If the body is left `open`, data() may add to
# it.
sub request {
    my ($self, $method, $uri, %option) = @_;
    my $stream = $self->{next};
    $self->{next} += 2;
    my @headers = (
        ':method' => $method, ':scheme' => 'http', ':path' => $uri, ':authority' => "127.0.0.1:$self->{port}",
        @{ $option{headers} // [] },
    );
    my $block = '';
    while (@headers) {
        my ($name, $value) = splice @headers, 0, 2;
        $block .= "\0" . _string($name) . _string($value);
    }
    my $ends = !$option{open} && !defined $option{body};
    $self->{out} .= _frame('HEADERS', $end_headers | ($ends ? $end_stream : 0), $stream, $block);
    $self->{streams}{$stream} = { id => $stream, body => '', sent_at => time };
    $self->data($stream, $option{body}, !$option{open}) if defined $option{body};
    return $stream;
}

# Prepares a part of a body.
sub data {
    my ($self, $stream, $bytes, $last) = @_;
    my @parts = unpack '(a16384)*', $bytes;
    push @parts, '' if !@parts;
    $self->{out} .= _frame('DATA', $last && $_ == $#parts ? $end_stream : 0, $stream, $parts[$_]) for 0 .. $#parts;
    return;
}

# Prepares the cancellation of a stream (error code CANCEL).
sub reset {
    my ($self, $stream) = @_;
    $self->{out} .= _frame('RST_STREAM', 0, $stream, pack 'N', 8);
    return $self;
}

# Sends all prepared frames in one write.
sub send {
    my ($self) = @_;
    local $SIG{PIPE} = 'IGNORE';
    while (length $self->{out}) {
        my $size = syswrite $self->{socket}, $self->{out};
        die "write: $!\n" if !defined $size;
        substr $self->{out}, 0, $size, '';
    }
    return $self;
}

# Reads until all these streams (by default all) have ended. Returns true if that took less than `timeout` seconds.
sub await {
    my ($self, $timeout, @streams) = @_;
    @streams = keys %{ $self->{streams} } if !@streams;
    my $deadline = time + $timeout;
    my $ready    = IO::Select->new($self->{socket});
    while (grep { !$self->{streams}{$_}{ended} } @streams) {
        my $left = $deadline - time;
        return 0 if $left <= 0 || $self->{closed};
        next if !$ready->can_read($left);
        sysread $self->{socket}, $self->{in}, 65536, length $self->{in} or $self->{closed} = 1;
        $self->_take;
        $self->send;
    }
    return 1;
}

# Waits for the answer to a PING: nginx has read all earlier frames by then.
sub ping {
    my ($self) = @_;
    $self->{pong} = 0;
    $self->{out} .= _frame('PING', 0, 0, 'rate-lim');
    $self->send;
    my $ready = IO::Select->new($self->{socket});
    while (!$self->{pong} && !$self->{closed} && $ready->can_read(10)) {
        sysread $self->{socket}, $self->{in}, 65536, length $self->{in} or $self->{closed} = 1;
        $self->_take;
        $self->send;
    }
    return $self->{pong};
}

# Returns the response on a stream: status, body, ended, at (when it ended), after (seconds since the request), frames
# (the names of its frames in order, with "+" if the frame ends the stream).
sub stream {
    my ($self, $stream) = @_;
    return $self->{streams}{$stream};
}

sub close {
    my ($self) = @_;
    return close $self->{socket};
}

sub _take {
    my ($self) = @_;
    while (length $self->{in} >= 9) {
        my $size = unpack 'N', "\0" . substr $self->{in}, 0, 3;
        last if length($self->{in}) < 9 + $size;
        my ($type, $flags, $id) = unpack 'CCN', substr $self->{in}, 3, 6;
        my $payload = substr $self->{in}, 9, $size;
        substr $self->{in}, 0, 9 + $size, '';
        $self->_frame_came($type, $flags, $id, $payload);
    }
    return;
}

sub _frame_came {
    my ($self, $type, $flags, $id, $payload) = @_;
    if ($type == $frame{SETTINGS} && !($flags & $ack)) {
        $self->{out} .= _frame('SETTINGS', $ack, 0, '');
    } elsif ($type == $frame{PING}) {
        $self->{pong} = 1;
    } elsif ($type == $frame{GOAWAY}) {
        $self->{goaway} = 1;
    }
    my $stream = $self->{streams}{$id} or return;
    my ($name) = grep { $frame{$_} == $type } keys %frame;
    my $is_last = $type <= $frame{HEADERS} && $flags & $end_stream;
    push @{ $stream->{frames} }, ($name // $type) . ($is_last ? '+' : '');
    if ($type == $frame{HEADERS}) {
        $stream->{status} //= _status($payload);    # later headers are trailers
    } elsif ($type == $frame{DATA}) {
        $stream->{body} .= $payload;
        $self->{out} .= _frame('WINDOW', 0, $_, pack 'N', length $payload) for length $payload ? (0, $id) : ();
    } elsif ($type == $frame{RST_STREAM}) {
        $stream->{reset} = unpack 'N', $payload;
    }
    if ($type == $frame{RST_STREAM} || $is_last) {
        $stream->{ended} = 1;
        $stream->{at}    = time;
        $stream->{after} = $stream->{at} - $stream->{sent_at};
    }
    return;
}

# nginx sends the status first: as an index, or as a literal of three digits with the name at index 8. A size update of
# the dynamic table may precede it.
sub _status {
    my ($block) = @_;
    $block =~ s/^[\x20-\x3f]//;
    my $first = ord $block;
    return $static_status{$first} // substr $block, 2, 3;
}

1;
