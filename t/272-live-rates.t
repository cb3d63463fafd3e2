# A rate that is changed while nginx runs applies to all workers of all instances within a second, without a reload.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json);
use RateLimit::Async qw(await_answers);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;
use Time::HiRes qw(sleep time);

my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis(config => "appendonly yes\nappendfsync always");
my $soon  = 1;    # seconds

sub conf {
    my (%more) = @_;
    my $rate = delete $more{rate} // 'rate=5r/h';
    my $http = delete $more{http} // '';
    return (
        workers => 2,
        http    => <<"HTTP",
map \$http_x_plan \$plan { "" 5r/h; default \$http_x_plan; }
rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;
rate_limit_zone \$http_x_client zone=memory:1m $rate algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=redis:1m $rate algorithm=token_bucket redis=fleet;
rate_limit_zone \$http_x_client zone=sync:1m $rate algorithm=fixed_window redis=fleet sync=20ms;
rate_limit_zone \$http_x_client zone=variable:1m rate=\$plan algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=tiers:1m rate=\$plan algorithm=token_bucket redis=fleet;
rate_limit_zone \$http_x_client zone=other:1m rate=5r/h algorithm=token_bucket redis=fleet;
$http
HTTP
        server => join('', map {"location = /$_ { rate_limit zone=$_; add_header X-Worker \$pid always; add_header X-Limit \$rate_limit_limit always; add_header X-Status \$rate_limit_status always; empty_gif; }\n"} qw(memory redis sync variable tiers other))
            . "rate_limit_headers all;\nlocation /api/ { rate_limit_api write=on; }\n",
        %more,
    );
}

my @fleet = map { start_nginx(conf(port => $_)) } @ports[ 0, 1 ];
my $clients = 0;
sub client { return 'client' . ++$clients }

sub patch {
    my ($nginx, $zone, $rate) = @_;
    my $answer = $nginx->request(method => 'PATCH', path => "/api/zones/$zone", headers => [ 'Content-Type' => 'application/json' ], body => "{\"rate\":\"$rate\"}");
    return $answer->{status} == 200 ? decode_json($answer->{body}) : $answer;
}

sub restore {
    my ($nginx, $zone) = @_;
    my $answer = $nginx->request(method => 'DELETE', path => "/api/zones/$zone");
    return $answer->{status} == 200 ? decode_json($answer->{body}) : $answer;
}

