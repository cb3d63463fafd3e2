# After any failure of Redis, a request is handled according to on_error, and the log tells the operator the cause.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(exchange await_answers statuses);
use RateLimit::FakeRedis qw(start_fake raw cut hang_up silence);
use RateLimit::Redis qw(start_redis);
use Test::More;

my @modes  = qw(open closed local);
my ($port) = split ' ', $ENV{RL_PORTS};
my @table;    # the responses after each error

# What a log line says of a zone while Redis is not available.
my %meaning = (
    open   => 'requests are not limited (on_error=open)',
    closed => 'requests get 503 (on_error=closed)',
    local  => q{requests are limited by this instance's share of the rate (on_error=local)},
);

# Each value of on_error has its own Redis, so that the breaker of one does not affect another.
sub configuration {
    my ($url, $words) = @_;
    my ($http, $server) = ('', <<'SERVER');
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
add_header X-Zone $rate_limit_zone always;
SERVER
    for my $mode (@modes) {
        $http .= "rate_limit_redis for_$mode $url $words;\n"
            . "rate_limit_zone \$http_x_client zone=$mode:1m rate=2r/d algorithm=sliding_log redis=for_$mode on_error=$mode;\n";
        $server .= "location = /$mode { rate_limit zone=$mode; empty_gif; }\n";
    }
    return (http => $http, server => $server, port => $port);
}

sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status}, map { $answer->header($_) // '-' } qw(X-Status X-Store);
}

# The responses to four requests while Redis fails.
my %expected = (
    open   => [ ('200 ERROR fallback') x 4 ],
    closed => [ ('503 ERROR fallback') x 4 ],
    local  => [ ('200 PASSED fallback') x 2, ('429 REJECTED fallback') x 2 ],
);

