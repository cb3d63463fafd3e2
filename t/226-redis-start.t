# A new worker connects to Redis before it accepts a request.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::FakeRedis qw(after_ms silence start_fake);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

my ($port) = split ' ', $ENV{RL_PORTS};

sub conf {
    my ($url, %more) = @_;
    my $words = delete $more{words} // '';
    my $zone  = delete $more{zone}  // 'on_error=closed';
    return (
        port   => $port,
        http   => "rate_limit_redis main $url $words;\nrate_limit_zone \$http_x_client zone=a:1m rate=1000r/d redis=main $zone;\n",
        server => <<'SERVER',
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /a { rate_limit zone=a; empty_gif; }
location = /free { empty_gif; }
SERVER
        %more
    );
}

sub quiet {
    my ($nginx, $title) = @_;
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|open socket|exited on signal/,
        "$title: the log has no critical errors";
    return;
}

subtest 'workers connect to Redis before the first request' => sub {
    my $redis = start_redis(native => 0);    # the question for the module would count as a call
    my %conf  = conf($redis->url, workers => 2, words => 'timeout=1h');
    my $nginx = start_nginx(%conf);
    # A third connection is that of the background tasks, which only calls EVAL.
    my $connected = sub { $redis->connections == 3 && $redis->clients == 2 };
    ok wait_for('the connections', $connected), 'each worker has a connection';
    is $redis->commandstats('evalsha'), 0, 'there was no check yet';
    $nginx->reload(%conf);
    ok wait_for('the connections', $connected),
        'new workers are connected, and old connections are closed';
    is $nginx->get('/a', 'X-Client' => 'one')->header('X-Store'), 'redis', 'Redis decides';
    is $redis->clients, 2, 'a request uses one of these connections';
    quiet($nginx, 'start');
};

subtest 'a zone that counts locally needs no connection for requests' => sub {
    my $redis = start_redis();
    my $nginx = start_nginx(conf($redis->url, zone => 'sync=1h'));
    wait_for('changed rates to be asked for', sub { $redis->commandstats('eval') > 0 });
    is $nginx->get('/a', 'X-Client' => 'one')->{status}, 200, 'a request is decided';
    is $redis->clients, 0, 'without it';
};

# A worker accepts no request before its connections are ready. The handshake lasts until the test ends it, and the clock
# of nginx is frozen. While a client waits, the clock advances by more than the timeout of a check, but less than a
# worker waits for its connections.
subtest 'no check waits for the handshake' => sub {
    my $ready = "$ENV{RL_DIR}/ready";
    my $slow  = start_fake(
        replies => {
            PING    => sub { return wait_for('the end of the handshake', sub { -e $ready }) && '+PONG' },
            EVALSHA => '-OOM no',
            EVAL    => silence(),
            SET     => '+OK'
        },
    );
    my $nginx = start_nginx(conf($slow->url, words => 'timeout=30ms'), clock => 1);
    $slow->wait_for_count(PING => 1);
    my $client = $nginx->connect;
    $client->send("GET /a HTTP/1.1\r\nHost: a\r\nX-Client: first\r\n\r\n");
    $nginx->advance(0.05);
    mkdir $ready or die "$ready: $!\n";
    is $client->receive->header('X-Error'), 'oom', 'the first check of a worker is answered';
    quiet($nginx, 'handshake');
};

subtest 'a Redis that does not answer delays a start by less than a second' => sub {
    for my $mode (qw(mute refuse full)) {
        my $fake  = start_fake(mode => $mode);
        my $nginx = start_nginx(conf($fake->url, words => 'timeout=10ms connect_timeout=1h'));
        my $began = time;
        is $nginx->get('/free')->{status}, 200, "$mode: requests are served";
        note sprintf '%s: after %.0f ms', $mode, 1000 * (time - $began);
        isnt $nginx->get('/a', 'X-Client' => 'one')->header('X-Error'), undef, "$mode: on_error applies to a check";
        $nginx->reload(conf($fake->url, words => 'timeout=10ms connect_timeout=1h'));
        is $nginx->get('/free')->{status}, 200, "$mode: the same after a reload";
        $nginx->signal('QUIT');
        wait_for('the end', sub { waitpid($nginx->pid, 1) != 0 });
        quiet($nginx, $mode);
    }
};

subtest 'a server that was down at the start is used by the first request' => sub {
    my $hold  = start_fake(mode => 'refuse');
    my $at    = $hold->port;
    my $nginx = start_nginx(conf($hold->url));
    my $line = qr/redis "main" [^ ]*:$at: refused/;
    $nginx->wait_for_log($line);
    is scalar(() = $nginx->error_log =~ /$line/g), 1, 'the log reports the outage once, before the first request';
    $hold->stop;
    my $redis = start_redis(port => $at);
    ok wait_for('Redis', sub { ($nginx->get('/a', 'X-Client' => 'one')->header('X-Store') // '') eq 'redis' }),
        'Redis decides';
    quiet($nginx, 'away');
};

done_testing;
