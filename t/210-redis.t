# A zone in Redis has the same parameters, decisions and headers as a zone in shared memory.
use strict;
use warnings;

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for format_request);
use RateLimit::Async qw(exchange await_answers statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $patient = 'timeout=1h connect_timeout=1h';    # a busy machine must not count as an outage

# Zones in pairs, NAME in memory and NAME_r in Redis: the options of the zone, and the parameters of rate_limit.
my %pairs = (
    token_bucket    => ['algorithm=token_bucket rate=1r/d capacity=7'],
    leaky_bucket    => [ 'algorithm=leaky_bucket rate=1r/d burst=6', 'nodelay' ],
    gcra            => ['algorithm=gcra rate=1r/d burst=6'],
    fixed_clock     => ['algorithm=fixed_window rate=7r/366d'],
    fixed_first     => ['algorithm=fixed_window rate=7r/d align=first'],
    sliding_window  => ['rate=7r/366d'],
    sliding_buckets => ['algorithm=sliding_buckets rate=7r/366d buckets=4'],
    sliding_log     => ['algorithm=sliding_log rate=7r/d'],
    several_rates   => ['algorithm=token_bucket rate=5r/h,7r/d,9r/30d'],
    several_windows => ['algorithm=fixed_window align=first rate=7r/d,5r/h'],
    several_logs    => ['algorithm=sliding_log rate=5r/h,7r/d'],
    variable_rate   => ['algorithm=sliding_window rate=$rate'],
    variable_log    => ['algorithm=sliding_log rate=$rate log=7'],
    every_counted   => ['algorithm=sliding_log rate=7r/d count=all'],
    every_in_window => ['algorithm=fixed_window align=first rate=7r/d count=all'],
    interval        => ['algorithm=token_bucket rate=7r/d min_interval=1h'],
);
my @names = sort keys %pairs;

sub pair_config {
    my ($more) = @_;
    my ($http, $server) = ('', '');
    for my $name (@names) {
        my ($options, $words) = (@{ $pairs{$name} }, '');
        for my $zone ($name, "${name}_r") {
            my $redis = $zone eq $name ? '' : "redis=main $more";
            $redis =~ s/deny_cache=\S+// if $options =~ /count=all/;
            $http   .= "rate_limit_zone \$http_x_client zone=$zone:1m $options $redis;\n";
            $server .= "location = /$zone { rate_limit zone=$zone cost=\$cost $words; empty_gif; }\n";
        }
    }
    return ($http, $server);
}

my $headers = <<'SERVER';
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
add_header X-Zone $rate_limit_zone always;
add_header X-Worker $pid always;
SERVER
my $maps = <<'HTTP';
map $arg_cost $cost { "" 1; default $arg_cost; }
map $arg_rate $rate { "" 7r/d; default $arg_rate; }
HTTP

# Returns what a client sees of a response, without times: status and headers.
sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status},
        map { "$_=" . ($answer->header($_) // '-') } qw(X-RateLimit-Limit X-RateLimit-Remaining X-Status);
}

# Returns true if two responses name the same time, within the time between them.
sub near {
    my ($header, @answers) = @_;
    my ($one, $other) = map { $_->header($header) } @answers;
    return !defined $one && !defined $other || defined $one && defined $other && abs($one - $other) <= 1;
}

for my $kind (qw(redis valkey)) {
    my $redis = start_redis(server => $kind);
    my ($http, $server) = pair_config('deny_cache=off');
    my $nginx = start_nginx(
        http   => "$maps rate_limit_redis main @{[ $redis->url ]} $patient;\n$http",
        server => "$headers $server",
    );

    subtest "$kind: the same responses to the same requests as from memory" => sub {
        my @costs = (1, 0, 1, 2, 1, 4, 0, 1, 1, 1, 0, 3, 0, 1);
        for my $name (@names) {
            my (@wrong, %statuses);
            for my $cost (@costs) {
                my ($memory, $redis_answer) =
                    map { $nginx->get("/$_?cost=$cost", 'X-Client' => 'alice') } $name, "${name}_r";
                $statuses{ $redis_answer->{status} }++;
                my ($one, $other) = map { seen($_) } $memory, $redis_answer;
                push @wrong, "cost=$cost: memory $one, Redis $other" if $one ne $other;
                for my $header (qw(X-RateLimit-Reset Retry-After)) {
                    push @wrong, "cost=$cost: $header " . join ', ', map { $_->header($header) // '-' } $memory, $redis_answer
                        unless near($header, $memory, $redis_answer);
                }
                push @wrong, 'store ' . ($redis_answer->header('X-Store') // '-')
                    if ($redis_answer->header('X-Store') // '') ne 'redis';
                push @wrong, 'error ' . $redis_answer->header('X-Error') if $redis_answer->count('X-Error');
            }
            is_deeply \@wrong, [], "$name: no difference in " . @costs . ' requests';
            is join(' ', sort keys %statuses), '200 429', "$name: some requests were admitted, some were rejected";
        }
    };

    subtest "$kind: a variable rate may change from request to request" => sub {
        my @rates = split ' ', '2r/d 2r/d 2r/d 5r/d 5r/h 1r/d off 3r/s,4r/d 9r/d nonsense 9r/d';
        for my $name (qw(variable_rate variable_log)) {
            for my $rate (@rates) {
                next if $name eq 'variable_log' && $rate eq '9r/d';
                my ($one, $other) =
                    map { seen($nginx->get("/$_?rate=$rate", 'X-Client' => 'changing')) } $name, "${name}_r";
                is $other, $one, "$name: rate=$rate";
            }
        }
    };
    next if $kind eq 'valkey';

    subtest 'an empty key is not limited, and causes no Redis call' => sub {
        $redis->command('CONFIG', 'RESETSTAT');
        my $answer = $nginx->get('/sliding_window_r');
        is $answer->{status}, 200, 'admitted';
        is $answer->header('X-RateLimit-Limit'), undef, 'without headers';
        is $redis->commandstats('evalsha'), 0, 'there was no Redis call';
    };

    subtest 'cost=0 stores nothing' => sub {
        $redis->command('FLUSHALL');
        for my $name (@names) {
            my $answer = $nginx->get("/${name}_r?cost=0", 'X-Client' => 'looker');
            is $answer->{status}, 200, "$name: admitted";
        }
        is $redis->command('DBSIZE'), 0, 'no key';
    };
}

my $redis = start_redis();

subtest 'a client that waits for Retry-After is admitted, and its key expires' => sub {
    my $redis = start_redis(clock => 'stopped');
    my %zones = (
        token_bucket    => 'rate=2r/2s',
        leaky_bucket    => 'rate=1r/s burst=1',
        gcra            => 'rate=1r/s burst=1',
        fixed_window    => 'rate=2r/2s',
        sliding_window  => 'rate=2r/2s',
        sliding_buckets => 'rate=2r/2s',
        sliding_log     => 'rate=2r/2s',
    );
    my ($http, $server) = ('', '');
    for my $name (sort keys %zones) {
        my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
        $http   .= "rate_limit_zone \$http_x_client zone=$name:1m algorithm=$name $zones{$name} redis=main;\n";
        $server .= "location = /$name { rate_limit zone=$name $nodelay; empty_gif; }\n";
    }
    my $nginx = start_nginx(
        clock  => 1,
        http   => "rate_limit_redis main @{[ $redis->url ]} $patient;\n$http",
        server => "$headers $server"
    );
    my %until;
    for my $name (sort keys %zones) {
        my ($status, $answer, $tries) = (200, undef, 0);
        while ($status == 200 && $tries++ < 10) {
            $answer = $nginx->get("/$name", 'X-Client' => 'waits');
            $status = $answer->{status};
        }
        is $status, 429, "$name: rejected";
        my $ttl = $redis->command('PTTL', "rate_limit:$name:$name:{waits}");
        cmp_ok $ttl, '>',  0,    "$name: the key expires";
        cmp_ok $ttl, '<=', 4010, "$name: within twice the period ($ttl ms)";
        $until{$name} = $answer->header('Retry-After') // 0;
    }
    my $passed = 0;
    for my $name (sort { $until{$a} <=> $until{$b} } keys %until) {
        $_->advance($until{$name} - $passed) for $redis, $nginx;
        $passed = $until{$name};
        is $nginx->get("/$name", 'X-Client' => 'waits')->{status}, 200, "$name: admitted after Retry-After";
    }
    $redis->advance(4.01);
    ok wait_for('all keys to expire', sub { $redis->command('DBSIZE') == 0 }),
        'every key expires within twice the period';
    is $redis->command('KEYS', '*')->[0], undef, 'nothing else is stored';
};

subtest 'each client and zone has one key, whose name contains both' => sub {
    my @clients = (
        'alice', 'two words', "tab\there", '{tag}', '}', '{', 'a{b}c', '"quoted" \\ backslash', "latin \xe9", "broken \xff\xfe\x80",
        "utf8 \xc3\xa9", '$1', '%s%n', '*', 'x' x 128, 'x' x 129, 'y' x 8000, ':', 'a:b', 'sha256:abc', '0', '-1', '',
    );
    my $nginx = start_nginx(
        http => <<"HTTP",
large_client_header_buffers 4 32k;
rate_limit_redis main @{[ $redis->url ]} $patient prefix=here:;
rate_limit_zone \$http_x_client zone=a:1m rate=1r/d algorithm=token_bucket redis=main;
rate_limit_zone \$uri zone=uri:1m rate=1r/d algorithm=sliding_log redis=main;
rate_limit_zone \$binary_remote_addr zone=address:1m rate=1r/d algorithm=gcra redis=main;
HTTP
        server => <<"SERVER",
$headers
location = /a { rate_limit zone=a; empty_gif; }
location /uri/ { rate_limit zone=uri; empty_gif; }
location = /address { rate_limit zone=address; empty_gif; }
SERVER
    );
    # A client cannot take the digest that stands for another client's long name.
    push @clients, 'sha256:' . sha256_hex('y' x 8000);
    my $name_of = sub {
        my ($client) = @_;
        return length $client > 128 || $client =~ /^(?:sha256:|\})/ ? 'sha256:' . sha256_hex($client) : $client;
    };
    $redis->command('FLUSHALL');
    for my $client (grep {length} @clients) {
        my $title = length $client > 40 ? length($client) . ' bytes' : $client =~ s/[^ -~]/?/gr;
        my @got   = map { $nginx->get('/a', 'X-Client' => $client) } 1, 2;
        is statuses(@got), '200 429', "$title: has its own limit";
        is $redis->command('EXISTS', 'here:a:token_bucket:{' . $name_of->($client) . '}'), 1, "$title: its key";
    }
    is $redis->command('DBSIZE'), scalar(grep {length} @clients), 'there is no other key';

    for my $text ('%0A', 'a%0D%0Ab', '%7B%7D', '%20', '%22%5C', '%01%02%1f%7f', '%ff%fe', '%E2%82%AC', ('%0a' x 200)) {
        my $client = "/uri/$text" =~ s/%(..)/chr hex $1/ger;
        my @got    = map { $nginx->get("/uri/$text") } 1, 2;
        my $title  = length $text > 40 ? 'many newlines' : $text;
        is statuses(@got), '200 429', "$title: has its own limit";
        is $redis->command('EXISTS', 'here:uri:sliding_log:{' . $name_of->($client) . '}'), 1, "$title: its key";
    }
    for my $address ('127.0.0.1', '127.0.0.10', '127.10.13.0', '127.123.125.36') {
        my @statuses;
        for (1, 2) {
            my $socket = IO::Socket::INET->new(LocalAddr => $address, PeerAddr => '127.0.0.1', PeerPort => $nginx->port);
            $socket->syswrite(format_request(path => '/address'));
            my $line = <$socket>;
            push @statuses, $line =~ / (\d{3}) /;
        }
        is "@statuses", '200 429', "$address, whose four bytes have zeros and newlines, has its own limit";
        my $bytes = pack 'C4', split /\./, $address;
        is $redis->command('EXISTS', "here:address:gcra:{$bytes}"), 1, "$address: its key";
    }
    my ($ttls) = $redis->command('EVAL', <<'LUA', 0);
local without = 0
for _, key in ipairs(redis.call('keys', '*')) do
    if redis.call('pttl', key) <= 0 then without = without + 1 end
end
return without
LUA
    is $ttls, 0, 'every key expires';
};

subtest 'requests over the burst are delayed' => sub {
    my $redis = start_redis(clock => 'stopped');
    my $nginx = start_nginx(
        clock => 1,
        http => <<"HTTP",
rate_limit_redis main @{[ $redis->url ]} $patient;
rate_limit_zone \$http_x_client zone=queue:1m rate=5r/s algorithm=leaky_bucket redis=main burst=4;
HTTP
        server => <<"SERVER",
$headers
location = /queue { rate_limit zone=queue; empty_gif; }
location = /delay { rate_limit zone=queue delay=2; empty_gif; }
location = /nodelay { rate_limit zone=queue nodelay; empty_gif; }
location = /dry { rate_limit zone=queue; rate_limit_dry_run on; empty_gif; }
SERVER
    );
    my %free = (queue => 1, delay => 3, nodelay => 5);
    for my $place (sort keys %free) {
        my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 7;
        $_->request('GET', "/$place", [ 'X-Client' => $place ]) for @connections;
        my $answered = sub {
            $_->fill for @connections;
            return scalar grep { @{ $_->{answers} } } @connections;
        };
        my $delayed = 5 - $free{$place};
        wait_for('all decisions', sub { (() = $nginx->error_log =~ m{delaying.*"GET /$place }g) == $delayed && $answered->() == 7 - $delayed });
        for my $number ($free{$place} + 1 .. 5) {
            my $due = ($number - ($place eq 'delay' ? 3 : 1)) * 0.2;
            $nginx->advance(0.19);
            await_answers(0.02, @connections);
            is $answered->(), $number + 1, "$place: request $number is delayed by $due s";
            $nginx->advance(0.01);
            ok wait_for('an answer', sub { $answered->() == $number + 2 }),
                "$place: request $number is not delayed longer";
        }
        my @answers = map { $_->answers } @connections;
        is scalar(grep { $_->{status} == 200 } @answers), 5, "$place: burst + 1 requests are admitted";
        is scalar(grep { $_->{status} == 429 } @answers), 2, "$place: the other requests are rejected";
        is scalar(grep { $_->header('X-Status') eq 'DELAYED' } @answers), $delayed,
            "$place: $delayed requests are DELAYED";
    }
    my @dry = exchange($nginx->port, map { [ 'GET', '/dry', [ 'X-Client' => 'dry' ] ] } 1 .. 7);
    is statuses(@dry), '200 200 200 200 200 200 200', 'a dry run rejects and delays no request';
    is join(' ', sort map { $_->header('X-Status') } @dry),
        join(' ', ('DELAYED_DRY_RUN') x 4, 'PASSED', ('REJECTED_DRY_RUN') x 2), 'a dry run reports its decision';
};

subtest 'each worker connects once, when it starts, and keeps the connection' => sub {
    my $server = start_redis(native => 0);    # the question for the module would count as a call
    my $nginx  = start_nginx(
        workers => 3,
        http    => <<"HTTP",
rate_limit_redis main @{[ $server->url ]} $patient;
rate_limit_redis unused @{[ $redis->url ]};
rate_limit_zone \$http_x_client zone=a:1m rate=1000000r/d redis=main;
rate_limit_zone \$http_x_client zone=m:1m rate=1000000r/d;
HTTP
        server => <<"SERVER",
$headers
location = /a { rate_limit zone=a; empty_gif; }
location = /m { rate_limit zone=m; empty_gif; }
location = /free { empty_gif; }
SERVER
    );
    my $reached = sub {
        my ($path, $count) = @_;
        my (%workers, @connections);
        for (1 .. 400) {
            my $connection = $nginx->connect;
            push @connections, $connection;    # stays open, so that another worker accepts the next connection
            $connection->send(format_request(path => $path, headers => [ 'X-Client' => 'a', Connection => 'keep-alive' ]));
            $workers{ $connection->receive->header('X-Worker') } = 1;
            last if keys %workers >= $count;
            @connections = () if @connections > 60;
        }
        return scalar keys %workers;
    };
    my $before = $redis->clients;
    is $reached->($_, 3), 3, "$_ gets a connection of every worker" for '/free', '/m';
    is $server->clients, 3, 'each worker is connected before the first request';
    is $server->commandstats('evalsha'), 0, 'the connection is not used yet';
    is $reached->('/a', 3), 3, 'every worker uses its connection';
    is $server->clients, 3, 'there are still three connections';
    for (1 .. 5) {
        exchange($nginx->port, map { [ 'GET', '/a', [ 'X-Client' => "client$_" ] ] } 1 .. 40);
    }
    is $server->clients, 3, 'concurrent requests do not open more connections';
    is $redis->clients, $before, 'no connection to a Redis that no zone uses';
};

subtest 'a user, a password, a database, a prefix, a socket, IPv6, a name' => sub {
    my $server = start_redis(
        config => 'bind 127.0.0.1 ::1',
        acl    => 'app on >app-secret ~mine:* resetchannels +@all -@admin',
    );
    my $locked = start_redis(password => 'sesame');
    my $local  = start_redis(unixsocket => 1);
    my $escaped = start_redis(password => 'p@ss:w/rd#%');
    open my $out, '>', "$ENV{RL_DIR}/password" or die "password: $!\n";
    print {$out} "sesame\n";
    close $out or die "password: $!\n";

    my $port = $server->port;
    my @rows = (
        [ 'an ACL user in the URL', $server->url(user => 'app', password => 'app-secret') . ' prefix=mine:', $server, 0, 'mine:' ],
        [ 'a database in the URL',  $server->url(db => 3),                                    $server, 3 ],
        [ 'db=',                    $server->url . ' db=5',                                   $server, 5 ],
        [ 'a prefix',               $server->url . ' prefix=other/',                          $server, 0, 'other/' ],
        [ 'an empty prefix',        $server->url . ' prefix=',                                $server, 0, '' ],
        [ 'an address of IPv6',     "redis://[::1]:$port/6",                                  $server, 6 ],
        [ 'a name',                 "redis://localhost:$port/7",                              $server, 7 ],
        [ 'a password in the URL',  $locked->url,                                             $locked, 0 ],
        [ 'a password in a file',   'redis://127.0.0.1:' . $locked->port . " password_file=$ENV{RL_DIR}/password db=1", $locked, 1 ],
        [ 'a password in a file and user=', 'redis://127.0.0.1:' . $locked->port . " user=default password_file=$ENV{RL_DIR}/password db=2", $locked, 2 ],
        [ 'a password with any character', 'redis://:p%40ss%3Aw%2Frd%23%25@127.0.0.1:' . $escaped->port, $escaped, 0 ],
        [ 'a Unix socket',          $local->url,                                              $local,  0 ],
        [ 'a database of a Unix socket', $local->url . ' db=2',                               $local,  2 ],
    );
    my ($http, $place) = ('', '');
    for my $number (0 .. $#rows) {
        $http .= "rate_limit_redis r$number $rows[$number][1] $patient;\n"
            . "rate_limit_zone \$http_x_client zone=z$number:1m rate=1r/d algorithm=sliding_log redis=r$number;\n";
        $place .= "location = /$number { rate_limit zone=z$number; empty_gif; }\n";
    }
    my $nginx = start_nginx(http => $http, server => "$headers $place");
    for my $number (0 .. $#rows) {
        my ($title, undef, $where, $database, $prefix) = @{ $rows[$number] };
        my @answers = map { $nginx->get("/$number", 'X-Client' => 'c') } 1, 2;
        is statuses(@answers), '200 429', "$title: limits";
        is $answers[0]->header('X-Store'), 'redis', "$title: from Redis";
        my $connection = $where->connect;
        $connection->command('SELECT', $database);
        is $connection->command('EXISTS', ($prefix // 'rate_limit:') . "z$number:sliding_log:{c}"), 1, "$title: there";
    }
    unlike $nginx->error_log, qr/sesame|app-secret/, 'no password is logged';
};

done_testing;
