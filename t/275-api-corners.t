# The API in subrequests, after rewrites, in pipelines, and when clients or configurations end during a Redis call.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json format_request slurp);
use RateLimit::Async qw(await_answers);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(sleep time);

my $redis = start_redis();
my $nginx = start_nginx(
    http => <<"HTTP",
rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;
rate_limit_zone \$http_x_client zone=mem:1m rate=5r/m;
rate_limit_zone \$http_x_client zone=red:1m rate=5r/m redis=fleet;
rate_limit_zone \$http_x_client zone=own:1m rate=50r/m;
rate_limit_zone "caf\xe9 \$http_x_client" zone=latin:1m rate=5r/m;
log_format state '\$uri \$rate_limit_status \$rate_limit_remaining';
merge_slashes off;
HTTP
    server => <<'SERVER',
access_log state.log state;
location /api/ { rate_limit_api write=on; post_action /after; }
location = /after { empty_gif; }
location /cut/ { rewrite ^/cut/(.*)$ $1 break; rate_limit_api; }
location ~ ^/pattern/ { rewrite ^/pattern/(.*)$ $1 break; rate_limit_api; }
location @named { rate_limit_api write=on; }
location /named/ { error_page 418 = @named; if ($uri) { return 418; } }
location = /auth.mem { internal; set $args "zone=mem&key=tenant"; rewrite ^ /auth.mem/check break; rate_limit_api; }
location = /auth.red { internal; set $args "zone=red&key=tenant"; rewrite ^ /auth.red/check break; rate_limit_api; }
location = /guarded.mem { auth_request /auth.mem; rate_limit zone=own; try_files /none /charged.mem; }
location = /guarded.red { auth_request /auth.red; rate_limit zone=own; try_files /none /charged.red; }
location = /charged.mem { rate_limit zone=mem; empty_gif; }
location = /charged.red { rate_limit zone=red; empty_gif; }
location = /include { ssi on; ssi_types *; try_files /include.txt =404; }
location /error/ { error_page 404 /api/zones; }
SERVER
);
$nginx->write_file('include.txt', join '', map {"<!--# include virtual=\"/api/$_\" -->"} 'check?zone=red&key=ssi', 'zones/red', 'remaining?zone=mem&key=ssi');

subtest 'rewritten paths' => sub {
    for my $place (qw(cut pattern named)) {
        my %status = (zones => 200, health => 200, 'zones/mem' => 200, 'zones/none' => 404, check => 400, nonsense => 404);
        is $nginx->get("/$place/$_", 'X-Rate-Limit-Api' => 1)->{status}, $status{$_}, "$place: $_" for sort keys %status;
    }
    is $nginx->request(method => 'DELETE', path => '/named/zones/mem')->{status}, 200, 'a named location';
    is decode_json($nginx->get('/error/x')->{body})->{zones}[0]{zone}, 'mem', 'an error page';
    is $nginx->get("/api/$_")->{status}, 404, "/$_ is not a call" for '/zones', '//zones', 'zones//mem', '/health';
};

subtest 'a check in a subrequest does not limit its request' => sub {
    for my $store (qw(mem red)) {
        my @answers = map { $nginx->get("/guarded.$store", 'X-Client' => 'alice') } 1 .. 3;
        is join(' ', map { $_->{status} } @answers), '200 200 200', "$store: the request is admitted";
        is join(' ', map { $_->header('X-RateLimit-Remaining') } @answers), '4 3 2',
            "$store: the headers show the limits of the request";
        my %left = map { $_ => decode_json($nginx->get("/api/remaining?zone=$store&key=$_")->{body})->{remaining} } qw(alice tenant);
        is_deeply \%left, { alice => 2, tenant => 2 },
            "$store: the limits of the request and of the check were charged";
    }
    my @parts = split /\n/, $nginx->get('/include')->{body};
    is join(' ', map { decode_json($_)->{zone} } @parts), 'red red mem', 'replies can be parts of a page';
};

subtest 'configured text that is not UTF-8' => sub {
    is decode_json($nginx->get('/api/zones/latin')->{body})->{key}, 'caf\\xE9 $http_x_client',
        'has the escapes of the log';
};

