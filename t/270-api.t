# The JSON API: the reply and effect of each call, for zones in memory and in Redis, and for all algorithms.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx check_config wait_for decode_json);
use RateLimit::Async;
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Redis qw(start_redis);
use Sys::Hostname qw(hostname);
use Test::More;
use Time::HiRes qw(time);

my @ports = split ' ', $ENV{RL_PORTS};

# Each zone admits five requests at once.
my %rates = (
    token_bucket    => 'rate=5r/h',
    leaky_bucket    => 'rate=5r/h burst=4',
    gcra            => 'rate=5r/h burst=4',
    fixed_window    => 'rate=5r/h align=first',
    sliding_window  => 'rate=5r/h',
    sliding_buckets => 'rate=5r/h',
    sliding_log     => 'rate=5r/h',
);
my $redis  = start_redis();
my $server = <<'SERVER';
location /api/ { rate_limit_api write=on; }
location /reader/ { rate_limit_api; }
location /hidden/ { rate_limit_api keys=off; }
SERVER
my $http = <<"HTTP";
map \$http_x_plan \$plan { default \$http_x_plan; }
rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;
rate_limit_zone \$http_x_client zone=several:1m rate=2r/m,5r/h min_interval=1ms count=all on_error=closed;
rate_limit_zone \$http_x_client zone=variable:1m rate=\$plan;
rate_limit_zone \$http_x_client zone=free:1m rate=off;
rate_limit_zone \$http_x_client zone=bucket:1m rate=1r/s algorithm=token_bucket capacity=9;
HTTP
my %stores = (memory => '', redis => 'redis=fleet', sync => 'redis=fleet sync=20ms');

for my $name (sort keys %rates) {
    for my $store (sort keys %stores) {
        next if $name eq 'sliding_log' && $store eq 'sync';
        my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
        $http   .= "rate_limit_zone \$http_x_client zone=$store.$name:1m algorithm=$name $rates{$name} $stores{$store};\n";
        $server .= "location = /$store.$name { rate_limit zone=$store.$name $nodelay; empty_gif; }\n";
    }
}
my $nginx = start_nginx(workers => 2, http => $http, server => $server);

