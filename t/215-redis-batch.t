# Concurrent checks share few script calls with at most batch= groups each, and each request gets its own answer.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers request_text);
use RateLimit::HTTP2;
use RateLimit::Redis qw(start_redis);
use Test::More;

my $redis   = start_redis();
my @ports   = split ' ', $ENV{RL_PORTS};
my $h2_port = $ports[-1];
my %batches = (default => '', one => 'batch=1', three => 'batch=3', sixteen => 'batch=16', most => 'batch=1024');
my ($http, $places) = ('', '');
for my $name (sort keys %batches) {
    $http .= "rate_limit_redis $name @{[ $redis->url ]} timeout=1h connect_timeout=1h $batches{$name};\n"
        . "rate_limit_zone \$http_x_client zone=$name:4m rate=100r/d algorithm=token_bucket redis=$name deny_cache=off;\n"
        . "rate_limit_zone \$http_x_client zone=${name}_log:4m rate=10r/d algorithm=sliding_log redis=$name deny_cache=off;\n";
    $places .= "location = /$name { rate_limit zone=$name; empty_gif; }\n"
        . "location = /$name/log { rate_limit zone=${name}_log; empty_gif; }\n"
        . "location = /$name/both { rate_limit zone=${name}_log; rate_limit zone=$name; empty_gif; }\n";
}
my $sixteen = '';
for my $number (1 .. 16) {
    my $algorithm = (qw(token_bucket sliding_log sliding_window sliding_buckets fixed_window))[ $number % 5 ];
    $http    .= "rate_limit_zone \$http_x_client zone=z$number:4m rate=1000r/d algorithm=$algorithm redis=most;\n";
    $sixteen .= "rate_limit zone=z$number; ";
}
$places .= "location = /z { $sixteen empty_gif; }\n";
my $locations = <<"SERVER";
add_header X-Status \$rate_limit_status always;
add_header X-Store \$rate_limit_store always;
add_header X-Error \$rate_limit_error always;
$places
SERVER
my $nginx = start_nginx(
    http    => "large_client_header_buffers 4 16k;\nkeepalive_requests 100000;\n$http",
    server  => $locations,
    servers => "server { listen 127.0.0.1:$h2_port http2; http2_max_concurrent_streams 1024; $locations }",
);

# After one request, a Redis has a connection and the script.
$nginx->get("/$_", 'X-Client' => 'first') for sort keys %batches;
my ($worker) = $nginx->workers;

# Runs a function while the worker is stopped, so that the worker finds all its input in one turn of the event loop.
sub at_once {
    my ($what) = @_;
    kill 'STOP', $worker;
    wait_for('the worker to stop', sub { RateLimit::slurp("/proc/$worker/stat") =~ /\) T / });
    my $done = eval { $what->(); 1 };
    kill 'CONT', $worker;
    die $@ if !$done;
    return;
}

