# A variable as the rate: each client has its own, an invalid value uses on_error, a new value takes effect at once.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use Test::More;

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);

my ($zones, $locations) = ('', '');
for my $algorithm (@algorithms) {
    $zones     .= "rate_limit_zone \$http_x_client zone=$algorithm:1m rate=\$http_x_rate algorithm=$algorithm;\n";
    $locations .= "location /$algorithm/ { rate_limit zone=$algorithm; empty_gif; }\n";
}
my $nginx = start_nginx(
    http => <<"HTTP" . <<'HTTP',
$zones
HTTP
map $http_x_plan $plan {
    default  2r/366d;
    premium  5r/366d;
    both     9r/h,3r/366d;
    admin    off;
    broken   many;
    empty    "";
}
rate_limit_zone $http_x_client zone=plan:1m rate=$plan;
rate_limit_zone $http_x_client zone=text:1m rate=${http_x_count}r/366d;
rate_limit_zone $http_x_client zone=closed:1m rate=$http_x_rate on_error=closed;
rate_limit_zone $http_x_client zone=one:1m rate=$http_x_rate rates=1;
rate_limit_zone $http_x_client zone=eight:1m rate=$http_x_rate rates=8;
rate_limit_zone $http_x_client zone=log5:1m rate=$http_x_rate algorithm=sliding_log log=5;
rate_limit_zone $http_x_client zone=bucket:1m rate=$http_x_rate algorithm=token_bucket capacity=3;
rate_limit_zone $http_x_client zone=burst:1m rate=$http_x_rate algorithm=gcra burst=3;
rate_limit_zone $http_x_client zone=fixed:1m rate=9r/366d;
HTTP
    server => $locations . <<'SERVER',
add_header X-Status $rate_limit_status always;
location /plan/   { rate_limit zone=plan; empty_gif; }
location /text/   { rate_limit zone=text; empty_gif; }
location /closed/ { rate_limit zone=closed; empty_gif; }
location /closed-page/ { rate_limit zone=closed; error_page 503 /503.html; empty_gif; }
location = /503.html { rate_limit zone=closed; }
location /open-and-fixed/   { rate_limit zone=plan; rate_limit zone=fixed; empty_gif; }
location /closed-and-fixed/ { rate_limit zone=fixed; rate_limit zone=closed; empty_gif; }
location /fixed/  { rate_limit zone=fixed cost=0; empty_gif; }
location /one/    { rate_limit zone=one; empty_gif; }
location /eight/  { rate_limit zone=eight; empty_gif; }
location /log5/   { rate_limit zone=log5; empty_gif; }
location /bucket/ { rate_limit zone=bucket; empty_gif; }
location /burst/  { rate_limit zone=burst; empty_gif; }
SERVER
);
$nginx->write_file('503.html', "closed\n");

# Sends $times requests. Returns each status, with the remaining count if there was a decision.
sub ask {
    my ($path, $times, $client, %headers) = @_;
    my @seen;
    for (1 .. $times) {
        my $response = $nginx->get($path, 'X-Client' => $client, map { ("X-$_" => $headers{$_}) } keys %headers);
        my $left     = $response->header('X-RateLimit-Remaining');
        push @seen, $response->{status} . (defined $left ? ":$left" : '');
        $seen[-1] .= ' ' . $response->header('X-Status') if $response->header('X-Status') =~ /BYPASSED|ERROR/;
    }
    return join ', ', @seen;
}

# Tiers.
is ask('/plan/', 3, 'a'), '200:1, 200:0, 429:0', 'the rate of the default plan';
is ask('/plan/', 6, 'b', Plan => 'premium'), '200:4, 200:3, 200:2, 200:1, 200:0, 429:0', 'the rate of another plan';
is ask('/plan/', 4, 'c', Plan => 'both'), '200:2, 200:1, 200:0, 429:0', 'several rates';
is ask('/plan/', 3, 'd', Plan => 'admin'), '200 BYPASSED, 200 BYPASSED, 200 BYPASSED', 'off: not limited, no headers';
is ask('/text/', 2, 'e', Count => 1), '200:0, 429:0', 'a rate of text and a variable';
is ask('/bucket/', 1, 'f', Rate => '9r/d'), '200:2', 'capacity= holds for a variable rate';
is ask('/burst/',  1, 'f', Rate => '9r/d'), '200:3', 'burst= holds for a variable rate';

# A client changes its plan.
is ask('/plan/', 2, 'g'), '200:1, 200:0', 'a client uses up its plan';
is ask('/plan/', 4, 'g', Plan => 'premium'), '200:2, 200:1, 200:0, 429:0',
    'a better plan applies at once, minus the used requests';