subtest 'outer limits do not apply to the API' => sub {
    my $outside = start_nginx(
        http   => "rate_limit_zone all zone=a:1m rate=1r/h;\nrate_limit_zone all zone=b:1m rate=1r/h;\nrate_limit_zone all zone=c:1m rate=1r/h;\nrate_limit_zone all zone=d:1m rate=1r/h;\nrate_limit zone=a;",
        server => <<'SERVER',
location /api/ { rate_limit_api; limit_except GET { deny all; } location = /api/page { empty_gif; } }
location /own/ { rate_limit zone=b; rate_limit_api; location = /own/page { empty_gif; } }
location /two/ { rate_limit zone=c; location /two/api/ { rate_limit_api; location = /two/api/page { empty_gif; } } }
location /off/ { rate_limit off; location /off/api/ { rate_limit_api; location = /off/api/page { empty_gif; } } }
SERVER
    );
    my $twice = sub { my ($path) = @_; return join ' ', map { $outside->get($path)->{status} } 1, 2 };
    is $twice->('/api/health'), '200 200', 'outer limits do not apply to the API';
    is $twice->('/api/page'), '200 429', 'outer limits apply to a nested location';
    is $twice->('/own/health'), '200 429', 'limits of the API location apply to it';
    is $twice->('/own/page'), '429 429', 'the limits of the API location apply to a nested location';
    is $twice->('/two/api/health'), '200 200', 'limits of an enclosing location do not apply to the API';
    is $twice->('/two/api/page'), '200 429', 'limits of an enclosing location apply to a nested location';
    is $twice->('/off/api/page'), '200 200', 'rate_limit off applies to a nested location';
};

subtest 'without a Host, as in HTTP/3, a browser says itself whether a page is of the same origin' => sub {
    my %status = ('' => 200, 'Sec-Fetch-Site: same-origin' => 200, 'Sec-Fetch-Site: none' => 200, map { $_ => 403 } 'Sec-Fetch-Site: cross-site', 'Origin: http://localhost', 'Origin: null');
    $status{"Sec-Fetch-Site: same-origin\r\nOrigin: https://localhost"} = 200;
    $status{"Sec-Fetch-Site: $_\r\nOrigin: https://localhost"}          = 403 for qw(none same-site cross-site);
    for my $headers (sort keys %status) {
        my $old = $nginx->connect;
        $old->send(join "\r\n", 'DELETE /api/zones/mem HTTP/1.0', length $headers ? $headers : (), '', '');
        is $old->receive->{status}, $status{$headers}, $headers =~ s/\r\n/, /r || 'a program';
    }
};

subtest 'a pipeline' => sub {
    my @keep = (headers => [ Connection => 'keep-alive', 'X-Rate-Limit-Api' => 1 ]);
    my @json = (headers => [ Connection => 'keep-alive', 'Content-Type' => 'application/json' ]);
    my @requests = (
        [ 200 => path => '/api/check?zone=red&key=p', @keep ],
        [ 200 => method => 'PATCH', path => '/api/zones/red', @json, body => '{"rate":"6r/m"}' ],
        [ 204 => method => 'DELETE', path => '/api/reset?zone=red&key=p', @keep, body => 'y' x 9000 ],
        [ 400 => path => '/api/check?zone=red', @keep ],
        [ 415 => method => 'PATCH', path => '/api/zones/mem', @keep, body => 'z' x 3000 ],
        [ 413 => method => 'PATCH', path => '/api/zones/mem', @json, body => 'z' x 9000 ],
        [ 405 => method => 'POST', path => '/api/zones', @keep, body => 'z' x 9000 ],
        [ 200 => method => 'DELETE', path => '/api/zones/red', @keep ],
        [ 200 => path => '/api/health', @keep ],
    );
    my $pipe = $nginx->connect;
    $pipe->send(join '', map { my (undef, @request) = @{$_}; format_request(@request) } @requests);
    is join(' ', map { $pipe->receive->{status} } @requests), join(' ', map { $_->[0] } @requests),
        'pipelined requests get responses in order';
};

