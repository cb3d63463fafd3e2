# Replies of a Sentinel, a node or a Redis never crash a worker, and cost it limited memory and time.
use strict;
use warnings;

use lib 't/lib';
use IO::Select;
use IO::Socket::INET;
use RateLimit qw(start_nginx wait_for slurp);
use RateLimit::FakeRedis qw(start_fake cut raw);
use RateLimit::RESP qw(encode_command encode_reply);
use RateLimit::Redis qw(start_redis redis_port);
use RateLimit::Sentinels qw(start_sentinels);
use Test::More;

my ($port) = split ' ', $ENV{RL_PORTS};
my $name_server = join '.', 127, 98, $port >> 8, $port & 255;    # an address that no other test uses
my $clients     = 0;
my $limits      = start_sentinels(servers => 1, sentinels => 1, quorum => 1, down_after => 60_000);
my $dead        = redis_port();                                  # no process listens here

sub conf {
    my ($url, %more) = @_;
    my $words = delete $more{words} // 'timeout=5s';
    return (
        port => $port,
        http => "rate_limit_redis fleet $url $words;\n"
            . "rate_limit_zone \$http_x_client zone=a:1m rate=5r/d redis=fleet deny_cache=off;\n",
        server => "add_header X-Store \$rate_limit_store always;\nlocation = /free { empty_gif; }\n"
            . "location / { rate_limit zone=a; empty_gif; }\n",
        %more,
    );
}

sub ask {
    my ($nginx) = @_;
    my $answer = $nginx->get('/', 'X-Client' => 'client' . ++$clients);
    return "$answer->{status} " . $answer->header('X-Store');
}

# Lists the same Sentinel several times: when one fails, the next is asked without a pause.
sub sentinel_url {
    my ($sentinel) = @_;
    return 'redis+sentinel://' . join(',', ('127.0.0.1:' . $sentinel->port) x 8) . '/limits';
}

sub message {
    my ($host, $at) = @_;
    return encode_command('message', '+switch-master', "limits 127.0.0.1 1 $host $at");
}

# The reply of Redis to a subscription. The name of a channel is not a status.
sub subscription {
    my ($what, $channel, $last) = @_;
    return "*3\r\n" . join '', map({ '$' . length($_) . "\r\n$_\r\n" } $what, $channel), encode_reply($last);
}

sub lives_on {
    my ($nginx, @workers) = @_;
    is $nginx->get('/free')->{status}, 200, 'the worker is still running';
    is join(' ', $nginx->workers), "@workers", 'the same';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
    return;
}

# Returns the bytes of a real Sentinel's answer.
sub answer_of_sentinel {
    my (@words) = @_;
    my ($sentinel) = $limits->sentinels;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $sentinel->port) or return '';
    my ($bytes, $copy) = ('', '');
    syswrite $socket, encode_command(@words);
    while (sysread $socket, $bytes, 65_536, length $bytes) {
        $copy = $bytes;
        last if RateLimit::RESP::take(\$copy);
    }
    close $socket;
    return $bytes;
}

my @elements = map { encode_reply($_) } undef, 1, -1, [], [ 1, 2, 3 ], 'unsubscribe', 'x', '-ERR x', '+OK';

# Changes some bytes, or whole elements, of a server's reply.
sub mutate {
    my ($bytes) = @_;
    for (1 .. rand 4) {
        my $at   = int rand length $bytes;
        my $kind = int rand 6;
        substr $bytes, $at, 1, substr "*\$:+->,#_%~=(0123456789\r\n\0\xff", rand 26, 1 if $kind == 0;
        substr $bytes, $at, 1 + rand 8, '' if $kind == 1;
        substr $bytes, $at, 0, substr $bytes, $at, 1 + rand 16 if $kind == 2;
        substr $bytes, $at, 0, $elements[ rand @elements ] if $kind == 3;
        my @parts = split /(?=[*\$:])/, $bytes;
        $parts[ rand @parts ] = $elements[ rand @elements ] if $kind > 3 && @parts;
        $bytes = join '', @parts if $kind > 3;
        last if !length $bytes;
    }
    return $bytes;
}

