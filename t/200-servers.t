# The Redis servers of these tests work: real servers in each of their states, and the scripted server.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use RateLimit qw(slurp);
use RateLimit::FakeRedis qw(start_fake raw in_turn after_ms bytewise cut hang_up silence);
use RateLimit::Proxy qw(start_proxy);
use RateLimit::RESP qw(encode_command encode_reply take);
use RateLimit::Redis qw(start_redis tls_files);
use Test::More;
use Time::HiRes qw(time);

# Returns the error of a failed command.
sub error_of {
    my ($connection, @words) = @_;
    $connection->send(@words);
    return $connection->receive . '';
}

# Returns how openssl's client verifies a server's certificate, as an error number and text.
sub verification {
    my ($server, @more) = @_;
    my $ca = tls_files()->{ca};
    my $said = qx(openssl s_client -connect 127.0.0.1:@{[ $server->port ]} -CAfile $ca @more </dev/null 2>&1);
    return $said =~ /^Verify return code: (.*)/m ? $1 : $said;
}

subtest 'RESP is parsed in pieces' => sub {
    my @values = (5, 'bulk', "two\r\nlines", '', undef, [ 1, [ 'deep', undef ], [] ]);
    my $whole  = join '', map { encode_reply($_) } @values;
    my ($bytes, @got) = ('');
    for my $byte (split //, $whole) {
        $bytes .= $byte;
        while (my $value = take(\$bytes)) {
            push @got, ${$value};
        }
    }
    is_deeply \@got, \@values, 'values';
    my $error = "-ERR no\r\n+OK\r\n";
    is ${ take(\$error) } . '', 'ERR no', 'an error';
    is ${ take(\$error) },      'OK',     'a status';
    is encode_command('GET', 'a'), "*2\r\n\$3\r\nGET\r\n\$1\r\na\r\n", 'a command';
};

for my $kind (qw(redis valkey)) {
    subtest "$kind answers, counts, is monitored, restarts empty" => sub {
        my $server = start_redis(server => $kind);
        my $major = $kind eq 'valkey' ? $server->info('valkey_version') : $server->info('redis_version');
        like $major, qr/^(?:[5-9]|[1-9]\d)\./, 'version';
        is $server->url, 'redis://127.0.0.1:' . $server->port, 'url';

        my $monitor = $server->monitor;
        my $client  = $server->connect(plain => 1);
        is $client->command('SET', "a\n{b}\x01", 'v'), 'OK', 'a client over TCP needs no password';
        is $server->clients,                         1,    'the client is counted';
        is $server->command('EVAL', q{return {redis.call('get', KEYS[1]), 7, false}}, 1, "a\n{b}\x01")->[1], 7, 'EVAL';
        is $server->commandstats('eval'), 1, 'commandstats';
        is $server->commandstats('evalsha'), 0, 'commandstats of a command that was not called';
        is $server->cli('DBSIZE'),           1, 'redis-cli';

        my ($set, $eval, $get) = grep { $_->{words}[0] =~ /^(?:set|eval|get)$/i } $monitor->commands;
        # No quotes: Valkey 8.1 does not escape them in MONITOR.
        is_deeply $set->{words}, [ 'SET', "a\n{b}\x01", 'v' ], 'MONITOR shows the command of the client';
        is $get->{client}, 'lua', 'MONITOR shows the commands of a script';
        is scalar(grep {/mark/} $monitor->lines), 0, 'MONITOR does not show the commands of the test helper';
        like $monitor->wait_for(qr/"DBSIZE"/), qr/DBSIZE/, 'waiting for a line';

        my ($port, $pid) = ($server->port, $server->pid);
        is slurp($server->dir . '/redis.pid') =~ s/\s//gr, $pid, 'pid file';
        $server->restart;
        isnt $server->pid, $pid, 'another process';
        is $server->port,               $port, 'the restarted server has the same port';
        is $server->command('DBSIZE'), 0,     'the restarted server is empty';
        ok $client->at_end, 'the old connection has ended';
        like $server->wait_for_log(qr/(Ready to accept connections)/), qr/Ready/, 'its log';
    };
}

