# The call history of the API: the counters of each zone in the last two minutes, second by second, across reloads.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json);
use RateLimit::Redis qw(start_redis);
use List::Util qw(sum);
use Test::More;

my $redis = start_redis();
my $http  = <<"HTTP" . <<'HTTP';
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
HTTP
rate_limit_redis gone redis://127.0.0.1:1 timeout=1s;
rate_limit_zone $http_x_client zone=few:1m rate=3r/d;
rate_limit_zone $http_x_client zone=slow:1m rate=10r/s algorithm=leaky_bucket burst=5;
rate_limit_zone $http_x_client zone=lost:1m rate=10r/d redis=gone on_error=open;
rate_limit_zone $http_x_client zone=asked:1m rate=10r/d redis=fleet;
HTTP
my $locations = <<'SERVER';
location = /few  { rate_limit zone=few; empty_gif; }
location = /slow { rate_limit zone=slow; empty_gif; }
location = /lost { rate_limit zone=lost; empty_gif; }
location = /asked { rate_limit zone=asked; empty_gif; }
SERVER
my $api   = 'location /api/ { rate_limit_api; } location /page/ { rate_limit_dashboard keys=off; }';
my %conf  = (clock => 1, workers => 3, http => $http, server => $locations . $api);
my @names = qw(allowed rejected delayed errors);

