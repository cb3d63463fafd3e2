# With sync=, counts survive a reload, a quit of nginx and a restart of Redis, and are sent once.
use strict;
use warnings;

use lib 't/lib';
use POSIX qw(WNOHANG);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(exchange);
use RateLimit::Fleet qw(zone_config ask left load told);
use RateLimit::Redis qw(start_redis);
use RateLimit::SpareTime qw(spare_time);
use Test::More;

my %limited = (
    token_bucket    => sub {"rate=1r/d capacity=$_[0]"},
    leaky_bucket    => sub { 'rate=1r/d burst=' . ($_[0] - 1) },
    gcra            => sub { 'rate=1r/d burst=' . ($_[0] - 1) },
    fixed_window    => sub {"rate=$_[0]r/d align=first"},
    sliding_window  => sub {"rate=$_[0]r/366d"},
    sliding_buckets => sub {"rate=$_[0]r/366d"},
);
my @names = sort keys %limited;
my @ports = split ' ', $ENV{RL_PORTS};
my $limit = 5000;
my $redis = start_redis(config => "appendonly yes\nappendfsync always\nauto-aof-rewrite-percentage 0");

sub limits {
    my ($count) = @_;
    return { map { $_ => "algorithm=$_ " . $limited{$_}->($count) } @names };
}

sub conf {
    my ($zones, $words, %more) = @_;
    return zone_config($redis->url, $zones, words => $words, workers => 2, redis => 'timeout=10s', %more);
}
my $reader = start_nginx(conf(limits($limit), 'deny_cache=off on_error=closed', port => $ports[7]));

subtest 'a reload without a change' => sub {
    my $nginx = start_nginx(conf(limits($limit), 'sync=100ms', port => $ports[0]));
    ask($nginx, $_, 'same', 5) for @names;
    $nginx->reload(conf(limits($limit), 'sync=100ms', port => $ports[0]));
    is left($nginx, $_, 'same'), $limit - 5, "$_: used requests stay used" for @names;
    ask($nginx, $_, 'same', 5) for @names;
    told($limit, $reader, $_, { same => 10 }, "$_: Redis counts the requests before and after the reload") for @names;
    $nginx->stop;
};

subtest 'reloads under load' => sub {
    my $nginx = start_nginx(conf(limits($limit), 'sync=20ms', port => $ports[0]));
    my ($admitted, $sent) = (0, 0);
    for my $round (1 .. 4) {
        my %old = map { $_ => 1 } $nginx->workers;
        $nginx->signal('HUP');
        my $over;
        while (!$over) {
            # A reload may take long. No more than the limit is sent.
            my $count = $sent < $limit ? 10 : 0;
            my @answers =
                exchange($nginx->port, map { [ 'GET', '/gcra', [ 'X-Client' => 'loaded' ] ] } 1 .. $count);
            $admitted += grep { $_ && $_->{status} == 200 } @answers;
            $sent += $count;
            my @now = $nginx->workers;
            $over = @now == 2 && !grep { $old{$_} } @now;
        }
    }
    is $admitted, $sent, "all $sent requests are admitted";
    told($limit, $reader, 'gcra', { loaded => $admitted }, 'all counts are sent');
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|open socket/, 'the log has no critical errors';
    $nginx->stop;
};

subtest 'another rate' => sub {
    my $nginx = start_nginx(conf(limits($limit), 'sync=100ms', port => $ports[0]));
    ask($nginx, $_, 'rate', 5) for @names;
    $nginx->reload(conf(limits(20), 'sync=100ms', port => $ports[0]));
    $reader->reload(conf(limits(20), 'deny_cache=off on_error=closed', port => $ports[7]));
    ask($nginx, $_, 'rate', 5) for @names;
    told(20, $reader, $_, { rate => 10 }, "$_: all ten requests count at the lower rate") for @names;
    is left($nginx, $_, 'rate'), 10, "$_: here, too" for @names;
    $nginx->reload(conf(limits($limit), 'sync=100ms', port => $ports[0]));
    $reader->reload(conf(limits($limit), 'deny_cache=off on_error=closed', port => $ports[7]));
    ask($nginx, $_, 'rate', 5) for @names;
    told($limit, $reader, $_, { rate => 15 }, "$_: fifteen requests count at the higher rate") for @names;
    $nginx->stop;
};

