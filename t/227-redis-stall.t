# When one connection stalls, as after a lost TCP packet, checks use another connection, and Redis counts as available.
#
# The clock of nginx is frozen unless the test advances it: until then no check times out, and no connection counts as
# stalled.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers);
use RateLimit::Proxy qw(start_proxy);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $redis   = start_redis();
my $proxy   = start_proxy($redis);
my $clients = 0;

sub start {
    my (%more) = @_;
    return start_nginx(
        http => "rate_limit_redis main @{[ $proxy->url ]} timeout=100ms;\n"
            . "rate_limit_zone \$http_x_client zone=a:1m rate=5r/d algorithm=sliding_log redis=main on_error=closed;\n",
        server => <<'SERVER',
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /a { rate_limit zone=a; empty_gif; }
SERVER
        clock => 1,
        %more
    );
}

sub seen {
    my ($answer) = @_;
    return $answer ? join ' ', $answer->{status}, $answer->header('X-Error') // $answer->header('X-Store') : 'none';
}

sub ask {
    my ($nginx, $client) = @_;
    return seen($nginx->get('/a', 'X-Client' => $client // 'c' . ++$clients));
}

# Sends a request whose answer from Redis is lost.
sub lose_answer {
    my ($nginx, $client) = @_;
    my $connection = RateLimit::Async->new($nginx->port);
    $proxy->hold_replies('EVALSHA', 1);
    $connection->request('GET', '/a', [ 'X-Client' => $client ]);
    $proxy->wait_until_happened(1);
    return $connection;
}

sub result {
    my ($connection) = @_;
    await_answers(20, $connection);
    return seen($connection->answers);
}

subtest 'checks use a second connection while the first is stalled' => sub {
    my $nginx = start();
    is ask($nginx), '200 redis', 'Redis decides';
    my @first = $proxy->callers('EVALSHA');
    my $held = lose_answer($nginx, 'held');
    $nginx->advance(0.03);
    ok wait_for('a second connection', sub { $redis->clients == 2 }),
        'a second connection exists after a quarter of timeout=';
    is ask($nginx), '200 redis', 'other requests get answers over the second connection' for 1 .. 3;
    isnt +($proxy->callers('EVALSHA'))[-1], $first[0], 'the second connection is another one';
    is await_answers(0.05, $held), 0, 'the request on the stalled connection waits';
    $nginx->advance(0.08);
    is result($held), '503 timeout', 'the request on the stalled connection times out';
    is ask($nginx), '200 redis', 'the breaker is closed';
    $proxy->release;
    is ask($nginx), '200 redis', 'the breaker is closed after the stall' for 1 .. 3;
    is join(' ', map { ask($nginx, 'held') } 1 .. 5), join(' ', ('200 redis') x 4, '429 redis'), 'the check was charged once';
    unlike $nginx->error_log, qr/redis "main"/, 'the stall is not logged';
    $nginx->signal('QUIT');
    wait_for('the end', sub { waitpid($nginx->pid, 1) != 0 });
    unlike $nginx->error_log, qr/open socket|\[(?:alert|crit|emerg)\]/, 'no connection is leaked';
};

subtest 'the connections replace each other, and there is no third one' => sub {
    my $nginx = start();
    is ask($nginx), '200 redis', 'Redis decides';
    for my $round (1 .. 6) {
        my $held = lose_answer($nginx, "round$round");
        $nginx->advance(0.03);
        wait_for('two connections', sub { $redis->clients == 2 });
        is ask($nginx), '200 redis', "round $round: other requests get answers";
        $nginx->advance(0.08);
        is result($held), '503 timeout', "round $round: one request waits";
        $proxy->release;
        is ask($nginx), "200 redis", "round $round: the held bytes are released";
    }
    is $redis->clients, 2, 'over two connections';
    unlike $nginx->error_log, qr/redis "main"/, 'the stall is not logged';
};

subtest 'a Redis that is silent on both connections opens the breaker' => sub {
    my $nginx = start();
    is ask($nginx), '200 redis', 'Redis decides';
    my $held = lose_answer($nginx, 'both');
    $nginx->advance(0.03);
    wait_for('two connections', sub { $redis->clients == 2 });
    is ask($nginx), '200 redis', 'the second connection is used';
    $redis->pause;
    my $late = RateLimit::Async->new($nginx->port);
    $late->request('GET', '/a', [ 'X-Client' => 'late' ]);
    is await_answers(0.05, $late), 0, 'another request waits';
    $nginx->advance(0.11);
    is join(', ', map { result($_) } $held, $late), '503 timeout, 503 timeout', 'on_error applies to both requests';
    is ask($nginx), '503 unavailable', 'the breaker is open';
    $redis->resume;
    $proxy->release;
    $nginx->advance(1);
    ok wait_for('Redis', sub { ask($nginx) eq '200 redis' }), 'the breaker closes when Redis answers';
};

done_testing;