is ask('/plan/', 1, 'g'), '429:0', 'a worse plan applies at once';
is ask('/plan/', 1, 'g', Plan => 'admin'), '200 BYPASSED', 'an unlimited plan applies at once';
is ask('/plan/', 1, 'g', Plan => 'premium'), '429:0', 'the count is kept during the unlimited plan';
for my $algorithm (grep { !/leaky|gcra/ } @algorithms) {
    my $path = "/$algorithm/";
    is ask($path, 2, 'h', Rate => '3r/360d'), '200:2, 200:1', "$algorithm: two of three are used";
    is ask($path, 1, 'h', Rate => '9r/360d'), '200:6', "$algorithm: a higher count keeps the used requests";
    is ask($path, 1, 'h', Rate => '3r/360d'), '429:0', "$algorithm: back to the lower count";
    is ask($path, 1, 'h', Rate => '2r/360d'), '429:0', "$algorithm: a count below the used requests";
    is ask($path, 1, 'h', Rate => '4r/360d'), '200:0', "$algorithm: only admitted requests were charged";
}
for my $algorithm (qw(leaky_bucket gcra)) {
    my $path = "/$algorithm/";
    is ask($path, 2, 'h', Rate => '1r/360d'), '200:0, 429:0', "$algorithm: one request is used";
    my $wait = sub { $nginx->get($path, 'X-Client' => 'h', 'X-Rate' => $_[0])->header('Retry-After') };
    cmp_ok $wait->('100r/h'), '<=', 36, "$algorithm: a higher rate shortens the wait at once";
    cmp_ok $wait->('1r/360d'), '>', 36, "$algorithm: a lower rate lengthens the wait again";
}

# Invalid rates.
my @wrong = ('many', '0r/s', '-1r/s', '1r/0s', '1r/s,', '10 r/s', '1r/s;2r/s', '1000000001r/s', '9007199254740992r/s', 'x' x 300, '"', 'OFF');
for my $rate (@wrong) {
    my $title = length $rate > 40 ? 'a long text' : $rate;
    is ask('/token_bucket/', 2, 'i', Rate => $rate), '200 ERROR, 200 ERROR', "on_error=open passes: $title";
    is ask('/closed/',       2, 'i', Rate => $rate), '503 ERROR, 503 ERROR', "on_error=closed refuses: $title";
}
is ask('/token_bucket/', 1, 'i'), '200 ERROR', 'on_error=open passes: nothing at all';
is ask('/closed/',       1, 'i'), '503 ERROR', 'on_error=closed refuses: nothing at all';
is ask('/plan/', 1, 'i', Plan => 'empty'), '200 ERROR', 'an empty rate of a map';
is ask('/closed/', 1, 'j', Rate => '1r/366d'), '200:0', 'the same zone works with a valid rate';
is ask('/closed/', 1, ''), '200 BYPASSED', 'a request with an empty key needs no rate';
is $nginx->get('/closed-page/', 'X-Client' => 'k', 'X-Rate' => 'many')->{body}, "closed\n",
    'on_error=closed: the error page is shown, though it is under the same limit';

# A zone with an invalid rate beside a zone with a valid one.
is ask('/open-and-fixed/', 1, 'l', Plan => 'broken'), '200:8 ERROR', 'open: the other zone still counts';
is ask('/closed-and-fixed/', 1, 'l', Rate => 'many'), '503 ERROR', 'closed: the request is rejected';
is ask('/fixed/', 1, 'l'), '200:8', 'closed: the other zone is not charged';

# Invalid rates are logged once a minute for each zone.
{
    my $log = $nginx->error_log;
    for my $zone (qw(token_bucket closed plan)) {
        my @lines = $log =~ /(.*rate ".*" of zone "$zone".*)/g;
        # A slow run may take longer than a minute, but not several minutes.
        ok @lines >= 1 && @lines <= 2, "an invalid rate of zone $zone is logged once a minute" or diag scalar @lines;
        like $lines[0], qr/\[error\] .* rate "(?:many|)" of zone "$zone" .*client: "?127/,
            "zone $zone: the line names the rate";
    }
    is scalar(() = $log =~ /of zone "gcra"/g), 0, 'a zone without invalid rates is not logged';
}

# The room for rates in a zone.
is ask('/one/', 1, 'm', Rate => '5r/366d'), '200:4', 'rates=1 takes one';
is ask('/one/', 1, 'm', Rate => '5r/366d,9r/2d'), '200 ERROR', 'rates=1 has no room for two';
is ask('/plan/', 1, 'm', Plan => 'both'), '200:2', 'two rates fit by default';
is ask('/token_bucket/', 1, 'm', Rate => '5r/h,9r/d,90r/w'), '200 ERROR', 'three rates do not fit by default';
is ask('/eight/', 1, 'm', Rate => join ',', map {"${_}r/${_}d"} 2 .. 9), '200:1', 'rates=8 takes eight';
is ask('/eight/', 1, 'm', Rate => join ',', map {"${_}r/${_}d"} 2 .. 10), '200 ERROR', 'rates=8 has no room for nine';
is ask('/log5/', 6, 'm', Rate => '5r/366d'), '200:4, 200:3, 200:2, 200:1, 200:0, 429:0', 'log=5 takes five';
is ask('/log5/', 1, 'm', Rate => '6r/366d'), '200 ERROR', 'log=5 has no room for six';
is ask('/log5/', 1, 'n', Rate => '5r/s,4r/d,3r/w'), '200:2', 'a sliding_log fits any number of rates';
is ask('/sliding_log/', 1, 'm', Rate => '100r/d'), '200:99', 'a sliding_log has 100 entries by default';
is ask('/sliding_log/', 1, 'm', Rate => '101r/d'), '200 ERROR', 'a sliding_log does not fit 101 entries by default';

# More distinct rates than a worker caches.
{
    my @wrong;
    for my $round (1 .. 2) {
        for my $count (2 .. 200) {
            my $seen = ask('/token_bucket/', 1, "many$count", Rate => "${count}r/d");
            push @wrong, "$count: $seen" if $seen ne '200:' . ($count - $round);
        }
    }
    is "@wrong", '', 'two hundred distinct rates, each applied';
}

done_testing;
