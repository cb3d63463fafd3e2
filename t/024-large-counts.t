# Counts and costs up to 2^53 - 1 are exact in shared memory, in Redis and with sync=, and survive a change of the rate.
#
# The clocks of nginx and Redis are frozen, so that nothing drains.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config decode_json start_nginx wait_for);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $most   = 9_007_199_254_740_991;
my $redis  = start_redis(clock => 'stopped');
my %places = (
    memory => '',
    redis  => 'redis=one',
    sync   => 'redis=one sync=1h',
);
# sliding_log stores each request, so its counts are small.
my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets);

# The configuration of a zone of each place and algorithm whose limit is $limit.
sub conf {
    my ($limit) = @_;
    my ($http, $server) = ("rate_limit_redis one @{[ $redis->url ]} timeout=60s connect_timeout=60s;\n", '');
    for my $place (sort keys %places) {
        for my $algorithm (@algorithms) {
            my $rate = $algorithm =~ /gcra|leaky/ ? "rate=1r/d burst=@{[ $limit - 1 ]}" : "rate=${limit}r/d";
            my ($name, $nodelay) = ("${place}_$algorithm", $algorithm eq 'leaky_bucket' ? 'nodelay' : '');
            $http   .= "rate_limit_zone \$http_x_client zone=$name:1m $rate algorithm=$algorithm $places{$place};\n";
            $server .= "location = /$name { rate_limit zone=$name cost=\$arg_cost settle=\$arg_actual $nodelay; empty_gif; }\n";
        }
        $http   .= "rate_limit_zone \$http_x_client zone=${place}_plan:1m rate=\$arg_rate max_count=$most $places{$place};\n";
        $http   .= "rate_limit_zone \$http_x_client zone=${place}_small:1m rate=\$arg_rate $places{$place};\n";
        $server .= "location = /${place}_plan { rate_limit zone=${place}_plan cost=\$arg_cost; empty_gif; }\n";
        $server .= "location = /${place}_small { rate_limit zone=${place}_small cost=\$arg_cost; empty_gif; }\n";
    }
    return (http => $http, server => "location /api/ { rate_limit_api; }\n$server", clock => 1);
}

my $nginx = start_nginx(conf($most));

sub ask {
    my ($path, $client, $cost, $actual) = @_;
    my $response = $nginx->get("/$path?cost=$cost&actual=" . ($actual // $cost), 'X-Client' => $client);
    return join ' ', $response->{status}, $response->header('X-RateLimit-Remaining') // '-';
}

for my $place (sort keys %places) {
    for my $algorithm (@algorithms) {
        my $zone = "${place}_$algorithm";
        subtest $zone => sub {
            is ask($zone, 'a', 1), "200 @{[ $most - 1 ]}", 'a small cost';
            is ask($zone, 'a', 4_294_967_296), "200 @{[ $most - 4_294_967_297 ]}", 'a cost above 32 bits';
            is ask($zone, 'a', $most), "429 @{[ $most - 4_294_967_297 ]}", 'a cost that does not fit';
            is ask($zone, 'a', $most - 4_294_967_297), '200 0', 'all that is left';
            is ask($zone, 'a', 1), '429 0', 'nothing is left';
            is ask($zone, 'b', $most), '200 0', 'everything at once';
            is ask($zone, 'c', 5_000_000_000_000_000, 1_000_000_000_000_001), "200 @{[ $most - 5_000_000_000_000_000 ]}",
                'an estimate';
            wait_for('settlement', sub { ask($zone, 'c', 0) eq "200 @{[ $most - 1_000_000_000_000_001 ]}" });
            is ask($zone, 'c', 0), "200 @{[ $most - 1_000_000_000_000_001 ]}", 'what it turned out to cost';
            my $answer = decode_json($nginx->get("/api/remaining?zone=$zone&key=c")->{body});
            is_deeply [ @{$answer}{qw(limit remaining)} ], [ $most, $most - 1_000_000_000_000_001 ], 'the API';
        };
    }
    subtest "$place, variable rates" => sub {
        my $rate = "rate=${most}r/d";
        is ask("${place}_plan", 'a', "$most&$rate"), '200 0', 'max_count=: everything at once';
        is ask("${place}_plan", 'a', "0&rate=10r/d"), '200 0', 'a smaller rate, with what was used';
        is ask("${place}_small", 'a', "1&rate=1000000000r/d"), '200 999999999', 'without max_count=, up to 10^9';
        is ask("${place}_small", 'a', '1&rate=1000000001r/d'), '200 -', 'a larger rate is not a rate of the zone';
    };
}

# A state that was written under large counts is read under small ones, and back.
subtest 'a changed rate keeps what was used' => sub {
    for my $place (sort keys %places) {
        ask("${place}_$_", 'd', 4) for @algorithms;
    }
    $nginx->reload(conf(10));
    for my $place (sort keys %places) {
        for my $algorithm (@algorithms) {
            is ask("${place}_$algorithm", 'd', 1), '200 5', "${place}_$algorithm: four and one of ten";
            like ask("${place}_$algorithm", 'b', 1), qr/^429 0$/, "${place}_$algorithm: who used more has nothing";
        }
    }
    $nginx->reload(conf($most));
    for my $place (sort keys %places) {
        for my $algorithm (@algorithms) {
            is ask("${place}_$algorithm", 'd', 1), "200 @{[ $most - 6 ]}", "${place}_$algorithm: all six count";
        }
    }
};

subtest 'the configuration says what is accepted' => sub {
    my $zone = 'rate_limit_zone $remote_addr zone=a:1m';
    for ([ "$zone rate=1r/s max_count=5", 'max_count=5" requires a variable in rate=' ],
         [ "$zone rate=\$arg_rate max_count=9007199254740992", 'max_count=9007199254740992' ],
         [ "$zone rate=\$arg_rate algorithm=sliding_log max_count=5", 'an algorithm other than sliding_log' ],
         [ "$zone rate=1048577r/d algorithm=sliding_log", 'is too large for sliding_log' ],
         [ "$zone rate=9007199254740991r/d algorithm=sliding_log", 'is too large for sliding_log' ]) {
        my ($directive, $message) = @{$_};
        like check_config(http => "$directive;\n")->{stderr}, qr/\Q$message\E/, $directive;
    }
};

done_testing;
