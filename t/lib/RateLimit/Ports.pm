# Free ports for servers, which no other run of this package on the machine gets meanwhile.
#
#   use RateLimit::Ports qw(free_port);
#
# FUNCTIONS
#   free_port                   { number => N, hold => … }: a port, which is the caller's for as long as it holds this
package RateLimit::Ports;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use IO::Socket::INET;
use IO::Socket::UNIX;

our @EXPORT_OK = qw(free_port);

# A port below those that the kernel hands out by itself, so that no client's socket can take it meanwhile. The
# abstract socket keeps others away.
sub free_port {
    open my $range, '<', '/proc/sys/net/ipv4/ip_local_port_range' or croak "port range: $!";
    my ($ephemeral) = <$range> =~ /(\d+)/;
    for (1 .. 1000) {
        my $port = 1024 + int rand($ephemeral - 1024);
        my $hold = IO::Socket::UNIX->new(Local => "\0rate_limit_port_$port", Listen => 1) or next;
        my $free = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => $port, Listen => 1) or next;
        return { number => $port, hold => $hold };
    }
    croak "no port below $ephemeral is free";
}

1;
