# An application behind nginx that answers a request only when the test says so.
#
#   my $app = RateLimit::HeldUpstream->start($port);    # on 127.0.0.1; ends with the object
#   my $held = $app->next_request;                      # waits for a request of nginx
#   $held->{path};                                      # of the request
#   $held->answer(cost => 2, body => 'text');           # a whole response, with the header X-Cost
#   $held->begin(cost => 2);                            # its header, and the first bytes of a longer body, or `body`
#   $held->die;                                         # closes the connection
#
# `more` of answer() and begin() has further header lines, `status` another status line than "200 OK".
package RateLimit::HeldUpstream;
use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;

my $patience = 60;    # timeout in seconds

sub start {
    my ($class, $port) = @_;
    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 128, ReuseAddr => 1)
        or die "listen on $port: $@\n";
    return bless { listen => $listen }, $class;
}

sub next_request {
    my ($self) = @_;
    IO::Select->new($self->{listen})->can_read($patience) or die "no request within $patience seconds\n";
    my $socket = $self->{listen}->accept or die "accept: $!\n";
    my $text = '';
    while ($text !~ /\r\n\r\n/) {
        IO::Select->new($socket)->can_read($patience) or die "no whole request within $patience seconds\n";
        sysread $socket, $text, 65_536, length $text or die "the request ended early\n";
    }
    my ($path) = $text =~ /^\S+ (\S+)/;
    return bless { socket => $socket, path => $path }, 'RateLimit::HeldUpstream::Request';
}

package RateLimit::HeldUpstream::Request;

sub _write {
    my ($self, $size, $body, %is) = @_;
    my @lines = ('HTTP/1.1 ' . ($is{status} // '200 OK'), "Content-Length: $size", 'Connection: close');
    push @lines, "X-Cost: $is{cost}" if defined $is{cost};
    local $SIG{PIPE} = 'IGNORE';
    syswrite $self->{socket}, join "\r\n", @lines, @{ $is{more} // [] }, '', $body;
    return;
}

sub begin { my ($self, %is) = @_; return $self->_write(1_000_000, $is{body} // 'begin', %is) }

sub answer {
    my ($self, %is) = @_;
    my $body = $is{body} // 'done';
    $self->_write(length $body, $body, %is);
    return $self->die;
}

sub die {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    close $self->{socket};
    return;
}

1;
