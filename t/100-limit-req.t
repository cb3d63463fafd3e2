# leaky_bucket in place of limit_req: the same words, the same statuses, the same delays, the same log.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(await_answers);
use RateLimit::Twins qw(compare_twins hold_worker twin_config);
use Test::More;
use Time::HiRes qw(sleep time);

my $nginx = start_nginx(twin_config());

# Sends each request of a wave on a connection that nginx has accepted already, all at one moment.
sub send_wave {
    my ($run, $connections, $uris, $from) = @_;
    my $go_on = hold_worker($nginx);
    $connections->[$_]->request('GET', $uris->[$_], [ 'X-Run' => $run ]) for 0 .. $#$uris;
    sleep 0.001 while time < $from;
    $go_on->();
    my $now = time;
    $_->{sent_at} = $now for @$connections;
    return $now;
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
        my $began = send_wave($run, \@now, $first, 0);
        # Reads on while it waits for the second wave, so that the times of answers are right.
        await_answers($began + $pause - 0.01 - time, @now);
        send_wave($run, \@later, $second, $began + $pause);
        await_answers(30, @connections) or die "no answers\n";
        $_->close for @connections;
        return map { [ map { ($_->answers)[0] } @$_ ] } \@now, \@later;
    }
);

done_testing;