sub call {
    my ($method, $path, %more) = @_;
    my @headers = ('X-Rate-Limit-Api' => 1, @{ $more{headers} // [] });    # required for a GET that charges
    my $answer  = $nginx->request(method => $method, path => "/api/$path", %more, headers => \@headers);
    $answer->{json} = eval { decode_json($answer->{body}) };
    return $answer;
}

sub fields {
    my ($answer, @names) = @_;
    return join ' ', $answer->{status}, map { my $value = $answer->{json}{$_}; !defined $value ? 'null' : ref $value ? ($value ? 'true' : 'false') : $value } @names;
}

for my $store (sort keys %stores) {
    for my $name (grep { $store ne 'sync' || $_ ne 'sliding_log' } sort keys %rates) {
        subtest "$store: $name" => sub {
            my $zone   = "$store.$name";
            my $client = "zone=$zone&key=alice";
            my $place  = $store eq 'redis' ? 'redis' : 'memory';
            my @names  = qw(allowed zone key algorithm limit remaining retryAfterSeconds store);
            is fields(call('GET', "remaining?$client"), @names), "200 true $zone alice $name 5 5 0 $place", 'all is left';
            is fields(call('GET', "check?$client"), @names), "200 true $zone alice $name 5 4 0 $place",
                'one request is charged';
            my $taken = call('GET', "check?$client&permits=3");
            is fields($taken, @names), "200 true $zone alice $name 5 1 0 $place", 'three are charged';
            cmp_ok $taken->{json}{resetAfterSeconds}, '>', 600, 'the quota is back later';
            is $taken->header('X-RateLimit-Remaining'), 1, 'the headers have the same numbers';
            is $taken->header('Retry-After'), undef, 'there is no Retry-After';
            is fields(call('GET', "remaining?$client"), @names), "200 true $zone alice $name 5 1 0 $place",
                'inspect charges nothing';
            my $refused = call('GET', "check?$client&permits=2");
            is fields($refused, qw(allowed limit remaining)), '429 false 5 1', 'a cost of two is rejected';
            cmp_ok $refused->{json}{retryAfterSeconds}, '>', 0, 'for so long';
            cmp_ok abs($refused->header('Retry-After') - $refused->{json}{retryAfterSeconds}), '<=', 1,
                'the same number as in Retry-After';
            is $nginx->get("/$zone", 'X-Client' => 'alice')->{status}, 200,
                'the last request is sent by the client itself';
            is $nginx->get("/$zone", 'X-Client' => 'alice')->{status}, 429, 'the client is limited afterwards';
            is fields(call('GET', "remaining?$client"), qw(allowed remaining retryAfterSeconds)), '200 false 0 null', 'nothing is left';
            is fields(call('GET', "check?$client&permits=6"), qw(allowed retryAfterSeconds)), '429 false null',
                'a cost of six is never admitted';
            is call('HEAD', "remaining?$client")->{status}, 200, 'HEAD looks';
            is call('DELETE', "reset?$client")->{status}, 204, 'the client is reset';
            is fields(call('GET', "remaining?$client"), qw(allowed remaining)), '200 true 5',
                'the client has its quota again';
            is $nginx->get("/$zone", 'X-Client' => 'alice')->{status}, 200, 'the client is admitted';
        };
    }
}

subtest 'properties of every reply' => sub {
    for my $call ([ GET => 'zones' ], [ GET => 'health' ], [ GET => 'nothing' ], [ DELETE => 'reset?zone=free&key=a' ], [ GET => 'check?zone=free&key=a' ], [ POST => 'zones' ]) {
        my $answer = call(@{$call});
        my $title  = join ' ', @{$call}, $answer->{status};
        is $answer->header('Cache-Control'), 'no-store', "$title: is not cached";
        is $answer->header('X-Content-Type-Options'), 'nosniff', "$title: has X-Content-Type-Options";
        is_deeply [ grep { $_->[0] =~ /^access-control/i } @{ $answer->{headers} } ], [], "$title: has no CORS header";
        next if $answer->{status} == 204;
        is $answer->header('Content-Type'), $answer->{status} < 400 ? 'application/json' : 'application/problem+json', "$title: its type";
        is $answer->header('Content-Length'), length $answer->{body}, "$title: its length";
    }
};

subtest 'the headers are those of the location' => sub {
    my $other = start_nginx(http => "rate_limit_zone \$http_x_client zone=a:1m rate=5r/m,9r/h;\nrate_limit_headers all;\nrate_limit zone=a cost=5;",
        server => "location /api/ { rate_limit_api; }\nlocation /off/ { rate_limit_api; rate_limit_headers off; }\nlocation /limited/ { rate_limit zone=a; rate_limit_api; }");
    my $answer = $other->get('/api/check?zone=a&key=k', 'X-Rate-Limit-Api' => 1);
    is $answer->header('RateLimit-Policy'), '"a-1m";q=5;w=60, "a-1h";q=9;w=3600', 'RateLimit-Policy';
    like $answer->header('RateLimit'), qr/^"a-1m";r=4;t=60$/, 'RateLimit';
    is $other->get('/off/check?zone=a&key=k', 'X-Rate-Limit-Api' => 1)->header('X-RateLimit-Limit'), undef,
        'rate_limit_headers off applies';
    is $other->get('/api/health', 'X-Client' => 'b')->{status}, 200,
        'limits outside the location do not apply to the API' for 1 .. 3;
    my @limited = map { $other->get('/limited/health', 'X-Client' => 'c')->{status} } 1 .. 6;
    is "@limited", '200 200 200 200 200 429', 'limits of the location apply';
    my $both = $other->get('/limited/check?zone=a&key=d', 'X-Rate-Limit-Api' => 1, 'X-Client' => 'e');
    is $both->header('X-RateLimit-Remaining'), 4, 'the reply is about the checked client';
};

subtest 'a zone that is not limited, or by a variable' => sub {
    is fields(call('GET', 'check?zone=free&key=a&permits=1000000'), qw(allowed limit remaining retryAfterSeconds store)), '200 true null null 0 null', 'off';
    is fields(call('GET', 'check?zone=variable&key=a', headers => [ 'X-Plan' => '3r/m' ]), qw(allowed limit remaining)), '200 true 3 2',
        'the variable of the API request is used';
    my $none = call('GET', 'check?zone=variable&key=a');
    is $none->{status}, 400, 'without a rate there is no decision';
    like $none->{json}{detail}, qr/\$plan.*no rate/, 'the reply has the reason';
};

subtest 'zones' => sub {
    my $asked = time;
    my $all   = call('GET', 'zones')->{json};
    my $told  = time;
    like $all->{instance}, qr/^[0-9a-f]{16}$/, 'the id of the instance';
    ok $all->{time} > $asked - 1 && $all->{time} < $told + 1, 'the time of the reply';
    ok $all->{write} && $all->{keys}, 'the permissions of the location';
    is_deeply [ map { decode_json($nginx->get('/api/zones')->{body})->{instance} } 1 .. 6 ], [ ($all->{instance}) x 6 ],
        'all workers reply the same';
    my %zones = map { $_->{zone} => $_ } @{ $all->{zones} };
    is scalar(keys %zones), 4 + 3 * 7 - 1, 'all are there';
    my %want = (
        several           => { key => '$http_x_client', algorithm => 'sliding_window', rate => '2r/m,5r/h', configuredRate => '2r/m,5r/h', minIntervalSeconds => 0.001, count => 'all', store => 'memory' },
        variable          => { rate => '$plan', configuredRate => '$plan' },
        bucket            => { capacity => 9, algorithm => 'token_bucket' },
        'memory.gcra'     => { burst => 4, store => 'memory' },
        'redis.gcra'      => { store => 'redis', redis => 'fleet', onError => 'open', denyCacheSeconds => 1 },
        'sync.gcra'       => { store => 'memory', redis => 'fleet', syncSeconds => 0.02, syncOvershoot => 0, syncLost => 0 },
        'memory.sliding_buckets' => { buckets => 10 },
    );
    for my $name (sort keys %want) {
        is_deeply { map { $_ => $zones{$name}{$_} } keys %{ $want{$name} } }, $want{$name}, $name;
        ok !$zones{$name}{live}, "$name: as configured";
    }
    ok !exists $zones{several}{$_},
        "no $_ without its feature" for qw(burst capacity buckets redis syncSeconds onError denyCacheSeconds syncOvershoot syncLost limited shadow);
    is $zones{'memory.gcra'}{keys}, 1, 'one client is stored';
    cmp_ok $zones{'memory.gcra'}{slots}, '>', 1000, 'and how many the zone has room for';
    ok !exists $zones{'redis.gcra'}{slots}, 'a zone without clients in memory has none';
    is $all->{host}, hostname(), 'the host';
    my ($fleet) = @{ $all->{redis} };
    is $fleet->{redis}, 'fleet', 'Redis';
    ok $fleet->{up} && !$fleet->{breakerOpen}, 'Redis is up';
    is scalar(@{ $fleet->{$_}{counts} }), 1 + @{ $fleet->{$_}{le} }, "$_ is a histogram" for qw(roundTripSeconds batchSize);
    my $one = call('GET', 'zones/memory.gcra')->{json};
    is $one->{zone}, 'memory.gcra', 'one zone';
    is $one->{requests}{allowed}, 4,  'admitted calls and requests are counted';
    is $one->{requests}{rejected}, 3, 'rejected calls and requests are counted';
    is_deeply $one->{limited}, [ { key => 'alice', rejected => 3, error => 0 } ], 'the limited clients';
    is decode_json($nginx->get('/hidden/zones/memory.gcra')->{body})->{limited}, undef, 'keys=off does not say who';
    my $hidden = decode_json($nginx->get('/hidden/zones')->{body});
    ok !$hidden->{keys} && !$hidden->{write}, 'the reply reports the failure';
};

subtest 'no write without write=on, or by another site' => sub {
    my @writes = ([ DELETE => 'reset?zone=bucket&key=a' ], [ DELETE => 'zones/bucket' ], [ PATCH => 'zones/bucket' ]);
    my %patch = (headers => [ 'Content-Type' => 'application/json' ], body => '{"rate":"7r/s"}');
    for my $write (@writes) {
        my ($method, $path) = @{$write};
        my @body = $method eq 'PATCH' ? (body => $patch{body}) : ();
        my $try = sub {
            my ($location, @headers) = @_;
            return $nginx->request(method => $method, path => "/$location/$path", headers => [ 'Content-Type' => 'application/json', @headers ], @body)->{status};
        };
        is $try->('reader'), 403, "$method $path: refused without write=on";
        is $try->('api', 'Sec-Fetch-Site' => $_), 403,
            "$method $path: refused with $_" for qw(cross-site same-site nonsense);
        for my $origin (qw(http://evil.test null http://localhost.evil.test http://localhost:81 https://localhost:80 file:// http://), 'http://evil.test http://localhost', '') {
            is $try->('api', Origin => $origin), 403, "$method $path: not from \"$origin\"";
        }
        is $try->('api', Origin => 'http://localhost', Origin => 'http://evil.test'), 403,
            "$method $path: refused with two origins";
        my $fine = $method eq 'DELETE' && $path =~ /reset/ ? 204 : 200;
        my $do   = sub { my (@headers) = @_; call('GET', 'check?zone=bucket&key=a'); return $try->('api', @headers) };    # a known client
        is $do->(), $fine, "$method $path: accepted from a program";
        is $do->('Sec-Fetch-Site' => $_), $fine, "$method $path: $_" for qw(same-origin none);
        is $do->(Origin => $_), $fine,
            "$method $path: accepted from $_" for qw(http://localhost https://LOCALHOST http://localhost:80 https://localhost:443);
        is $do->(Host => 'here:8080', Origin => 'http://here:8080'), $fine, "$method $path: accepted with a port";
    }
    call('DELETE', 'zones/bucket');
    is $nginx->request(path => '/api/check?zone=bucket&key=a', headers => [ 'X-Rate-Limit-Api' => 1, 'Sec-Fetch-Site' => 'cross-site' ])->{status}, 403,
        'a check by another site is not charged';
    is $nginx->request(path => '/api/zones', headers => [ 'Sec-Fetch-Site' => 'cross-site' ])->{status}, 200,
        'reading is controlled by allow and deny';
};

subtest 'methods' => sub {
    my %allow = (check => 'GET, HEAD, POST', remaining => 'GET, HEAD', health => 'GET, HEAD', zones => 'GET, HEAD', reset => 'DELETE', 'zones/bucket' => 'GET, HEAD, PATCH, DELETE');
    for my $path (sort keys %allow) {
        for my $method (qw(GET HEAD POST PUT PATCH DELETE OPTIONS TRACE NONSENSE)) {
            next if grep { $_ eq $method } split /, /, $allow{$path};
            my $answer = call($method, $path);
            next if $method eq 'TRACE';    # nginx rejects TRACE itself
            is $answer->{status}, 405, "$method $path";
            is $answer->header('Allow'), $allow{$path}, 'the Allow header';
        }
    }
    is call('HEAD', 'zones')->{body}, '', 'HEAD has no body';
};

subtest 'paths' => sub {
    is call('GET', $_)->{status}, 404, "there is no \"$_\"" for '', 'Zones', 'zones/', 'zones/none', 'x/zones', 'check/', 'zones/bucket/x', 'zone/bucket';
    my $other = start_nginx(http => "rate_limit_zone \$http_x_client zone=check:1m rate=5r/m;\nrate_limit_zone \$http_x_client zone=a/b:1m rate=5r/m;",
        server => <<'SERVER');
location /noslash { rate_limit_api; }
location ~ ^/pattern/(.*)$ { rate_limit_api; }
location = /only/health { rate_limit_api; }
location /guarded/ { rate_limit_api write=on; limit_except GET { deny all; } }
location /if/ { rate_limit_api; if ($http_x_if) { set $x 1; } }
SERVER
    is $other->get("/$_")->{status}, 200, $_ for qw(noslash/health pattern/health pattern/zones/check only/health guarded/health guarded/zones/check guarded/zones/a/b guarded/zones/a%2Fb if/health);
    is $other->request(path => '/if/health', headers => [ 'X-If' => 1 ])->{status}, 200, 'inside an if';
    is $other->request(method => 'DELETE', path => '/guarded/zones/check')->{status}, 403,
        'limit_except rejects writers';
    like $other->request(method => 'DELETE', path => '/guarded/zones/check')->{body}, qr/<html>/, 'before the API';
    my $inside = start_nginx(http => "rate_limit_zone \$http_x_client zone=a:1m rate=5r/m;",
        server => 'location /guarded/ { rate_limit_api write=on; limit_except GET { allow 127.0.0.1; deny all; } }');
    is $inside->request(method => 'DELETE', path => '/guarded/zones/a')->{status}, 200, 'limit_except admits writers';
};

subtest 'a failed Redis' => sub {
    my $server = start_redis();
    my $away   = start_nginx(http => "rate_limit_redis fleet @{[ $server->url ]} timeout=100ms;\n"
            . join('', map {"rate_limit_zone \$http_x_client zone=$_:1m rate=5r/m redis=fleet on_error=$_;\n"} qw(open closed local))
            . "rate_limit_zone \$http_x_client zone=synced:1m rate=5r/m redis=fleet sync=50ms;\n",
        server => 'location /api/ { rate_limit_api write=on; }');
    my $ask = sub {
        my ($method, $path, %more) = @_;
        my @headers = ('X-Rate-Limit-Api' => 1, @{ $more{headers} // [] });
        my $answer  = $away->request(method => $method, path => "/api/$path", %more, headers => \@headers);
        $answer->{json} = eval { decode_json($answer->{body}) };
        return $answer;
    };
    my $health = sub { my $answer = $ask->('GET', 'health'); return "$answer->{status} $answer->{json}{status} $answer->{json}{redis}{fleet}" };
    ok wait_for('health', sub { $health->() eq '200 UP UP' }), 'health is fine';
    $server->kill;
    ok wait_for('an open breaker', sub { $ask->('GET', 'check?zone=closed&key=a')->{status} == 503 }), 'closed: 503';
    like $ask->('GET', 'check?zone=closed&key=a')->{json}{detail}, qr/fails closed/, 'the reply has the reason';
    is fields($ask->('GET', 'check?zone=open&key=a'), qw(allowed limit remaining store)), '200 true null null fallback',
        'open: admitted without a decision';
    is fields($ask->('GET', 'check?zone=local&key=a'), qw(allowed limit remaining store)), '200 true 5 4 fallback', 'local: decided here';
    is fields($ask->('GET', 'check?zone=synced&key=a'), qw(allowed limit store)), '200 true 5 memory', 'sync=: decided here as ever';
    my %patch = (headers => [ 'Content-Type' => 'application/json' ], body => '{"rate":"50r/m"}');
    for my $zone (qw(open synced)) {
        is $ask->(PATCH => "zones/$zone", %patch)->{status}, 503, "$zone: no rate is changed";
        is $ask->(DELETE => "zones/$zone")->{status}, 503, "$zone: no rate is reset";
        is $ask->(DELETE => "reset?zone=$zone&key=a")->{status}, 503, "$zone: no client is reset";
        ok !$ask->(GET => "zones/$zone")->{json}{live}, "$zone: not even on this instance";
    }
    is $ask->(GET => 'remaining?zone=synced&key=a')->{json}{remaining}, 4, 'the client has the same quota as before';
    ok wait_for('health', sub { $health->() eq '503 DOWN DOWN' }),
        'health reports a failure, because a zone fails closed';
    $server->restart;
    ok wait_for('health', sub { $health->() eq '200 UP UP' }), 'health recovers when Redis is back';
    unlike $away->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

subtest 'health without on_error=closed' => sub {
    my $gone = start_fake(mode => 'refuse');
    my $open = start_nginx(http => "rate_limit_redis fleet @{[ $gone->url ]};\nrate_limit_redis unused @{[ $gone->url ]};\nrate_limit_zone \$http_x_client zone=a:1m rate=5r/m redis=fleet;",
        server => 'location /api/ { rate_limit_api; }');
    is $open->get('/api/health')->{status}, 200, 'health is good';
    wait_for('health to report the failure', sub { $open->get('/api/health')->{body} =~ /DOWN/ });
    my $answer = $open->get('/api/health');
    is $answer->{status}, 200, 'health stays good';
    is_deeply decode_json($answer->{body}), { status => 'UP', redis => { fleet => 'DOWN' } },
        'health is good although Redis is down';
};

subtest 'clients that disconnect during a Redis call' => sub {
    my $server = start_redis();
    my $slow   = start_nginx(http => "rate_limit_redis fleet @{[ $server->url ]} timeout=10s;\nrate_limit_zone \$http_x_client zone=a:1m rate=500r/m redis=fleet;",
        server => 'location /api/ { rate_limit_api write=on; }');
    is $slow->get('/api/check?zone=a&key=k', 'X-Rate-Limit-Api' => 1)->{status}, 200, 'Redis answers';
    $server->pause;
    for my $round (1 .. 5) {
        my @leaving = map { RateLimit::Async->new($slow->port) } 1 .. 6;
        $leaving[0]->request(GET => '/api/check?zone=a&key=k', [ 'X-Rate-Limit-Api' => 1 ]);
        $leaving[1]->request(GET => '/api/remaining?zone=a&key=k');
        $leaving[2]->request(DELETE => '/api/reset?zone=a&key=k');
        $leaving[3]->request(PATCH => '/api/zones/a', [ 'Content-Type' => 'application/json' ], '{"rate":"600r/m"}');
        $leaving[4]->request(DELETE => '/api/zones/a');
        $leaving[5]->request(GET => '/api/check?zone=a&key=k', [ 'X-Rate-Limit-Api' => 1 ]);
        is $slow->get('/api/zones')->{status}, 200, "round $round: no other request waits";
    }
    $server->resume;
    ok wait_for('an answer', sub { $slow->get('/api/check?zone=a&key=other', 'X-Rate-Limit-Api' => 1)->{status} == 200 }),
        'Redis answers again';
    my ($worker) = $slow->workers;
    is scalar(grep {/exited on signal/} split /\n/, $slow->error_log), 0, 'no worker has crashed';
    $slow->signal('QUIT');
    wait_for('the end', sub { waitpid($slow->pid, 1) != 0 });
    unlike $slow->error_log, qr/open socket|\[(?:alert|crit|emerg)\]/, 'nothing is leaked';
};

subtest 'an API call in a subrequest' => sub {
    my $server = start_redis();
    my $asking = start_nginx(http => "rate_limit_redis fleet @{[ $server->url ]} timeout=5s;\nrate_limit_zone \$http_x_client zone=a:1m rate=2r/h redis=fleet;\nrate_limit_zone \$http_x_client zone=m:1m rate=2r/h;",
        server => <<'SERVER');
location = /included { ssi on; ssi_types text/plain; }
location /api/ { rate_limit_api; }
SERVER
    $asking->write_file('included', '<!--# include virtual="/api/remaining?zone=a&key=x" --><!--# include virtual="/api/check?zone=m&key=x" -->');
    my $both = $asking->get('/included');
    is scalar(() = $both->{body} =~ /"allowed":true/g), 2, 'the parts of a page';
    is $both->header('X-RateLimit-Limit'), undef, 'API calls in subrequests add no headers to the page';
};

subtest 'a user with only the documented rights' => sub {
    my $rights = '+evalsha +script|load +mget +set +del +time +select +eval +hmget +zrangebyscore +exists';
    my $writes = '+hget +hset +hdel +zadd +zrevrange +zremrangebyscore +pexpire';
    my $server = start_redis(acl => "writer on >x ~rate_limit:* $rights $writes\nreader on >x ~rate_limit:* $rights\nold on >x ~rate_limit:* +evalsha +script|load +mget +set +del +time +select");
    for my $user (qw(writer reader old)) {
        my $limited = start_nginx(http => "rate_limit_redis fleet @{[ $server->url(user => $user, password => 'x') ]} timeout=5s;\nrate_limit_zone \$http_x_client zone=a:1m rate=2r/h redis=fleet;\n",
            server => 'location /api/ { rate_limit_api write=on; }', port => $ports[-1]);
        is $limited->get("/api/check?zone=a&key=$user", 'X-Rate-Limit-Api' => 1)->{status}, 200, "$user: limits apply";
        my @patch  = (headers => [ 'Content-Type' => 'application/json' ], body => '{"rate":"5r/h"}');
        my @writes = map { $limited->request(method => $_->[0], path => "/api/$_->[1]", @patch)->{status} } [ PATCH => 'zones/a' ], [ DELETE => "reset?zone=a&key=$user" ], [ DELETE => 'zones/a' ];
        is "@writes", $user eq 'writer' ? '200 204 200' : '503 503 503', "$user: writes";
        my $unheard = qr/\[warn\] .*Redis does not let this user read rates that are changed while nginx runs/;
        $user eq 'old' ? ok $limited->wait_for_log($unheard), "$user: health reports the missing rights" : unlike $limited->error_log, qr/\[warn\]|redis "/, "$user: nothing is missing";
    }
};

subtest 'invalid directives make nginx -t fail' => sub {
    my @wrong = (
        [ 'rate_limit_api write;'               => qr/"rate_limit_api": unknown parameter "write", it must be write=on\|off or keys=on\|off/ ],
        [ 'rate_limit_api write=yes;'           => qr/invalid value "write=yes", it must be on or off/ ],
        [ 'rate_limit_api keys=;'               => qr/invalid value "keys=", it must be on or off/ ],
        [ 'rate_limit_api write=on write=off;'  => qr/"write=off" is duplicate, it follows "write=on"/ ],
        [ 'rate_limit_api; rate_limit_api;'     => qr/"rate_limit_api": is duplicate in this location/ ],
    );
    for my $row (@wrong) {
        my ($words, $line) = @{$row};
        my $check = check_config(port => $ports[-1], server => "location /api/ { $words }");
        isnt $check->{exit}, 0, $words;
        is scalar @{ $check->{emerg} }, 1, 'one line';
        like $check->{emerg}[0], $line, 'the message has the reason';
    }
    isnt check_config(port => $ports[-1], http => 'rate_limit_api;')->{exit}, 0, 'outside a location';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
