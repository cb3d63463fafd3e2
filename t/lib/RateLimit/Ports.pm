# Free ports for servers, reserved against other users of this package on the machine.
#
#   use RateLimit::Ports qw(free_port);
#
# FUNCTIONS
#   free_port                   { number => N, hold => … }: a port, reserved for the caller as long as this object
#                               exists
package RateLimit::Ports;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use IO::Socket::INET;
use IO::Socket::UNIX;

our @EXPORT_OK = qw(free_port);

# Browsers, and fetch() of Node, refuse to connect to these: the "bad ports" above 1023 of the Fetch standard.
my %refused = map { $_ => 1 } 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665 .. 6669, 6679,
    6697, 10_080;

# Returns a port below the range of ephemeral ports, so that no client socket can take it. The abstract socket reserves
# it.
sub free_port {
    open my $range, '<', '/proc/sys/net/ipv4/ip_local_port_range' or croak "port range: $!";
    my ($ephemeral) = <$range> =~ /(\d+)/;
    for (1 .. 1000) {
        my $port = 1024 + int rand($ephemeral - 1024);
        next if $refused{$port};
        my $hold = IO::Socket::UNIX->new(Local => "\0rate_limit_port_$port", Listen => 1) or next;
        my $free = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => $port, Listen => 1) or next;
        return { number => $port, hold => $hold };
    }
    croak "no port below $ephemeral is free";
}

1;
