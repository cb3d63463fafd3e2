# A gRPC server and its clients, of @grpc/grpc-js. Each test program uses one Node process, which starts at the first
# call.
#
#   use lib 't/lib';
#   use RateLimit::Grpc qw(grpc_server grpc_call);
#
#   my $upstream = grpc_server();
#   my $outcome  = grpc_call($nginx_port, 'unary', ['hello'], 'x-client' => 'alice');
#   is $outcome->{status}, 'OK';
#
# FUNCTIONS
#   grpc_server()               starts a server; returns its port. Its methods are unary, collect (a stream of requests),
#                               spread (a stream of responses) and chat (both); they return the texts that they get
#   grpc_call($port, $method, \@messages, %headers)
#                               makes a call, and returns its outcome: { code, status (its name), details (its message),
#                               metadata (texts by name), messages (the responses), info (decoded google.rpc.Status) }
#   decode_status($base64)      a decoded google.rpc.Status: { code, message, details => [ { retry_delay => { … } } ] }
package RateLimit::Grpc;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Basename qw(dirname);
use IPC::Open2 qw(open2);
use JSON::PP ();

our @EXPORT_OK = qw(grpc_server grpc_call decode_status);

my $json  = JSON::PP->new->canonical->utf8->allow_nonref;
my $owner = $$;
my ($node, $from_node, $to_node);

sub ask {
    my (%request) = @_;
    $node //= open2($from_node, $to_node, 'node', dirname(__FILE__) . '/../grpc.js');
    print {$to_node} $json->encode(\%request), "\n";
    $to_node->flush;
    my $answer = $json->decode(<$from_node> // croak 'Node has ended');
    croak "$request{operation}: $answer->{error}" if defined $answer->{error};
    return $answer->{result};
}

sub grpc_server { return ask(operation => 'serve') }

sub grpc_call {
    my ($port, $name, $messages, %headers) = @_;
    return ask(operation => 'call', port => $port, name => $name, messages => $messages, headers => \%headers);
}

sub decode_status { my ($base64) = @_; return ask(operation => 'decode', bytes => $base64) }

END {
    if ($node && $$ == $owner) {
        local $? = 0;
        close $to_node;
        waitpid $node, 0;
    }
}

1;
