# settle=: when a response has ended, a request is charged what it turned out to cost, wherever its state is.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config start_nginx wait_for);
use RateLimit::Metrics qw(metrics);
use RateLimit::Places qw(algorithms_of becomes left new_name zones_of_places);
use RateLimit::Redis qw(start_redis);
use MIME::Base64 qw(encode_base64);
use Test::More;

# Redis `lost` is stopped below. The clocks of nginx and Redis are frozen, so that nothing drains.
my ($one, $lost) = map { start_redis(clock => 'stopped') } 1 .. 2;
my ($http, $server) = zones_of_places('cost=$arg_cost settle=$arg_actual', '', one => $one, lost => $lost);
my %conf = (
    clock => 1,
    http  => <<"HTTP",
$http
map \$status \$failed { 401 1; default 0; }
rate_limit_zone \$http_x_client zone=logins:1m rate=5r/m algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=bytes:1m rate=100000r/d algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=debt:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=debts:1m rate=10r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=all:1m rate=10r/d algorithm=token_bucket count=all;
rate_limit_zone \$http_x_client zone=apart:1m rate=10r/d algorithm=fixed_window min_interval=10s;
rate_limit_zone \$http_x_client zone=after:1m rate=1r/d algorithm=fixed_window;
HTTP
    server => <<"SERVER",
location /api/ { rate_limit_api; }
location = /metrics { rate_limit_metrics; }
$server
location = /login { rate_limit zone=logins settle=\$failed; auth_basic login; auth_basic_user_file html/users;
    empty_gif; }
location = /bytes.txt { rate_limit zone=bytes settle=\$bytes_sent; }
location = /debt { rate_limit zone=debt cost=1 settle=\$arg_actual debt=3; empty_gif; }
location = /debt-of-3 { rate_limit zone=debts settle=\$arg_actual debt=3; empty_gif; }
location = /debt-of-6 { rate_limit zone=debts settle=\$arg_actual debt=6; empty_gif; }
location = /debt-of-4 { rate_limit zone=debts settle=\$arg_actual debt=4; empty_gif; }
location = /all { rate_limit zone=all cost=\$arg_cost settle=\$arg_actual; empty_gif; }
location = /apart { rate_limit zone=apart settle=\$arg_actual; empty_gif; }
location = /redirected { rate_limit zone=memory_token_bucket cost=6 settle=\$arg_actual; try_files /absent \@after; }
location \@after { rate_limit zone=after; empty_gif; }
location = /rejected { rate_limit zone=memory_token_bucket settle=\$arg_actual;
    rate_limit zone=after phase=precontent; empty_gif; }
location = /first { rate_limit zone=memory_token_bucket cost=3 settle=\$arg_actual; try_files /absent \@second; }
location \@second { rate_limit zone=memory_token_bucket cost=5; empty_gif; }
SERVER
);
my $nginx = start_nginx(%conf);
$nginx->write_file('users', "anna:{PLAIN}right\n");
$nginx->write_file('bytes.txt', 'x' x 500);

sub ask {
    my ($path, $client, @headers) = @_;
    return $nginx->get($path, 'X-Client' => $client, @headers)->{status};
}

sub check_place {
    my ($place) = @_;
    for my $algorithm (algorithms_of($place)) {
        my ($name, $zone) = (new_name(), "${place}_$algorithm");
        is ask("/$zone?cost=6&actual=2", $name), 200, "$algorithm: a request with an estimate of 6";
        becomes($nginx, $zone, $name, 8, "$algorithm: it has cost 2, the rest is given back");
        is ask("/$zone?cost=2&actual=5", $name), 200, "$algorithm: an estimate of 2";
        becomes($nginx, $zone, $name, 3, "$algorithm: it has cost 5");
        is ask("/$zone?cost=3&actual=9", $name), 200, "$algorithm: an estimate of 3, which fits";
        wait_for("$algorithm: 6 are owed", sub { left($nginx, $zone, $name) == 0 });
        is ask("/$zone?cost=1&actual=1", $name), 429, "$algorithm: nothing is left";
        is ask("/$zone?cost=1&actual=0", $name), 429, "$algorithm: a rejected request is not settled";
    }
    return;
}

subtest 'memory' => sub { check_place('memory') };
subtest 'redis=' => sub { check_place('redis') };
subtest 'sync=' => sub { check_place('sync') };
subtest 'the fallback' => sub { $lost->stop; check_place('local') };

subtest 'failed log-ins' => sub {
    my @wrong = (Authorization => 'Basic ' . encode_base64('anna:wrong', ''));
    my @right = (Authorization => 'Basic ' . encode_base64('anna:right', ''));
    my $name  = new_name();
    is ask('/login', $name, @right), 200, 'right' for 1 .. 10;
    becomes($nginx, 'logins', $name, 5, 'log-ins that succeed cost nothing');
    for my $number (1 .. 5) {
        is ask('/login', $name, @wrong), 401, "wrong password $number";
        becomes($nginx, 'logins', $name, 5 - $number, 'it is charged');
    }
    is ask('/login', $name, @right), 429, 'the right password is refused';
    $nginx->advance(60);
    is ask('/login', $name, @right), 200, 'until the minute is over';
};

subtest 'bytes' => sub {
    my $name = new_name();
    is ask('/bytes.txt', $name), 200, 'a response';
    wait_for('the bytes to be charged', sub { left($nginx, 'bytes', $name) <= 100_000 - 500 });
    cmp_ok left($nginx, 'bytes', $name), '>', 100_000 - 1500, 'its bytes are charged';
};

