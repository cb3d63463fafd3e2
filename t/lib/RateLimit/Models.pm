# An upstream that speaks like a language model, and clients of the packages openai and @anthropic-ai/sdk. Each test
# program uses two Node processes, which start at the first call.
#
#   use lib 't/lib';
#   use RateLimit::Models qw(model_server model_call);
#
#   my $upstream = model_server();
#   my $outcome  = model_call($nginx->port, 'openai', 'key-1', text => 'use 19 10');
#   is $outcome->{used}, 29;
#
# FUNCTIONS
#   model_server()              starts the upstream; returns its port
#   model_requests()            how many requests the upstream has got
#   hold_responses()            the upstream receives requests, and answers none until release_responses
#   held_responses()            how many requests wait
#   release_responses()         answers them; returns how many
#   model_call($port, $api, $key, %options)
#                               makes a call through a port, and waits for its end: { status, headers (by name), text,
#                               used (tokens; of anthropic, input and output) }, or { error (name of the class),
#                               message, status, headers }. The API is openai or anthropic
#   start_model_call($port, $api, $key, %options)
#                               the same without the wait; returns a number for model_outcome($number), which waits
#   ended_model_calls()         the statuses of all started calls so far; undef of one that has not ended
#   retry_waits()               milliseconds that are left of each wait before a retry, by the clients' clock
#   advance_clients($seconds)   advances this clock; returns how many waits have ended
#
# OPTIONS
#   text        of the request: 'use INPUT OUTPUT' are the tokens that it uses; 'fail STATUS'; 'break' (a stream that
#               ends early)
#   stream      1: the response is a stream              usage       0: a stream of openai without include_usage
#   max_tokens  of the request (none; anthropic: 64)     retries     maxRetries of the client (that of the package, 2)
#   prefix      of the path, such as '/a' (none)
package RateLimit::Models;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Basename qw(dirname);
use IPC::Open2 qw(open2);
use JSON::PP ();
use RateLimit qw(wait_for);

our @EXPORT_OK = qw(model_server model_requests hold_responses held_responses release_responses model_call
    start_model_call model_outcome ended_model_calls retry_waits advance_clients);

my $json  = JSON::PP->new->canonical->utf8->allow_nonref;
my $owner = $$;
my %nodes;    # by script: { pid, in, out }

sub ask {
    my ($script, %command) = @_;
    my $node = $nodes{$script} //= do {
        my $pid = open2(my $in, my $out, 'node', dirname(__FILE__) . "/../$script.js");
        { pid => $pid, in => $in, out => $out };
    };
    print { $node->{out} } $json->encode(\%command), "\n";
    $node->{out}->flush;
    my $answer = $json->decode(readline($node->{in}) // croak "$script has ended");
    croak "$command{operation}: $answer->{error}" if defined $answer->{error};
    return $answer->{result};
}

sub server { my ($operation) = @_; return ask('model_server', operation => $operation) }
sub clients { my ($operation, %command) = @_; return ask('model_clients', operation => $operation, %command) }

sub model_server      { return server('listen') }
sub model_requests    { return server('requests') }
sub hold_responses    { return server('hold') }
sub held_responses    { return server('held') }
sub release_responses { return server('release') }

sub command {
    my ($port, $api, $key, %options) = @_;
    $options{max_tokens} //= 64 if $api eq 'anthropic';
    $options{maxRetries} = delete $options{retries} if exists $options{retries};
    return (%options, port => $port, api => $api, key => $key);
}

sub start_model_call { my (@call) = @_; return clients('start', command(@call)) }
sub model_call       { my (@call) = @_; return model_outcome(start_model_call(@call)) }

sub model_outcome {
    my ($number) = @_;
    wait_for("the end of call $number", sub { defined((ended_model_calls())[$number]) });
    return clients('outcome', number => $number);
}

sub ended_model_calls { return @{ clients('ended') } }
sub retry_waits       { return @{ clients('waits') } }

sub advance_clients {
    my ($seconds) = @_;
    return clients('advance', milliseconds => 0 + sprintf '%.0f', $seconds * 1000);
}

END {
    if ($$ == $owner) {
        local $? = 0;
        for my $node (values %nodes) {
            close $node->{out};
            waitpid $node->{pid}, 0;
        }
    }
}

1;
