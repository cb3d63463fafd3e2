# With sync=TIME, an instance decides from its memory at once, and instances exchange their counts every TIME.
use strict;
use warnings;

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use List::Util qw(max);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(await_answers statuses);
use RateLimit::Fleet qw(zone_config ask left);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use RateLimit::Twins qw(hold_worker);
use Test::More;
use Time::HiRes qw(sleep time);

# Each zone admits twenty requests, and practically no more.
my %zones = (
    token_bucket    => 'algorithm=token_bucket rate=1r/d capacity=20',
    leaky_bucket    => 'algorithm=leaky_bucket rate=1r/d burst=19',
    gcra            => 'algorithm=gcra rate=1r/d burst=19',
    fixed_clock     => 'algorithm=fixed_window rate=20r/366d',
    fixed_first     => 'algorithm=fixed_window rate=20r/d align=first',
    sliding_window  => 'algorithm=sliding_window rate=20r/366d',
    sliding_buckets => 'algorithm=sliding_buckets rate=20r/366d buckets=4',
    several_rates   => 'algorithm=token_bucket rate=20r/d,30r/30d',
    several_windows => 'algorithm=fixed_window align=first rate=25r/d,20r/h',
    variable_rate   => 'algorithm=sliding_window rate=$rate',
);
my @names = sort keys %zones;
my %algorithm = map { $_ => $zones{$_} =~ /algorithm=(\w+)/ } @names;
my $rate = "map \$arg_rate \$rate { '' 20r/366d; default \$arg_rate; }\n";
my @ports = split ' ', $ENV{RL_PORTS};

sub key_of {
    my ($zone, $client) = @_;
    return "rate_limit:$zone:$algorithm{$zone}:{$client}";
}

# Waits until an instance reports the given remaining count. Returns the count that it reports at the end.
sub sees {
    my ($nginx, $zone, $client, $count, $title) = @_;
    my $last;
    eval { wait_for('it', sub { ($last = left($nginx, $zone, $client)) == $count }) };
    is $last, $count, $title;
    return;
}