# The fields of a row. error: its title. reason: its name in $rate_limit_error and in the log. server: starts a Redis.
# url: if not that of the server. words: options of rate_limit_redis. break: makes a working Redis fail. mend: ends the
# failure. detail: a pattern of the log line. client: the name of the client.
sub check_row {
    my (%row) = @_;
    my $server = $row{server}->();
    my $url    = $row{url} ? $row{url}->($server) : $server->url;
    $row{where} = $url =~ /^unix:/ ? qr/\Q$url\E/ : qr/127\.0\.0\.1:@{[ $server->port ]}/;
    my $nginx = start_nginx(configuration($url, $row{words} // 'timeout=1h connect_timeout=1h'));
    my $client = $row{client} ? $row{client}->($server) : 'c';
    if ($row{break}) {
        for my $mode (@modes) {
            # With a short timeout, a busy machine may need several requests.
            my $number = 0;
            ok wait_for('Redis', sub { seen($nginx->get("/$mode", 'X-Client' => "$client-before" . ++$number)) eq '200 PASSED redis' }),
                "$mode: Redis decides";
        }
        $row{break}->($server);
    }
    my @cells;
    for my $mode (@modes) {
        my @answers = map { $nginx->get("/$mode", 'X-Client' => $client) } 1 .. 4;
        my $first   = $answers[0];
        is_deeply [ map { seen($_) } @answers ], $expected{$mode}, "$mode: the responses";
        like $first->header('X-Error'), qr/^$row{reason}$/, "$mode: \$rate_limit_error";
        my @errors = map { $_->header('X-Error') // '-' } @answers;
        is scalar(grep { !/^(?:$row{reason}|unavailable)$/ } @errors), 0, "$mode: and later that or \"unavailable\""
            or diag "@errors";
        is $first->header('X-RateLimit-Limit'), $mode eq 'local' ? 2 : undef, "$mode: X-RateLimit-Limit";
        is $answers[3]->header('Retry-After') ? 1 : 0, $mode eq 'local' ? 1 : 0, "$mode: Retry-After";
        like $nginx->error_log, qr/\[error\] .*redis "for_$mode" $row{where}: (?:$row{reason}) \($row{detail}.*\)(?:, \d+ more times? since the last line)?; zone $mode: \Q$meaning{$mode}\E\n/,
            "$mode: the log has the address, the reason and the effect";
        push @cells, statuses(@answers);
    }
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
    my ($line) = $nginx->error_log =~ /redis "for_open" (.*)/;
    push @table, sprintf '%-36s open %s  closed %s  local %s  "%s"', $row{error}, @cells, $line // '';
    if ($row{mend}) {
        $row{mend}->($server);
        for my $mode (@modes) {
            my $answer;
            ok wait_for(
                "$mode from Redis",
                sub {
                    $answer = $nginx->get("/$mode", 'X-Client' => "$client-after-$mode");
                    return seen($answer) =~ /redis/;
                }
            ), "$mode: Redis decides again after the failure";
        }
    }
    return;
}

sub fake_row {
    my ($error, $reason, $answer, %more) = @_;
    return {
        error  => $error,
        reason => $reason,
        detail => qr/./,
        server => sub { return start_fake(phases => [ { EVALSHA => $answer, EVAL => $answer }, {} ]) },
        %more
    };
}

my $busy;
my @rows = (
    {
        error  => 'no process listens',
        reason => 'refused',
        detail => qr/.*refused/i,
        server => sub { return start_fake(mode => 'refuse') },
    },
    {
        error  => 'killed, connection refused',
        detail => qr/./,
        server => sub { return start_redis() },
        break  => sub { my ($server) = @_; $server->kill; return },
        mend   => sub { my ($server) = @_; $server->restart; return },
        # The worker sees one of two events first: the connection is closed, or a new one is refused.
        reason => qr/refused|closed/,
    },
    {
        error  => 'no socket at this path',
        reason => 'refused',
        detail => qr/./,
        server => sub { return start_fake(mode => 'refuse') },
        url    => sub { return "unix:$ENV{RL_DIR}/no-such.sock" },
    },
    {
        error  => 'paused (SIGSTOP)',
        reason => 'timeout',
        detail => qr/./,
        words  => 'timeout=50ms',
        server => sub { return start_redis() },
        break  => sub { my ($server) = @_; $server->pause; return },
        mend   => sub { my ($server) = @_; $server->resume; return },
    },
    {
        error  => 'accepts connections and never answers',
        reason => 'timeout',
        detail => qr/./,
        words  => 'timeout=50ms',
        server => sub { return start_fake(mode => 'mute') },
    },
    {
        error  => 'no free slot for a connection',
        reason => 'timeout',
        detail => qr/./,
        words  => 'timeout=50ms connect_timeout=50ms',
        server => sub { return start_fake(mode => 'full') },
    },
    {
        error  => 'needs a password',
        reason => 'auth',
        detail => qr/.*NOAUTH/,
        server => sub { return start_redis(password => 'sesame') },
        url    => sub { my ($server) = @_; return 'redis://127.0.0.1:' . $server->port },
        mend   => sub { my ($server) = @_; $server->command('ACL', 'SETUSER', 'default', 'nopass'); return },
    },
    {
        error  => 'a wrong password',
        reason => 'auth',
        detail => qr/.*WRONGPASS/,
        server => sub { return start_redis(password => 'sesame') },
        url    => sub { my ($server) = @_; return $server->url(password => 'wrong') },
        mend   => sub { my ($server) = @_; $server->command('ACL', 'SETUSER', 'default', '>wrong'); return },
    },
    {
        error  => 'an unknown user',
        reason => 'auth',
        detail => qr/.*WRONGPASS/,
        server => sub { return start_redis() },
        url    => sub { my ($server) = @_; return $server->url(user => 'nobody', password => 'x') },
    },
    {
        error  => 'a user without the right to run scripts',
        reason => 'auth',
        detail => qr/.*NOPERM/,
        server => sub { return start_redis(acl => 'app on >x ~* +@all -@scripting') },
        url    => sub { my ($server) = @_; return $server->url(user => 'app', password => 'x') },
    },
    {
        error  => 'a user without the right to these keys',
        reason => 'auth',
        detail => qr/.*(?:NOPERM|permission)/,
        server => sub { return start_redis(acl => 'app on >x ~other:* +@all') },
        url    => sub { my ($server) = @_; return $server->url(user => 'app', password => 'x') },
        mend   => sub { my ($server) = @_; $server->command('ACL', 'SETUSER', 'app', '~*'); return },
    },
    {
        error  => 'no such database',
        reason => 'other',
        detail => qr/.*(?:index|DB)/i,
        server => sub { return start_redis(databases => 2) },
        url    => sub { my ($server) = @_; return $server->url(db => 9) },
    },
    {
        error  => 'a replica',
        reason => 'readonly',
        detail => qr/.*READONLY/,
        server => sub {
            my $first   = start_redis();
            my $replica = start_redis(replicaof => $first);
            $replica->{first} = $first;
            return $replica;
        },
        mend => sub { my ($server) = @_; $server->command('REPLICAOF', 'NO', 'ONE'); return },
    },
    {
        error  => 'out of memory',
        reason => 'oom',
        detail => qr/.*OOM/,
        server => sub { return start_redis() },
        break  => sub { my ($server) = @_; $server->command('CONFIG', 'SET', 'maxmemory', '1'); return },
        mend   => sub { my ($server) = @_; $server->command('CONFIG', 'SET', 'maxmemory', '0'); return },
    },
    {
        error  => 'loading its data',
        reason => 'loading',
        detail => qr/.*LOADING/,
        server => sub {
            # Loads its data for two minutes unless the test ends the delay, and answers after each key.
            my $config = "save 3600 1\nrdbcompression no\nloading-process-events-interval-bytes 1024";
            my $server = start_redis(config => $config);
            $server->command('EVAL', q{for i = 1, 6000 do redis.call('set', 'k' .. i, string.rep('x', 1024)) end}, 0);
            $server->restart(config => "$config\nkey-load-delay 20000", ready => 0);
            return $server;
        },
        mend => sub { my ($server) = @_; $server->command('CONFIG', 'SET', 'key-load-delay', 0); return },
    },
    {
        error  => 'busy with another script',
        reason => 'busy',
        detail => qr/.*BUSY/,
        server => sub { return start_redis(config => 'busy-reply-threshold 1') },
        break  => sub {
            my ($server) = @_;
            $busy = $server->connect;
            my $other = $server->connect(plain => 1);
            $busy->send('EVAL', 'while true do end', 0);
            wait_for('BUSY', sub { $other->send('PING'); $other->receive =~ /^BUSY/ });
            return;
        },
        mend => sub { my ($server) = @_; $server->command('SCRIPT', 'KILL'); return },
    },
    {
        error  => 'another node of a cluster has the slot',
        reason => 'moved',
        detail => qr/.*MOVED/,
        server => sub {
            my @nodes = map { start_redis(cluster => $_, ready => 0) } qw(0-8191 8192-16383);
            $nodes[0]->meet($nodes[1]);
            $nodes[0]{other} = $nodes[1];
            return $nodes[0];
        },
        client => sub {
            my ($server) = @_;
            my ($far) = grep { $server->command('CLUSTER', 'KEYSLOT', "{$_}") > 8191 } 'a' .. 'z';
            return $far;
        },
    },
    {
        error  => 'a cluster without the slot',
        reason => 'clusterdown',
        detail => qr/.*CLUSTERDOWN/,
        server => sub { return start_redis(cluster => '0-1', ready => 0) },
    },
    {
        error  => 'killed during a call',
        reason => 'closed',
        detail => qr/./,
        server => sub { return start_fake(replies => { EVALSHA => hang_up() }) },
    },
    fake_row('disconnects in the middle of an answer', 'closed', cut(3, 'some text')),
    fake_row('a script that is never there', 'noscript', '-NOSCRIPT No matching script. Please use EVAL.', detail => qr/.*NOSCRIPT/),
    fake_row('an unknown error',             'other',    '-ERR something new',                            detail => qr/.*something new/),
    fake_row('an error in the script',       'other',    '-ERR user_script:1: Script attempted', detail => qr/.*Script attempted/),
    fake_row('an empty error',               'other',    raw("-\r\n"),      detail => qr//),
    fake_row('bytes that are not RESP',      'protocol', raw("HTTP/1.1 400 Bad Request\r\n\r\n")),
    fake_row('an invalid length',            'protocol', raw("\$abc\r\n")),
    fake_row('a negative length',            'protocol', raw("\$-5\r\nhello\r\n")),
    fake_row('an excessive length',          'protocol', raw("*9999999999999999999\r\n")),
    fake_row('an integer',                   'shape',    5),
    fake_row('nil',                          'shape',    undef),
    fake_row('a status',                     'shape',    '+OK'),
    fake_row('an empty string',              'shape',    ''),
    fake_row('a short string',               'shape',    'x'),
    fake_row('a long string',                'shape',    'y' x 100_000),
    fake_row('zeros',                        'shape',    "\0" x 7),
    fake_row('an empty array',               'shape',    []),
    fake_row('an array of integers',         'shape',    [ 1, 2, 3 ]),
    fake_row('an array of arrays',           'shape',    [ [ 1, 2 ], [ 3 ] ]),
    fake_row('an array with an error',       'shape',    ['-ERR inside']),
    {
        error  => 'TLS asked of a plain Redis',    # the server waits for the end of the line
        reason => 'timeout',
        detail => qr/./,
        server => sub { return start_redis() },
        url    => sub { my ($server) = @_; return 'rediss://127.0.0.1:' . $server->port },
        words  => 'timeout=50ms verify=off',
    },
    {
        error  => 'TLS to a server without TLS',
        reason => 'tls',
        detail => qr/.*(?:SSL|TLS|version|record)/i,
        server => sub { return start_fake(greeting => '-ERR what is it?', mode => 'mute') },    # not RESP
        url    => sub { my ($server) = @_; return 'rediss://127.0.0.1:' . $server->port },
        words  => 'timeout=1h connect_timeout=1h verify=off',
    },
    {
        error  => 'too many clients',
        reason => qr/other|closed/,
        detail => qr/./,
        server => sub {
            my $server = start_redis(config => 'maxclients 1');
            $server->command('PING');    # over a connection that stays open
            return $server;
        },
        mend   => sub { my ($server) = @_; $server->command('CONFIG', 'SET', 'maxclients', 100); return },
    },
);

for my $row (@rows) {
    next if $ENV{RL_ROW} && $row->{error} !~ /$ENV{RL_ROW}/;
    subtest $row->{error} => sub { check_row(%{$row}); undef $busy };

}

subtest 'a real server is killed during a call' => sub {
    my $server = start_redis();
    my $nginx  = start_nginx(configuration($server->url, 'timeout=1h connect_timeout=1h'));
    $nginx->get("/$_", 'X-Client' => 'before') for @modes;
    $server->pause;
    my @connections = map { RateLimit::Async->new($nginx->port) } @modes;
    $connections[$_]->request('GET', "/$modes[$_]", [ 'X-Client' => 'c' ]) for 0 .. 2;
    is await_answers(0.1, @connections), 0, 'the requests wait';
    $server->kill;
    ok await_answers(20, @connections), 'the requests wait until the server is killed';
    my @answers = map { $_->answers } @connections;
    is_deeply [ map { seen($_) } @answers ], [ map { $expected{$_}[0] } @modes ], 'after the kill, on_error applies';
    is join(' ', map { $_->header('X-Error') } @answers), 'closed closed closed', 'the reason is closed';
    $server->restart;
    for my $mode (@modes) {
        wait_for('Redis', sub { seen($nginx->get("/$mode", 'X-Client' => 'new')) =~ /redis/ });
    }
    pass 'Redis decides again after its restart';
};

subtest 'clients do not notice that Redis lost the script' => sub {
    my $server = start_redis();
    my $nginx  = start_nginx(configuration($server->url, 'timeout=1h connect_timeout=1h'));
    for my $round (1 .. 5) {
        $server->command('SCRIPT', 'FLUSH');
        my @answers = map { $nginx->get("/$_", 'X-Client' => "flush$round") } @modes;
        is join(', ', map { seen($_) } @answers), join(', ', ('200 PASSED redis') x 3), "round $round";
        is scalar(grep { $_->count('X-Error') } @answers), 0, "round $round: no error";
    }
    $server->command('SCRIPT', 'FLUSH');
    my @many = exchange($nginx->port, map { [ 'GET', '/closed', [ 'X-Client' => "c$_" ] ] } 1 .. 64);
    is scalar(grep { seen($_) eq '200 PASSED redis' } @many), 64, '64 at once';
    my @same = exchange($nginx->port, map { [ 'GET', '/closed', [ 'X-Client' => 'one' ] ] } 1 .. 64);
    is scalar(grep { $_->{status} == 200 } @same), 2,
        'no request is charged twice: of 64 requests of one client, two are admitted';
    $server->restart;
    for my $mode (@modes) {
        wait_for('Redis', sub { seen($nginx->get("/$mode", 'X-Client' => 'new')) =~ /redis/ });
    }
    pass 'a restarted server gets the script';
    is scalar(() = $nginx->error_log =~ /noscript/g), 0, 'no error is logged';
};

subtest 'many failures give few log lines' => sub {
    my $fake  = start_fake(replies => { SET => '+OK' }, phases => [ { EVALSHA => '-LOADING not yet' }, { EVALSHA => '-OOM full' } ]);
    my $nginx = start_nginx(configuration($fake->url, 'timeout=1h connect_timeout=1h'));
    for (1 .. 10) {
        exchange($nginx->port, map { [ 'GET', '/open', [ 'X-Client' => "c$_" ] ] } 1 .. 20);
    }
    my @lines = grep {/redis "for_open" \S+: \w+ \(/} split /\n/, $nginx->error_log;
    cmp_ok scalar @lines, '>=', 1, 'there is one';
    my (%last, @early);    # clock times by reason, and lines that follow too soon after one of the same kind
    for my $line (@lines) {
        my ($hours, $minutes, $seconds, $reason) = $line =~ /(\d\d):(\d\d):(\d\d) .*redis "for_open" \S+: (\w+) \(/;
        my $at = ($hours * 60 + $minutes) * 60 + $seconds;
        push @early, $line if defined $last{$reason} && ($at - $last{$reason}) % 86_400 < 9;
        $last{$reason} = $at;
    }
    is_deeply \@early, [], '200 failures of one kind give one line in ten seconds' or diag join "\n", @lines;
    is join(' ', grep { !/^(?:loading|unavailable)$/ } keys %last), '', 'no failure of another kind is logged';

    $fake->phase(1);
    wait_for(
        'another reason',
        sub { $nginx->get('/open', 'X-Client' => 'x'); $nginx->error_log =~ /redis "for_open" \S+: oom \(/ }
    );
    pass 'another reason is logged at once';
};

note $_ for @table;
done_testing;
