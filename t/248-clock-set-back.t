# In shared memory, a clock that is set back neither restores an expired window nor ends a current one.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(statuses);
use Test::More;

# Each zone admits five requests in an hour.
my %words = (
    token_bucket    => 'rate=5r/h',
    leaky_bucket    => 'rate=5r/h burst=4',
    gcra            => 'rate=5r/h burst=4',
    fixed_window    => 'rate=5r/h',
    fixed_first     => 'rate=5r/h align=first',
    sliding_window  => 'rate=5r/h',
    sliding_buckets => 'rate=5r/h',
    sliding_log     => 'rate=5r/h',
    several         => 'rate=5r/h,90r/2h',
    variable        => 'rate=$arg_rate',
);
my @zones = sort keys %words;
my ($http, $server) = ('', '');
for my $zone (@zones) {
    my $algorithm = { fixed_first => 'fixed_window', several => 'gcra burst=4', variable => 'sliding_window' }->{$zone} // $zone;
    my $nodelay = $zone eq 'leaky_bucket' ? 'nodelay' : '';
    $http   .= "rate_limit_zone \$arg_k zone=$zone:1m algorithm=$algorithm $words{$zone};\n";
    $server .= "location = /$zone { rate_limit zone=$zone $nodelay; empty_gif; }\n"
        . "location = /look/$zone { rate_limit zone=$zone cost=0 $nodelay; empty_gif; }\n";
}
# Only the time of day is frozen, not the monotonic clock: nginx can detect that the time was set back.
my $nginx = start_nginx(http => $http, server => $server, workers => 2, clock => 'day');
my $run   = 0;    # each run has a new client

sub ask {
    my ($zone, $count) = @_;
    return map { $nginx->get("/$zone?k=client$run&rate=5r/h") } 1 .. $count;
}

sub left {
    my ($zone) = @_;
    return $nginx->get("/look/$zone?k=client$run&rate=5r/h")->header('X-RateLimit-Remaining');
}

sub use_up {
    $run++;
    # Ten minutes after a whole hour.
    $nginx->advance(3600 - $nginx->now % 3600 + 600);
    is statuses(ask($_, 6)), '200 200 200 200 200 429', "$_: used up" for @zones;
    return;
}

for my $back (7 * 3600, 6 * 3600, 5.9 * 3600, 30 * 86_400) {
    subtest "six hours later the clock goes back by $back seconds" => sub {
        use_up();
        $nginx->advance(6 * 3600);
        is left($_), 5, "$_: the quota is back" for @zones;
        $nginx->advance(-$back);
        is left($_), 5, "$_: the quota remains after the clock went back" for @zones;
        is statuses(ask($_, 6)), '200 200 200 200 200 429', "$_: the limit applies" for @zones;
    };
}

for my $back (60, 7 * 3600) {
    subtest "five minutes later the clock goes back by $back seconds" => sub {
        use_up();
        $nginx->advance(300);
        $nginx->advance(-$back);
        for my $zone (@zones) {
            my ($answer) = ask($zone, 1);
            is $answer->{status}, 429, "$zone: used requests stay used";
            cmp_ok $answer->header('Retry-After'), '<=', 7200, "$zone: the wait does not include the step of the clock";
        }
    };
}

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