for my $kind (qw(redis valkey)) {
    my $redis  = start_redis(server => $kind);
    my @fleet = map {
        start_nginx(zone_config($redis->url, \%zones, port => $_, http => $rate, words => 'sync=50ms', workers => 2))
    } @ports[ 0, 1 ];
    my ($first, $second) = @fleet;
    my $exact = start_nginx(zone_config($redis->url, \%zones, port => $ports[2], http => $rate, words => 'deny_cache=off'));

    subtest "$kind: requests that one instance admits count at the others" => sub {
        for my $zone (@names) {
            my @answers = ask($first, $zone, 'alice', 3);
            is statuses(@answers), '200 200 200', "$zone: the first instance admits three";
            is join(' ', map { $_->header('X-RateLimit-Remaining') } @answers), '19 18 17',
                "$zone: the first instance reports what remains";
            is join(' ', map { $_->header('X-Store') } @answers), 'memory memory memory', "$zone: memory decides";
            is ask($second, $zone, 'alice', 2)->{status}, 200, "$zone: the second instance admits two";
        }
        for my $zone (@names) {
            sees($exact, $zone, 'alice', 15, "$zone: an instance without sync= sees five in Redis");
            my $ttl = $redis->command('PTTL', key_of($zone, 'alice'));
            cmp_ok $ttl, '>', 0, "$zone: the key has the usual name, and expires";
        }
        ask($second, $_, 'alice') for @names;
        sees($second, $_, 'alice', 14, "$_: the second instance knows the count of the first") for @names;
        sees($exact, $_, 'alice', 14, "$_: the second instance has sent its own count") for @names;
        ask($first, $_, 'alice') for @names;
        sees($first, $_, 'alice', 13, "$_: the first instance knows the count of the second") for @names;
        ask($exact, $_, 'alice', 3) for @names;
        ask($first, $_, 'alice') for @names;
        for my $zone (@names) {
            sees($first, $zone, 'alice', 9, "$zone: the first instance knows the count of the instance without sync=");
            my @answers = ask($first, $zone, 'alice', 11);
            is statuses(@answers), '200 ' x 9 . '429 429', "$zone: exactly nine more are admitted";
            is $answers[10]->header('X-RateLimit-Remaining'), 0, "$zone: a rejection reports the limit";
            like $answers[10]->header('Retry-After'), qr/^[1-9]\d*$/, "$zone: a rejection has Retry-After";
        }
        for my $zone (@names) {
            sees($exact, $zone, 'alice', 0, "$zone: without sync= none remains");
            is ask($exact, $zone, 'alice')->{status}, 429, "$zone: the instance without sync= rejects";
        }
    };
    next if $kind eq 'valkey';

    subtest 'cost=' => sub {
        for my $zone (@names) {
            my @answers = map { ask($first, $zone, 'costly', 1, $_) } 5, 0, 7, 9, 8;
            is statuses(@answers), '200 200 200 429 200',
                "$zone: costs of 5, 0, 7 and 8 of 20 are admitted, 9 is rejected";
            sees($exact, $zone, 'costly', 0, "$zone: Redis has the same count");
        }
    };

    subtest 'a rejected request is not charged' => sub {
        for my $zone (@names) {
            ask($first, $zone, 'rejected', 1, 15);
            is ask($first, $zone, 'rejected', 3, 6)->{status}, 429, "$zone: three requests are rejected";
            ask($first, $zone, 'rejected', 1, 1);
            sees($exact, $zone, 'rejected', 4, "$zone: rejected requests are not charged in Redis");
        }
    };

    subtest 'names of clients' => sub {
        my %key = map { $_ => $_ } 'two words', '{tag}', "latin \xe9", 'x' x 128;
        $key{$_} = 'sha256:' . sha256_hex($_) for 'y' x 200, 'z' x 8000, 'sha256:abc', '}';
        for my $client (sort keys %key) {
            my $title = length $client > 40 ? length($client) . ' bytes' : $client =~ s/[^ -~]/?/gr;
            ask($first,  'token_bucket', $client, 2);
            ask($second, 'token_bucket', $client);
            sees($exact, 'token_bucket', $client, 17, "$title: three requests are counted in Redis");
            is $redis->command('EXISTS', key_of('token_bucket', $key{$client})), 1,
                "$title: the key has the usual name";
        }
    };

    subtest 'a rate from a variable' => sub {
        my $client = 'changing';
        my $rated  = sub { my ($nginx, $path) = @_; return $nginx->get($path, 'X-Client' => $client) };
        $rated->($first, '/variable_rate?rate=5r/366d') for 1 .. 3;
        $rated->($first, '/variable_rate?rate=9r/366d');
        wait_for('four in Redis', sub {
            $rated->($exact, '/look/variable_rate?rate=9r/366d')->header('X-RateLimit-Remaining') == 5;
        });
        pass 'requests admitted at two rates are charged';
        $rated->($second, '/variable_rate?rate=9r/366d');
        wait_for('five', sub { $rated->($second, '/look/variable_rate?rate=9r/366d')->header('X-RateLimit-Remaining') == 4 });
        is $rated->($second, '/variable_rate?rate=5r/366d')->{status}, 429, 'the charges count at a lower rate';
        is $rated->($second, '/variable_rate?rate=off')->{status}, 200, 'no rate is no limit';
        is $rated->($second, '/variable_rate?rate=nonsense')->{status}, $rated->($exact, '/variable_rate?rate=nonsense')->{status},
            'an invalid rate is handled as without sync=';
    };

    subtest 'keys expire as without sync=' => sub {
        for my $zone (@names) {
            my $began = time;
            ask($first, $zone, 'lives', 4);
            ask($exact, $zone, 'lives exactly', 4);
            sees($exact, $zone, 'lives', 16, "$zone: four requests are counted");
            my ($synced, $asked) = map { $redis->command('PTTL', key_of($zone, $_)) } 'lives', 'lives exactly';
            # One key was charged later than the other, by at most the time of this block.
            my $most = 1000 * (1 + time - $began);
            cmp_ok abs($synced - $asked), '<', $most, "$zone: the key expires as without sync= ($synced, $asked)";
        }
    };

    subtest 'the same responses to the same requests as from a zone in memory' => sub {
        my %both = map { $_ => $zones{$_} } @names;
        $both{interval}      = 'algorithm=token_bucket rate=20r/d min_interval=1h';
        $both{every_counted} = 'algorithm=fixed_window align=first rate=20r/d count=all';
        my ($http, $server) = ($rate, '');
        for my $zone (sort keys %both) {
            my $nodelay = $zone eq 'leaky_bucket' ? 'nodelay' : '';
            $http   .= "rate_limit_zone \$http_x_client zone=${zone}_m:1m $both{$zone};\n";
            $server .= "location = /${zone}_m { rate_limit zone=${zone}_m cost=\$cost $nodelay; empty_gif; }\n";
        }
        my $nginx = start_nginx(
            zone_config($redis->url, \%both, port => $ports[3], http => $http, server => $server, words => 'sync=10ms',
                redis => 'prefix=twin:'));
        for my $zone (sort keys %both) {
            my (@wrong, %statuses);
            my $apart = 0;    # the largest difference in seconds between the two requests
            for my $cost (3, 0, 2, 5, 1, 11, 0, 4, 1, 6, 4, 1, 0) {
                my $began   = time;
                my @answers = map { ask($nginx, $_, 'twin', 1, $cost) } "${zone}_m", $zone;
                $apart = max($apart, time - $began);
                my ($memory, $synced) = map {
                    my $answer = $_;
                    join ' ', $answer->{status},
                        map { $answer->header($_) // '-' } qw(X-RateLimit-Limit X-RateLimit-Remaining X-Status)
                } @answers;
                push @wrong, "cost=$cost: memory $memory, synced $synced" if $memory ne $synced;
                for my $header (qw(X-RateLimit-Reset Retry-After)) {
                    my ($one, $other) = map { $_->header($header) // 0 } @answers;
                    push @wrong, "cost=$cost: $header $one, synced $other" if abs($one - $other) > 1 + $apart;
                }
                $statuses{ $answers[1]{status} }++;
                sleep 0.01;    # some counts are sent between two requests
            }
            is_deeply \@wrong, [], "$zone: no difference";
            is join(' ', sort keys %statuses), '200 429', "$zone: some requests were admitted, some were rejected";
        }
    };

    subtest 'options of a zone apply to all instances' => sub {
        my %options = (
            interval => 'algorithm=token_bucket rate=20r/d min_interval=1h',
            counted  => 'algorithm=fixed_window align=first rate=20r/d count=all',
        );
        my ($nginx, $reader) = map {
            start_nginx(zone_config($redis->url, \%options, port => $_ ? $ports[3] : $ports[4], redis => 'prefix=options: timeout=5s',
                words => $_))
        } 'sync=10ms', '';
        is statuses(ask($nginx, 'interval', 'a', 2)), '200 429', 'min_interval=: the second comes too soon';
        sees($reader, 'interval', 'a', 19, 'min_interval=: one is told of');
        my $answer = ask($reader, 'interval', 'a');
        is $answer->{status}, 429, 'min_interval=: and without sync= another comes too soon';
        cmp_ok abs($answer->header('Retry-After') - 3600), '<', 30, 'min_interval=: by an hour';
        is statuses(map { ask($nginx, 'counted', 'a', 1, $_) } 15, 10, 1), '200 429 429', 'count=all: a rejected one counts';
        sees($reader, 'counted', 'a', 0, 'count=all: and is told of');
        $_->stop for $nginx, $reader;
    };

    subtest 'with other limits, all are charged or none' => sub {
        my $server = <<'SERVER';
location = /two { rate_limit zone=synced; rate_limit zone=other; empty_gif; }
location = /owt { rate_limit zone=other; rate_limit zone=synced; empty_gif; }
location = /three { rate_limit zone=memory; rate_limit zone=other; rate_limit zone=synced; rate_limit zone=slower; empty_gif; }
location = /dry { rate_limit zone=synced; rate_limit_dry_run on; empty_gif; }
location = /look/other { rate_limit zone=other cost=0; empty_gif; }
location = /look/memory { rate_limit zone=memory cost=0; empty_gif; }
SERVER
        my $http = "rate_limit_zone \$http_x_other zone=other:1m algorithm=token_bucket rate=5r/d redis=fleet deny_cache=off;\n"
            . "rate_limit_zone \$http_x_client zone=memory:1m algorithm=token_bucket rate=9r/d;\n";
        my %few = (synced => 'algorithm=token_bucket rate=9r/d', slower => 'algorithm=gcra rate=1r/d burst=3');
        my $nginx = start_nginx(
            zone_config($redis->url, \%few, port => $ports[3], http => $http, server => $server, words => 'sync=20ms',
                redis => 'prefix=few: timeout=5s'));
        my $reader = start_nginx(zone_config($redis->url, \%few, port => $ports[4], redis => 'prefix=few: timeout=5s'));
        my $request = sub {
            my ($path, $count, $client, $other) = @_;
            return statuses(map { $nginx->get($path, 'X-Client' => $client, 'X-Other' => $other // $client) } 1 .. $count);
        };
        for my $path (qw(/two /owt)) {
            is $request->($path, 7, $path), '200 ' x 5 . '429 429', "$path: the zone in Redis rejects after five";
            sees($reader, 'synced', $path, 4, "$path: the other zone is charged for five");
            is $request->($path, 5, $path, "$path-again"), '200 200 200 200 429',
                "$path: the other zone rejects after four more";
            my $left = $nginx->get('/look/other', 'X-Other' => "$path-again")->header('X-RateLimit-Remaining');
            is $left, 1, "$path: Redis is charged for four more";
        }
        is $request->('/three', 6, 'three'), '200 200 200 200 429 429', 'the tightest of four zones decides';
        sees($reader, 'synced', 'three', 5, 'the first zone with sync= is charged for four');
        sees($reader, 'slower', 'three', 0, 'the second zone with sync= is charged for four');
        is $nginx->get('/look/memory', 'X-Client' => 'three')->header('X-RateLimit-Remaining'), 5,
            'the zone in memory is charged for four';
        is $nginx->get('/look/other', 'X-Other' => 'three')->header('X-RateLimit-Remaining'), 1,
            'the zone in Redis is charged for four';
        is $request->('/dry', 11, 'dry'), join(' ', (200) x 11), 'a dry run rejects no request';
        sees($reader, 'synced', 'dry', 0, 'a dry run counts the requests that it would admit');
    };

    subtest 'requests over the burst are delayed in a queue that all instances share' => sub {
        my %queue = (fast => 'algorithm=leaky_bucket rate=2r/s burst=9', queue => 'algorithm=leaky_bucket rate=1r/d burst=9');
        my ($one, $other) = map {
            start_nginx(zone_config($redis->url, \%queue, port => $_, words => 'sync=10ms',
                http   => "rate_limit_log_level info;\n",
                server => join "\n", map {"location = /wait/$_ { rate_limit zone=$_; empty_gif; }"} sort keys %queue))
        } @ports[ 3, 4 ];
        my @connections = map { RateLimit::Async->new($one->port) } 1 .. 3;
        my $began       = spare_time();
        my $go_on       = hold_worker($one);
        $_->request('GET', '/wait/fast', [ 'X-Client' => 'queue' ]) for @connections;
        $go_on->();
        await_answers(60, @connections);
        my $took  = spare_time() - $began;
        my @answers = map { $_->answers } @connections;
        my @after   = sort { $a <=> $b } map { $_->{after} } @answers;
        is join(' ', sort map { $_->header('X-Status') } @answers), 'DELAYED DELAYED PASSED',
            'two of three requests are delayed';
        cmp_ok $after[$_], '>', $_ * 0.5 - 0.02, 'not before ' . $_ * 0.5 . " s one is let through ($after[$_])" for 0 .. 2;
        cmp_ok $took, '<', 1.25, 'the last request is not delayed longer';

        ask($one, 'queue', 'shared', 1, 4);
        wait_for('the key in Redis', sub { $redis->command('EXISTS', 'rate_limit:queue:leaky_bucket:{shared}') });
        ask($other, 'queue', 'shared');
        wait_for('the other instance to know the count', sub { left($other, 'queue', 'shared') == 5 });
        my $waiting = $other->connect;
        $waiting->send("GET /wait/queue HTTP/1.1\r\nHost: localhost\r\nX-Client: shared\r\n\r\n");
        my $excess = $other->wait_for_log(qr/delaying request, excess: ([\d.]+)[^\n]*zone "queue"/);
        cmp_ok abs($excess - 5), '<', 0.1,
            "a request to the other instance is delayed behind those of the first ($excess)";
        $waiting->close;
    };

    unlike $_->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet, $exact;
}
done_testing;
