# The API calls charge and refund correct what a client has used, for each algorithm in memory, Redis and sync=.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Metrics qw(metrics);
use RateLimit::Redis qw(start_redis);
use Test::More;

# Redis `lost` is stopped below. The clocks of nginx and Redis are frozen, so that nothing drains.
my ($one, $lost) = map { start_redis(clock => 'stopped') } 1 .. 2;
my %places = (memory => '', redis => 'redis=one', sync => 'redis=one sync=1h');
my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);
sub algorithms { my ($place) = @_; return grep { $place ne 'sync' || $_ ne 'sliding_log' } @algorithms }

# Each zone admits ten requests, and a client may owe ten more.
my ($http, $server) = ('', '');
sub add_zone {
    my ($zone, $algorithm, $options) = @_;
    my $ten     = $algorithm =~ /gcra|leaky/ ? 'rate=1r/d burst=9' : 'rate=10r/d';
    my $nodelay = $algorithm eq 'leaky_bucket' ? 'nodelay' : '';
    $http   .= "rate_limit_zone \$http_x_client zone=$zone:1m $ten algorithm=$algorithm $options;\n";
    $server .= "location = /$zone { rate_limit zone=$zone cost=1 settle=\$none $nodelay; "
        . "add_header X-Store \$rate_limit_store always; empty_gif; }\n";
    return;
}
for my $place (sort keys %places) {
    add_zone("${place}_$_", $_, $places{$place}) for algorithms($place);
}
add_zone('deny',  'fixed_window', 'redis=one deny_cache=1h');
add_zone('brief', 'fixed_window', 'redis=one deny_cache=1s');
add_zone('often', 'fixed_window', 'redis=one sync=20ms');
add_zone('open',  'fixed_window', 'redis=lost');
add_zone('local', 'fixed_window', 'redis=lost on_error=local');
add_zone('alone', 'fixed_window', 'redis=lost sync=1h');

sub conf {
    return (
        workers => 2,
        clock   => 1,
        http    => <<"HTTP",
rate_limit_redis one @{[ $one->url ]} timeout=60s connect_timeout=60s;
rate_limit_redis lost @{[ $lost->url ]} timeout=60s connect_timeout=60s;
map \$http_x_none \$none { default 1; }
map \$http_x_plan \$plan { default \$http_x_plan; }
$http
rate_limit_zone \$http_x_client zone=plain:1m rate=10r/d algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=owing:1m rate=10r/d algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=tiers:1m rate=\$plan algorithm=fixed_window;
rate_limit_zone \$http_x_client zone=remote_tiers:1m rate=\$plan algorithm=fixed_window redis=one;
rate_limit_zone \$http_x_client zone=free:1m rate=off;
rate_limit_zone \$http_x_client zone=paced:1m rate=10r/d algorithm=fixed_window min_interval=1h redis=one;
rate_limit_zone \$http_x_client zone=several:1m rate=6r/h,10r/d redis=one;
HTTP
        server => <<"SERVER",
location /api/ { rate_limit_api write=on; }
location /reader/ { rate_limit_api; }
location = /owing { rate_limit zone=owing debt=50; empty_gif; }
location /dashboard/ { rate_limit_dashboard; }
location = /metrics { rate_limit_metrics; }
$server
SERVER
    );
}
my ($nginx, $other) = map { start_nginx(conf()) } 1 .. 2;

my $names = 0;
sub new_name { return 'n' . $names++ }

sub post {
    my ($path, @more) = @_;
    my $answer = $nginx->request(method => 'POST', path => "/api/$path", @more);
    $answer->{json} = eval { decode_json($answer->{body}) };
    return $answer;
}

