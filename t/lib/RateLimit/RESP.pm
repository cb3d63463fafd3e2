# The Redis protocol (RESP2): a client connection, and both directions of the encoding.
#
# FUNCTIONS
#   encode_command(@words)      what a client sends: an array of bulk strings
#   encode_reply($data)         what a server sends: undef (nil), an integer, '+simple', '-ERROR text', any other string
#                               (bulk), or a reference to an array of these
#   take(\$bytes)               removes one complete value from the front of the bytes; returns a reference to it, undef
#                               if it is incomplete; dies if it is not RESP. An error is a RateLimit::RESP::Error, which
#                               stringifies to its text; nil is undef
#
# A CONNECTION, RateLimit::RESP->new(port => N) or (path => SOCKET)
#   command(@words)             sends and receives; dies if Redis answers with an error
#   send(@words), receive       only one of the two; receive returns errors instead of dying
#   send_raw($bytes)            sends any bytes
#   at_end                      true if the peer has closed
#   is_over                     true if the peer has closed by now, for a connection without a pending answer
#   close
package RateLimit::RESP;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Time::HiRes qw(time);

our @EXPORT_OK = qw(encode_command encode_reply take);

my $patience = 60;    # timeout of an answer in seconds

sub encode_command {
    my (@words) = @_;
    return join '', '*', scalar @words, "\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @words;
}

sub encode_reply {
    my ($data) = @_;
    return "\$-1\r\n" unless defined $data;
    return join '', '*', scalar @{$data}, "\r\n", map { encode_reply($_) } @{$data} if ref $data eq 'ARRAY';
    return "$data\r\n"  if $data =~ /^[+-](?!\d)/;
    return ":$data\r\n" if $data =~ /^-?\d+\z/;
    return '$' . length($data) . "\r\n$data\r\n";
}

sub take {
    my ($bytes) = @_;
    my ($value, $length) = parse($bytes, 0) or return;
    substr ${$bytes}, 0, $length, '';
    return \$value;
}

# Reads the value at a position. Returns the value and the position after it, or nothing if the value is incomplete.
sub parse {
    my ($bytes, $at) = @_;
    my $end = index ${$bytes}, "\r\n", $at;
    return if $end < 0;
    my ($type, $rest) = substr(${$bytes}, $at, $end - $at) =~ /^([-+:\$*])(.*)\z/s
        or croak 'not RESP: ' . ${$bytes};
    $at = $end + 2;
    return ($rest, $at) if $type =~ /[+:]/;
    return (RateLimit::RESP::Error->new($rest), $at) if $type eq '-';
    croak "not a length: $rest" if $rest !~ /^(?:\d+|-1)\z/;
    return (undef, $at) if $rest < 0;
    if ($type eq q($)) {
        return if length ${$bytes} < $at + $rest + 2;
        return (substr(${$bytes}, $at, $rest), $at + $rest + 2);
    }
    my @values;
    for (1 .. $rest) {
        (my $value, $at) = parse($bytes, $at) or return;
        push @values, $value;
    }
    return (\@values, $at);
}

sub new {
    my ($class, %peer) = @_;
    my $socket =
        defined $peer{path}
        ? IO::Socket::UNIX->new(Peer => $peer{path})
        : IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $peer{port}, Timeout => $patience);
    croak "connect to $peer{ defined $peer{path} ? 'path' : 'port' }: $!" unless $socket;
    return bless { socket => $socket, in => '' }, $class;
}

sub command {
    my ($self, @words) = @_;
    $self->send(@words);
    my $reply = $self->receive;
    croak "@words: $reply" if ref $reply eq 'RateLimit::RESP::Error';
    return $reply;
}

sub send {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self, @words) = @_;
    return $self->send_raw(encode_command(@words));
}

sub send_raw {
    my ($self, $bytes) = @_;
    local $SIG{PIPE} = 'IGNORE';
    while (length $bytes) {
        my $sent = syswrite $self->{socket}, $bytes or croak "send: $!";
        substr $bytes, 0, $sent, '';
    }
    return;
}

sub receive {
    my ($self) = @_;
    my $deadline = time + $patience;
    my $value;
    until ($value = take(\$self->{in})) {
        $self->more($deadline - time) or croak 'the server closed the connection';
    }
    return ${$value};
}

sub at_end {
    my ($self) = @_;
    my $deadline = time + $patience;
    return !$self->more($deadline - time);
}

sub is_over {
    my ($self) = @_;
    return !$self->more;
}

# Waits for bytes, and reads them. Returns false at the end. Without a timeout, reads only available bytes.
sub more {
    my ($self, $seconds) = @_;
    my @ready = IO::Select->new($self->{socket})->can_read($seconds // 0);
    if (!@ready) {
        return 1 unless defined $seconds;
        croak 'timed out waiting for an answer';
    }
    my $count = sysread $self->{socket}, $self->{in}, 65_536, length $self->{in};
    return $count;
}

sub close {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    close $self->{socket} or croak "close: $!";
    return;
}

package RateLimit::RESP::Error;
use strict;
use warnings;

use overload '""' => sub { my ($self) = @_; return ${$self} }, fallback => 1;

sub new {
    my ($class, $text) = @_;
    return bless \$text, $class;
}

1;
