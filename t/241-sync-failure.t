# With sync=, failures of Redis, connections or workers delay no request, and Redis receives each count exactly once.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(sum0);
use RateLimit qw(start_nginx wait_for slurp);
use RateLimit::Fleet qw(zone_config ask left load told tellers worker_at);
use RateLimit::Proxy qw(start_proxy);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;
use Time::HiRes qw(sleep);

my $limit = 5000;    # far more than the test sends
my %zones = (
    token_bucket    => "algorithm=token_bucket rate=1r/d capacity=$limit",
    leaky_bucket    => 'algorithm=leaky_bucket rate=1r/d burst=' . ($limit - 1),
    gcra            => 'algorithm=gcra rate=1r/d burst=' . ($limit - 1),
    fixed_window    => "algorithm=fixed_window rate=${limit}r/d align=first",
    sliding_window  => "algorithm=sliding_window rate=${limit}r/366d",
    sliding_buckets => "algorithm=sliding_buckets rate=${limit}r/366d",
);
my @names   = sort keys %zones;
my @ports   = split ' ', $ENV{RL_PORTS};
my @clients = map {"client$_"} 1 .. 5;
my $redis   = start_redis(config => "appendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0");
my $proxy   = start_proxy($redis);
my %conf    = (port => $ports[0], words => 'sync=20ms', redis => 'timeout=100ms', workers => 3, http => "access_log off;\n");
my @fleet   = map { start_nginx(zone_config($proxy->url, \%zones, %conf, port => $ports[$_])) } 0, 1;
my $reader  = start_nginx(zone_config($redis->url, \%zones, port => $ports[7], words => 'deny_cache=off on_error=closed'));
my $run     = 0;

# Runs a load with its own clients, and an event in the middle. Asserts that no client noticed the event, and that all
# counts were sent in the end.
sub survives {
    my ($title, $zone, %more) = @_;
    $run++;
    my $after    = delete $more{after};
    my @some     = map {"$_-$run"} @clients;
    my $admitted = load(\@fleet, $zone, \@some, 60, %more);
    is delete $admitted->{other}, 0, "$title, $zone: memory decides all requests";
    is sum0(values %{$admitted}), 300, "$title, $zone: all requests are admitted";
    $after->() if $after;
    told($limit, $reader, $zone, $admitted, "$title, $zone: Redis counts each request exactly once");
    return;
}

subtest 'replies are lost' => sub {
    for my $zone (@names) {
        survives('lost', $zone, during => sub { $proxy->lose_replies(EVALSHA => 3) }, after => sub { $proxy->wait_until_happened(3) });
    }
};

subtest 'calls are lost' => sub {
    for my $zone (qw(gcra sliding_window)) {
        survives('lost', $zone, during => sub { $proxy->lose_calls(EVALSHA => 3) }, after => sub { $proxy->wait_until_happened(3) });
    }
};

subtest 'replies come late' => sub {
    for my $zone (qw(gcra fixed_window)) {
        survives(
            'late', $zone,
            during => sub { $proxy->hold_replies(EVALSHA => 2) },
            after  => sub { $proxy->wait_until_happened(2); sleep 0.3; $proxy->release }
        );
    }
};

subtest 'requests admitted during a call are counted later' => sub {
    my $nginx = start_nginx(zone_config($proxy->url, \%zones, %conf, words => 'sync=200ms', redis => 'timeout=10s', port => $ports[2]));
    for my $zone (@names) {
        $proxy->hold_replies(EVALSHA => 1);
        ask($nginx, $zone, 'meanwhile', 3);
        $proxy->wait_until_happened(1);
        ask($nginx, $zone, 'meanwhile', 4);
        $proxy->release;
        my %seen;
        wait_for('all counts in Redis', sub {
            $seen{ left($nginx, $zone, 'meanwhile') } = 1;
            return left($reader, $zone, 'meanwhile') == $limit - 7;
        });
        is join(' ', keys %seen), $limit - 7, "$zone: the remaining count never includes any of the seven";
    }
    $nginx->stop;
};