subtest 'a server that is paused says nothing until it goes on; a killed one is gone' => sub {
    my $server = start_redis();
    my $client = $server->connect(plain => 1);
    $client->command('PING');
    $server->pause;
    like slurp('/proc/' . $server->pid . '/stat'), qr/\) T /, 'stopped';
    $client->send('PING');
    ok !IO::Select->new($client->{socket})->can_read(0.05), 'no answer';
    $server->resume;
    is $client->receive, 'PONG', 'the answer, later';

    $server->pause;
    $server->kill;
    ok $client->at_end, 'the connection has ended';
    ok !IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $server->port), 'the port is closed';
    $server->restart;
    is $server->command('PING'), 'PONG', 'the server can be started again';
};

subtest 'a password, users with limited rights, a Unix socket only' => sub {
    my $server = start_redis(password => 'open sesame', acl => "app on >secret ~app:* +get +select\nnobody off");
    my $client = $server->connect(plain => 1);
    like error_of($client, 'GET', 'app:1'), qr/^NOAUTH/, 'without a password';
    like error_of($client, 'AUTH', 'wrong'), qr/^WRONGPASS/, 'a wrong one';
    is $client->command('AUTH', 'open sesame'), 'OK', 'the right one';
    $client->command('AUTH', 'app', 'secret');
    like error_of($client, 'GET', 'b'), qr/^NOPERM/, 'a user without the right to write';
    is $client->command('GET', 'app:1'), undef, 'a user with the right to read';
    is $server->url(user => 'app', password => 'secret', db => 3), 'redis://app:secret@127.0.0.1:' . $server->port . '/3',
        'url';

    my $local = start_redis(unixsocket => 1);
    is $local->port, 0, 'no port';
    is $local->url, 'unix:' . $local->socket, 'url';
    is $local->command('PING'), 'PONG', 'the server answers on its socket';
};

subtest 'TLS: valid certificates, and certificates with one fault each' => sub {
    my $server = start_redis(tls => 1);
    is $server->url, 'rediss://127.0.0.1:' . $server->port, 'url';
    is verification($server, '-verify_hostname', 'redis.test'), '0 (ok)', 'the right name';
    is verification($server, '-verify_ip',       '127.0.0.1'),  '0 (ok)', 'the right address';
    like verification($server, '-verify_hostname', 'other.test'), qr/^62 /, 'a wrong name';
    is $server->command('PING'), 'PONG', 'the client of the test is accepted';
    undef $server;

    $server = start_redis(tls => 'other_name', tls_clients => 1);
    like verification($server, '-verify_hostname', 'redis.test'), qr/^62 /, 'a certificate for another name';
    my ($port, $files) = ($server->port, tls_files());
    my $connect = "redis-cli -p $port --tls --cacert $files->{ca} --user test_control --pass 'let the test in'"
        . ' --no-auth-warning';
    like qx($connect PING 2>&1), qr/Error|error|closed|required/, 'a client without a certificate is rejected';
    is qx($connect --cert $files->{client} --key $files->{client_key} PING 2>&1), "PONG\n",
        'a client with a certificate is accepted';
    unlike qx($connect --cert $files->{stranger_client} --key $files->{stranger_client_key} PING 2>&1), qr/PONG/,
        'a client with a certificate of another CA is rejected';
    undef $server;

    my %number = (stranger => qr/^(?:19|2[01]) /, expired => qr/^10 /);
    for my $name (sort keys %number) {
        $server = start_redis(tls => $name);
        like verification($server), $number{$name}, "a certificate that is $name";
    }
};