subtest 'another algorithm' => sub {
    my $nginx = start_nginx(conf({ zone => 'algorithm=gcra rate=1r/d burst=99' }, 'sync=10ms', port => $ports[0]));
    ask($nginx, 'zone', 'algorithm', 5);
    wait_for('them', sub { $redis->command('EXISTS', 'rate_limit:zone:gcra:{algorithm}') });
    my %other = (zone => 'algorithm=token_bucket rate=1r/d capacity=100');
    $nginx->reload(conf(\%other, 'sync=10ms', port => $ports[0]));
    is left($nginx, 'zone', 'algorithm'), 100, 'the new zone is empty';
    ask($nginx, 'zone', 'algorithm', 3);
    my $other = start_nginx(conf(\%other, '', port => $ports[1]));
    told(100, $other, 'zone', { algorithm => 3 }, 'the new zone sends its counts');
    is $redis->command('EXISTS', 'rate_limit:zone:gcra:{algorithm}'), 1, 'under another key';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|redis "/, 'the log has no critical errors';
    $_->stop for $nginx, $other;
};

subtest 'sync= comes and goes' => sub {
    my %zones = (zone => 'algorithm=gcra rate=1r/d burst=4999');
    my $look  = start_nginx(conf(\%zones, 'deny_cache=off', port => $ports[1]));
    my $nginx = start_nginx(conf(\%zones, 'deny_cache=off', port => $ports[0]));
    ask($nginx, 'zone', 'goes', 3);
    $nginx->reload(conf(\%zones, 'sync=50ms', port => $ports[0]));
    is ask($nginx, 'zone', 'goes', 4)->header('X-Store'), 'memory', 'the zone gets sync=';
    told($limit, $look, 'zone', { goes => 7 }, 'all are counted');
    ask($nginx, 'zone', 'goes');
    wait_for('the count of the instance', sub { left($nginx, 'zone', 'goes') == $limit - 8 });
    $nginx->reload(conf(\%zones, 'sync=10ms', port => $ports[0]));
    ask($nginx, 'zone', 'goes', 2);
    told($limit, $look, 'zone', { goes => 10 }, 'all are counted with another interval');
    $nginx->reload(conf(\%zones, 'deny_cache=off', port => $ports[0]));
    is ask($nginx, 'zone', 'goes', 2)->header('X-Store'), 'redis', 'the zone loses sync=';
    told($limit, $look, 'zone', { goes => 12 }, 'all requests are counted');
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|redis "/, 'the log has no critical errors';
    $_->stop for $nginx, $look;
};

subtest 'a reload while Redis is down' => sub {
    my $nginx = start_nginx(conf(limits($limit), 'sync=50ms', port => $ports[0]));
    ask($nginx, $_, 'down', 5) for @names;
    told($limit, $reader, $_, { down => 5 }, "$_: five requests are sent") for @names;
    $redis->kill;
    ask($nginx, $_, 'down', 5) for @names;
    $nginx->wait_for_log(qr/redis "fleet"/);
    $nginx->reload(conf(limits($limit), 'sync=50ms', port => $ports[0]));
    ask($nginx, $_, 'down', 5) for @names;
    is left($nginx, $_, 'down'), $limit - 15, "$_: fifteen requests are counted" for @names;
    $redis->restart;
    told($limit, $reader, $_, { down => 15 }, "$_: the counts are sent when Redis is back") for @names;
    $nginx->stop;
};

