# Clients disconnect, workers exit and configurations change during Redis calls, without errors or leaks.
use strict;
use warnings;

use lib 't/lib';
use IO::Select;
use IO::Socket::INET;
use List::Util qw(max);
use POSIX qw(WNOHANG);
use RateLimit qw(start_nginx wait_for slurp write_text);
use RateLimit::Async qw(exchange await_answers request_text statuses);
use RateLimit::FakeRedis qw(start_fake hang_up);
use RateLimit::HTTP2;
use RateLimit::Redis qw(start_redis redis_port);
use Test::More;
use Time::HiRes qw(time);

my ($port, $h2_port) = split ' ', $ENV{RL_PORTS};
my $redis = start_redis();
my $name_server = join '.', 127, 99, $port >> 8, $port & 255;    # an address that no other test uses

sub conf {
    my ($url, %more) = @_;
    my $words     = delete $more{words} // 'timeout=1h connect_timeout=1h';
    my $zone      = delete $more{zone}  // 'redis=main';
    my $locations = <<'SERVER';
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
add_header X-Worker $pid always;
location = /a { rate_limit zone=a; empty_gif; }
location = /free { empty_gif; }
SERVER
    return (
        port => $port,
        http => <<"HTTP",
rate_limit_redis main $url $words;
rate_limit_zone \$http_x_client zone=a:1m rate=5r/d algorithm=sliding_log $zone;
log_format client '\$status \$request_uri';
access_log access.log client;
HTTP
        server  => $locations,
        servers => "server { listen 127.0.0.1:$h2_port http2; $locations }",
        # Longer than the test: a worker whose exit is blocked would not exit during the test.
        shutdown => '1h',
        %more
    );
}

my $clients = 0;

