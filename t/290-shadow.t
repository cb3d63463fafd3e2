# A shadow zone decides beside the live limits: it counts who would be rejected, and has no effect on clients.
use strict;
use warnings;

use List::Util qw(sum);

use lib 't/lib';
use RateLimit qw(check_config start_nginx wait_for decode_json);
use RateLimit::FakeRedis qw(start_fake silence);
use RateLimit::Metrics qw(metrics);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;

my ($port, @ports) = split ' ', $ENV{RL_PORTS};
my $tell = "location = /metrics { rate_limit_metrics; }\nlocation /api/ { rate_limit_api; }\n";

sub zone {
    my ($name, $rate, $more) = @_;
    return "rate_limit_zone \$http_x_client zone=$name:1m rate=$rate algorithm=fixed_window align=first @{[ $more // '' ]};\n";
}

# Returns the counts of a shadow zone, as "BOTH_ADMIT ONLY_LIVE ONLY_SHADOW NEITHER".
sub counted {
    my ($nginx, $zone) = @_;
    my $metrics = metrics($nginx);
    return join ' ', map { $metrics->{qq(rate_limiter_shadow_total{zone="$zone",live="$_->[0]",shadow="$_->[1]"})} // '-' }
        [qw(allowed allowed)], [qw(allowed rejected)], [qw(rejected allowed)], [qw(rejected rejected)];
}

sub ask {
    my ($nginx, $path, $client, $count) = @_;
    return join ' ', map { $nginx->get($path, 'X-Client' => $client)->{status} } 1 .. $count;
}

sub shown {
    my ($nginx, $zone) = @_;
    return decode_json($nginx->get("/api/zones/$zone")->{body});
}

my $redis = start_redis();
my %conf  = (
    port    => $port,
    workers => 2,
    http    => "rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;\n"
        . zone('live',   '5r/d')
        . zone('strict', '3r/d')
        . zone('loose',  '8r/d')
        . zone('fleet',  '3r/d', 'redis=fleet')
        . zone('synced', '3r/d', 'redis=fleet sync=10ms')
        . zone('none',   'off')
        . zone('wrong',  '$http_x_rate'),
    server => $tell . <<'END',
rate_limit_shadow zone=strict;
location = /both   { rate_limit zone=live; rate_limit_shadow zone=strict; rate_limit_shadow zone=loose; empty_gif; }
location = /alone  { empty_gif; }
location = /off    { rate_limit_shadow off; empty_gif; }
location = /fleet  { rate_limit zone=live; rate_limit_shadow zone=fleet; empty_gif; }
location = /synced { rate_limit_shadow zone=synced; empty_gif; }
location = /none   { rate_limit zone=live; rate_limit_shadow zone=none; empty_gif; }
location = /wrong  { rate_limit_shadow zone=wrong; empty_gif; }
location = /cost   { rate_limit_shadow zone=loose cost=5; empty_gif; }
location = /dry    { rate_limit zone=live; rate_limit_dry_run on; empty_gif; }
location = /again  { rate_limit_shadow zone=strict; try_files /absent /alone; }
location = /error  { rate_limit zone=live; error_page 429 = /alone; empty_gif; }
END
);
my $nginx = start_nginx(%conf);

subtest 'decisions of a shadow zone are compared with the live limits' => sub {
    is ask($nginx, '/both', 'a', 10), '200 200 200 200 200 429 429 429 429 429', 'clients see the live limit';
    is counted($nginx, 'strict'), '3 2 0 5', 'a stricter shadow zone';
    is counted($nginx, 'loose'),  '5 0 3 2', 'a looser shadow zone has its own count';
    my $shadow = shown($nginx, 'strict')->{shadow};
    is_deeply $shadow, { allowed => 3, rejected => 7, newlyRejected => 2, newlyAllowed => 0 },
        'the API reports the same counts';
    is_deeply [ map {"$_->{key} $_->{rejected}"} @{ shown($nginx, 'strict')->{limited} } ], ['a 2'],
        'the API lists clients that would be newly rejected';
    is shown($nginx, 'live')->{shadow}, undef, 'a live zone has no such counts';
    is shown($nginx, 'strict')->{requests}{rejected}, 0, 'a shadow zone has no counts of a live zone';
};

subtest 'clients do not notice a shadow zone' => sub {
    my $answer = $nginx->get('/alone', 'X-Client' => 'b');
    is $answer->header('X-RateLimit-Limit'), undef, 'no header shows a shadow zone';
    is ask($nginx, '/alone', 'b', 9), join(' ', (200) x 9), 'a shadow zone rejects no request';
    is counted($nginx, 'strict'), '6 9 0 5', 'without a live limit, all requests are admitted';
    is ask($nginx, '/off', 'b', 3), '200 200 200', 'off';
    is counted($nginx, 'strict'), '6 9 0 5', 'off disables the shadow zone';
};

subtest 'a request is counted once' => sub {
    is ask($nginx, '/again', 'c', 2), '200 200', 'a request with an internal redirect';
    is counted($nginx, 'strict'), '8 9 0 5', 'an internal redirect counts as one request';
    is ask($nginx, '/error', 'a', 1), '200', 'a request with an error page';
    is counted($nginx, 'strict'), '8 9 0 6', 'an error page counts as one request';
};

subtest 'parameters and variables' => sub {
    is ask($nginx, '/cost', 'd', 2), '200 200', 'a cost of 5, twice';
    is counted($nginx, 'loose'), '6 1 3 2', 'the second is too much for a limit of 8';
    is ask($nginx, '/none', 'a', 1), '429', 'rate=off';
    is counted($nginx, 'none'), '0 0 1 0', 'rate=off would admit all';
    is $nginx->get('/wrong', 'X-Client' => 'a', 'X-Rate' => 'much')->{status}, 200, 'an invalid rate';
    is counted($nginx, 'wrong'), '0 0 0 0', 'an invalid rate is not counted as a decision';
    is shown($nginx, 'wrong')->{errors}{rate}, 1, 'an invalid rate counts as an error';
    is ask($nginx, '/dry', 'a', 1), '200', 'a dry run';
    is counted($nginx, 'strict'), '8 9 0 7', 'a dry run counts like a live decision';
    is $nginx->get('/alone')->{status}, 200, 'a client with an empty key';
    is counted($nginx, 'strict'), '8 9 0 7', 'an empty key is not counted';
};

subtest 'a shadow zone in Redis' => sub {
    # One request at a time: of two workers, one may still be connecting while the other already calls Redis.
    my @seen;
    for my $asked (1 .. 7) {
        push @seen, ask($nginx, '/fleet', 'e', 1);
        wait_for('an answer', sub { $asked == sum(split ' ', counted($nginx, 'fleet')) });
    }
    is "@seen", '200 200 200 200 200 429 429', 'clients do not notice the shadow zone in Redis';
    is counted($nginx, 'fleet'), '3 2 0 2', 'the shadow zone in Redis is counted';
    my $long = 'x' x 3000;
    is ask($nginx, '/fleet', $long, 4), '200 200 200 200', 'a long name';
    wait_for('all answers', sub { counted($nginx, 'fleet') eq '6 3 0 2' });
    is ask($nginx, '/synced', 'f', 4), '200 200 200 200', 'with sync=';
    is counted($nginx, 'synced'), '3 1 0 0', 'the counts are up to date at once';
};

subtest 'a reload keeps the counts' => sub {
    $nginx->reload(%conf);
    is counted($nginx, 'strict'), '8 9 0 7', 'all counts are kept';
};

subtest 'a Redis that does not answer' => sub {
    my $fake  = start_fake(port => $ports[0], replies => { EVALSHA => silence() });
    my $other = start_nginx(
        port   => $ports[1],
        http   => "rate_limit_redis fleet redis://127.0.0.1:$ports[0] timeout=30s;\n" . zone('fleet', '1r/d', 'redis=fleet on_error=closed'),
        server => "$tell location = /fleet { rate_limit_shadow zone=fleet; empty_gif; }\n",
    );
    my $began  = spare_time();
    my $answer = $other->get('/fleet', 'X-Client' => 'a');
    is $answer->{status}, 200, 'a Redis that does not answer delays no request';
    cmp_ok spare_time() - $began, '<', 5, 'at all';
    is counted($other, 'fleet'), '0 0 0 0', 'an unanswered check is not counted';
    $other->stop;
    unlike $other->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'a worker exits while it waits';
    $redis->kill;
    $redis->restart;
    is ask($nginx, '/fleet', 'g', 1), '200', 'a Redis that is down delays no request';
};

subtest 'without metrics and API, a shadow zone does not decide' => sub {
    my %quiet = (port => $ports[2], http => zone('strict', '1r/d'));
    my $quiet = start_nginx(%quiet, server => 'location = /a { rate_limit_shadow zone=strict; empty_gif; }');
    is ask($quiet, '/a', 'a', 3), '200 200 200', 'requests are not decided by the shadow zone';
    $quiet->reload(%quiet, server => "$tell location = /a { rate_limit_shadow zone=strict; empty_gif; }");
    is counted($quiet, 'strict'), '0 0 0 0', 'requests are not counted';
    is ask($quiet, '/a', 'a', 2), '200 200', 'requests with an API';
    is counted($quiet, 'strict'), '1 1 0 0', 'with an API, requests are counted';
};

subtest 'invalid directives make nginx -t fail' => sub {
    my $zones = zone('a', '1r/s') . zone('b', '1r/s');
    for my $row (
        [ 'rate_limit_shadow',                                                'zone=' ],
        [ 'rate_limit_shadow zone=',                                          'zone=' ],
        [ 'rate_limit_shadow zone=c',                                         '"c"' ],
        [ 'rate_limit_shadow on',                                             '"on"' ],
        [ 'rate_limit_shadow zone=a burst=1',                                 'burst=' ],
        [ 'rate_limit_shadow zone=a; rate_limit_shadow off',                  '"off"' ],
        [ 'rate_limit_shadow zone=a; rate_limit_shadow zone=a',               '"a"' ],
        [ 'rate_limit_shadow zone=a cost=$nowhere',                           '$nowhere' ],
        [ 'rate_limit zone=a; rate_limit_shadow zone=a',                      '"a"' ],
        [ 'rate_limit zone=b; location / { rate_limit_shadow zone=b; }',      '"b"' ],
    ) {
        my ($directives, $word) = @{$row};
        $directives .= ';' if $directives !~ /\}$/;
        my $result = check_config(http => $zones, server => $directives);
        is scalar @{ $result->{emerg} }, 1, "$directives: one line";
        like $result->{emerg}[0], qr/^(?=.*\Q$word\E)(?=.*(?:must be|requires|is duplicate)).*"rate_limit(?:_shadow)?"/, $result->{emerg}[0] // 'none';
    }
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