subtest 'a real Sentinel, and a proxy that mutates its replies' => sub {
    my $seed = $ENV{RL_SEED} // 825_003;
    note "RL_SEED=$seed repeats this";
    my $message = message('127.0.0.1', $dead);
    my @told    = (
        "*3\r\n:1\r\n:2\r\n:3\r\n",
        subscription('unsubscribe', '+switch-master', 'x'),
        subscription('subscribe', 'another', 1),
        '>' . substr subscription('subscribe', 'another', 1), 1,
    );
    my $sessions = 0;
    my $proxy    = start_fake(
        replies => {
            '*' => sub {
                my @words = @_;
                my $bytes = answer_of_sentinel(@words);
                return raw($bytes) if uc $words[0] ne 'SUBSCRIBE';
                # Every other session begins with valid replies. The next reply is one that once crashed workers, or
                # another.
                srand $seed + $sessions++;
                return cut(1_000_000, raw($bytes . $told[ $sessions / 2 % @told ])) if $sessions % 2;
                return cut(1_000_000, raw(mutate($bytes . $message . $message)));
            },
        },
    );
    my $nginx = start_nginx(conf(sentinel_url($proxy), workers => 2));
    $nginx->get('/free');
    my @workers = $nginx->workers;
    # A worker asks ten times a second. With RL_LONG=1 there are more sessions.
    my $many = $ENV{RL_LONG} ? 400 : 80;
    wait_for('many sessions', sub { ask($nginx) for 1 .. 10; $proxy->count('SUBSCRIBE') >= $many });
    lives_on($nginx, @workers);
    cmp_ok length $nginx->error_log, '<', 100_000, 'little is logged: ' . length($nginx->error_log) . ' bytes';
    $nginx->stop;
};

subtest 'a Sentinel that names thousands of primaries' => sub {
    # A user who is not root, or a chroot, cannot create a mount namespace or bind port 53.
    plan skip_all => 'needs a mount namespace for an /etc/resolv.conf of its own, which this machine does not allow'
        if system('unshare -m true 2>/dev/null') != 0;
    my $silent = IO::Socket::INET->new(LocalAddr => $name_server, LocalPort => 53, Proto => 'udp', ReuseAddr => 1)
        or plan skip_all => "needs a name server of its own, which did not start: $@";
    # nginx in its own mount namespace, with a name server that never answers.
    my ($wrapper, $resolv) = map {"$ENV{RL_DIR}/$_"} qw(nginx-in-namespace resolv.conf);
    my %text = (
        $resolv  => "nameserver $name_server\noptions timeout:30 attempts:1\n",
        $wrapper => "#!/bin/sh\nexec unshare -m sh -c 'mount --bind $resolv /etc/resolv.conf && exec @{[ RateLimit::binary() ]} \"\$@\"' sh \"\$@\"\n",
    );
    for my $file (keys %text) {
        open my $out, '>', $file or die "$file: $!\n";
        print {$out} $text{$file};
        close $out or die "$file: $!\n";
    }
    chmod 0755, $wrapper;

    my ($redis) = $limits->servers;
    my %floods = (
        names     => join('', map { message("n$_.test", 6379) } 1 .. 3000),
        addresses => join('', map { message('127.0.0.1', $_) } (1 .. 20) x 1000),
    );
    for my $kind (sort keys %floods) {
        my $fake = start_fake(
            replies => {
                SENTINEL  => raw(encode_command('127.0.0.1', $dead)),
                SUBSCRIBE => raw(subscription('subscribe', '+switch-master', 1) . $floods{$kind} . message('127.0.0.1', $redis->port)),
            },
        );
        my $nginx = do {
            local $ENV{TEST_NGINX_BINARY} = $wrapper;
            start_nginx(conf(sentinel_url($fake)));
        };
        $nginx->get('/free');
        my ($worker) = $nginx->workers;
        ok wait_for('the last primary', sub { ask($nginx) eq '200 redis' }), "$kind: the last primary is used";
        my ($threads, $files) = map { scalar(my @all = glob "/proc/$worker/$_/*") } qw(task fd);
        cmp_ok $threads, '<=', 10, "$kind: $threads threads";
        cmp_ok $files,   '<=', 60, "$kind: $files descriptors";
        cmp_ok length $nginx->error_log, '<', 20_000,
            "$kind: few lines are logged: " . length($nginx->error_log) . ' bytes';
        lives_on($nginx, $worker);
        $nginx->stop;
        $fake->stop;
    }
};

sub memory_of {
    my ($worker) = @_;
    my ($kilobytes) = slurp("/proc/$worker/status") =~ /^VmHWM:\s+(\d+) kB/m;
    return $kilobytes / 1024;
}

