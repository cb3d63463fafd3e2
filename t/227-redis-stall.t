# When one connection stalls, as after a lost TCP packet, checks use another connection, and Redis counts as available.
#
# The clock of nginx stands still unless it is advanced: no check times out, and no connection counts as silent, until then.
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

# A request whose answer does not come back from Redis.
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

subtest 'checks leave by a second connection while the first is silent' => sub {
    my $nginx = start();
    is ask($nginx), '200 redis', 'Redis decides';
    my @first = $proxy->callers('EVALSHA');
    my $held = lose_answer($nginx, 'held');
    $nginx->advance(0.03);
    ok wait_for('a second connection', sub { $redis->clients == 2 }), 'after a quarter of timeout= there is a second connection';
    is ask($nginx), '200 redis', 'and others are answered by it' for 1 .. 3;
    isnt +($proxy->callers('EVALSHA'))[-1], $first[0], 'which is another';
    is await_answers(0.05, $held), 0, 'the one on the silent connection waits';
    $nginx->advance(0.08);
    is result($held), '503 timeout', 'until its time is over';
    is ask($nginx), '200 redis', 'and the breaker is closed';
    $proxy->release;
    is ask($nginx), '200 redis', 'so it is when the silence is over' for 1 .. 3;
    is join(' ', map { ask($nginx, 'held') } 1 .. 5), join(' ', ('200 redis') x 4, '429 redis'), 'the check was charged once';
    unlike $nginx->error_log, qr/redis "main"/, 'nothing is said of it';
    $nginx->signal('QUIT');
    wait_for('the end', sub { waitpid($nginx->pid, 1) != 0 });
    unlike $nginx->error_log, qr/open socket|\[(?:alert|crit|emerg)\]/, 'nothing is left behind';
};

subtest 'the connections take over from each other, and no third is made' => sub {
    my $nginx = start();
    is ask($nginx), '200 redis', 'Redis decides';
    for my $round (1 .. 6) {
        my $held = lose_answer($nginx, "round$round");
        $nginx->advance(0.03);
        wait_for('two connections', sub { $redis->clients == 2 });
        is ask($nginx), '200 redis', "round $round: others are answered";
        $nginx->advance(0.08);
        is result($held), '503 timeout', "round $round: one is not";
        $proxy->release;
        is ask($nginx), "200 redis", "round $round: and what was held is let go";
    }
    is $redis->clients, 2, 'over two connections';
    unlike $nginx->error_log, qr/redis "main"/, 'nothing is said of it';
};

subtest 'a Redis that is silent on both connections opens the breaker' => sub {
    my $nginx = start();
    is ask($nginx), '200 redis', 'Redis decides';
    my $held = lose_answer($nginx, 'both');
    $nginx->advance(0.03);
    wait_for('two connections', sub { $redis->clients == 2 });
    is ask($nginx), '200 redis', 'by the second connection';
    $redis->pause;
    my $late = RateLimit::Async->new($nginx->port);
    $late->request('GET', '/a', [ 'X-Client' => 'late' ]);
    is await_answers(0.05, $late), 0, 'one more waits';
    $nginx->advance(0.11);
    is join(', ', map { result($_) } $held, $late), '503 timeout, 503 timeout', 'both go by on_error';
    is ask($nginx), '503 unavailable', 'the breaker is open';
    $redis->resume;
    $proxy->release;
    $nginx->advance(1);
    ok wait_for('Redis', sub { ask($nginx) eq '200 redis' }), 'and closes when Redis answers';
};

done_testing;
