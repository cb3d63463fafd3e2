# A Redis that sends arbitrary replies, or holds arbitrary values, crashes no worker and blocks no client.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(await_answers);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Redis qw(start_redis);
use Test::More;

my @modes  = qw(open closed local);
my ($port) = split ' ', $ENV{RL_PORTS};

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

# Answers of a real server to a check, mutated at random, from a scripted server.
subtest 'no answer crashes a worker' => sub {
    my $server = start_redis(native => 0);    # the test repeats a call of the script
    my $nginx  = start_nginx(configuration($server->url, 'timeout=5s connect_timeout=5s'));
    $nginx->get('/open', 'X-Client' => 'asks');
    my $monitor = $server->monitor;
    $nginx->get('/open', 'X-Client' => 'asks');
    my ($call) = grep { uc $_->{words}[0] eq 'EVALSHA' } $monitor->commands;
    my $answer = $server->command(@{ $call->{words} });
    $nginx->stop;
    cmp_ok length $answer, '>', 8, 'the answer of the real server has numbers';

    my $seed = $ENV{RL_SEED} // 825003;
    note "RL_SEED=$seed repeats this";
    my $change = sub {
        srand $seed++;
        my $bytes = $answer;
        my $kind  = int rand 5;
        substr $bytes, rand length $bytes, 1, chr rand 256 for 1 .. 1 + rand 8;
        return $bytes if $kind < 3;
        $bytes = chr(255) x length $bytes if rand 2 < 1;
        return $bytes if $kind == 3;
        return substr $bytes . $bytes, 0, rand 2 * length $bytes;
    };
    my $fake = start_fake(replies => { EVALSHA => $change, SET => '+OK' });
    $nginx = start_nginx(configuration($fake->url, 'timeout=5s connect_timeout=5s'));
    $nginx->get('/open', 'X-Client' => 'first');
    my @workers = $nginx->workers;
    my %count;
    for my $round (1 .. 40) {
        my @connections = map { RateLimit::Async->new($nginx->port) } 1 .. 9;
        $connections[$_]->request('GET', "/$modes[ $_ % 3 ]", [ 'X-Client' => "c$_-$round" ]) for 0 .. 8;
        await_answers(2, @connections) or $count{late}++;
        $count{ $_->{status} }++ for map { $_->answers } @connections;
    }
    is join(' ', grep { !/^(?:200|429|503)$/ } keys %count), '', 'every request gets a response at once';
    cmp_ok $fake->count('EVALSHA'), '>', 20, 'many answers came';
    is "@{[ $nginx->workers ]}", "@workers", 'the worker is still running';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
    note join ', ', map {"$_: $count{$_}"} sort keys %count;
};

# Values that no version of the module wrote, but an operator or another program might.
subtest 'a key with an unexpected value' => sub {
    my $server = start_redis();
    my %zones  = (
        token_bucket    => 'rate=5r/h',
        leaky_bucket    => 'rate=5r/h burst=4',
        gcra            => 'rate=5r/h burst=4',
        fixed_window    => 'rate=5r/h align=first',
        sliding_window  => 'rate=5r/h',
        sliding_buckets => 'rate=5r/h',
        sliding_log     => 'rate=5r/h',
    );
    my ($http, $places) = ("rate_limit_redis main @{[ $server->url ]} timeout=5s connect_timeout=5s;\n", <<'SERVER');
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
SERVER
    for my $name (sort keys %zones) {
        my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
        $http   .= "rate_limit_zone \$http_x_client zone=$name:1m algorithm=$name $zones{$name} redis=main deny_cache=off;\n";
        $places .= "location = /$name { rate_limit zone=$name $nodelay; empty_gif; }\n";
    }
    my $nginx = start_nginx(http => $http, server => $places, port => $port);
    my $seed  = $ENV{RL_SEED} // 825003;
    note "RL_SEED=$seed repeats this";
    srand $seed;
    my @texts = ('', '0', 'hello', '{"json":1}', "\0" x 8, "\xff" x 8, "\xff" x 16, "\xff" x 17, "\0" x 100, 'x' x 10_000,
        map { join '', map { chr rand 256 } 1 .. 1 + rand 40 } 1 .. 25);
    for my $name (sort keys %zones) {
        my @wrong;
        for my $number (0 .. $#texts) {
            my $key = "rate_limit:$name:$name:{k$number}";
            $server->command('SET', $key, $texts[$number]);
            my @answers = map { $nginx->get("/$name", 'X-Client' => "k$number") } 1 .. 7;
            my $text    = unpack 'H*', substr $texts[$number], 0, 60;
            push @wrong, "$text: " . join ' ', map { $_->{status} . ($_->header('X-Store') // '') . ($_->header('X-Error') // '') } @answers
                if grep { $_->{status} !~ /^(?:200|429)$/ || ($_->header('X-Store') // '') ne 'redis' } @answers;
            push @wrong, "$text: more than five" if 5 < grep { $_->{status} == 200 } @answers;
            my @waits = grep { defined && $_ > 7200 } map { $_->header('Retry-After') } @answers;
            push @wrong, "$text: Retry-After @waits" if @waits;
            push @wrong, "$text: no TTL" if $server->command('PTTL', $key) == -1 && $answers[0]{status} == 200;
        }
        is_deeply \@wrong, [], "$name: a client with such a key is limited like others";

        $server->command('RPUSH', "rate_limit:$name:$name:{list}", 1, 2, 3);
        my @answers = map { $nginx->get("/$name", 'X-Client' => $_) } 'list', 'other';
        is join(' ', map { $_->{status} } @answers), '200 200',
            "$name: a client with a list, and other clients, are admitted";
    }
};

done_testing;