subtest 'Redis begins anew' => sub {
    my $nginx = start_nginx(conf(limits($limit), 'sync=50ms', port => $ports[0]));
    ask($nginx, $_, 'anew', 20) for @names;
    told($limit, $reader, $_, { anew => 20 }, "$_: twenty requests are sent") for @names;
    $redis->command('FLUSHALL');
    ask($nginx, $_, 'anew', 3) for @names;
    told($limit, $reader, $_, { anew => 3 }, "$_: Redis loses its data, and gets three new requests") for @names;
    for my $zone (grep {/window|buckets/} @names) {
        wait_for('the count of the instance', sub { left($nginx, $zone, 'anew') == $limit - 3 });
        pass "$zone: the instance counts three requests too";
    }
    $redis->kill;
    ask($nginx, $_, 'anew', 4) for @names;
    unlink glob $redis->dir . '/appendonlydir/*';
    $redis->restart;
    told($limit, $reader, $_, { anew => 4 },
        "$_: a new Redis gets the requests that were admitted meanwhile") for @names;
    $nginx->stop;
};

subtest 'unsent counts when the configuration changes' => sub {
    my %zone = (gcra => 'algorithm=gcra ' . $limited{gcra}->($limit));
    my %next = (
        'the same'          => [ \%zone, 'sync=1h' ],
        'a shorter time'    => [ \%zone, 'sync=10ms' ],
        'no sync='          => [ \%zone, 'deny_cache=off' ],
        'on_error=local'    => [ \%zone, 'on_error=local' ],
        'another algorithm' => [ { gcra => 'algorithm=token_bucket rate=1r/d capacity=100' }, 'sync=1h' ],
        'no such zone'      => [ { other => $zone{gcra} }, 'sync=1h' ],
        'no Redis'          => [ {}, '', http => "rate_limit_zone \$http_x_client zone=gcra:1m $zone{gcra};\n" ],
    );
    for my $title (sort keys %next) {
        my ($zones, $words, %more) = @{ $next{$title} };
        my $client = $title =~ s/\W/-/gr;
        my $nginx  = start_nginx(conf(\%zone, 'sync=1h', port => $ports[0]));
        ask($nginx, 'gcra', $client, 5);
        is left($reader, 'gcra', $client), $limit, "$title: nothing is sent yet";
        $nginx->reload(conf($zones, $words, port => $ports[0], %more));
        told($limit, $reader, 'gcra', { $client => 5 }, "$title: the old workers send the counts");
        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|open socket/, "$title: the log has no critical errors";
        $nginx->stop;
    }
};

# Waits for the end of nginx after a signal. Returns the spare time that it took.
sub end_by {
    my ($nginx, $signal) = @_;
    my $began = spare_time();
    $nginx->signal($signal);
    wait_for('the end', sub { waitpid($nginx->pid, WNOHANG) != 0 });
    return spare_time() - $began;
}

subtest 'nginx ends' => sub {
    my $nginx = start_nginx(conf(limits($limit), 'sync=1h', port => $ports[0]));
    ask($nginx, $_, 'quit', 5) for @names;
    cmp_ok end_by($nginx, 'QUIT'), '<', 3, 'nginx -s quit: nginx exits soon';
    told($limit, $reader, $_, { quit => 5 }, "$_: the counts are sent before the exit") for @names;
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|open socket/, 'the log has no critical errors';
    for my $signal (qw(QUIT TERM)) {
        $nginx = start_nginx(conf(limits($limit), 'sync=20ms', port => $ports[0], redis => 'timeout=1s'));
        ask($nginx, $_, "first-$signal", 5) for @names;
        told($limit, $reader, $_, { "first-$signal" => 5 }, "$_: Redis gets five requests") for @names;
        $redis->pause;
        ask($nginx, $_, $signal, 5) for @names;
        cmp_ok end_by($nginx, $signal), '<', 5, "$signal: nginx exits although Redis does not answer";
        $redis->resume;
        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|open socket/, "$signal: the log has no critical errors";
    }
};

unlike $reader->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