# Returns the history of a zone, after a check of its form.
sub history {
    my ($nginx, $zone, $path) = @_;
    my $answer = decode_json($nginx->get($path // '/api/history')->{body});
    my ($found) = grep { $_->{zone} eq $zone } @{ $answer->{zones} };
    my $moments = @{ $found->{times} };
    die "$zone: not every moment has a count of each kind\n" if grep { @{ $found->{$_} } != $moments } @names;
    return { %{$found}, moments => $moments, now => $answer->{time}, instance => $answer->{instance} };
}

# Advances the clock by a second, and waits until the workers have recorded it.
sub pass_second {
    my ($nginx) = @_;
    $nginx->advance(1);
    return wait_for('the next second of the history', sub {
        my $history = history($nginx, 'few');
        return $history->{moments} && $history->{times}[-1] >= $nginx->now - 0.5 && $history;
    });
}

# Returns how much each count has risen in the last second.
sub last_second {
    my ($history) = @_;
    return { map { $_ => $history->{$_}[-1] - $history->{$_}[-2] } @names };
}

my $nginx = start_nginx(%conf);

subtest 'every second has the counters of all workers' => sub {
    my $first = wait_for('the first second', sub { my $h = history($nginx, 'few'); $h->{moments} && $h });
    is $first->{moments}, 1, 'one moment at the start';
    is_deeply [ map { $first->{$_}[0] } @names ], [ 0, 0, 0, 0 ], 'nothing is counted';
    for my $second (1 .. 5) {
        $nginx->get('/few', 'X-Client' => "client$second") for 1 .. 3 + $second;
        my $history = pass_second($nginx);
        is_deeply last_second($history), { allowed => 3, rejected => $second, delayed => 0, errors => 0 }, "second $second";
        is $history->{moments}, 1 + $second, 'one of the workers has recorded it';
    }
    my $quiet = pass_second($nginx);
    is_deeply last_second($quiet), { map { $_ => 0 } @names }, 'a second without requests';
    is_deeply [ map { sprintf '%.3f', $quiet->{times}[$_] - $quiet->{times}[ $_ - 1 ] } 1 .. 6 ], [ ('1.000') x 6 ], 'the times';
    cmp_ok abs($quiet->{times}[-1] - $nginx->now), '<', 0.002, 'by the time of day';
    cmp_ok abs($quiet->{now} - $nginx->now), '<', 0.002, 'the time of the answer';
    my $zones = decode_json($nginx->get('/api/zones')->{body});
    is $quiet->{instance}, $zones->{instance}, 'the instance';
    my ($few) = grep { $_->{zone} eq 'few' } @{ $zones->{zones} };
    is_deeply { map { $_ => $quiet->{$_}[-1] } qw(allowed rejected delayed) }, $few->{requests},
        'the last counts are the counters of the zone';
};

subtest 'delays and errors' => sub {
    $nginx->get('/slow', 'X-Client' => 'a');
    $nginx->delayed_request(path => '/slow', headers => [ 'X-Client' => 'a' ]);
    $nginx->get('/lost', 'X-Client' => 'a') for 1 .. 4;
    pass_second($nginx);
    is_deeply last_second(history($nginx, 'slow')), { allowed => 2, rejected => 0, delayed => 1, errors => 0 }, 'a delay';
    is_deeply last_second(history($nginx, 'lost')), { allowed => 0, rejected => 0, delayed => 0, errors => 4 }, 'errors';
};

subtest 'round trips to Redis' => sub {
    my $trips = sub { my ($fleet) = grep { $_->{redis} eq 'fleet' } @{ decode_json($nginx->get('/api/history')->{body})->{redis} }; $fleet };
    my $before = pass_second($nginx) && $trips->();
    $nginx->get('/asked', 'X-Client' => "client$_") for 1 .. 7;
    pass_second($nginx);
    my $after = wait_for('the second of this Redis', sub { my $t = $trips->(); $t->{times}[-1] > $before->{times}[-1] + 0.5 && $t });
    is scalar @{ $after->{roundTripCounts} }, scalar @{ $after->{times} }, 'every moment has its counts';
    my $bounds = decode_json($nginx->get('/api/zones')->{body})->{redis}[0]{roundTripSeconds};
    is scalar @{ $after->{roundTripCounts}[-1] }, @{ $bounds->{counts} }, 'one for each bound, and one above';
    is sum(@{ $after->{roundTripCounts}[-1] }) - sum(@{ $after->{roundTripCounts}[-2] }), 7, 'the calls of the last second';
    is_deeply $after->{roundTripCounts}[-1], $bounds->{counts}, 'the last counts are those of zones';
};

subtest 'it has two minutes' => sub {
    pass_second($nginx) for 1 .. 125;
    my $history = history($nginx, 'few');
    is $history->{moments}, 121, 'as many moments';
    is sprintf('%.1f', $history->{times}[-1] - $history->{times}[0]), '120.0', 'the time between the first and the last';
    is $history->{allowed}[0], 15, 'counters do not begin anew';
};

subtest 'a reload, and workers that die, leave no gap' => sub {
    $nginx->get('/few', 'X-Client' => 'before') for 1 .. 4;
    my $before = pass_second($nginx);
    my %other = (%conf, workers => 2, http => "$http rate_limit_zone \$arg_k zone=new:1m rate=1r/s;\n");
    $nginx->reload(%other);
    is_deeply history($nginx, 'few')->{times}, $before->{times}, 'the history is kept';
    is_deeply last_second(history($nginx, 'few')), { allowed => 3, rejected => 1, delayed => 0, errors => 0 }, 'and its counts';
    is history($nginx, 'new')->{moments}, 1, 'that of a new zone begins';
    $nginx->get('/few', 'X-Client' => 'after') for 1 .. 5;
    my $after = pass_second($nginx);
    is_deeply last_second($after), { allowed => 3, rejected => 2, delayed => 0, errors => 0 }, 'new workers continue';
    is sprintf('%.3f', $after->{times}[-1] - $after->{times}[-2]), '1.000', 'without a gap';
    my %old = map { $_ => 1 } $nginx->workers;
    kill 'KILL', keys %old;
    wait_for('new workers', sub { my @now = $nginx->workers; @now == 2 && !grep { $old{$_} } @now });
    $nginx->get('/few', 'X-Client' => 'killed') for 1 .. 6;
    is_deeply last_second(pass_second($nginx)), { allowed => 3, rejected => 3, delayed => 0, errors => 0 },
        'other workers continue after them';
};

subtest 'nothing is recorded without a location that shows it' => sub {
    my $other = start_nginx(%conf, server => "$locations location /metrics { rate_limit_metrics; }");
    for my $second (1 .. 3) {
        $other->advance(1);
        $other->get('/few', 'X-Client' => $second);
    }
    $other->reload(%conf);
    my $history = wait_for('the history', sub { my $h = history($other, 'few'); $h->{moments} && $h });
    is $history->{moments}, 1, 'it begins with the location';
    is $history->{allowed}[0], 3, 'with what was counted before';
    $other->stop;
};

subtest 'without workers too' => sub {
    my $alone = start_nginx(%conf, main => 'master_process off;');
    wait_for('the first second', sub { history($alone, 'few')->{moments} });
    $alone->get('/few', 'X-Client' => 'a');
    is last_second(pass_second($alone))->{allowed}, 1, 'the process records';
    $alone->stop;
};

subtest 'the call' => sub {
    my $answer = $nginx->get('/api/history');
    is $answer->{status}, 200, 'GET';
    is $answer->header('Content-Type'),  'application/json', 'Content-Type';
    is $answer->header('Cache-Control'), 'no-store',         'Cache-Control';
    is $nginx->request(method => 'HEAD', path => '/api/history')->{status}, 200, 'HEAD';
    my $post = $nginx->request(method => 'POST', path => '/api/history', body => '');
    is $post->{status}, 405, 'POST is not allowed';
    is $post->header('Allow'), 'GET, HEAD', 'the Allow header';
    is $nginx->get('/api/history?zone=few')->{status}, 400, 'it has no arguments';
    is $nginx->get('/api/history/few')->{status}, 404, 'there is nothing below it';
    like $nginx->get('/api/none')->{body}, qr/zones\/NAME and history/, 'another call names it';
    is history($nginx, 'few', '/page/history')->{moments}, 121, 'the dashboard has the call too';
    unlike $nginx->get('/page/history')->{body}, qr/client|before/, 'it has no keys';
};

done_testing;