subtest 'a Redis user without the right to read rates does not affect health' => sub {
    my $server = start_redis(acl => 'app on >x ~rate_limit:* +evalsha +script|load +mget +set +del +time +select');
    my $denied = start_nginx(
        http   => "rate_limit_redis fleet @{[ $server->url(user => 'app', password => 'x') ]} timeout=10s;\nrate_limit_zone \$http_x_client zone=a:1m rate=5r/m redis=fleet on_error=closed;",
        server => 'location /api/ { rate_limit_api; }',
    );
    $denied->wait_for_log(qr/Redis does not let this user read rates/);
    my (%seen, $last);
    my $began = time;
    while (time < $began + 3.5) {
        my $status = $denied->get('/api/health')->{status};
        # A worker that had no CPU time for a second may not have sent a check for a while.
        $seen{$status}++ if time - ($last // $began) < 1;
        $last = time;
        sleep 0.05;
    }
    is join(' ', keys %seen), 200, 'health stays good for more than three seconds';
    is $denied->get('/api/check?zone=a&key=k', 'X-Rate-Limit-Api' => 1)->{status}, 200, 'limits apply';
    $server->kill;
    ok wait_for('health', sub { $denied->get('/api/health')->{status} == 503 }), 'health fails when Redis stops';
};

# Starts calls that wait for a stopped Redis.
sub start_calls {
    my ($port) = @_;
    my @calls = map { RateLimit::Async->new($port) } 1 .. 6;
    $calls[0]->request(GET => '/api/check?zone=red&key=k', [ 'X-Rate-Limit-Api' => 1 ]);
    $calls[1]->request(DELETE => '/api/reset?zone=red&key=k');
    $calls[2]->request(PATCH => '/api/zones/red', [ 'Content-Type' => 'application/json' ], '{"rate":"600r/m"}');
    $calls[3]->request(DELETE => '/api/zones/red');
    $calls[4]->request(GET => '/include');
    $calls[5]->request(GET => '/api/remaining?zone=red&key=k');
    return @calls;
}

subtest 'clients that disconnect, and pipelined requests' => sub {
    $redis->pause;
    start_calls($nginx->port) for 1 .. 5;
    sleep 0.2;
    $redis->resume;
    ok wait_for('an answer', sub { $nginx->get('/api/check?zone=red&key=other', 'X-Rate-Limit-Api' => 1)->{status} == 200 }),
        'other clients get replies';
};

for my $kind ([ 'a master' => '' ], [ 'one process' => 'master_process off;' ]) {
    my ($title, $main) = @{$kind};
    for my $signal ($main ? () : 'HUP', qw(QUIT TERM)) {    # without a master, nginx does not serve after HUP
        subtest "$title: $signal during a Redis call" => sub {
            my $server = start_redis();
            my %conf   = (
                main   => $main,
                http   => "rate_limit_redis fleet @{[ $server->url ]} timeout=1s;\n"
                    . join('', map {"rate_limit_zone \$http_x_client zone=$_:1m rate=500r/m redis=fleet;\n"} qw(red shadow local gone))
                    . "rate_limit_zone \$http_x_client zone=synced:1m rate=500r/m redis=fleet sync=50ms;\n",
                server => 'location /api/ { rate_limit_api write=on; } location = /a { rate_limit zone=red; rate_limit_shadow zone=shadow; empty_gif; } location = /include { rate_limit_shadow zone=gone; empty_gif; }',
            );
            my $other = start_nginx(%conf);
            is $other->get($_, 'X-Client' => 'a', 'X-Rate-Limit-Api' => 1)->{status}, 200, "$_ works" for qw(/api/check?zone=red&key=k /a /include);
            $server->pause;
            my @calls = start_calls($other->port);
            push @calls, RateLimit::Async->new($other->port);
            $calls[-1]->request(GET => '/a', [ 'X-Client' => 'a' ]);
            sleep 0.1;
            $conf{http} =~ s/ zone=gone:1m/ zone=here:1m/;
            $conf{server} =~ s/zone=gone/zone=here/;
            if ($signal eq 'HUP') {
                RateLimit::write_config($other->dir, $other->port, %conf);
                $other->signal('HUP');
                sleep 0.3;
                $server->resume;
                ok wait_for('an answer', sub { $other->get('/api/check?zone=red&key=other', 'X-Rate-Limit-Api' => 1)->{status} == 200 }),
                    'other clients get replies';
                ok wait_for('new workers', sub { $other->get('/api/zones/here')->{status} == 200 }),
                    'the new configuration applies';
                $other->signal('QUIT');
            } else {
                $other->signal($signal);
            }
            sleep 0.2;
            $server->resume;
            await_answers(30, @calls);
            $_->close for @calls;    # nginx would wait for these
            wait_for('the end', sub { waitpid($other->pid, 1) != 0 });
            unlike $other->error_log, qr/open socket|\[(?:alert|crit|emerg)\]|exited on signal/, 'nothing is leaked';
            delete $other->{pid};
        };
    }
}

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
