# A request whose cost alone is above the limit is told so: the log and the problem document have both numbers.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(decode_json start_nginx);
use RateLimit::Redis qw(start_redis);
use Test::More;

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);
my $redis      = start_redis();
my ($zones, $locations) = ('', '');
for my $algorithm (@algorithms) {
    my $burst = $algorithm =~ /^(?:leaky_bucket|gcra)/ ? 'burst=9' : '';
    for my $store ('', 'redis') {
        my $more = $store ? 'redis=fleet' : '';
        $zones     .= "rate_limit_zone \$http_x_client zone=$algorithm$store:1m rate=10r/d algorithm=$algorithm $burst $more;\n";
        $locations .= "location = /$algorithm$store { rate_limit zone=$algorithm$store cost=\$arg_n; empty_gif; }\n";
    }
}
my $nginx = start_nginx(
    http => <<"HTTP",
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_zone \$http_x_client zone=rates:1m rate=100r/d,20r/h algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=large:1m rate=1000000000r/d algorithm=token_bucket;
$zones
HTTP
    server => <<"SERVER",
rate_limit_body problem;
$locations
location = /rates   { rate_limit zone=rates cost=\$arg_n; empty_gif; }
location = /several { rate_limit zone=rates; rate_limit zone=gcra cost=\$arg_n; rate_limit zone=large; empty_gif; }
location = /dry     { rate_limit zone=gcra cost=\$arg_n; rate_limit_dry_run on; empty_gif; }
SERVER
);

my $clients = 0;
my $seen    = 0;

# Returns the answer to a request of a new client, its problem document, and the log lines since the last call.
sub ask {
    my ($path, $times) = @_;
    my $client = 'client' . $clients++;
    my $answer;
    $answer = $nginx->get($path, 'X-Client' => $client) for 1 .. $times // 1;
    my $log = substr $nginx->error_log, $seen;
    $seen += length $log;
    return ($answer, $answer->{status} == 429 ? decode_json($answer->{body}) : {}, $log);
}

for my $algorithm (@algorithms) {
    for my $zone ($algorithm, "${algorithm}redis") {
        my ($answer, $problem, $log) = ask("/$zone?n=11");
        is $answer->{status}, 429, "$zone: rejected";
        is $answer->header('Retry-After'), undef, "$zone: no Retry-After";
        is $problem->{detail}, "The cost of the request (11) is above the limit (10) of policy $zone.", "$zone: detail";
        is_deeply $problem->{'violated-policies'}, [$zone], "$zone: violated-policies";
        like $log, qr/by zone "$zone", .*, may return never: the cost 11 is above the limit 10, server/, "$zone: log";
    }
}

{
    my ($answer, $problem, $log) = ask('/gcraredis?n=11', 2);
    is $problem->{detail}, 'The cost of the request (11) is above the limit (10) of policy gcraredis.', 'the deny cache: detail';
    like $log, qr/never: the cost 11 is above the limit 10/, 'the deny cache: log';
    is scalar(() = $log =~ /never: the cost 11/g), 2, 'one line for each request';
}
{
    my ($answer, $problem, $log) = ask('/token_bucket?n=10', 2);
    is $answer->{status}, 429, 'a cost that fits once';
    ok defined $answer->header('Retry-After'), 'Retry-After';
    ok !exists $problem->{detail}, 'no detail';
    like $log, qr/may return in [\d.]+s, server/, 'the log has the wait';
}
{
    my ($answer, $problem, $log) = ask('/rates?n=21');
    is $problem->{detail}, 'The cost of the request (21) is above the limit (20) of policy rates-1h.', 'the rate that binds';
    like $log, qr/never: the cost 21 is above the limit 20/, 'its numbers in the log';
    (undef, $problem, $log) = ask('/several?n=9007199254740991');
    is $problem->{detail}, 'The cost of the request (9007199254740991) is above the limit (10) of policy gcra.', 'one of several zones';
    like $log, qr/by zone "gcra".* never: the cost 9007199254740991 is above the limit 10/, 'its numbers in the log';
}
{
    my ($answer, undef, $log) = ask('/dry?n=11');
    is $answer->{status}, 200, 'a dry run';
    like $log, qr/dry run, .* may return never: the cost 11 is above the limit 10/, 'its log';
}

done_testing;