# Returns the limits that both workers of an nginx report. Opens new connections until each worker has accepted one.
sub limits {
    my ($nginx, $zone, @headers) = @_;
    my %seen;
    wait_for('both workers to answer', sub {
        my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 4;
        $_->request('GET', "/$zone", [ 'X-Client' => client(), @headers ]) for @connections;
        await_answers(60, @connections);
        $seen{ $_->header('X-Worker') }{ $_->header('X-Limit') // '-' } = 1 for map { $_->answers } @connections;
        return keys %seen == 2;
    });
    return join ' ', map { join '/', sort keys %{ $seen{$_} } } sort keys %seen;
}

# Waits until every instance has asked Redis for rates twice: the instance has processed the first answer by then.
sub wait_for_questions {
    my $monitor = $redis->monitor;
    wait_for('questions for rates', sub {
        my %count;
        $count{$_}++ for map { /"EVAL" .*"rate_limit:rates"/ && / \[\d+ (\S+)\]/ ? $1 : () } $monitor->lines;
        return @fleet == grep { $_ >= 2 } values %count;
    });
    return;
}

# Waits until all workers of all instances report the same limit. Returns the spare time that it took.
sub wait_for_limit {
    my ($limit, $zone, @nginxes) = @_;
    my $began = spare_time();
    for my $nginx (@nginxes) {
        wait_for("$zone to be $limit", sub { limits($nginx, $zone) eq "$limit $limit" });
    }
    return spare_time() - $began;
}

for my $zone (qw(redis sync tiers)) {
    subtest "$zone: every worker of every instance uses the new rate" => sub {
        is limits($_, $zone), '5 5', 'the configured rate at first' for @fleet;
        my $told = patch($fleet[0], $zone, '7r/h');
        is "$told->{rate} $told->{configuredRate} " . ($told->{live} ? 1 : 0), '7r/h ' . ($zone eq 'tiers' ? '$plan' : '5r/h') . ' 1',
            'the reply has the live rate';
        my $took = wait_for_limit(7, $zone, @fleet);
        cmp_ok $took, '<', $soon + 0.3, sprintf 'all workers use it after %.2f s', $took;
        my $client = client();
        my $admitted = grep { $_->{status} == 200 } map { my $nginx = $_; map { $nginx->get("/$zone", 'X-Client' => $client) } 1 .. 6 } @fleet;
        $zone eq 'sync' ? cmp_ok $admitted, '>=', 7, 'so many are admitted' : is $admitted, 7, 'the new limit applies';
        my $answer = $fleet[1]->get("/$zone", 'X-Client' => client());
        is $answer->header('RateLimit-Policy'), "\"$zone\";q=7;w=3600", 'headers say so';
        is $answer->header('X-RateLimit-Limit'), 7, 'the header has the new limit';
        my $there = decode_json($fleet[1]->get("/api/zones/$zone")->{body});
        is "$there->{rate} " . ($there->{live} ? 1 : 0), '7r/h 1', 'the API of another instance reports the new rate';
        is limits($_, 'other'), '5 5', 'other zones are not changed' for @fleet;
        patch($fleet[1], $zone, '9r/h');
        wait_for_limit(9, $zone, @fleet);
        patch($fleet[0], $zone, 'off');
        wait_for_limit('-', $zone, @fleet);
        is $fleet[1]->get("/$zone", 'X-Client' => client())->header('X-Status'), 'BYPASSED', 'off is unlimited';
        is decode_json($fleet[1]->get("/api/zones/$zone")->{body})->{rate}, 'off',
            'the API of another instance reports off';
        my $back = restore($fleet[1], $zone);
        ok !$back->{live}, 'back to the configured rate';
        $took = wait_for_limit(5, $zone, @fleet);
        cmp_ok $took, '<', $soon + 0.3, sprintf 'all workers use it after %.2f s', $took;
        is $redis->command('HEXISTS', 'rate_limit:rates', $zone), 0, 'Redis stores no live rate';
    };
}

subtest 'log lines' => sub {
    for my $number (0, 1) {
        my $log  = $fleet[$number]->error_log;
        my @seen = $log =~ /\[notice\] \d+#\d+: (?:\*\d+ )?(rate of zone "redis" is now .*?, it was [^\s,]+)/g;
        is_deeply \@seen, [ map {"rate of zone \"redis\" is now $_"} '7r/h, it was 5r/h', '9r/h, it was 7r/h', 'off, it was 9r/h', '5r/h, it was off' ],
            "instance $number: each change is logged once";
        my @by = $log =~ /rate of zone "redis" is now .*, client: 127\.0\.0\.1,.* request: "(?:PATCH|DELETE) /g;
        is scalar @by, 2, "instance $number: changes through its own API are logged with the client";
    }
};

subtest 'a zone in memory' => sub {
    for my $zone (qw(memory variable)) {
        my $client = client();
        $fleet[0]->get("/$zone", 'X-Client' => $client) for 1 .. 6;
        is $fleet[0]->get("/$zone", 'X-Client' => $client)->{status}, 429, "$zone: a client exhausts its quota";
        patch($fleet[0], $zone, '20r/h');
        is limits($fleet[0], $zone), '20 20', "$zone: both workers use the new rate at once";
        is $fleet[0]->get("/$zone", 'X-Client' => $client)->{status}, 200,
            "$zone: used requests stay used, and more are admitted";
        is limits($fleet[1], $zone), '5 5', "$zone: another instance keeps its rate";
        $fleet[0]->reload(conf());
        is limits($fleet[0], $zone), '20 20', "$zone: a reload keeps the live rate";
        restore($fleet[0], $zone);
        is limits($fleet[0], $zone), '5 5', "$zone: back to the configured rate";
    }
    patch($fleet[0], 'variable', '3r/h');
    is limits($fleet[0], 'variable', 'X-Plan' => '100r/h'), '3 3',
        'a live rate replaces a variable rate for all clients';
    restore($fleet[0], 'variable');
    is limits($fleet[0], 'variable', 'X-Plan' => '100r/h'), '100 100', 'the variable rate is back';
};

subtest 'reloads and restarts' => sub {
    patch($fleet[0], $_, '8r/h') for qw(redis sync tiers);
    wait_for_limit(8, $_, @fleet) for qw(redis sync tiers);
    $fleet[0]->reload(conf());
    is limits($fleet[0], $_), '8 8', "$_: after a reload" for qw(redis sync tiers);
    $fleet[0]->reload(conf(rate => 'rate=50r/h'));
    is limits($fleet[0], $_), '8 8', "$_: after a reload with another rate" for qw(redis sync);
    $fleet[1]->stop;
    $fleet[1] = start_nginx(conf(port => $ports[1]));
    for my $zone (qw(redis sync tiers)) {
        cmp_ok wait_for_limit(8, $zone, $fleet[1]), '<', $soon, "$zone: after a restart";
    }
    restore($fleet[1], $_) for qw(redis sync tiers);
    wait_for_limit(50, $_, $fleet[0]) for qw(redis sync);
    pass 'back to the configured rate';
    $fleet[0]->reload(conf());
    wait_for_limit(5, $_, @fleet) for qw(redis sync tiers);
};

subtest 'Redis stops and restarts' => sub {
    patch($fleet[0], 'redis', '8r/h');
    wait_for_limit(8, 'redis', @fleet);
    patch($fleet[0], 'sync', '8r/h');
    wait_for_limit(8, 'sync', @fleet);
    $redis->kill;
    sleep 1.2;    # two failed attempts a second
    is limits($_, 'sync'), '8 8', 'the last known rate is kept' for @fleet;
    $redis->restart;
    wait_for_limit(8, 'redis', @fleet);
    is limits($_, 'sync'), '8 8', 'the rate is still known after the restart' for @fleet;
    $redis->command('DEL', 'rate_limit:rates');
    wait_for_limit(5, 'sync', @fleet);
    pass 'the rate is deleted';
};

subtest 'Redis requires another password for a while' => sub {
    my $server = start_redis(password => 'right');
    my $nginx  = start_nginx(
        port   => $ports[3],
        http   => "rate_limit_redis fleet @{[ $server->url ]} timeout=5s;\nrate_limit_zone \$http_x_client zone=a:1m rate=5r/h redis=fleet sync=1s;\n",
        server => "location = /a { rate_limit zone=a; add_header X-Limit \$rate_limit_limit always; empty_gif; }",
    );
    my $limit = sub { return $nginx->get('/a', 'X-Client' => client())->header('X-Limit') };
    my $said  = sub { return scalar(my @lines = $server->info('errorstat_WRONGPASS') =~ /count=(\d+)/) ? $1 : 0 };
    $server->command('HSET', 'rate_limit:rates', a => '6r/h');
    wait_for('a rate', sub { $limit->() == 6 });
    $server->command('CONFIG', 'SET', 'requirepass', 'other');
    $server->command('CLIENT', 'KILL', 'USER', 'default');
    my $before = $said->();
    wait_for('the password to be refused', sub { $said->() >= $before + 3 });
    $server->command('HSET', 'rate_limit:rates', a => '7r/h');
    is $limit->(), 6, 'the last known rate is kept';
    my $began = spare_time();
    $server->command('CONFIG', 'SET', 'requirepass', 'right');
    wait_for('the new rate', sub { $limit->() == 7 });
    my $took = spare_time() - $began;
    cmp_ok $took, '<', 2 * $soon + 0.3, sprintf 'after the password is valid again, the rate is followed after %.2f s', $took;
    unlike $nginx->error_log, qr/does not let this user read rates/, 'missing rights of the user are not logged';
};

subtest 'invalid live rates in Redis' => sub {
    for my $wrong ('nonsense', "\xff\"\n", '1r/s,2r/m') {
        $redis->command('HSET', 'rate_limit:rates', redis => $wrong);
        my $shown = $wrong =~ s/[^ -~]|"/?/gr;
        $_->wait_for_log(qr/\[warn\] .*rate "\Q$shown\E" that Redis has for zone "redis" is not used: /) for @fleet;
        is limits($_, 'redis'), '5 5', 'an invalid rate has no effect' for @fleet;
    }
    wait_for_questions();
    my @lines = $fleet[0]->error_log =~ m{(rate "1r/s,2r/m" that Redis has)}g;
    is scalar @lines, 1, 'an invalid rate is logged once';
    $redis->command('DEL', 'rate_limit:rates');
};

subtest 'requests cause no calls for live rates' => sub {
    patch($fleet[0], 'redis', '1000000r/h');
    wait_for_limit(1_000_000, 'redis', @fleet);
    my %before = map { $_ => $redis->commandstats($_) } qw(evalsha eval hmget hget);
    my $began  = time;
    $fleet[0]->get('/redis', 'X-Client' => 'same') for 1 .. 200;
    my $took  = time - $began;
    my %asked = map { $_ => $redis->commandstats($_) - $before{$_} } keys %before;
    is $asked{evalsha}, 200, 'a request is one call';
    is $asked{hget}, 0, 'no call for the rate';
    cmp_ok $asked{eval}, '<=', 2 * (2 * $took + 2), "beside $asked{eval} in $took s by what follows";
    restore($fleet[0], 'redis');
};

subtest 'requests charged under the old rate count under the new' => sub {
    wait_for_limit(5, $_, @fleet) for qw(redis sync);
    for my $zone (qw(redis sync)) {
        my $client = client();
        $fleet[0]->get("/$zone", 'X-Client' => $client) for 1 .. 5;
        is $fleet[0]->get("/$zone", 'X-Client' => $client)->{status}, 429, "$zone: five requests exhaust the quota";
        patch($fleet[0], $zone, '20r/h');
        wait_for_limit(20, $zone, @fleet);
        is decode_json($fleet[0]->get("/api/remaining?zone=$zone&key=$client")->{body})->{remaining}, 15, "$zone: fifteen more";
        is $fleet[0]->get("/$zone", 'X-Client' => $client)->{status}, 200,
            "$zone: the new rate applies at once, despite the rejection";
        restore($fleet[0], $zone);
        wait_for_limit(5, $zone, @fleet);
        is $fleet[0]->get("/$zone", 'X-Client' => $client)->{status}, 429,
            "$zone: no request remains under the old rate";
    }
};

for my $kind (qw(valkey cluster)) {
    subtest "$kind: all workers use the new rate" => sub {
        my $server = $kind eq 'cluster' ? start_cluster(replicas => 0, node_timeout => 60_000) : start_redis(server => 'valkey');
        my @both   = map {
            start_nginx(
                workers => 2, port => $_, http => "rate_limit_redis fleet @{[ $server->url ]} timeout=5s;\nrate_limit_zone \$http_x_client zone=a:1m rate=5r/h redis=fleet;\n",
                server => "location = /a { rate_limit zone=a; add_header X-Worker \$pid always; add_header X-Limit \$rate_limit_limit always; empty_gif; }\nlocation /api/ { rate_limit_api write=on; }"
            )
        } @ports[ 3, 4 ];
        for my $limit (7, 9) {
            is patch($both[ $limit == 7 ? 0 : 1 ], 'a', "${limit}r/h")->{rate}, "${limit}r/h", 'a rate is changed';
            wait_for_limit($limit, 'a', @both);
        }
        ok !restore($both[1], 'a')->{live}, 'the configured rate is restored';
        wait_for_limit(5, 'a', @both);
    };
}

subtest 'a reload with too little room for the live rate' => sub {
    my $nginx = start_nginx(http => 'rate_limit_zone $http_x_client zone=a:1m rate=5r/m,50r/h;', server => 'location /api/ { rate_limit_api write=on; }', port => $ports[2]);
    patch($nginx, 'a', '6r/m,60r/h');
    $nginx->reload(http => 'rate_limit_zone $http_x_client zone=a:1m rate=5r/m;', server => 'location /api/ { rate_limit_api write=on; }');
    my $zone = decode_json($nginx->get('/api/zones/a')->{body});
    is $zone->{rate}, '5r/m', 'the live rate is not used';
    $nginx->wait_for_log(qr/\[warn\] .*the live rate of zone "a" is not used: the zone has no room for so many rates/);
    is $nginx->get('/api/check?zone=a&key=k', 'X-Rate-Limit-Api' => 1)->{status}, 200,
        'requests are limited by the configured rate';
};

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors' for @fleet;
done_testing;
