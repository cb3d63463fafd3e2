# Which requests count as one client, how several rates and the options of a zone work, and that Retry-After suffices.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use Test::More;

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);

my $zones     = '';
my $locations = '';

sub location {
    my ($name, $options, $limit_options, $key) = @_;
    $zones     .= 'rate_limit_zone ' . ($key // '$http_x_client') . " zone=$name:1m $options;\n";
    $locations .= "location /$name { rate_limit zone=$name " . ($limit_options // '') . "; empty_gif; }\n";
    return;
}

location('day', 'rate=2r/d algorithm=token_bucket');
location('pair', 'rate=2r/d algorithm=token_bucket', '', '$http_x_client|$arg_tenant');
location('text', 'rate=2r/d algorithm=token_bucket', '', 'everybody');
location('binary', 'rate=2r/d algorithm=token_bucket', '', '$binary_remote_addr');
for my $algorithm (@algorithms) {
    my $nodelay = $algorithm eq 'leaky_bucket'          ? 'nodelay'  : '';
    my $two     = $algorithm =~ /^(?:leaky_bucket|gcra)/ ? 'burst=1'  : '';
    my $many    = $two                                  ? 'burst=99' : '';
    location("several-$algorithm",  "rate=4r/30d,2r/360d algorithm=$algorithm $two",                   $nodelay);
    location("together-$algorithm", "rate=2r/s,2r/360d algorithm=$algorithm $two min_interval=1s",     $nodelay);
    location("interval-$algorithm", "rate=99r/366d algorithm=$algorithm min_interval=1900ms $many",    $nodelay);
    location("told-$algorithm",     "rate=2r/2s algorithm=$algorithm $two",                            $nodelay);
    location("all-$algorithm",      "rate=2r/2s algorithm=$algorithm $two count=all",                  $nodelay);
    location("allowed-$algorithm",  "rate=2r/2s algorithm=$algorithm $two count=allowed",              $nodelay);
}

# The clock of nginx is frozen unless the test advances it.
my $nginx = start_nginx(http => $zones, server => $locations, clock => 1);

# Sends $times requests. Returns their statuses and the last response.
sub ask {
    my ($path, $times, %headers) = @_;
    my ($statuses, $last) = ('');
    for (1 .. $times) {
        $last = $nginx->get($path, %headers);
        $statuses .= $statuses eq '' ? $last->{status} : " $last->{status}";
    }
    return wantarray ? ($statuses, $last) : $statuses;
}

is ask('/day', 3, 'X-Client' => 'alice'), '200 200 429', 'a client is admitted up to its limit';
is ask('/day', 3, 'X-Client' => 'bob'),   '200 200 429', 'another client has its own limit';
is ask('/day', 1, 'X-Client' => 'alice'), '429',         'the first client is still limited';
is ask('/day', 1, 'X-Client' => 'Alice'), '200',         'upper and lower case are different clients';
is ask('/day', 5), '200 200 200 200 200', 'an empty key is not limited';
is $nginx->get('/day')->count('X-RateLimit-Limit'), 0, 'an empty key gets no headers';
is ask('/day', 3, 'X-Client' => 'x' x 4000), '200 200 429', 'a key of 4000 bytes is one client';
is ask('/day', 1, 'X-Client' => 'x' x 3999 . 'y'), '200', 'a key with another last byte is another client';

is ask('/pair?tenant=1', 3, 'X-Client' => 'alice'), '200 200 429', 'a key of two variables';
is ask('/pair?tenant=2', 1, 'X-Client' => 'alice'), '200',         'a key of two variables depends on both';
is ask('/text',          2, 'X-Client' => 'alice'), '200 200',     'a constant key counts all clients';
is ask('/text',          1, 'X-Client' => 'bob'),   '429',         'a constant key counts all clients together';
is ask('/binary',        3), '200 200 429', 'a binary key';

for my $algorithm (@algorithms) {
    my ($statuses, $last) = ask("/several-$algorithm", 3, 'X-Client' => 'alice');
    is $statuses, '200 200 429', "$algorithm: of several rates, the tightest applies";
    is $last->header('X-RateLimit-Limit'), 2, "$algorithm: the headers show the tightest rate";
}

for my $algorithm (@algorithms) {
    my ($statuses, $last) = ask("/interval-$algorithm", 2, 'X-Client' => 'alice');
    is $statuses, '200 429', "$algorithm: min_interval= rejects a request that comes too soon";
    is $last->header('Retry-After'), 2, "$algorithm: Retry-After reports min_interval=";
    is ask("/together-$algorithm", 5, 'X-Client' => 'alice'), '200 429 429 429 429',
        "$algorithm: min_interval= rejects although the rate would admit";
}

# Each client retries exactly after Retry-After.
sub wait_as_told {
    my ($passed, @due) = (0);
    for my $algorithm (@algorithms) {
        my $response;
        for (1 .. 8) {
            $response = $nginx->get("/told-$algorithm", 'X-Client' => 'alice');
            last if $response->{status} == 429;
        }
        is $response->{status}, 429, "$algorithm: rejects after some requests";
        push @due, [ $response->header('Retry-After'), $algorithm ];
    }
    for my $row (sort { $a->[0] <=> $b->[0] } @due) {
        my ($when, $algorithm) = @{$row};
        $nginx->advance($when - $passed);
        $passed = $when;
        is ask("/told-$algorithm", 1, 'X-Client' => 'alice'), '200',
            "$algorithm: admits a client that waited for Retry-After";
    }
    return;
}

$nginx->advance(1.89);
is ask("/interval-$_", 1, 'X-Client' => 'alice'), '429',
    "$_: no request is admitted shortly before min_interval=" for @algorithms;
$nginx->advance(0.02);
for my $algorithm (@algorithms) {
    is ask("/interval-$algorithm", 1, 'X-Client' => 'alice'), '200',
        "$algorithm: one request is admitted after min_interval=";
    is ask("/together-$algorithm", 1, 'X-Client' => 'alice'), '200',
        "$algorithm: rejections by min_interval= are not charged to the rate";
}
wait_as_told();

# Clients that send without a pause: with count=allowed some requests are admitted again, with count=all none is.
my %admitted = map { ($_ => 0) } map { ("all-$_", "allowed-$_") } @algorithms;
ask("/$_", 3, 'X-Client' => 'alice') for keys %admitted;
for my $round (1 .. 200) {
    last if !grep { /^allowed/ && !$admitted{$_} } keys %admitted;
    $nginx->advance(0.1);
    for my $name (keys %admitted) {
        $admitted{$name}++ if ask("/$name", 1, 'X-Client' => 'alice') eq '200';
    }
}
for my $algorithm (@algorithms) {
    ok $admitted{"allowed-$algorithm"}, "$algorithm: count=allowed admits a client again that keeps sending";
    next if $algorithm eq 'fixed_window';
    is $admitted{"all-$algorithm"}, 0, "$algorithm: count=all keeps rejecting a client that keeps sending";
}
ok $admitted{'all-fixed_window'}, 'fixed_window: count=all starts again with each window';

done_testing;