subtest 'the largest debt' => sub {
    my $name = new_name();
    is ask('/debt?actual=1000', $name), 200, 'admitted';
    wait_for('the debt', sub { left($nginx, 'debt', $name) == 0 });
    # Ten a day, and three more that are owed: one fits once four have drained.
    my $answer = $nginx->get('/debt?actual=1', 'X-Client' => $name);
    is $answer->{status}, 429, 'rejected';
    is $answer->header('Retry-After'), int(86_400 * 4 / 10), 'until the debt of debt=3 is paid';
};

subtest 'directives of a zone with several debts' => sub {
    my $name = new_name();
    is ask('/debt-of-3?actual=1000', $name), 200, 'a request of the location with the smaller debt';
    wait_for('the debt', sub { left($nginx, 'debts', $name) == 0 });
    my $answer = $nginx->get('/debt-of-3?actual=1', 'X-Client' => $name);
    is $answer->header('Retry-After'), int(86_400 * 7 / 10), 'the larger debt counts';
};

subtest 'count=all' => sub {
    my $name = new_name();
    is ask('/all?cost=8&actual=8', $name), 200, 'admitted';
    is ask('/all?cost=6&actual=0', $name), 429, 'rejected';
    is ask('/all?cost=0&actual=0', $name), 200, 'the next request';
    is left($nginx, 'all', $name), 0, 'the estimate of the rejected request is charged';
};

subtest 'min_interval=' => sub {
    my $name = new_name();
    is ask('/apart?actual=0', $name), 200, 'a request that is settled to 0';
    becomes($nginx, 'apart', $name, 10, 'it costs nothing');
    is ask('/apart?actual=0', $name), 429, 'but starts the interval';
    $nginx->advance(10);
    is ask('/apart?actual=0', $name), 200, 'until its end';
};

subtest 'values that are no number' => sub {
    my $name = new_name();
    my $kept = 0;
    for my $value ('', 'x', '-1', 'nan', '1e3', '5,6', '99999999999999999999', '1.', '.5') {
        is ask("/memory_fixed_window?cost=1&actual=$value", $name), 200, "'$value'";
        $kept++;
    }
    becomes($nginx, 'memory_fixed_window', $name, 10 - $kept, 'the estimates stay');
    my @lines = $nginx->error_log =~ /settle ".*?" for zone "memory_fixed_window" is not a number/g;
    is scalar @lines, 1, 'one log line';
    my $name2 = new_name();
    is ask('/memory_fixed_window?cost=1&actual=2.001', $name2), 200, 'a decimal number';
    becomes($nginx, 'memory_fixed_window', $name2, 7, 'it is rounded up');
    my $counted = metrics($nginx);
    is $counted->{'rate_limiter_settled_total{zone="memory_fixed_window",result="kept"}'}, $kept, 'they are counted';
    for ([ 59, 1 ], [ 1, 2 ]) {
        my ($seconds, $lines) = @{$_};
        $nginx->advance($seconds);
        is ask('/memory_fixed_window?actual=x', new_name()), 200, "$seconds seconds later";
        is scalar(() = $nginx->error_log =~ /settle "x" for zone "memory_fixed_window"/g), $lines - 1,
            $lines == 1 ? 'no line within the minute' : 'a line in the next minute';
    }
};

subtest 'a request that a later limit rejects' => sub {
    my $name = new_name();
    is ask('/rejected?actual=1', $name), 200, 'admitted';
    is ask('/rejected?actual=7', $name), 429, 'rejected after authentication';
    becomes($nginx, 'memory_token_bucket', $name, 9, 'it is given back, and not settled');
};

subtest 'an internal redirect' => sub {
    my $name = new_name();
    is ask('/first?actual=2', $name), 200, 'admitted';
    becomes($nginx, 'memory_token_bucket', $name, 8, 'charged and settled once, by the first limit');
};

subtest 'an internal redirect to a limit that rejects' => sub {
    my $name = new_name();
    is ask('/redirected?actual=2', $name), 200, 'admitted';
    becomes($nginx, 'memory_token_bucket', $name, 8, 'settled');
    is ask('/redirected?actual=3', $name), 429, 'rejected after the redirect';
    becomes($nginx, 'memory_token_bucket', $name, 5, 'settled, because the first location has done its work');
};

subtest 'a client that leaves' => sub {
    my $name = new_name();
    my $connection = $nginx->connect;
    $connection->send("GET /memory_sliding_window?cost=4&actual=1 HTTP/1.1\r\nHost: localhost\r\nX-Client: $name\r\n\r\n");
    $connection->close;
    becomes($nginx, 'memory_sliding_window', $name, 9, 'its request is settled');
};

subtest 'a reload' => sub {
    my $name = new_name();
    is ask('/memory_sliding_log?cost=4&actual=1', $name), 200, 'before';
    becomes($nginx, 'memory_sliding_log', $name, 9, 'settled');
    $nginx->reload(%conf);
    is left($nginx, 'memory_sliding_log', $name), 9, 'the state is the same';
};

subtest 'bad input' => sub {
    my %bad = (
        'settle=1'           => qr/invalid value "1" of "settle", it must be a variable|settle/,
        'debt=-1'            => qr/invalid value "debt=-1", it must be a number/,
        'settle=$arg_x debt=x' => qr/debt/,
        'settle=$nothing_at_all' => qr/unknown "nothing_at_all" variable/,
    );
    for my $words (sort keys %bad) {
        my $check = check_config(http => "rate_limit_zone \$arg_k zone=a:1m rate=1r/s;\n",
            server => "location = /a { rate_limit zone=a $words; empty_gif; }\n");
        isnt $check->{exit}, 0, "$words: refused";
        like "@{ $check->{emerg} }", $bad{$words}, "$words: the message";
    }
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
