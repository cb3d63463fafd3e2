# leaky_bucket behaves like limit_req: the same parameters, statuses, delays and log lines.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(await_answers await_reading);
use RateLimit::Twins qw(compare_twins pass_time twin_config);
use Test::More;

my $nginx = start_nginx(twin_config());

# Sends each request of a wave on a connection that nginx has already accepted.
sub send_wave {
    my ($run, $connections, $uris) = @_;
    $connections->[$_]->request('GET', $uris->[$_], [ 'X-Run' => $run ]) for 0 .. $#$uris;
    await_reading(@$connections);
    return;
}

# Records which responses have arrived, with the seconds since their requests. Returns true if all have arrived.
sub note_answers {
    my ($after, @connections) = @_;
    my $missing = 0;
    for my $connection (@connections) {
        $connection->fill;
        my $answer = $connection->{answers}[0];
        $answer ? ($answer->{virtual} //= $after) : $missing++;
    }
    return !$missing;
}

compare_twins(
    $nginx,
    sub {
        my ($run, $first, $second, $pause) = @_;
        my @connections = map { RateLimit::Async->new($nginx->port) } @$first, @$second;
        $_->request('GET', '/free') for @connections;
        await_answers(30, @connections) or die "no answers\n";
        $_->answers for @connections;

        my @now   = @connections[ 0 .. $#$first ];
        my @later = @connections[ @$first .. $#connections ];
        send_wave($run, \@now, $first);
        pass_time($nginx, $pause, sub { note_answers($_[0], @now); return 0 });
        send_wave($run, \@later, $second);
        pass_time($nginx, 10, sub { note_answers($_[0] + $pause, @now) & note_answers($_[0], @later) }) or die "no answers\n";
        $_->close for @connections;
        return map {
            [ map { my ($answer) = $_->answers; { status => $answer->{status}, after => $answer->{virtual} } } @$_ ]
        } \@now, \@later;
    }
);

done_testing;
