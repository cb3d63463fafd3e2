# A flood of new clients evicts a limited client no more easily from a zone with sync= than from one without.
use strict;
use warnings;

use lib 't/lib';
use Digest::MD5 qw(md5_hex);
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for);
use RateLimit::Fleet qw(metric);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $batch   = 500;    # new clients in one write, more than the zone has room for
my $batches = 20;
my %words   = (
    token_bucket    => 'rate=1r/366d capacity=10',
    fixed_window    => 'rate=10r/366d align=first',
    sliding_window  => 'rate=10r/366d',
    sliding_buckets => 'rate=10r/366d',
);
my %times = (memory => '', sync_10ms => 'redis=fleet sync=10ms', sync_100ms => 'redis=fleet sync=100ms', sync_1s => 'redis=fleet sync=1s');

my $redis = start_redis();
my ($http, $server, $all) = ("rate_limit_redis fleet @{[ $redis->url ]} timeout=10s;\n", '', '');
$http .= "access_log off; keepalive_requests 10000000; client_header_buffer_size 64k;\n";
my @zones;
for my $algorithm (sort keys %words) {
    for my $time (sort keys %times) {
        my $zone = "${algorithm}_$time";
        push @zones, $zone;
        $http   .= "rate_limit_zone \$arg_k zone=$zone:64k algorithm=$algorithm $words{$algorithm} $times{$time};\n";
        $server .= "location = /$zone { rate_limit zone=$zone; empty_gif; }\n";
    }
}
# One request is a new client in four zones at once.
for my $algorithm (sort keys %words) {
    my $limits = join ' ', map {"rate_limit zone=${algorithm}_$_;"} sort keys %times;
    $server .= "location = /all/$algorithm { $limits rate_limit_headers off; empty_gif; }\n";
}
my $nginx = start_nginx(http => $http, server => "location = /metrics { rate_limit_metrics; }\n$server");

# Sends requests in one write. Returns how many responses had status 200.
sub send_batch {
    my ($socket, $path, @keys) = @_;
    print {$socket} join '', map {"GET $path?k=$_ HTTP/1.1\r\nHost: a\r\n\r\n"} @keys or die "write: $!\n";
    $socket->flush;
    my ($answered, $admitted, $rest) = (0, 0, '');
    while ($answered < @keys) {
        sysread $socket, $rest, 1 << 20, length $rest or die "the connection ended early\n";
        # The last response may be incomplete.
        while ($rest =~ m{\G.*?HTTP/1\.1 (\d{3})}gcs) {
            $answered++;
            $admitted++ if $1 == 200;
        }
        $rest = substr $rest, pos($rest) // 0;
    }
    return $admitted;
}

my %admitted;

sub ask_all {
    my ($times) = @_;
    for my $zone (@zones) {
        for (1 .. $times) {
            $admitted{$zone}++ if $nginx->get("/$zone?k=limited")->{status} == 200;
        }
    }
    return;
}

ask_all(15);
my @synced = grep {/_sync_/} @zones;
wait_for('Redis to know of the client', sub { @{ $redis->command('KEYS', 'rate_limit:*:{limited}') } == @synced });

my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nginx->port) or die "connect: $@\n";
my ($new, $flood) = (0, 0);
for my $number (1 .. $batches) {
    for my $algorithm (sort keys %words) {
        $flood += send_batch($socket, "/all/$algorithm", map { md5_hex("$algorithm $number $_") } 1 .. $batch);
        $new   += $batch;
    }
    ask_all(1);
}
is $flood, $new, "$new new clients were admitted";
for my $zone (@zones) {
    is $admitted{$zone}, 10, "$zone: the limited client was admitted exactly its limit";
    cmp_ok metric($nginx, 'rate_limiter_evictions_total', $zone), '>', $batch, "$zone: the zone was far too small";
}
my $late = 'sliding_window_sync_1s';
my ($lost, $forgotten) = map { metric($nginx, "rate_limiter_${_}_total", $late) } qw(sync_lost evictions);
cmp_ok $lost, '>', 0,           "$lost requests were not sent to Redis, and the metrics count them";
cmp_ok $lost, '<=', $forgotten, "$forgotten clients were evicted, and the metrics count them";
unlike $nginx->error_log, qr/no slot is free|redis "|\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