subtest 'an endless reply' => sub {
    # The sanitizer keeps freed memory, up to 256 MB by default.
    local $ENV{ASAN_OPTIONS} = "$ENV{ASAN_OPTIONS}:quarantine_size_mb=1" if $ENV{RL_SANITIZE};
    my $endless = raw("\$1200000000\r\n" . 'x' x 67_108_864);
    my %fakes   = (
        'a Redis'    => sub { my $fake = start_fake(replies => { EVALSHA => $endless, SET => '+OK' }); return ($fake, $fake->url, 'EVALSHA', '30s') },
        'a Sentinel' => sub { my $fake = start_fake(replies => { SENTINEL => $endless }); return ($fake, sentinel_url($fake), 'SENTINEL', '1s') },
    );
    for my $kind (sort keys %fakes) {
        # If a Sentinel never names the primary, a request waits for its whole timeout.
        my ($fake, $url, $command, $timeout) = $fakes{$kind}->();
        my $nginx = start_nginx(conf($url, words => "timeout=$timeout connect_timeout=30s"));
        $nginx->get('/free');
        my ($worker) = $nginx->workers;
        my $before = memory_of($worker);
        wait_for("$command", sub { is ask($nginx), '200 fallback',
            "$kind: on_error applies to a request"; $fake->count($command) >= 2 });
        $nginx->wait_for_log(qr/the server sent a reply that is too large/);
        my $more = memory_of($worker) - $before;
        cmp_ok $more, '<', 32, sprintf '%s: the worker grows by %.1f MB', $kind, $more;
        lives_on($nginx, $worker);
        $nginx->stop;
        $fake->stop;
    }
};

# Returns the CPU time of a process in seconds.
sub cpu_of {
    my ($pid) = @_;
    return (split ' ', slurp("/proc/$pid/schedstat"))[0] / 1e9;
}

subtest 'a cluster whose thousand nodes change all the time' => sub {
    my $at      = redis_port();
    my $version = 0;
    my $map     = sub {
        $version++;
        return [
            [ 1000, 16_383, [ '127.0.0.1', $at, 'x' x 40 ] ],
            map { [ $_, $_, [ join('.', 127, 77, $_ >> 8, 1 + $_ % 256), $version, 'y' x 40 ] ] } 0 .. 999
        ];
    };
    my $fake = start_fake(port => $at, replies => { CLUSTER => $map, EVALSHA => "-MOVED 1 127.0.0.1:$at", SET => '+OK' });
    my $nginx = start_nginx(conf('redis+cluster://127.0.0.1:' . $fake->port));
    $nginx->get('/free');
    my ($worker) = $nginx->workers;
    my $began = cpu_of($worker);
    wait_for('maps', sub { ask($nginx); $fake->count('CLUSTER') >= 20 });
    my $each = (cpu_of($worker) - $began) / $fake->count('CLUSTER');
    my $most = $ENV{RL_SANITIZE} ? 1 : 0.1;
    cmp_ok $each, '<', $most, sprintf 'a map takes %.1f ms of CPU time', 1000 * $each;
    lives_on($nginx, $worker);
    $nginx->stop;
    $fake->stop;
};

subtest 'a node that redirects all calls' => sub {
    my ($at, $number) = (redis_port(), 0);
    my $fake = start_fake(
        port    => $at,
        replies => {
            CLUSTER => [ [ 0, 16_383, [ '127.0.0.1', $at, 'x' x 40 ] ] ],
            EVALSHA => sub { $number++; return sprintf '-MOVED %d 127.78.%d.%d:1', $number % 16_384, $number >> 8, 1 + $number % 250 },
            SET     => '+OK',
        },
    );
    # On a busy machine the node may take seconds to answer. The breaker must not open for that.
    my $words = 'timeout=20s connect_timeout=20s';
    my $nginx = start_nginx(conf('redis+cluster://127.0.0.1:' . $fake->port, words => $words));
    $nginx->get('/free');
    my ($worker) = $nginx->workers;
    wait_for('many of them', sub { ask($nginx) for 1 .. 20; $fake->count('EVALSHA') >= 400 });
    my $lines = () = $nginx->error_log =~ /redis "fleet/g;
    my $most  = 25 * (1 + (time - $^T) / 10);
    cmp_ok $lines, '<=', $most, "$lines lines are logged";
    lives_on($nginx, $worker);
    $nginx->stop;
    $fake->stop;
};

done_testing;