# Opens connections with one request each, of one client or of one client each.
sub waiting {
    my ($nginx, $count, $client) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. $count;
    $connections[$_]->request('GET', "/a?$_", [ 'X-Client' => $client // 'w' . ++$clients ]) for 0 .. $count - 1;
    return @connections;
}

# The same for a single worker. When this function returns, the worker has read all requests: it accepted the
# connections before, and reads in order.
sub waiting_at_worker {
    my ($nginx, $count) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. $count;
    $_->request('GET', '/free') for @connections;
    await_answers(20, @connections) or die "no answers\n";
    $_->answers for @connections;
    $_->request('GET', '/a?read', [ 'X-Client' => 'w' . ++$clients ]) for @connections;
    $nginx->get('/free');
    return @connections;
}

sub store { my ($answer) = @_; return $answer ? "$answer->{status} " . ($answer->header('X-Store') // '-') : 'none' }

sub ask {
    my ($nginx, $client) = @_;
    return store($nginx->get('/a', 'X-Client' => $client));
}

sub sockets {
    my ($worker) = @_;
    my @open = grep { (readlink // '') =~ /^socket:/ } glob "/proc/$worker/fd/*";
    return scalar @open;
}

# Waits for the end of a child process. Returns false if the process does not end.
sub ended {
    my ($pid) = @_;
    return eval { wait_for('the end', sub { waitpid($pid, WNOHANG) != 0 }) } ? 1 : 0;
}

sub quiet {
    my ($nginx, $title) = @_;
    my @bad = grep { /\[(?:alert|crit|emerg)\]|open socket|exited on signal/ } split /\n/, $nginx->error_log;
    is_deeply \@bad, [], "$title: the log has no unexpected errors";
    return;
}

subtest 'clients that disconnect during a Redis call' => sub {
    my $nginx = start_nginx(conf($redis->url));
    is ask($nginx, 'first'), '200 redis', 'Redis answers';
    my ($worker) = $nginx->workers;
    my $before = sockets($worker);
    for my $round (1 .. 3) {
        $redis->pause;
        my @leave = waiting($nginx, 30);
        my @stay  = waiting($nginx, 5,  "stays$round");
        my $http2 = RateLimit::HTTP2->new($h2_port);
        my @streams = map { $http2->request('GET', "/a?stream$_", headers => [ 'x-client' => "stream$round-$_" ]) } 1 .. 10;
        $http2->ping;
        is await_answers(0.05, @leave, @stay), 0, "round $round: the requests wait";
        $_->close for @leave;
        $http2->reset($_) for @streams[ 0 .. 4 ];
        $http2->send;
        my $gone = 35 * $round;
        wait_for("$gone who left", sub { (() = $nginx->access_log =~ /^499 /mg) >= $gone });
        $redis->resume;
        ok await_answers(20, @stay), "round $round: the other clients get responses";
        is scalar(grep { store($_) eq '200 redis' } map { $_->answers } @stay), 5, "round $round: Redis decides them";
        ok $http2->await(20, @streams[ 5 .. 9 ]), "round $round: streams that were not reset get responses";
        $http2->close;
        is ask($nginx, "new$round"), '200 redis', "round $round: a new request gets a response";
    }
    is join(' ', $nginx->workers), $worker, 'the worker is still running';
    wait_for('sockets to close', sub { sockets($worker) <= $before });
    ok wait_for('one client', sub { $redis->clients == 1 }), 'there is one connection to Redis';
    quiet($nginx, 'leaving');
};

subtest 'clients that disconnect while they send their bodies' => sub {
    my $nginx = start_nginx(conf($redis->url));
    is ask($nginx, 'body'), '200 redis', 'Redis answers';
    $redis->pause;
    my @leave = map { RateLimit::Async->new($nginx->port) } 1 .. 10;
    $_->raw(request_text('POST', '/a?body', [ 'Content-Length' => 1000, 'X-Client' => 'half' ]) . 'half', 'POST') for @leave;
    is await_answers(0.05, @leave), 0, 'the requests wait';
    $_->close for @leave;
    wait_for('the disconnected clients in the log', sub { (() = $nginx->access_log =~ m{^499 /a\?body}mg) == 10 });
    $redis->resume;
    is ask($nginx, 'after body'), '200 redis', 'other clients are served';
    quiet($nginx, 'bodies');
};

subtest 'a reload while requests wait: the old worker completes them, then exits' => sub {
    my $nginx = start_nginx(conf($redis->url));
    ask($nginx, 'first');
    my ($old) = $nginx->workers;
    $redis->pause;
    my @stay = waiting_at_worker($nginx, 20);
    is await_answers(0.05, @stay), 0, 'the requests wait';
    $nginx->signal('HUP');
    my $new = wait_for('a new worker', sub { my ($other) = grep { $_ != $old } $nginx->workers; $other });
    is await_answers(0.05, @stay), 0, 'the requests still wait';
    $redis->resume;
    ok await_answers(20, @stay), 'the requests get responses';
    my @answers = map { $_->answers } @stay;
    is scalar(grep { store($_) eq '200 redis' && $_->header('X-Worker') == $old } @answers), 20,
        'the old worker responds with the decisions of Redis';
    wait_for('the old worker to end', sub { join(' ', $nginx->workers) eq $new });
    is ask($nginx, 'new'), '200 redis', 'the new worker works';
    wait_for('one connection', sub { $redis->clients == 1 });
    quiet($nginx, 'reload');

    $redis->pause;
    @stay = waiting_at_worker($nginx, 5);
    is await_answers(0.05, @stay), 0, 'other requests wait';
    $nginx->signal('QUIT');
    $redis->resume;
    ok await_answers(20, @stay), 'a graceful stop waits for the responses';
    is statuses(map { $_->answers } @stay), '200 200 200 200 200', 'the responses are complete';
    ok ended($nginx->pid), 'nginx exits';
    quiet($nginx, 'quit');
};

subtest 'a Redis that does not answer does not delay the exit of nginx' => sub {
    for my $state (qw(idle open waiting refused)) {
        my $hold  = $state eq 'refused' ? start_fake(mode => 'refuse') : undef;
        my $nginx = start_nginx(conf($hold ? $hold->url : $redis->url, words => 'timeout=100ms'));
        ask($nginx, "end-$state");
        $redis->pause if $state =~ /open|waiting/;
        my @answers = map { ask($nginx, "end-$state") } 1 .. ($state eq 'open' ? 5 : 0);
        my @stay = $state eq 'waiting' ? waiting($nginx, 5) : ();
        my $began = time;
        $nginx->signal('QUIT');
        ok ended($nginx->pid), sprintf '%s: nginx has exited, after %.0f ms', $state, 1000 * (time - $began);
        $redis->resume if $state =~ /open|waiting/;
        await_answers(5, @stay);
        quiet($nginx, $state);
    }
};

subtest 'a fast shutdown' => sub {
    my $nginx = start_nginx(conf($redis->url));
    ask($nginx, 'hurry');
    $redis->pause;
    my @stay = waiting($nginx, 20);
    is await_answers(0.05, @stay), 0, 'the requests wait';
    $nginx->signal('TERM');
    ok ended($nginx->pid), 'nginx has exited';
    $redis->resume;
    wait_for('the connection to end', sub { $redis->clients == 0 });
    my @bad = grep { /\[(?:crit|emerg)\]|exited on signal/ } split /\n/, $nginx->error_log;
    is_deeply \@bad, [], 'the log has no errors';
};

subtest 'a worker that is killed while requests wait' => sub {
    my $nginx = start_nginx(conf($redis->url, workers => 2));
    ask($nginx, "kill$_") for 1 .. 4;
    for my $round (1 .. 3) {
        $redis->pause;
        my @stay = waiting($nginx, 20);
        is await_answers(0.05, @stay), 0, "round $round: the requests wait";
        my @old = $nginx->workers;
        kill 'KILL', @old;
        wait_for('new workers', sub { my %old = map { $_ => 1 } @old; (grep { !$old{$_} } $nginx->workers) == 2 });
        $redis->resume;
        await_answers(5, @stay);
        is ask($nginx, "killed$round"), '200 redis', "round $round: new workers call Redis";
    }
    wait_for('old connections to end', sub { $redis->clients <= 2 });
    my @bad = grep { /\[(?:crit|emerg)\]|exited on signal (?!9\b)|open socket/ } split /\n/, $nginx->error_log;
    is_deeply \@bad, [], 'the log has no other errors';
};

subtest 'a reload changes the settings of Redis' => sub {
    my $other = start_redis();
    my $nginx = start_nginx(conf($redis->url));
    is ask($nginx, 'r'), '200 redis', 'the first';
    $nginx->reload(conf($other->url));
    is ask($nginx, 'r'), '200 redis', 'another URL';
    is $other->command('EXISTS', 'rate_limit:a:sliding_log:{r}'), 1, 'another Redis is called at once';
    wait_for('the old connection to end', sub { $redis->clients == 0 });
    $nginx->reload(conf($other->url, words => 'timeout=1h connect_timeout=1h prefix=new:'));
    is ask($nginx, 'r'), '200 redis', 'another prefix';
    is $other->command('EXISTS', 'new:a:sliding_log:{r}'), 1, 'another prefix is used at once';
    $nginx->reload(conf($other->url, words => 'timeout=80ms'));
    wait_for('Redis', sub { ask($nginx, 'r' . ++$clients) eq '200 redis' });
    $other->pause;
    my $slow = $nginx->get('/a', 'X-Client' => 'slow');
    is $slow->header('X-Error'), 'timeout', 'a shorter timeout applies at once';
    $other->resume;
    quiet($nginx, 'changes');
};

subtest 'a zone moves between memory and Redis' => sub {
    my $nginx = start_nginx(conf($redis->url, zone => ''));
    is ask($nginx, 'moves'), '200 memory', 'in memory';
    for my $round (1 .. 3) {
        $nginx->reload(conf($redis->url));
        is join(', ', map { ask($nginx, "moves$round") } 1 .. 6), join(', ', ('200 redis') x 5, '429 redis'),
            "round $round: in Redis, the limit applies";
        $nginx->reload(conf($redis->url, zone => ''));
        is join(', ', map { ask($nginx, "moved$round") } 1 .. 6), join(', ', ('200 memory') x 5, '429 memory'),
            "round $round: in memory, the limit applies";
    }
    $nginx->reload(conf($redis->url, zone => 'redis=main on_error=local'));
    is ask($nginx, 'local'), '200 redis', 'with a fallback';
    quiet($nginx, 'moves');
};

subtest 'reloads under load lose no request' => sub {
    my $nginx = start_nginx(conf($redis->url, workers => 2));
    my (%count, $sent);
    for my $round (1 .. 8) {
        my @connections = waiting($nginx, 40, "load$round");
        $nginx->signal('HUP') if $round % 2;
        await_answers(20, @connections);
        $count{ store(($_->answers)[0]) }++ for @connections;
    }
    is_deeply \%count, { '200 redis' => 40, '429 redis' => 280 - ($count{'429 cache'} // 0), ('429 cache' => $count{'429 cache'}) x !!$count{'429 cache'} },
        'five of forty requests are admitted each time, across reloads'
        or diag explain \%count;
    $nginx->wait_for_log(qr/(?:gracefully shutting down.*){2}/s);
    quiet($nginx, 'load');
};

subtest 'failed connections leak no file descriptor' => sub {
    my $fake  = start_fake(replies => { EVALSHA => hang_up(), SET => '+OK' });
    my $nginx = start_nginx(conf($fake->url));
    ask($nginx, 'fd');
    my ($worker) = $nginx->workers;
    my $before = sockets($worker);
    wait_for('five connections', sub { ask($nginx, 'fd'); $fake->connections >= 5 });
    ok wait_for('sockets to close', sub { sockets($worker) <= $before + 1 }), 'the number of sockets is unchanged';
    $fake->stop;
    ask($nginx, 'fd') for 1 .. 50;
    ok wait_for('sockets to close', sub { sockets($worker) <= $before + 1 }),
        'the number of sockets is unchanged after refused connections';
    quiet($nginx, 'descriptors');
};

# Returns the CPU time of a process in seconds.
sub work_of {
    my ($pid) = @_;
    return (split ' ', slurp("/proc/$pid/schedstat"))[0] / 1e9;
}

# Returns true if more streams have ended than at the last call.
sub progress {
    my ($http2) = @_;
    my $ended = grep { $_->{ended} } values %{ $http2->{streams} };
    my $more  = $ended > ($http2->{had_ended} // 0);
    $http2->{had_ended} = $ended;
    return $more;
}

subtest 'a Redis that stops reading blocks no other client, and gets all requests later' => sub {
    my ($http, $limits) = ("rate_limit_redis main @{[ $redis->url ]} timeout=1h connect_timeout=1h;\n", '');
    for my $number (1 .. 16) {
        $http   .= "rate_limit_zone \$http_x_client zone=a_zone_with_a_long_name_$number:4m rate=1000000r/d redis=main;\n";
        $limits .= "rate_limit zone=a_zone_with_a_long_name_$number; ";
    }
    my $place = "location = /many { $limits empty_gif; } location = /free { empty_gif; }";
    my $nginx = start_nginx(
        port    => $port, http => "access_log off;\nkeepalive_requests 100000;\n$http", server => $place,
        servers => "server { listen 127.0.0.1:$h2_port http2; http2_max_concurrent_streams 2000; $place }"
    );
    is $nginx->get('/many', 'X-Client' => 'first')->{status}, 200, 'Redis answers';
    my $paused = time;
    $redis->pause;
    my @connections = map { RateLimit::HTTP2->new($h2_port) } 1 .. 4;
    for my $http2 (@connections) {
        $http2->request('GET', '/many', headers => [ 'x-client' => 'a client with a name ' . ++$clients ]) for 1 .. 1000;
        $http2->send;
        $http2->ping;
    }
    my $at     = sprintf '%04X', $redis->port;
    my $full   = max(map {hex} slurp('/proc/net/tcp') =~ /^ *\d+: \w+:\w+ \w+:$at 01 (\w+):/mg);
    cmp_ok $full // 0, '>', 100_000, 'the socket buffer to Redis is full';
    my ($worker) = $nginx->workers;
    my $work  = work_of($worker);
    is statuses(map { $nginx->get('/free') } 1 .. 50), join(' ', (200) x 50), 'other clients are served meanwhile';
    $work = work_of($worker) - $work;
    cmp_ok $work, '<', 0.5, sprintf 'the worker does not retry the write in a loop (%.1f ms)', 1000 * $work;
    # A kernel that misses the news of a free buffer learns it from its next window probe. The interval of probes grows:
    # after a pause of ten seconds, the next probe may take as long again.
    my $patience = 20 + 2 * (time - $paused);
    $redis->resume;
    my %count;
    for my $http2 (@connections) {
        1 while !$http2->await($patience) && progress($http2);
        $count{ $_->{status} // 'none' }++ for values %{ $http2->{streams} };
    }
    is_deeply \%count, { 200 => 4000 }, 'all requests are admitted when Redis reads again'
        or diag qx(ss -tinm 'sport = :@{[ $redis->port ]} or dport = :@{[ $redis->port ]}');
    unlike $nginx->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

# Starts nginx in its own mount namespace with the test's /etc/hosts and /etc/resolv.conf. A lookup there takes longer
# than this test waits for nginx, unless the name is in /etc/hosts or deny_names() answers.
sub start_with_names {
    my (%conf) = @_;
    my $wrapper = "$ENV{RL_DIR}/nginx-in-namespace";
    write_text($wrapper, <<"SHELL");
#!/bin/sh
exec unshare -m sh -c 'mount --bind $ENV{RL_DIR}/hosts /etc/hosts && mount --bind $ENV{RL_DIR}/resolv.conf /etc/resolv.conf &&
    exec @{[ RateLimit::binary() ]} "\$@"' sh "\$@"
SHELL
    chmod 0755, $wrapper;
    write_text("$ENV{RL_DIR}/resolv.conf", "nameserver $name_server\noptions timeout:30 attempts:1\n");
    local $ENV{TEST_NGINX_BINARY} = $wrapper;
    return start_nginx(%conf);
}

sub name {
    my ($address) = @_;
    write_text("$ENV{RL_DIR}/hosts", "127.0.0.1 localhost\n" . ($address ? "$address redis.test\n" : ''));
    return;
}

# Answers all pending questions to the name server: there is no such name.
sub deny_names {
    my ($server) = @_;
    while (IO::Select->new($server)->can_read(0)) {
        my $from = $server->recv(my $question, 512) // last;
        substr $question, 2, 2, pack 'n', 0x8183;
        $server->send($question, 0, $from);
    }
    return;
}

# These two subtests change /etc/hosts and /etc/resolv.conf for one nginx, which requires a mount namespace. A user who
# is not root, or a chroot, cannot create one. unit/redis/real_test.cc tests the lookup without a namespace.
my $namespaces = system('unshare -m true 2>/dev/null') == 0;

subtest 'a name is resolved again when the connection fails' => sub {
    plan skip_all => 'this machine does not allow mount namespaces' if !$namespaces;
    name('127.0.0.2');
    my $shared = redis_port();
    my ($first, $second) = map { start_redis(port => $shared, config => "bind 127.0.0.$_") } 2, 3;
    my $nginx = start_with_names(conf("redis://redis.test:$shared", words => 'timeout=1h connect_timeout=1h'));
    is ask($nginx, 'named'), '200 redis', 'the name is resolved';
    is $first->command('EXISTS', 'rate_limit:a:sliding_log:{named}'), 1, 'at its address';
    name('127.0.0.3');
    is ask($nginx, 'kept'), '200 redis', 'a working connection is kept';
    is $first->command('EXISTS', 'rate_limit:a:sliding_log:{kept}'), 1, 'where it was';
    $first->kill;
    wait_for('the other address', sub { ask($nginx, 'moved') eq '200 redis' });
    is $second->command('EXISTS', 'rate_limit:a:sliding_log:{moved}'), 1, 'the new address is used';
    quiet($nginx, 'names');
};

subtest 'a name server that does not answer blocks no request' => sub {
    plan skip_all => 'this machine does not allow mount namespaces' if !$namespaces;
    my $silent = IO::Socket::INET->new(LocalAddr => $name_server, LocalPort => 53, Proto => 'udp', ReuseAddr => 1)
        or plan skip_all => "the name server did not start: $@";
    name('127.0.0.1');
    my $server = start_redis();
    my $nginx  = start_with_names(conf('redis://redis.test:' . $server->port, words => 'timeout=100ms'));
    ok wait_for('Redis', sub { ask($nginx, 'named' . ++$clients) eq '200 redis' }), 'the name is resolved';
    name();
    $server->kill;
    my %errors;
    wait_for(
        'the name server to be asked',
        sub {
            $errors{ $nginx->get('/a', 'X-Client' => 'names')->header('X-Error') // 'none' }++;
            return IO::Select->new($silent)->can_read(0);
        }
    );
    my %statuses;
    for my $path (('/free', '/a') x 20) {
        my $answer = $nginx->get($path, 'X-Client' => 'names');
        $statuses{ $answer->{status} }++;
        $errors{ $answer->header('X-Error') // 'none' }++ if $path eq '/a';
    }
    is_deeply \%statuses, { 200 => 40 }, 'the name server is asked, and no request waits for it';
    is join(' ', grep { !/^(?:refused|closed|timeout|unresolved|unavailable)$/ } keys %errors), '',
        'on_error applies to each request';
    note join ', ', map {"$_: $errors{$_}"} sort keys %errors;
    name('127.0.0.1');
    $server->restart;
    ok wait_for('Redis', sub { deny_names($silent); ask($nginx, 'again' . ++$clients) eq '200 redis' }),
        'Redis is used once the name resolves again';
    name();
    $server->kill;
    wait_for('another look-up', sub { ask($nginx, 'ending'); IO::Select->new($silent)->can_read(0) });
    my $began = time;
    $nginx->signal('QUIT');
    ok ended($nginx->pid), sprintf 'a pending lookup does not delay the exit (%.1f s)', time - $began;
    quiet($nginx, 'name server');
};

done_testing;
