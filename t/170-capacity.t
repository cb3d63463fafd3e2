# How many clients a zone of 1 MB holds, compared with limit_req.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use RateLimit qw(start_nginx);
use Test::More;

my $megabyte = 1024 * 1024;
my $goal     = 40;                                                                     # bytes per client
my @small    = qw(token_bucket leaky_bucket gcra fixed_window sliding_window);
my @zones    = (@small, qw(sliding_buckets sliding_log));

my $nginx = start_nginx(
    log_level => 'crit',
    http      => join("\n",
        'keepalive_requests 10000000;',
        'limit_req_zone $arg_k zone=limit_req:1m rate=1r/m;',
        map { "rate_limit_zone \$arg_k zone=$_:1m rate=1r/d algorithm=$_;" } @zones),
    server => join("\n",
        'access_log off;',
        'location /limit_req { limit_req zone=limit_req; empty_gif; }',
        map { ("location /$_ { rate_limit zone=$_; empty_gif; }", "location /look/$_ { rate_limit zone=$_ cost=0; empty_gif; }") }
            @zones),
);

# Sends a request for each client, many at a time. Returns how many responses match. A response to HEAD has no body, so
# it ends with an empty line.
sub count_answers {
    my ($path, $pattern, @keys) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nginx->port) or die "connect: $!";
    my $matching = 0;
    while (my @some = splice @keys, 0, 100) {
        print {$socket} map { "HEAD $path?k=$_ HTTP/1.1\r\nHost: h\r\n\r\n" } @some or die "write: $!";
        $socket->flush;
        my ($text, $answers) = ('', 0);
        while ($answers < @some) {
            sysread $socket, $text, 65536, length $text or die "nginx closed the connection";
            $answers = () = $text =~ /\r\n\r\n/g;
        }
        $matching += () = $text =~ /$pattern/g;
    }
    return $matching;
}

my $remembered = qr/X-RateLimit-Remaining: 0/;

my $clients = int($megabyte / $goal);
for my $zone (@small) {
    my @keys = map { "fit$_" } 1 .. $clients;
    is(count_answers("/$zone", qr/^HTTP\/1\.1 200/m, @keys), $clients, "$zone admits $clients clients");
    is(count_answers("/look/$zone", $remembered, @keys), $clients,
        "$zone holds all of them: $goal bytes per client or less");
}

# The number of clients in a full zone. With RL_LONG=1, all algorithms are measured.
for my $zone ($ENV{RL_LONG} ? @zones : qw(sliding_window sliding_buckets)) {
    my @keys = map { "full$_" } 1 .. 45_000;
    count_answers("/$zone", qr/200/, @keys);
    my $held = count_answers("/look/$zone", $remembered, @keys);
    $held += count_answers("/look/$zone", $remembered, map { "fit$_" } 1 .. $clients) if grep { $_ eq $zone } @small;
    cmp_ok($held, '>', 10_000, sprintf '%s: a full zone of 1 MB holds %d clients, %.1f bytes each', $zone, $held, $megabyte / $held);
}

# limit_req evicts the oldest client first: from the newest back, the first client that it admits again was evicted.
my @keys = map { "k$_" } 1 .. 20_000;
count_answers('/limit_req', qr/200/, @keys);
my $held = count_answers('/limit_req', qr/^HTTP\/1\.1 503/m, reverse @keys);
cmp_ok($held, '<', $clients, sprintf 'limit_req: 1 MB holds %d clients, %.1f bytes each', $held, $megabyte / $held);

done_testing;