# The call `charge` or `refund`. Returns the status and some members of the answer.
sub correct {
    my ($call, $zone, $key, $amount, $more) = @_;
    my $answer = post("$call?zone=$zone&key=$key&amount=$amount" . ($more // ''));
    my $text   = sub {
        my ($value) = @_;
        return !defined $value ? 'null' : !ref $value ? $value : $value ? 'true' : 'false';
    };
    return join ' ', $answer->{status}, map { $text->($answer->{json}{$_}) } qw(allowed limit remaining store known);
}

sub left {
    my ($instance, $zone, $key) = @_;
    return decode_json($instance->get("/api/remaining?zone=$zone&key=$key")->{body})->{remaining};
}

sub ask {
    my ($instance, $zone, $client) = @_;
    my $answer = $instance->get("/$zone", 'X-Client' => $client);
    return "$answer->{status} " . $answer->header('X-Store');
}

# Waits for a condition while the clocks of both instances advance.
sub soon {
    my ($what, $condition) = @_;
    return wait_for($what, sub { $_->advance(0.1) for $nginx, $other; return $condition->() });
}

for my $place (sort keys %places) {
    my $store = $place eq 'redis' ? 'redis' : 'memory';
    for my $algorithm (algorithms($place)) {
        subtest "$place: $algorithm" => sub {
            my ($zone, $name) = ("${place}_$algorithm", new_name());
            is correct('refund', $zone, $name, 3), "200 true 10 10 $store false", 'an unknown client';
            is correct('charge', $zone, $name, 4), "200 true 10 6 $store true", 'four are charged';
            is correct('charge', $zone, $name, 3), "200 true 10 3 $store true", 'three more';
            is correct('refund', $zone, $name, 2), "200 true 10 5 $store true", 'two are given back';
            is ask($nginx, $zone, $name), "200 $store", 'the client sends a request';
            is correct('refund', $zone, $name, 1000), "200 true 10 10 $store true", 'all is given back, and no more';
            is left($nginx, $zone, $name), 10, 'the call remaining has the same number';
            is correct('charge', $zone, $name, 10), "200 false 10 0 $store true", 'the whole quota is charged';
            like ask($nginx, $zone, $name), qr/^429/, 'the client is limited';
            is correct('charge', $zone, $name, 1000), "200 false 10 0 $store true", 'more is charged beyond the limit';
            is correct('refund', $zone, $name, 9), "200 false 10 0 $store true", 'nine of the debt are given back';
            is correct('refund', $zone, $name, 1), "200 false 10 0 $store true", 'nothing is owed';
            like ask($nginx, $zone, $name), qr/^429/, 'and nothing is left';
            is correct('refund', $zone, $name, 1), "200 true 10 1 $store true", 'one is left, so the debt was ten';
            is ask($nginx, $zone, $name), "200 $store", 'the client is admitted once';
            like ask($nginx, $zone, $name), qr/^429/, 'and not twice';
        };
    }
}

subtest 'an answer has the members and headers of the call remaining' => sub {
    for my $zone (qw(memory_gcra redis_gcra sync_gcra)) {
        my $name = new_name();
        my $made = post("charge?zone=$zone&key=$name&amount=4");
        my $read = $nginx->get("/api/remaining?zone=$zone&key=$name");
        is_deeply $made->{json}, decode_json($read->{body}), "$zone: charge";
        $made = post("refund?zone=$zone&key=$name&amount=1");
        $read = $nginx->get("/api/remaining?zone=$zone&key=$name");
        is_deeply $made->{json}, decode_json($read->{body}), "$zone: refund";
        is $made->header('X-RateLimit-Remaining'), 7, "$zone: the headers have the same number";
        is $made->header('Cache-Control'), 'no-store', "$zone: is not cached";
    }
};

subtest 'debt= without settle=' => sub {
    my $name = new_name();
    is correct('charge', 'owing', $name, 1000), '200 false 10 0 memory true', 'the limit and the debt are charged';
    is correct('refund', 'owing', $name, 50), '200 false 10 0 memory true', 'all of the debt is given back';
    is correct('refund', 'owing', $name, 1), '200 true 10 1 memory true', 'and one of the limit';
};

subtest 'a zone without debt=, settle= and sync= has no debts' => sub {
    my $name = new_name();
    is correct('charge', 'plain', $name, 1000), '200 false 10 0 memory true', 'the limit is charged';
    is correct('refund', 'plain', $name, 1), '200 true 10 1 memory true', 'and no more';
};

subtest 'rates of their own' => sub {
    for my $zone (qw(tiers remote_tiers)) {
        my $name  = new_name();
        my $store = $zone eq 'tiers' ? 'memory' : 'redis';
        my $wrong = post("charge?zone=$zone&key=$name&amount=1");
        is $wrong->{status}, 400, 'a rate is required';
        is $wrong->{json}{detail}, 'the rate of this zone is $plan, and that of this client is not known; '
            . 'the argument rate tells it', 'the detail';
        is correct('charge', $zone, $name, 4, '&rate=20r/d'), "200 true 20 16 $store true", 'charge';
        is correct('refund', $zone, $name, 3, '&rate=20r/d'), "200 true 20 19 $store true", 'refund';
        is post("refund?zone=$zone&key=$name&amount=1")->{status}, 400, 'a refund requires a rate too';
        is correct('charge', $zone, $name, 4, '&rate=off'), '200 true null null null true', 'rate=off';
    }
    is correct('charge', 'free', new_name(), 5), '200 true null null null false', 'a zone that is off';
    is post('charge?zone=plain&key=a&amount=1&rate=1r/s')->{status}, 400, 'a fixed rate takes no other';
};

subtest 'several rates, and min_interval' => sub {
    my $name = new_name();
    is correct('charge', 'several', $name, 4), '200 true 6 2 redis true', 'each rate is charged';
    is correct('refund', 'several', $name, 3), '200 true 6 5 redis true', 'each rate is refunded';
    my $check = sub { return post("check?zone=paced&key=$name")->{status} };
    is $check->(), 200, 'a request';
    is $check->(), 429, 'another one is too early';
    is correct('refund', 'paced', $name, 1), '200 true 10 10 redis true', 'a refund gives back the request';
    is $check->(), 200, 'and its time';
};

subtest 'the deny cache' => sub {
    my $name = new_name();
    is correct('charge', 'deny', $name, 10), '200 false 10 0 redis true', 'the whole quota';
    is ask($nginx, 'deny', $name), '429 redis', 'Redis rejects';
    is ask($nginx, 'deny', $name), '429 cache', 'the rejection is remembered';
    is correct('refund', 'deny', $name, 1), '200 true 10 1 redis true', 'one is given back';
    is ask($nginx, 'deny', $name), '200 redis', 'the rejection is forgotten';
    is correct('charge', 'brief', $name, 10), '200 false 10 0 redis true', 'another instance';
    is ask($other, 'brief', $name), '429 redis', 'rejects and remembers';
    is correct('refund', 'brief', $name, 1), '200 true 10 1 redis true', 'one is given back here';
    soon('the other instance to ask again', sub { return ask($other, 'brief', $name) =~ /^200/ });
    pass 'the other instance admits the client once its rejection has ended';
};

# An instance with sync= reads the count of Redis when it sends a count of its own.
subtest 'sync= sends corrections to Redis' => sub {
    my ($name, $unknown) = (new_name(), new_name());
    my $sent = sub {
        my ($key) = @_;
        soon('Redis to know the client', sub { $one->command('EXISTS', "rate_limit:often:fixed_window:{$key}") });
        return;
    };
    is correct('charge', 'often', $name, 6), '200 true 10 4 memory true', 'charged here';
    $sent->($name);
    is ask($other, 'often', $name), '200 memory', 'a request on another instance';
    soon('the other instance to know of both', sub { left($other, 'often', $name) == 3 });
    like correct('refund', 'often', $name, 5), qr/^200 true 10 \d+ memory true$/, 'given back here';
    is ask($other, 'often', $name), '200 memory', 'another request';
    soon('the other instance to know of the refund', sub { left($other, 'often', $name) == 7 });
    pass 'the other instance follows';
    is ask($other, 'often', $unknown), '200 memory', 'a client that only another instance knows';
    $sent->($unknown);
    is correct('refund', 'often', $unknown, 1), '200 true 10 10 memory true', 'is given back';
    is ask($other, 'often', $unknown), '200 memory', 'another request of that client';
    soon('the other instance to know of the refund', sub { left($other, 'often', $unknown) == 9 });
    pass 'Redis was corrected';
};

subtest 'bad input' => sub {
    my ($most) = post('charge?zone=plain&key=a&amount=x')->{json}{detail} =~ /from 1 to (\d+)/;
    my $must = "it must be a number from 1 to $most (the call remaining looks and charges nothing)";
    my @wrong = ('', 0, -1, 'x', '1.5', $most + 1, '9' x 30);
    my $form = 'arguments must be zone, key, amount and rate, each once';
    for my $call (qw(charge refund)) {
        my @mark  = ('X-Rate-Limit-Api' => 1);
        my $valid = "$call?zone=plain&key=a&amount=1";
        my %bad = (
            'zone=plain&key=a'                     => "argument amount is missing or empty; $form",
            'zone=plain&amount=1'                  => "argument key is missing or empty; $form",
            'key=a&amount=1'                       => "argument zone is missing or empty; $form",
            'zone=plain&key=a&amount=1&permits=1'  => "argument \"permits\" is not known; $form",
            'zone=plain&key=a&amount=1&amount=2'   => "argument \"amount\" is given twice; $form",
            map { ("zone=plain&key=a&amount=$_" => "argument amount is \"$_\"; $must") } @wrong,
        );
        for my $query (sort keys %bad) {
            my $answer = post("$call?$query");
            is $answer->{status}, 400, "$call?$query";
            is $answer->{json}{detail}, $bad{$query}, 'the detail';
            is $answer->header('Content-Type'), 'application/problem+json', 'the type';
        }
        is post("$call?zone=none&key=a&amount=1")->{status}, 404, "$call: no such zone";
        for my $method (qw(GET HEAD PUT PATCH DELETE)) {
            my $answer = $nginx->request(method => $method, path => "/api/$valid", headers => \@mark);
            is $answer->{status}, 405, "$method $call";
            is $answer->header('Allow'), 'POST', 'the header Allow';
        }
        for my $path ('reader', 'dashboard') {
            is $nginx->request(method => 'POST', path => "/$path/$valid")->{status}, 403, "$path: $call, write=off";
        }
        my @others = ([ 'Sec-Fetch-Site' => 'cross-site' ], map { [ Origin => $_ ] } qw(http://other.test null));
        for my $header (@others, [ Origin => 'null', @mark ]) {
            my $answer = post($valid, headers => $header);
            is $answer->{status}, 403, "$call by another site: @{$header}";
            like $answer->{json}{detail}, qr/^another site's page has sent this/, 'the detail';
        }
        is post($valid, headers => [ Origin => 'http://localhost' ])->{status}, 200, "$call by a page of the origin";
    }
    is left($nginx, 'plain', 'a'), 10, 'only the accepted calls had an effect';
};

subtest 'Redis is away' => sub {
    my $name = new_name();
    is correct('charge', $_,      $name, 4), '200 true 10 6 redis true',  "$_: before" for qw(open local);
    is correct('charge', 'alone', $name, 4), '200 true 10 6 memory true', 'alone: before';
    $lost->stop;
    my $detail = sub {
        my ($call, $zone) = @_;
        my $answer = post("$call?zone=$zone&key=$name&amount=1");
        is $answer->{status}, 503, "$zone: $call";
        return $answer->{json}{detail};
    };
    my $perhaps = qr/(?:, but perhaps the client was (?:charg|refund)ed in Redis)?/;
    my $nothing = qr/^Redis "lost" cannot be asked, and nothing was changed in this instance$perhaps: \w+$/;
    like $detail->($_, 'open'), $nothing, 'the detail' for qw(charge refund);
    like $detail->('refund', 'local'), $nothing, 'the detail';
    my $answer;
    soon('the loss of Redis to be noticed', sub {
        $answer = post("charge?zone=local&key=$name&amount=1");
        return $answer->{status} == 200;
    });
    is $answer->{json}{store}, 'fallback', 'local: the fallback is charged';
    is $answer->{json}{remaining}, $answer->{json}{limit} - 1, 'local: of the share of this instance';
    is correct('charge', 'alone', $name, 3), '200 true 10 3 memory true', 'sync=: charges are sent later';
    is correct('refund', 'alone', $name, 2), '200 true 10 5 memory true', 'sync=: what is not sent is given back';
};

subtest 'a refund that reaches this instance, but not Redis' => sub {
    my $fake = start_fake(replies => { EVALSHA => sub { return $_[3] =~ /alice/ ? '-READONLY no' : '' } });
    my $small = start_nginx(
        http   => "rate_limit_redis fake @{[ $fake->url ]} timeout=60s connect_timeout=60s;\n"
            . "rate_limit_zone \$arg_k zone=z:1m rate=10r/d algorithm=fixed_window redis=fake sync=1h;\n"
            . "rate_limit_zone \$arg_k zone=r:1m rate=10r/d algorithm=fixed_window redis=fake;",
        server => 'location /api/ { rate_limit_api write=on; }',
    );
    my $do = sub {
        my ($call, $zone, $amount) = @_;
        my $path = "/api/$call?zone=$zone&key=alice&amount=$amount";
        return decode_json($small->request(method => 'POST', path => $path)->{body});
    };
    is $do->('charge', 'z', 4)->{remaining}, 6, 'four are charged';
    is $do->('refund', 'z', 5)->{detail}, 'Redis "fake" cannot be asked, and the client was refunded in this instance, '
        . 'but perhaps not in Redis: readonly', 'the detail';
    is left($small, 'z', 'alice'), 10, 'and so it is';
    is $do->('charge', 'r', 4)->{detail}, 'Redis "fake" cannot be asked, and nothing was changed in this instance: '
        . 'readonly', 'a charge that Redis refuses';
};

subtest 'metrics' => sub {
    my $name   = new_name();
    my $counts = sub {
        my $metrics = metrics($nginx);
        return map { $metrics->{qq(rate_limiter_settled_total{zone="memory_gcra",result="$_"})} } qw(more less);
    };
    my ($more, $less) = $counts->();
    correct('charge', 'memory_gcra', $name, 4);
    correct('refund', 'memory_gcra', $name, 1) for 1 .. 2;
    is_deeply [ $counts->() ], [ $more + 1, $less + 2 ], 'corrections are counted';
    is $nginx->get('/dashboard/')->{status}, 200, 'the dashboard works as before';
    my $zone = decode_json($nginx->get('/dashboard/zones/memory_gcra')->{body});
    is $zone->{requests}{rejected}, 3, 'corrections are not requests';
};

subtest 'the examples of docs/api.md' => sub {
    my $documented = start_nginx(
        clock => 1,
        http  => "rate_limit_redis fleet @{[ $one->url ]} timeout=60s connect_timeout=60s;\n"
            . 'rate_limit_zone $http_x_client zone=api:10m rate=100r/m redis=fleet;',
        server => 'location /api/ { rate_limit_api write=on; }',
    );
    open my $page, '<', 'docs/api.md' or die "docs/api.md: $!\n";
    my $text = do { local $/ = undef; <$page> };
    close $page or die "docs/api.md: $!\n";
    my @examples = $text =~ m{^\$ curl -s -X POST "\$API/((?:charge|refund)\?\S+)"\n(\{.*\})$}mg;
    is scalar(@examples), 8, 'there are four';
    while (my ($path, $shown) = splice @examples, 0, 2) {
        my ($got, $want) = ($documented->request(method => 'POST', path => "/api/$path")->{body}, $shown);
        s/(?<="resetAfterSeconds":)[\d.]+(?=,)/N/, s/\n\z// for $got, $want;
        is $got, $want, $path;
    }
};

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'no critical errors in the log' for $nginx, $other;
done_testing;
