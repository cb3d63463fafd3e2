# An HTTP client that returns every byte: requests, connections and responses. RateLimit.pm documents the interface.
package RateLimit::Client;
use strict;
use warnings;

use Exporter qw(import);

our @EXPORT_OK = qw(format_request http_get http_request open_connection);

sub format_request {
    my (%request) = @_;
    my @headers = @{ $request{headers} // [] };
    my %given;
    for (my $i = 0; $i < @headers; $i += 2) {
        $given{ lc $headers[$i] } = 1;
    }
    unshift @headers, Host => 'localhost' unless $given{host};
    push @headers, Connection => 'close' unless $given{connection};
    push @headers, 'Content-Length' => length $request{body}
        if defined $request{body} && !$given{'content-length'} && !$given{'transfer-encoding'};
    my $text = join ' ', $request{method} // 'GET', $request{path} // '/', 'HTTP/' . ($request{version} // '1.1');
    while (my ($name, $value) = splice @headers, 0, 2) {
        $text .= "\r\n$name: $value";
    }
    return "$text\r\n\r\n" . ($request{body} // '');
}

sub http_request {
    my ($port, %request) = @_;
    my $connection = open_connection($port);
    $connection->send(format_request(%request));
    my $response = $connection->receive($request{method});
    $connection->close;
    return $response;
}

sub http_get {
    my ($port, $path, %headers) = @_;
    return http_request($port, path => $path, headers => [%headers]);
}

sub open_connection {
    my ($port) = @_;
    return RateLimit::Connection->new($port);
}

package RateLimit::Connection;
use strict;
use warnings;

use Carp qw(croak);
use IO::Select;
use IO::Socket::INET;
use Time::HiRes qw(time);

my $patience = 60;    # timeout of a response in seconds

sub new {
    my ($class, $port) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => $patience)
        or croak "connect to port $port: $@";
    return bless { socket => $socket, bytes => '', began => time }, $class;
}

sub send {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self, $bytes) = @_;
    local $SIG{PIPE} = 'IGNORE';
    $self->{began} = time;
    $self->{socket}->syswrite($bytes) // croak "write: $!";
    return;
}

# Reads more bytes. Returns false at the end.
sub more {
    my ($self) = @_;
    IO::Select->new($self->{socket})->can_read($patience) or croak "no answer within $patience seconds";
    return $self->{socket}->sysread($self->{bytes}, 65_536, length $self->{bytes});
}

sub need {
    my ($self, $length) = @_;
    while (length $self->{bytes} < $length) {
        $self->more or croak "the connection ended early, after \"$self->{bytes}\"";
    }
    return;
}

sub take_line {
    my ($self) = @_;
    $self->need(length($self->{bytes}) + 1) while index($self->{bytes}, "\r\n") < 0;
    $self->{bytes} =~ s/\A(.*?)\r\n//s;
    return $1;
}

sub take {
    my ($self, $length) = @_;
    $self->need($length);
    return substr $self->{bytes}, 0, $length, '';
}

sub receive {
    my ($self, $method) = @_;
    my $line = $self->take_line;
    my ($status) = $line =~ m{\AHTTP/1\.[01] (\d{3})} or croak "not a status line: $line";
    my $response = bless { status => $status, headers => [], raw => "$line\r\n" }, 'RateLimit::Response';
    while (length($line = $self->take_line)) {
        push @{ $response->{headers} }, [ $line =~ /\A([^:]*): ?(.*)\z/s ];
        $response->{raw} .= "$line\r\n";
    }
    return $self->receive($method) if $status == 100;
    $response->{body} = ($method // '') eq 'HEAD' || $status == 204 || $status == 304 ? '' : $self->body_of($response);
    $response->{raw} .= "\r\n$response->{body}";
    $response->{seconds} = time - $self->{began};
    return $response;
}

sub body_of {
    my ($self, $response) = @_;
    if (($response->header('Transfer-Encoding') // '') eq 'chunked') {
        my $body = '';
        while (my $size = hex $self->take_line) {
            $body .= $self->take($size);
            $self->take(2);
        }
        $self->take_line;
        return $body;
    }
    my $length = $response->header('Content-Length');
    return $self->take($length) if defined $length;
    1 while $self->more;
    return $self->take(length $self->{bytes});
}

sub at_end {
    my ($self) = @_;
    return $self->{bytes} eq '' && !$self->more;
}

sub close {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    close $self->{socket};
    return;
}

package RateLimit::Response;
use strict;
use warnings;

sub values_of {
    my ($self, $name) = @_;
    return map { $_->[1] } grep { lc $_->[0] eq lc $name } @{ $self->{headers} };
}

sub header {
    my ($self, $name) = @_;
    my @values = $self->values_of($name);
    return @values ? join ' | ', @values : undef;
}

sub count {
    my ($self, $name) = @_;
    my @values = $self->values_of($name);
    return scalar @values;
}

1;