subtest 'connections are cut' => sub {
    for my $zone (qw(token_bucket leaky_bucket)) {
        my $cut = sub { eval { $redis->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes') } };
        survives('cut', $zone, during => $cut, after => $cut);
    }
};

subtest 'scripts are forgotten' => sub {
    survives('forgotten', 'gcra', during => sub { $redis->command('SCRIPT', 'FLUSH') });
};

subtest 'Redis is out of memory' => sub {
    survives(
        'full', 'sliding_buckets',
        during => sub { $redis->command('CONFIG', 'SET', 'maxmemory', 1) },
        after  => sub { sleep 0.2; $redis->command('CONFIG', 'SET', 'maxmemory', 0) }
    );
};

subtest 'Redis stands still' => sub {
    for my $zone (@names) {
        survives('still', $zone, during => sub { $redis->pause }, after => sub { sleep 0.25; $redis->resume });
    }
};

subtest 'Redis is killed, and restarted with its data' => sub {
    for my $zone (qw(gcra fixed_window sliding_window)) {
        survives('killed', $zone, during => sub { $redis->kill }, after => sub { $redis->restart });
    }
};

subtest 'no client waits or sees an error' => sub {
    $redis->pause;
    my $began   = spare_time();
    my @answers = map { ask($fleet[0], $_, 'unaware', 20) } @names;
    my $took    = spare_time() - $began;
    is join(' ', map { $_->{status} } @answers), join(' ', (200) x @answers), 'all are admitted';
    cmp_ok $took, '<', @answers * 0.05, 'no request waits for the timeout';
    is scalar(grep { $_->count('X-Error') } @answers), 0, 'no client sees an error';
    is scalar(grep { $_->header('X-Status') ne 'PASSED' } @answers), 0, 'all have passed';
    is ask($fleet[0], 'gcra', 'unaware', 1, $limit)->{status}, 429, 'the limit holds';
    $redis->resume;
    told($limit, $reader, $_, { unaware => 20 }, "$_: all counts are sent in the end") for @names;
};

# A new sender is elected within this time, in seconds.
my $patience = 5;

# With RL_LONG=1 one more algorithm is tested.
my @more = $ENV{RL_LONG} ? 'sliding_window' : ();

# Starts an nginx that has sent twenty requests of a client to Redis, through a proxy if one is given. Returns nginx,
# the worker that sent them, and a monitor. Each background task of an instance may run in another worker.
sub start_sender {
    my ($zone, $client, $own) = @_;
    my $monitor = $redis->monitor;
    my $nginx   = start_nginx(zone_config(($own // $redis)->url, { $zone => $zones{$zone} }, %conf, redis => 'timeout=10s', port => $ports[2]));
    ask($nginx, $zone, $client, 20);
    told($limit, $reader, $zone, { $client => 20 }, "$zone: twenty requests are sent");
    my @pids = $own ? worker_at($nginx, ($own->callers('EVALSHA'))[-1]) : tellers($nginx, $zone, $monitor);
    is scalar @pids, 1, "$zone: one worker sends";
    return ($nginx, $pids[0], $redis->monitor);
}

subtest 'the sending worker is killed' => sub {
    for my $zone (qw(gcra fixed_window), @more) {
        my ($nginx, $old, $monitor) = start_sender($zone, "killed-$zone");
        kill 'KILL', $old;
        wait_for('another worker', sub { my @pids = $nginx->workers; @pids == 3 && !grep { $_ == $old } @pids });
        my $began = spare_time();
        ask($nginx, $zone, "killed-$zone", 20);
        told($limit, $reader, $zone, { "killed-$zone" => 40 }, "$zone: another worker sends twenty more");
        my $took = spare_time() - $began;
        cmp_ok $took, '<', $patience, sprintf '%s: after %.1f s', $zone, $took;
        my @new = tellers($nginx, $zone, $monitor);
        ok @new == 1 && $new[0] != $old, "$zone: the sender is another worker";
        $nginx->stop;
    }
};

subtest 'the sending worker is killed while it waits for a reply' => sub {
    my %fate = (applied => 'hold_replies', 'not applied' => 'lose_calls');
    for my $zone (qw(token_bucket fixed_window), @more) {
        for my $fate (sort keys %fate) {
            my $method = $fate{$fate};
            my $client = $fate =~ s/ /-/gr;
            my $own    = start_proxy($redis);
            my ($nginx, $old) = start_sender($zone, $client, $own);
            $own->$method(EVALSHA => 1);
            ask($nginx, $zone, $client, 1, 7);
            $own->wait_until_happened(1);
            ask($nginx, $zone, $client, 1, 5);
            kill 'KILL', $old;
            $own->release;
            ask($nginx, $zone, $client, 3);
            told($limit, $reader, $zone, { $client => 35 },
                "$zone: the call was $fate, and another worker sends fifteen");
            $nginx->stop;
        }
    }
};

subtest 'the sending worker is suspended for a while' => sub {
    my ($nginx, $old) = start_sender('gcra', 'still');
    kill 'STOP', $old;
    wait_for('a stopped worker', sub { slurp("/proc/$old/stat") =~ /\) T / });
    # A suspended worker accepts no connection.
    my @answers = ask($nginx, 'gcra', 'still', 20);
    is scalar(grep { $_->{status} == 200 && $_->header('X-Worker') != $old } @answers), 20,
        'other workers admit the requests';
    kill 'CONT', $old;
    ask($nginx, 'gcra', 'still', 20);
    told($limit, $reader, 'gcra', { still => 60 }, 'Redis counts each request exactly once');
    $nginx->stop;
};

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet, $reader;
done_testing;
