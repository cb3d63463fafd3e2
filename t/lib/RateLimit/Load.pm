# Traffic in the background of a test, and the response to each request.
#
#   use lib 't/lib';
#   use RateLimit::Load qw(start_load);
#
# FUNCTIONS
#   start_load(%options)        starts the traffic in a new process; returns an object (METHODS). It ends with the
#                               object
#
# OPTIONS
#   ports       of the nginx instances, which the connections use in turn
#   requests    [ PATH, HEADER => VALUE, … ] of each request, used in turn. In a value, %N% stands for the number of the
#               request, so that each may have its own client
#   connections how many (8). Each sends its next request after the response to the last one and a pause
#   pause       seconds (0.002)
#   most        requests in all; by default until stop
#
# METHODS
#   count                       answers so far
#   wait_for($count, $more)     waits until there are $count; with $more, $count more than now
#   stop                        ends the traffic after all responses; returns the answers in the order of their time
#   answers                     the answers so far
#
# ANSWERS are { sent => time, after => seconds, spare => spare_time when it was sent, waited => seconds of spare_time
# until the response, request => its index in `requests`, number => N, status (0 if the connection was closed, or after
# a timeout of 30 seconds), store, error => $rate_limit_store and $rate_limit_error if the headers X-Store and X-Error
# have them, else '-' }
package RateLimit::Load;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use IO::Handle;
use IO::Select;
use List::Util qw(max min);
use POSIX qw(:sys_wait_h);
use RateLimit qw(slurp);
use RateLimit::Async;
use RateLimit::SpareTime qw(spare_time);
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(start_load);

my $patience = 30;
my $loads    = 0;
my @fields   = qw(sent after spare waited request number status store error);

sub start_load {
    my (%options) = @_;
    my $file = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/load-' . ++$loads;
    my $self = bless { file => $file, owner => $$ }, __PACKAGE__;
    unlink $file;
    spare_time();
    defined(my $pid = fork) or croak "fork: $!";
    if ($pid) {
        $self->{pid} = $pid;
        return $self;
    }
    eval { run($file, connections => 8, pause => 0.002, %options); 1 } or warn "load: $@";
    POSIX::_exit(0);
}

# The child process: sends requests until it is told to end.
sub run {
    my ($file, %is) = @_;
    my ($number, $ended) = (0, 0);
    local $SIG{TERM} = sub { $ended = 1 };
    local $SIG{INT}  = 'DEFAULT';
    open my $out, '>', $file or die "$file: $!\n";
    $out->autoflush;
    my @ports   = @{ $is{ports} };
    my @callers = map { { port => $ports[ $_ % @ports ], due => 0 } } 1 .. $is{connections};
    while (1) {
        my $now  = time;
        my @idle = grep { !$_->{asks} } @callers;
        last if $ended && @idle == @callers;
        for my $caller (grep { !$ended && $_->{due} <= $now } @idle) {
            ask($caller, $number++, $is{requests}) if !$is{most} || $number < $is{most};
        }
        await($out, $now, \@callers, $is{pause});
    }
    return;
}

sub ask {
    my ($caller, $number, $requests) = @_;
    my $index = $number % @{$requests};
    my ($path, @headers) = map {s/%N%/$number/gr} @{ $requests->[$index] };
    my $connection = $caller->{connection} //= RateLimit::Async->new($caller->{port});
    $caller->{asks} = { sent => time, spare => spare_time(), request => $index, number => $number };
    $connection->request('GET', $path, \@headers);
    return;
}

# Waits for a response or until the next request is due, and reads the input.
sub await {
    my ($out, $now, $callers, $pause) = @_;
    my @busy  = grep { $_->{asks} } @{$callers};
    my @idle  = grep { !$_->{asks} } @{$callers};
    my $until = min((map { $_->{due} } @idle), $now + 0.1);
    my %by    = map { $_->{connection}{socket} => $_ } @busy;
    for my $socket (IO::Select->new(map { $_->{connection}{socket} } @busy)->can_read(max(0.001, $until - $now))) {
        $by{$socket}{connection}->fill;
    }
    for my $caller (@busy) {
        my ($answer) = $caller->{connection}->answers;
        my $lost = $caller->{connection}{closed} || time - $caller->{asks}{sent} > $patience;
        next if !$answer && !$lost;
        my %is = (%{ delete $caller->{asks} }, status => 0, store => '-', error => '-');
        if ($answer) {
            @is{qw(status store error)} = ($answer->{status}, map { $answer->header($_) // '-' } qw(X-Store X-Error));
        }
        $is{after}  = ($answer ? $answer->{at} : time) - $is{sent};
        $is{waited} = spare_time() - $is{spare};
        print {$out} join(' ', @is{@fields}), "\n";
        delete $caller->{connection} if $lost;
        $caller->{due} = time + $pause;
    }
    return;
}

sub answers {
    my ($self) = @_;
    my @answers;
    for my $line (slurp($self->{file}) =~ /(.*)\n/g) {
        my %is;
        @is{@fields} = split ' ', $line;
        push @answers, \%is;
    }
    return @answers;
}

sub count {
    my ($self) = @_;
    return slurp($self->{file}) =~ tr/\n//;
}

sub wait_for {
    my ($self, $count, $more) = @_;
    $count += $self->count if $more;
    RateLimit::wait_for("$count answers", sub { $self->count >= $count });
    return;
}

sub stop {
    my ($self) = @_;
    $self->end;
    return $self->answers;
}

sub end {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    local ($?, $!) = (0, 0);
    kill 'TERM', $pid;
    my $deadline = time + $patience + 5;
    while (waitpid($pid, WNOHANG) == 0) {
        kill 'KILL', $pid if time > $deadline;
        sleep 0.002;
    }
    return;
}

sub DESTROY {
    my ($self) = @_;
    $self->end if $self->{owner} == $$;
    return;
}

1;
