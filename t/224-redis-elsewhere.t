# A reload takes a zone out of Redis, or nginx redirects a request, while or after Redis is asked.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers await_reading statuses);
use RateLimit::FakeRedis qw(silence start_fake);
use RateLimit::Redis qw(start_redis);
use RateLimit::Upstream;
use Test::More;

my $redis  = start_redis();
my $server = <<'SERVER';
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /a { rate_limit zone=a; empty_gif; }
SERVER

sub statuses_of {
    my ($nginx, $client, $count) = @_;
    return join ' ', map { $nginx->get('/a', 'X-Client' => $client)->{status} } 1 .. $count;
}

subtest 'a zone without shared memory gets memory when a reload needs it' => sub {
    my $zone = sub {
        my ($words) = @_;
        return (
            clock => 1,    # the clock is frozen unless the test advances it
            http  => "rate_limit_redis main @{[ $redis->url ]} timeout=1s;\n"
                . "rate_limit_zone \$http_x_client zone=a:1m rate=2r/d algorithm=sliding_log $words;\n",
            server => $server,
        );
    };
    my $nginx = start_nginx($zone->('redis=main deny_cache=off'));
    is statuses_of($nginx, 'one', 3), '200 200 429', 'in Redis, without a deny cache';
    $nginx->reload($zone->(''));
    is statuses_of($nginx, 'one', 3), '200 200 429', 'in memory';
    $nginx->reload($zone->('redis=main deny_cache=off'));
    is statuses_of($nginx, 'two', 3), '200 200 429', 'in Redis again';
    $nginx->reload($zone->('redis=main deny_cache=1s'));
    is statuses_of($nginx, 'three', 3), '200 200 429', 'with a deny cache';
    is $nginx->get('/a', 'X-Client' => 'three')->header('X-Store'), 'cache', 'the deny cache decides';
    $nginx->reload($zone->('redis=main deny_cache=off'));
    $nginx->reload($zone->('redis=main on_error=local'));
    is statuses_of($nginx, 'four', 3), '200 200 429', 'with a fallback';
    $redis->pause;
    my $waits = RateLimit::Async->new($nginx->port);
    $waits->request('GET', '/a', [ 'X-Client' => 'five' ]);
    await_reading($waits);
    $nginx->advance(1);
    await_answers(20, $waits);
    is statuses($waits->answers) . ' ' . statuses_of($nginx, 'five', 2), '200 200 429',
        'memory limits while Redis is down';
    $redis->resume;
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
};

subtest 'an answer does not wake a request that is in its post_action' => sub {
    my $mute     = q{};    # an upstream that does not respond yet
    my ($port)   = (split ' ', $ENV{RL_PORTS})[-1];
    my $upstream = RateLimit::Upstream->start($port, '/left' => $mute, '/limited' => $mute);
    my $nginx    = start_nginx(
        http => "rate_limit_redis main @{[ $redis->url ]} timeout=1h connect_timeout=1h;\n"
            . "rate_limit_zone \$http_x_client zone=a:1m rate=9r/d redis=main;\n",
        server => <<"SERVER",
location = /left { rate_limit zone=a; post_action /post/left; empty_gif; }
location = /limited { rate_limit zone=a; post_action /post/limited; empty_gif; }
location = /post/left { proxy_pass http://127.0.0.1:$port/left; }
location = /post/limited { rate_limit zone=a; proxy_pass http://127.0.0.1:$port/limited; }
location = /a { rate_limit zone=a; empty_gif; }
SERVER
    );
    for my $path (qw(left limited)) {
        $nginx->get('/a', 'X-Client' => "warm $path");
        $redis->pause;
        my $leaves = RateLimit::Async->new($nginx->port);
        $leaves->request('GET', "/$path", [ 'X-Client' => $path ]);
        is await_answers(0.05, $leaves), 0, "$path: the request waits";
        $leaves->close;
        wait_for('the post_action', sub { $upstream->requests(qr{ /left }) }) if $path eq 'left';
        $redis->resume;
        wait_for('the post_action', sub { $upstream->requests(qr{ /$path }) });
        is $nginx->get('/a', 'X-Client' => "next $path")->{status}, 200, "$path: the next request is served" for 1, 2;
        is scalar(() = $upstream->requests(qr{ /$path })), 1, "$path: its post_action ran once";
    }
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
};

subtest 'a limit that Redis could not decide is not sent again after a redirect' => sub {
    my $mute  = start_fake(replies => { EVALSHA => silence() });
    my $nginx = start_nginx(
        clock => 1,
        http  => "rate_limit_redis main @{[ $mute->url ]} timeout=1s;\n"
            . "rate_limit_zone \$http_x_client zone=a:1m rate=2r/d redis=main;\n",
        server => "add_header X-Error \$rate_limit_error always;\nlocation / { rate_limit zone=a; }\n",
    );
    $nginx->write_file('index.html', 'home');
    my $waits = RateLimit::Async->new($nginx->port);
    $waits->request('GET', '/', [ 'X-Client' => 'c' ]);
    $mute->wait_for_count('EVALSHA', 1);
    $nginx->advance(1);
    await_answers(20, $waits);
    my ($answer) = $waits->answers;
    is $answer->{body}, 'home', 'the index is served';
    is $answer->header('X-Error'), 'timeout', 'the first reason is reported';
    is $mute->count('EVALSHA'), 1, 'there was one call';
};

done_testing;
