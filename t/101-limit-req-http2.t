# leaky_bucket behaves like limit_req for many concurrent streams of one HTTP/2 connection.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::HTTP2;
use RateLimit::Twins qw(compare_twins pass_time twin_config);
use Test::More;

my %conf = twin_config();
$conf{http} .= "http2_max_concurrent_streams 1000;\n";
my $h2_port = (split ' ', $ENV{RL_PORTS})[-1];
my $nginx   = start_nginx(%conf, servers => "server { listen 127.0.0.1:$h2_port http2; $conf{server} }");

compare_twins(
    $nginx,
    sub {
        my ($run, $first, $second, $pause) = @_;
        my $client = RateLimit::HTTP2->new($h2_port);
        $client->ping or die "no answer to a ping\n";
        my %after;    # seconds by stream
        my $wave = sub {
            my ($uris) = @_;
            my @streams = map { $client->request('GET', $_, headers => [ 'x-run' => $run ]) } @$uris;
            $client->send->ping or die "no answer to a ping\n";
            return @streams;
        };
        # Records which streams have ended, with the seconds since they began. Returns true if all have ended.
        my $note = sub {
            my ($after, @streams) = @_;
            $client->ping or die "no answer to a ping\n";
            $after{$_} //= $after for grep { $client->stream($_)->{ended} } @streams;
            return !grep { !defined $after{$_} } @streams;
        };
        my @now = $wave->($first);
        pass_time($nginx, $pause, sub { $note->($_[0], @now); return 0 });
        my @later = $wave->($second);
        pass_time($nginx, 10, sub { $note->($_[0] + $pause, @now) & $note->($_[0], @later) }) or die "no answers\n";
        $client->close;
        return map { [ map { { status => $client->stream($_)->{status}, after => $after{$_} } } @$_ ] } \@now, \@later;
    }
);

done_testing;
