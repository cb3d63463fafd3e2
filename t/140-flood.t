# A flood of new clients does not evict a limited client from the zone.
use strict;
use warnings;

use lib 't/lib';
use Digest::MD5 qw(md5_hex);
use POSIX qw(:sys_wait_h);
use RateLimit qw(start_nginx slurp);
use Test::More;
use Time::HiRes qw(sleep);

my $flood     = 200_000;    # new clients, each with one request
my $processes = 2;
my $batch     = 500;        # requests in one write
my $limit     = 5;
my %limited   = (
    fixed_window    => "rate=${limit}r/d align=first",
    sliding_window  => "rate=${limit}r/d",
    sliding_buckets => "rate=${limit}r/d",
    sliding_log     => "rate=${limit}r/d",
    token_bucket    => "rate=${limit}r/d",
    leaky_bucket    => 'rate=1r/d burst=' . ($limit - 1),
    gcra            => 'rate=1r/d burst=' . ($limit - 1),
);
my @algorithms = sort keys %limited;

my ($http, $server, $all) = ("access_log off; keepalive_requests 10000000; client_header_buffer_size 64k;\n", '', '');
for my $name (@algorithms) {
    $http .= "rate_limit_zone \$arg_k zone=$name:1m algorithm=$name $limited{$name};\n";
    my $apply = "rate_limit zone=$name" . ($name eq 'leaky_bucket' ? ' nodelay;' : ';');
    $server .= "location = /$name { $apply empty_gif; }\n";
    $all    .= "$apply ";
}
# One request of the flood is a new client in every zone at once.
$server .= "location = /all { $all rate_limit_headers off; empty_gif; }\n";
my $nginx = start_nginx(http => $http, server => $server, workers => 2);

sub ask {
    my ($zone, $client) = @_;
    my $answer = $nginx->get("/$zone?k=$client");
    return $answer->{status} . ' ' . $answer->header('X-RateLimit-Remaining');
}

# Sends requests of new clients in large writes. Returns how many responses had status 200.
sub send_flood {
    my ($number) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nginx->port) or die "connect: $@\n";
    my ($admitted, $client) = (0, 0);
    my $mark = "HTTP/1.1 ";
    while ($client < $flood / $processes) {
        my $text = '';
        for (1 .. $batch) {
            my $key = md5_hex("$$ $number $client");
            $client++;
            $text .= "GET /all?k=$key HTTP/1.1\r\nHost: a\r\n\r\n";
        }
        print {$socket} $text or die "write: $!\n";
        $socket->flush;
        my ($answered, $rest) = (0, '');
        while ($answered < $batch) {
            sysread $socket, $rest, 1 << 20, length $rest or die "the connection ended early\n";
            # The last response may be incomplete: keep as many bytes as the mark and the status have.
            while ($rest =~ /\G.*?\Q$mark\E(\d{3})/gcs) {
                $answered++;
                $admitted++ if $1 == 200;
            }
            $rest = substr $rest, pos($rest) // 0;
        }
    }
    return $admitted;
}

for my $name (@algorithms) {
    my @answers = map { ask($name, 'limited') } 1 .. $limit + 1;
    is("@answers", '200 4 200 3 200 2 200 1 200 0 429 0', "$name: used up");
    ask($name, 'half') for 1 .. 3;
}

my %children;
for my $number (1 .. $processes) {
    my $file = "$ENV{RL_DIR}/flood-$number";
    defined(my $pid = fork) or die "fork: $!\n";
    if (!$pid) {
        my $admitted = eval { send_flood($number) } // "failed: $@";
        open my $out, '>', $file or POSIX::_exit(1);
        print {$out} $admitted;
        close $out;
        POSIX::_exit(0);
    }
    $children{$pid} = $file;
}

my ($asked, %escaped, $admitted) = (0);
while (%children) {
    for my $name (@algorithms) {
        $asked++;
        my $answer = ask($name, 'limited');
        $escaped{"$name: $answer"}++ if $answer ne '429 0';
    }
    sleep 0.01;    # leaves CPU time to the flood
    while ((my $pid = waitpid -1, WNOHANG) > 0) {
        my $file = delete $children{$pid} or next;
        $admitted += slurp($file);
    }
}

cmp_ok($asked, '>=', 100, "the limited client sent $asked requests during the flood");
is_deeply(\%escaped, {}, 'all requests of the limited client were rejected');
is($admitted, $flood, "all $flood new clients were admitted");
for my $name (@algorithms) {
    is(ask($name, 'limited'), '429 0', "$name: the client is limited after the flood");
    is(ask($name, 'half'),    '200 1', "$name: a client with more requests than those of the flood kept its count");
}
unlike($nginx->error_log, qr/no slot is free|\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors');

done_testing;