subtest 'a replica is read-only, a full server refuses writes, and a script keeps the server busy' => sub {
    my $first   = start_redis(server => 'valkey');
    my $replica = start_redis(replicaof => $first, server => 'valkey');
    like error_of($replica->connect(plain => 1), 'SET', 'a', 'b'), qr/^READONLY/, 'a write to a replica';

    my $full = start_redis(maxmemory => 1);
    like error_of($full->connect(plain => 1), 'SET', 'a', 'b'), qr/^OOM/, 'a write to a full server';

    my $busy   = start_redis(config => 'busy-reply-threshold 1');
    my $client = $busy->connect;
    $client->send('EVAL', 'while true do end', 0);
    RateLimit::wait_for('BUSY', sub { error_of($busy->connect(plain => 1), 'PING') =~ /^BUSY/ });
    $busy->command('SCRIPT', 'KILL');
    like $client->receive, qr/killed/i, 'the script ends on request';
    is $busy->command('PING'), 'PONG', 'the server answers again';
};

subtest 'a server that loads its data reports that' => sub {
    my $server = start_redis(config => 'save 3600 1');
    $server->command('EVAL', q{for i = 1, 1000 do redis.call('set', 'k' .. i, i) end}, 0);
    $server->restart(config => "save 3600 1\nkey-load-delay 1000\nloading-process-events-interval-bytes 1024", ready => 0);
    like error_of($server->connect(plain => 1), 'GET', 'k1'), qr/^LOADING/, 'LOADING';
};

subtest 'two servers of a cluster redirect a client to each other' => sub {
    my @nodes = map { start_redis(cluster => $_, ready => 0) } qw(0-8191 8192-16383);
    $nodes[0]->meet($nodes[1]);
    my ($moved) = error_of($nodes[0]->connect(plain => 1), 'GET', 'foo') =~ /^MOVED 12182 127\.0\.0\.1:(\d+)/;
    is $moved, $nodes[1]->port, 'MOVED';
    is $nodes[1]->command('GET', 'foo'), undef, 'the other server answers';
};

subtest 'RL_NATIVE=1 adds the native module, whose calls count as EVALSHA' => sub {
    local $ENV{RL_NATIVE} = 1;
    my $acl    = 'user on >x ~* +evalsha';
    my $server = start_redis(acl => $acl);
    is scalar(grep { $_->[1] eq 'ratelimit' } @{ $server->command('MODULE', 'LIST') }), 1, 'the module is there';
    my $monitor = $server->monitor;
    my $client  = $server->connect(plain => 1);
    $client->command('AUTH', 'user', 'x');
    $client->command('RATELIMIT.CHECK', 0, '', '');
    $client->send('RATELIMIT.CHECK', 1, 'key', '', '');
    like $client->receive, qr/^ERR the number of keys/, 'a user of the script may use it';
    my @words = map { $_->{words} } grep { $_->{words}[0] =~ /^(?:evalsha|ratelimit)/i } $monitor->commands;
    is_deeply \@words, [ [ 'RATELIMIT.CHECK', 0, '', '' ], [ 'EVALSHA', 'ratelimit.check', 1, 'key', '', '' ] ],
        'MONITOR shows a call as EVALSHA, and the question for the module as it is';
    is $server->commandstats('evalsha'), 2, 'commandstats counts both';
    my $proxy   = start_proxy($server);
    my $through = RateLimit::RESP->new(port => $proxy->port);
    $proxy->lose_calls('EVALSHA', 1);
    $through->send('RATELIMIT.CHECK', 1, 'key', '', '');
    $proxy->wait_until_happened(1);
    is scalar(my @ports = $proxy->callers('EVALSHA')), 1, 'a proxy intercepts a call of the module';
    my $other = start_redis(native => 0);
    is scalar(grep { $_->[1] eq 'ratelimit' } @{ $other->command('MODULE', 'LIST') }), 0, 'a server of a test may be without it';
};

subtest 'the server replicates' => sub {
    my $server  = start_redis();
    my $replica = start_redis(replicaof => $server);
    $server->command('SET', "key$_", $_) for 1 .. 100;
    $server->await_replicas($replica);
    is $replica->command('DBSIZE'), 100, 'await_replicas waits for all writes';
};

