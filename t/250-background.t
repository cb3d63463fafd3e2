# The background tasks of workers: which worker runs them, what they leave, and the effect of a reload or a quit.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx check_config wait_for slurp);
use RateLimit::Fleet qw(senders tellers);
use RateLimit::HTTP2;
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;
use Time::HiRes qw(sleep);

my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis();
my $url   = $redis->url;
my $zones = 0;

# Each part of the test has its own zone.
sub zone { $zones++; return "z$zones" }

sub key { my ($zone, $client, $algorithm) = @_; return "rate_limit:$zone:" . ($algorithm // 'sliding_window') . ":{$client}" }

sub ask {
    my ($nginx, $client, $count, $path) = @_;
    return scalar grep { $nginx->get($path // '/', 'X-Client' => $client)->{status} == 200 } 1 .. $count;
}

# Returns the remaining count of a client, from an instance that calls Redis for each request.
sub left {
    my ($nginx, $client) = @_;
    return $nginx->get('/look', 'X-Client' => $client)->header('X-RateLimit-Remaining');
}

# Stops an nginx gracefully. Returns the spare time that it took.
sub quit {
    my ($nginx) = @_;
    my ($pid, $start) = ($nginx->pid, spare_time());
    $nginx->signal('QUIT');
    wait_for('the end', sub { waitpid($pid, 1) != 0 || !kill 0, $pid });
    return spare_time() - $start;
}

sub clean {
    my ($nginx, $what) = @_;
    unlike $nginx->error_log, qr/open socket|\[alert\]|\[emerg\]|\[crit\]/, "$what: nothing is leaked";
    return;
}

sub config {
    my ($zone, $words, %more) = @_;
    my $rate = delete $more{rate} // ($words =~ /rate=/ ? '' : 'rate=1000r/h');
    my $to   = delete $more{url}  // $url;
    my $wait = delete $more{timeout} // '10s';
    return (
        workers => 2,
        port    => $ports[0],
        http    => "rate_limit_redis fleet $to timeout=$wait;\nrate_limit_zone \$http_x_client zone=$zone:1m $rate $words;\n",
        server  => "location / { rate_limit zone=$zone; empty_gif; }\nlocation = /look { rate_limit zone=$zone cost=0; empty_gif; }\n"
            . "location = /metrics { rate_limit_metrics; }\nlocation = /slow { limit_rate 100; }\n",
        %more,
    );
}

subtest 'an unused Redis gets only the connection for changed rates, and none of helpers and nginx -t' => sub {
    my $before = $redis->info('total_connections_received');
    my $zone   = zone();
    is check_config(config($zone, 'redis=fleet sync=10ms'))->{exit}, 0, 'nginx -t';
    is check_config(config(zone(), 'redis=fleet on_error=local'))->{exit}, 0, 'nginx -t with on_error=local';
    my $cache = "proxy_cache_path %DIR%/cache keys_zone=cache:1m;\n";
    my %conf  = config($zone, 'redis=fleet sync=10ms');
    my $monitor = $redis->monitor;
    my $nginx   = start_nginx(%conf, http => "$cache$conf{http}");
    $nginx->wait_for_log(qr/start cache manager process/);
    wait_for('questions for rates', sub { 2 <= grep { /"EVAL"/ && /"rate_limit:rates"/ } $monitor->lines });
    is $redis->clients, 0, 'there is no connection for requests';
    is $redis->connections, 1, 'one connection for changed rates';
    is ask($nginx, 'alice', 3), 3, 'admitted';
    wait_for('the key', sub { $redis->command('EXISTS', key($zone, 'alice')) });
    is scalar(my @pids = tellers($nginx, $zone, $monitor)), 1, 'one worker sends the counts';
    my %connections;
    $connections{$_}++ for senders($nginx, $redis);
    is_deeply [ grep { $_ != 1 } values %connections ], [], 'a worker has one connection for all background tasks';
    cmp_ok quit($nginx), '<', 2, 'quits at once';
    clean($nginx, 'quit');
    wait_for('connections to go', sub { $redis->connections == 0 });
    pass 'the connections are closed';
};

subtest 'unsent counts are sent before the exit' => sub {
    my $zone  = zone();
    my $nginx = start_nginx(config($zone, 'redis=fleet sync=1h'));
    ask($nginx, "client$_", 2) for 1 .. 300;
    is $redis->command('EXISTS', key($zone, 'client1')), 0, 'the counts are not sent yet';
    cmp_ok quit($nginx), '<', 3, 'quits soon';
    clean($nginx, 'quit');
    is scalar(grep { $redis->command('EXISTS', key($zone, "client$_")) } 1 .. 300), 300, 'all counts are in Redis';

    $zone  = zone();
    $nginx = start_nginx(config($zone, 'redis=fleet sync=1h', timeout => '100ms'));
    ask($nginx, 'alice', 5);
    $redis->pause;
    my $seconds = quit($nginx);
    $redis->resume;
    cmp_ok $seconds, '<', 5, 'a Redis that does not answer does not delay the exit much';
    clean($nginx, 'quit without an answer');

    $nginx = start_nginx(config($zone, 'redis=fleet sync=1h', timeout => '100ms', url => 'redis://127.0.0.1:' . $ports[-1]));
    ask($nginx, 'alice', 5);
    cmp_ok quit($nginx), '<', 3, 'a missing Redis does not delay the exit much';
    clean($nginx, 'quit without a server');
};

subtest 'an old worker that is still running leaves the background tasks to new ones' => sub {
    my $zone  = zone();
    my $other = start_redis();
    my %old   = config($zone, 'redis=fleet sync=20ms', workers => 1, rate => 'rate=10r/h');
    $old{http} .= "rate_limit_zone \$http_x_client zone=local$zone:1m rate=10r/h redis=fleet on_error=local;\n";
    my $nginx = start_nginx(%old);
    $nginx->write_file('slow', 'x' x 100_000);
    my $slow = $nginx->connect;
    $slow->send("GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n");
    is ask($nginx, 'alice', 12), 10, 'the old rate';
    wait_for('the key', sub { $redis->command('EXISTS', key($zone, 'alice')) });
    my ($worker) = $nginx->workers;
    my %new = config($zone, 'redis=fleet sync=20ms', workers => 1, rate => 'rate=100r/h', url => $other->url);
    $new{http} .= "rate_limit_zone \$http_x_client zone=local$zone:1m rate=10r/h redis=fleet on_error=local;\n";
    RateLimit::write_config($nginx->dir, $nginx->port, %new);
    $nginx->signal('HUP');
    wait_for('a new worker', sub { grep { $_ != $worker } $nginx->workers });
    $nginx->wait_for_log(qr/gracefully shutting down/);
    my $admitted = 0;
    for (1 .. 60) { $admitted += ask($nginx, 'bob', 2); sleep 0.01 }
    is $admitted, 100, 'the new rate';
    wait_for('the key at the new server', sub { $other->command('EXISTS', key($zone, 'bob')) });
    wait_for('the instance there', sub { $other->command('ZCARD', 'rate_limit:instances') });
    is $redis->command('EXISTS', key($zone, 'bob')), 0, 'the old server gets no more counts';
    is scalar(grep { $_ == $worker } $nginx->workers), 1, 'the old worker is still running';
    $slow->close;
    wait_for('the end of the old worker', sub { !grep { $_ == $worker } $nginx->workers });
    quit($nginx);
    clean($nginx, 'reload');
};

subtest 'a location may have a larger burst than its zone' => sub {
    for my $algorithm (qw(gcra leaky_bucket)) {
        my $zone  = zone();
        my %conf  = config($zone, "algorithm=$algorithm redis=fleet sync=20ms", rate => 'rate=1r/h');
        my $delay = $algorithm eq 'gcra' ? '' : 'nodelay';
        $conf{server} = "location / { rate_limit zone=$zone burst=19 $delay; empty_gif; }\n"
            . "location = /narrow { rate_limit zone=$zone burst=2 $delay; empty_gif; }\n";
        my $nginx = start_nginx(%conf);
        my $total = 0;
        for my $round (1 .. 4) {
            $total += ask($nginx, 'alice', 25) + ask($nginx, 'alice', 1, '/narrow');
            sleep 0.1;
        }
        cmp_ok $total, '<=', 21, "$algorithm: sync leaves the count unchanged";
        cmp_ok $total, '>=', 20, 'the larger burst is admitted once';
    }
};

subtest 'one nginx is one instance, with any names of its servers' => sub {
    my ($one, $two) = (zone(), zone());
    my %conf = config($one, 'redis=fleet on_error=local', rate => 'rate=10r/h');
    $conf{http} .= "rate_limit_redis again $url timeout=10s;\nrate_limit_zone \$http_x_client zone=$two:1m rate=10r/h redis=again on_error=local;\n";
    $redis->command('DEL', 'rate_limit:instances');
    my $before = $redis->commandstats('zadd');
    my $nginx  = start_nginx(%conf);
    wait_for('two heartbeats', sub { $redis->commandstats('zadd') >= $before + 2 });
    my $told = qr/^rate_limiter_instances\{redis="fleet"\} 1\nrate_limiter_instances\{redis="again"\} 1$/m;
    ok wait_for('the number of instances', sub { $nginx->get('/metrics')->{body} =~ $told }), 'it counts as one instance';
    is $redis->command('ZCARD', 'rate_limit:instances'), 1, 'one member';
    my ($member) = @{ $redis->command('ZRANGE', 'rate_limit:instances', 0, -1) };
    $nginx->reload(%conf);
    $redis->command('DEL', 'rate_limit:instances');
    wait_for('another word', sub { $redis->command('ZCARD', 'rate_limit:instances') });
    is_deeply $redis->command('ZRANGE', 'rate_limit:instances', 0, -1), [$member], 'a reload does not add an instance';
};

subtest 'a zone may change its store' => sub {
    my $zone = zone();
    my @ways = (
        '', 'redis=fleet sync=20ms', 'redis=fleet on_error=local deny_cache=off', 'redis=fleet sync=20ms', '',
        'redis=fleet on_error=local', 'redis=fleet sync=20ms', 'redis=fleet', 'redis=fleet sync=1s', 'redis=fleet sync=20ms rate=1000r/h,5000r/d', 'redis=fleet on_error=local rate=1000r/h,5000r/d'
    );
    my $nginx = start_nginx(config($zone, $ways[0]));
    for my $way (@ways[ 1 .. $#ways ], @ways) {
        is ask($nginx, 'alice', 3), 3, 'before "' . $way . '"';
        $nginx->reload(config($zone, $way));
        is ask($nginx, 'alice', 3), 3, 'after';
    }
    quit($nginx);
    clean($nginx, 'reloads');
};

subtest 'a request counts once' => sub {
    my ($zone, $h2_port) = (zone(), $ports[-2]);
    my %conf = config($zone, 'redis=fleet sync=20ms', workers => 2);
    $conf{server} = <<"SERVER";
location = /look { rate_limit zone=$zone cost=0; empty_gif; }
location = /once { rate_limit zone=$zone; ssi on; ssi_types text/plain; }
location = /part { rate_limit zone=$zone; }
location = /redirected { rate_limit zone=$zone; error_page 404 = /part; return 404; }
location = /missing { rate_limit zone=$zone; error_page 404 = /part; root /nowhere; }
location = /off { rate_limit off; empty_gif; }
location = /dry { rate_limit zone=$zone; rate_limit_dry_run on; empty_gif; }
SERVER
    $conf{servers} = "server { listen 127.0.0.1:$h2_port http2; location / { rate_limit zone=$zone; empty_gif; } }\n";
    my $nginx = start_nginx(%conf);
    $nginx->write_file('once', '<!--# include virtual="/part" --><!--# include virtual="/part" -->');
    $nginx->write_file('part', 'part');
    my %conf_exact = config($zone, 'redis=fleet deny_cache=off on_error=closed', port => $ports[-3]);
    my $exact      = start_nginx(%conf_exact);
    my $count      = 0;
    for my $path (qw(/once /missing /dry)) {
        ask($nginx, 'alice', 5, $path);
        $count += 5;
    }
    ask($nginx, 'alice', 5, '/off');
    my $h2 = RateLimit::HTTP2->new($h2_port);
    $h2->request('GET', '/', headers => [ 'x-client' => 'alice' ]) for 1 .. 10;
    ok $h2->send->await(10), 'ten streams';
    $count += 10;
    # Counts that are sent after a request include all requests before it.
    wait_for('all counts in Redis', sub { left($exact, 'alice') <= 1000 - $count });
    ask($nginx, 'later', 1, '/missing');
    wait_for('what comes later', sub { left($exact, 'later') == 999 });
    is left($exact, 'alice'), 1000 - $count, 'subrequests, redirects, dry runs and streams';
};

done_testing;