# Sends requests that the worker reads in one turn, each [path, client] over its own connection. Returns the responses
# in order, and the script calls that they caused.
sub together {
    my (@requests) = @_;
    my @connections = map { RateLimit::Async->new($nginx->port) } @requests;
    $_->request('GET', '/nowhere') for @connections;    # all connections are accepted
    await_answers(20, @connections);
    $_->answers for @connections;
    my $monitor = $redis->monitor;
    at_once(sub { $connections[$_]->request('GET', "/$requests[$_][0]", [ 'X-Client' => $requests[$_][1] ]) for 0 .. $#requests });
    ok await_answers(20, @connections), scalar @requests . ' requests are answered';
    my @calls = grep { $_->{client} =~ /^127/ && uc $_->{words}[0] eq 'EVALSHA' } $monitor->commands;
    return ([ map { ($_->answers)[0] } @connections ], @calls);
}

# Returns the number of keys of each call: a group with one limit has one key.
sub keys_of { return map { $_->{words}[2] } @_ }

my $clients = 0;
sub client { return 'client' . ++$clients }


my %expected = (default => [64], one => [ (1) x 64 ], three => [ (3) x 21, 1 ], sixteen => [ (16) x 4 ], most => [64]);
for my $name (sort keys %expected) {
    subtest "64 requests in one turn, batch: $name" => sub {
        my ($answers, @calls) = together(map { [ $name, client() ] } 1 .. 64);
        is scalar(grep { $_->{status} == 200 && $_->header('X-Store') eq 'redis' } @{$answers}), 64, 'all are admitted by Redis';
        my @sizes = keys_of(@calls);
        my ($most) = $batches{$name} =~ /(\d+)/;
        is scalar(grep { $_ > ($most // 64) } @sizes), 0, 'no call has more than batch= groups';
        is_deeply [ sort { $b <=> $a } @sizes ], $expected{$name}, 'as few calls as batch= allows: ' . join ' ', @sizes;
    };
}

subtest 'each request gets its own answer' => sub {
    my @names = map { client() } 1 .. 64;
    for my $number (0 .. 63) {
        my $connection = RateLimit::Async->new($nginx->port);
        my $text = request_text('GET', '/sixteen', [ 'X-Client' => $names[$number] ]);
        $connection->raw($text x $number, ('GET') x $number);
        await_answers(20, $connection);
    }
    my ($answers) = together(map { [ 'sixteen', $_ ] } @names);
    is join(' ', map { $_->header('X-RateLimit-Remaining') } @{$answers}), join(' ', map { 99 - $_ } 0 .. 63),
        'the remaining counts of 64 clients that have used 0 to 63';
};

subtest 'requests of one client in one call are counted one after the other' => sub {
    for my $name (qw(default one three sixteen)) {
        my $client = client();
        my ($answers) = together(map { [ "$name/log", $client ] } 1 .. 40);
        my @admitted = grep { $_->{status} == 200 } @{$answers};
        is scalar @admitted, 10, "$name: ten of forty requests are admitted";
        is join(' ', sort { $a <=> $b } map { $_->header('X-RateLimit-Remaining') } @admitted), '0 1 2 3 4 5 6 7 8 9',
            "$name: each request has one less remaining";
    }
};

subtest 'requests with one limit, with two and of other zones share a call' => sub {
    my @names    = map { client() } 1 .. 60;
    my @paths    = qw(default default/log default/both);
    my ($answers, @calls) = together(map { [ $paths[ $_ % 3 ], $names[$_] ] } 0 .. 59);
    is scalar(grep { $_->{status} == 200 && $_->header('X-Store') eq 'redis' } @{$answers}), 60, 'all are admitted';
    is join(' ', keys_of(@calls)), 80, 'one call has 80 keys';
    is join(' ', map { $_->header('X-RateLimit-Limit') } @{$answers}[ 0 .. 2 ]), '100 10 10',
        'each response has its own numbers';
};

subtest 'clients with names of 8 KB and of one letter share a call' => sub {
    my @names = map { chr(ord('a') + $_ % 26) x ($_ % 2 ? 8000 : 1 + $_) } 0 .. 39;
    my ($answers) = together(map { [ 'default', $_ ] } @names);
    is scalar(grep { $_->{status} == 200 && $_->header('X-RateLimit-Remaining') >= 98 } @{$answers}), 40, 'all are admitted';
};

subtest 'streams of HTTP/2 that arrive in one write share calls' => sub {
    my $http2 = RateLimit::HTTP2->new($h2_port);
    $http2->ping;
    my $monitor = $redis->monitor;
    my @streams = map { $http2->request('GET', '/sixteen', headers => [ 'x-client' => client() ]) } 1 .. 100;
    at_once(sub { $http2->send });
    ok $http2->await(20), '100 streams get responses';
    is scalar(grep { $http2->stream($_)->{status} == 200 } @streams), 100, 'with 200';
    my @sizes = keys_of(grep { $_->{client} =~ /^127/ && uc $_->{words}[0] eq 'EVALSHA' } $monitor->commands);
    is scalar(grep { $_ > 16 } @sizes), 0, 'no call has more than batch= groups';
    cmp_ok scalar @sizes, '<=', 20, 'there are few calls: ' . join ' ', @sizes;
};

subtest 'a thousand requests of sixteen limits each in one turn' => sub {
    my @connections = map { RateLimit::HTTP2->new($h2_port) } 1 .. 4;
    $_->ping for @connections;
    my $monitor = $redis->monitor;
    for my $http2 (@connections) {
        $http2->request('GET', '/z', headers => [ 'x-client' => client() ]) for 1 .. 250;
    }
    at_once(sub { $_->send for @connections });
    my (%count, %sizes);
    for my $http2 (@connections) {
        $http2->await(20);
        $count{ $_->{status} // 'none' }++ for values %{ $http2->{streams} };
    }
    is_deeply \%count, { 200 => 1000 }, 'all are admitted';
    my @calls = grep { $_->{client} =~ /^127/ && uc $_->{words}[0] eq 'EVALSHA' } $monitor->commands;
    note 'keys of each call: ', join ' ', keys_of(@calls);
    is $nginx->error_log =~ /redis "most" (.*)/ ? $1 : '', '', 'without an error';
    my $keys = 0;
    $keys += $_ for keys_of(@calls);
    is $keys, 16_000, 'each zone is checked once for each request';
};

is join(' ', $nginx->workers), $worker, 'the worker is still running';
unlike $nginx->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
