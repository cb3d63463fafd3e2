# With several workers and many clients at once, the limit is exact, and a killed worker blocks no other.
use strict;
use warnings;

use lib 't/lib';
use POSIX ();
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers);
use RateLimit::Parallel qw(in_parallel exact_rate @algorithms);
use Test::More;
use Time::HiRes qw(sleep time);

my $limit    = 400;     # requests that a zone admits; the refill during the test is negligible
my $large    = 10_000;  # the same for the zones that are used while workers are killed
my $clients  = 4;       # client processes
my $each     = 8;       # connections of each process
my $kills    = 20;
my $patience = 60;      # seconds after which a request counts as stuck

my ($http, $server, $together) = ('', '', '');
for my $name (@algorithms) {
    my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
    for ([ $name, $limit ], [ "large_$name", $large ]) {
        my ($zone, $admits) = @$_;
        $http   .= "rate_limit_zone \$arg_k zone=$zone:16m algorithm=$name " . exact_rate($name, $admits) . ";\n";
        $server .= "location = /$zone { rate_limit zone=$zone $nodelay; empty_gif; }\n";
    }
    $together .= "rate_limit zone=large_$name $nodelay; ";
}
$http .= "rate_limit_zone all zone=pair1:1m rate=${limit}r/d;\nrate_limit_zone all zone=pair2:1m rate=1000000r/d;\n";
$server .= "location = /together { $together empty_gif; }\n";
$server .= "location = /pair { rate_limit zone=pair1; rate_limit zone=pair2; empty_gif; }\n";
# Each request enters the zone so often that a worker holds the lock of the client's slot most of the time.
$http .= "rate_limit_zone \$arg_k zone=held:16m rate=40000r/h algorithm=sliding_log count=all;\n";
$server .= "location = /held { rate_limit zone=held cost=20000; empty_gif; }\n";
# Rejections are not logged, so that only the limits slow the workers down.
my $nginx = start_nginx(
    http => "access_log off;\nkeepalive_requests 100000;\nrate_limit_log_level info;\n$http", server => $server,
    workers => 4, log_level => 'notice'
);

# Sends requests over many connections, several in flight on each, and counts statuses.
sub count_statuses {
    my ($uri, $rounds) = @_;
    my %count;
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. $each;
    for (1 .. $rounds) {
        $_->raw("GET $uri HTTP/1.1\r\nHost: localhost\r\n\r\n" x 5, ('GET') x 5) for @connections;
        await_answers(30, @connections) or $count{late}++;
        $count{ $_->{status} }++ for map { $_->answers } @connections;
    }
    return \%count;
}

for my $zone (@algorithms, 'pair') {
    my $rounds = 5;
    my $sent   = $clients * $each * $rounds * 5;
    my $count  = in_parallel($clients, sub { count_statuses("/$zone?k=same", $rounds) });
    is_deeply($count, { 200 => $limit, 429 => $sent - $limit }, "$zone: exactly $limit of $sent are admitted");
}
is($nginx->get('/pair')->{status}, 429, 'both zones are exhausted');

# Sends requests, several in each write, until no more workers are killed and the limit is reached. A broken connection
# is replaced: its worker was killed, and it is unknown which of its requests were counted.
sub ask_until {
    my ($end, $batch, $uri) = @_;
    my %count  = (hung => 0);
    my $text   = "GET $uri HTTP/1.1\r\nHost: localhost\r\n\r\n" x $batch;
    my $finish = time + 200;
    my $connection;
    while (time < $finish) {
        $connection //= eval { RateLimit::Async->new($nginx->port) } or next;
        $connection->raw($text, ('GET') x $batch);
        await_answers($patience, $connection) or $count{hung}++;
        my @statuses = map { $_->{status} } $connection->answers;
        $count{"$uri $_"}++ for @statuses;
        if (@statuses != $batch) {
            $count{broken}++;
            undef $connection;
        } elsif (-e $end && !grep { $_ != 429 } @statuses) {
            last;
        }
    }
    return \%count;
}

subtest "workers are killed, $kills times" => sub {
    my $end = "$ENV{RL_DIR}/end";
    defined(my $killer = fork) or die "fork: $!\n";
    if (!$killer) {
        my %killed;
        for (1 .. $kills) {
            my $workers = wait_for(
                'four workers',
                sub {
                    my @alive = grep { !$killed{$_} } $nginx->workers;
                    return @alive == 4 ? \@alive : undef;
                }
            );
            sleep rand 0.05;    # the worker is busy then
            my $victim = $workers->[ rand @$workers ];
            $killed{$victim} = kill 'KILL', $victim;
        }
        open my $out, '>', $end or POSIX::_exit(1);
        POSIX::_exit(0);
    }
    my @uris  = ('/together?k=kill', '/held?k=kill');
    my $count = in_parallel($clients * 2,
        sub { $_[0] % 2 ? ask_until($end, 2, $uris[1]) : ask_until($end, 20, $uris[0]) });
    waitpid $killer, 0;
    is($?,             0,     'all were killed');
    is($count->{hung}, 0,     'no request is stuck');
    is($count->{died}, undef, 'no client failed');
    cmp_ok($count->{broken}, '>=', $kills / 4, 'connections broke, so busy workers were killed');

    my ($together, $held) = map { $count->{"$_ 200"} } @uris;
    cmp_ok($together, '<=', $large + $kills, 'each kill admits at most one request above the limit');
    cmp_ok($together, '>',  $large / 2,      'a kill loses few requests');
    cmp_ok($held,     '<=', 2 + $kills,      'a kill while the lock is held admits at most one request above the limit');
    for my $zone (@algorithms) {
        # A worker that was killed between two zones had charged only one of them.
        $nginx->get("/large_$zone?k=kill") for 1 .. $kills;
        is($nginx->get("/large_$zone?k=kill")->{status}, 429,
            "$zone: the client is limited, within the number of kills");
        my $new = in_parallel($clients, sub { count_statuses("/$zone?k=new", 3) });
        is($new->{200}, $limit, "$zone: a new client has its exact quota");
    }
};

is(scalar(() = $nginx->error_log =~ /exited on signal 9/g), $kills, 'each kill is logged');
unlike($nginx->error_log, qr/exited on signal (?!9\b)|\[(?:emerg|crit)\]/, 'no worker exited for another reason');

done_testing;
