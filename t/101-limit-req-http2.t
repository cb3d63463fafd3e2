# leaky_bucket in place of limit_req, as in 100-limit-req.t, for many streams of one HTTP/2 connection.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::HTTP2;
use RateLimit::Twins qw(compare_twins twin_config);
use Test::More;
use Time::HiRes qw(sleep time);

my %conf = twin_config();
$conf{http} .= "http2_max_concurrent_streams 1000;\n";
my $nginx = start_nginx(%conf, listen => 'http2');

compare_twins(
    $nginx,
    sub {
        my ($run, $first, $second, $pause) = @_;
        my $client = RateLimit::HTTP2->new($nginx->port);
        $client->ping or die "no answer to a ping\n";
        my $ask   = sub { $client->request('GET', $_[0], headers => [ 'x-run' => $run ]) };
        my @now   = map { $ask->($_) } @$first;
        my $began = time;
        $client->send;
        $client->await($began + $pause - 0.01 - time, @now);
        my @later = map { $ask->($_) } @$second;
        sleep 0.001 while time < $began + $pause;
        $client->send;
        $client->await(30) or die "no answers\n";
        $client->close;
        return map { [ map { $client->stream($_) } @$_ ] } \@now, \@later;
    }
);

done_testing;