subtest 'the scripted server sends the given answers' => sub {
    my $fake = start_fake(
        replies => {
            GET     => 'bulk',
            MGET    => [ 1, undef, [ 'x', '-ERR inside' ] ],
            RAW     => raw("?what\r\n"),
            SLOW    => after_ms(60, '+late'),
            DRIP    => bytewise(2, 'drops'),
            CUT     => cut(3, '+truncated'),
            BYE     => hang_up(),
            NOTHING => silence(),
            TURNS   => in_turn(1, '-ERR second', '+third'),
            ECHO    => sub { return "said $_[1]" },
        },
    );
    my $connect = sub { return RateLimit::RESP->new(port => $fake->port) };
    my $client  = $connect->();
    is $client->command('PING'), 'PONG', 'PING is answered as by Redis';
    is $client->command('SCRIPT', 'LOAD', 'return 1'), 'e0e1f9fabfc9d4800c877a703b823ac0578ff8db', 'SCRIPT LOAD';
    like error_of($client, 'FOO'), qr/^ERR unknown command/, 'an unknown command';
    is $client->command('get', 'x'), 'bulk', 'a string';
    is_deeply $client->command('MGET'), [ 1, undef, [ 'x', 'ERR inside' ] ], 'an array';
    is_deeply [ map { error_of($client, 'TURNS') } 1 .. 4 ], [ 1, 'ERR second', 'third', 'third' ], 'answers in turn';
    is $client->command('ECHO', 'me'), 'said me', 'an answer by code';

    my $began = time;
    $client->send($_) for qw(SLOW PING);
    is $client->receive, 'late', 'late';
    cmp_ok time - $began, '>=', 0.055, 'an answer with the given delay';
    is $client->receive,         'PONG',  'later answers come after the delayed one';
    is $client->command('DRIP'), 'drops', 'byte by byte';
    $client->send($_) for qw(NOTHING PING);
    is $client->receive, 'PONG', 'no answer to one command, and an answer to the next';

    $client->send('CUT');
    $client->more(5) until $client->at_end;
    is $client->{in}, '+tr', 'a part of an answer, then the end';
    my $other = $connect->();
    $other->send('BYE');
    ok $other->at_end, 'the end';
    eval { $connect->()->command('RAW') };
    like $@, qr/not RESP/, 'bytes that are not RESP';

    $fake->wait_for_count('SLOW', 1);
    is $fake->count('PING'),  3, 'commands are counted';
    is $fake->connections,    3, 'connections are counted';
    is_deeply [ $fake->commands('echo') ]->[0]{words}, [ 'ECHO', 'me' ], 'commands are recorded';
    my ($port, $pid) = ($fake->port, $fake->pid);
    undef $fake;
    ok !kill(0, $pid), 'the scripted server ends with its object';
    ok !IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port), 'its port is closed';
};

subtest 'the answers of the scripted server can change, and it has modes' => sub {
    my $fake = start_fake(phases => [ { GET => '-LOADING not yet' }, { GET => 'ready', '*' => '-ERR no' } ]);
    my $client = RateLimit::RESP->new(port => $fake->port);
    like error_of($client, 'GET'), qr/^LOADING/, 'the first phase';
    $fake->phase(1);
    is $client->command('GET'), 'ready', 'the second answer, on the same connection';
    is error_of($client, 'PING'), 'ERR no', 'for every other command';

    my $mute = start_fake(mode => 'mute');
    $client = RateLimit::RESP->new(port => $mute->port);
    $client->send('PING');
    ok !IO::Select->new($client->{socket})->can_read(0.05), 'mute';

    my $full    = start_fake(mode => 'full');
    my $pending = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $full->port, Blocking => 0);
    ok !IO::Select->new($pending)->can_write(0.05), 'a connection is neither accepted nor refused';

    my $refuse = start_fake(mode => 'refuse');
    ok !IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $refuse->port), 'a connection is refused';
    ok $!{ECONNREFUSED}, 'ECONNREFUSED';

    my $greeting = start_fake(greeting => '-ERR max number of clients reached');
    $client = RateLimit::RESP->new(port => $greeting->port);
    like $client->receive, qr/max number/, 'data before any command';
};

done_testing;
