# Limits in a Redis that Sentinels name follow the primary, and clients see no error during a failover.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Sentinels qw(start_sentinels);
use RateLimit::SpareTime qw(spare_time);
use Test::More;

# The Sentinels must notice a primary that is killed, and not one that is slow on a busy machine.
my $limits  = start_sentinels(down_after => 60_000);
my $clients = 0;

sub new_client { return 'client' . ++$clients }

sub conf {
    my ($url, %options) = @_;
    my $on_error = $options{on_error} // 'open';
    my $timeout  = $options{timeout}  // '5s';
    return (
        workers => $options{workers} // 1,
        http    => "rate_limit_redis fleet $url timeout=$timeout;\n"
            . "rate_limit_zone \$http_x_client zone=a:1m rate=2r/d redis=fleet on_error=$on_error deny_cache=off;\n",
        server => "location / { rate_limit zone=a; add_header X-Store \$rate_limit_store always;\n"
            . "    add_header X-Error \$rate_limit_error always; empty_gif; }\n",
    );
}

# Returns "STATUS STORE" of $count requests of one client.
sub ask {
    my ($nginx, $client, $count) = @_;
    return join ', ', map { my $r = $nginx->get('/', 'X-Client' => $client); "$r->{status} " . $r->header('X-Store') } 1 .. $count;
}

# Sets the milliseconds after which the Sentinels consider a primary as down.
sub miss_after {
    my ($ms) = @_;
    $_->command('SENTINEL', 'SET', $limits->name, 'down-after-milliseconds', $ms) for $limits->sentinels;
    return;
}

# Sends requests of new clients until Redis decides 20 in a row, because each worker has its own connection. Returns the
# spare time, and the statuses that were seen.
sub until_decided {
    my ($nginx) = @_;
    my %seen;
    wait_for('decisions of Redis', sub {
        for (1 .. 20) {
            my $answer = $nginx->get('/', 'X-Client' => new_client());
            $seen{ $answer->{status} }++;
            return 0 if $answer->header('X-Store') ne 'redis';
        }
        return 1;
    });
    return (spare_time(), sort keys %seen);
}

my $enforced = '200 redis, 200 redis, 429 redis';
my $nginx    = start_nginx(conf($limits->url, workers => 2));

is ask($nginx, new_client(), 3), $enforced, 'limits are in the primary that the Sentinels name';

subtest 'a primary is killed' => sub {
    spare_time();
    miss_after(1000);
    my $killed = $limits->kill_primary;
    my %seen;
    wait_for('the next primary', sub {
        $seen{ $nginx->get('/', 'X-Client' => new_client())->{status} }++;
        my $other = $limits->primary;
        return $other->port != $killed->port && $other->command('ROLE')->[0] eq 'master';
    });
    my $promoted = spare_time();
    my ($decided, @statuses) = until_decided($nginx);
    is join(' ', sort keys %seen), '200', 'no client saw an error until the promotion';
    is "@statuses", '200', 'no client saw an error after the promotion';
    cmp_ok $decided - $promoted, '<', 2, sprintf 'limits were enforced %.2f s after the promotion', $decided - $promoted;
    is ask($nginx, new_client(), 3), $enforced, 'exactly';
    like $nginx->error_log, qr/\[notice\] .*redis "fleet" Sentinel 127\.0\.0\.1:\d+: the primary is now 127\.0\.0\.1:@{[ $limits->primary->port ]}; /,
        'the failover is logged';
    $limits->revive($killed);
    $limits->wait_until_settled;
    miss_after(60_000);
};

subtest 'a planned failover' => sub {
    my $old = $limits->primary;
    my $new = $limits->failover;
    isnt $new->port, $old->port, 'another server is the primary';
    my $moved = spare_time();
    my ($decided, @statuses) = until_decided($nginx);
    is "@statuses", '200', 'no client saw an error';
    cmp_ok $decided - $moved, '<', 2, 'limits are enforced again';
    is ask($nginx, new_client(), 3), $enforced, 'exactly';
    $limits->wait_until_settled;
};

subtest 'a stale primary, now a replica, is detected' => sub {
    my $other = start_nginx(conf($limits->url, on_error => 'closed'));
    is ask($other, new_client(), 1), '200 redis', 'a worker knows the primary';
    $limits->failover;
    wait_for('an answer of the new primary', sub { $other->get('/', 'X-Client' => new_client())->{status} == 200 });
    is ask($other, new_client(), 3), $enforced, 'the worker uses the new primary';
    unlike $other->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'without anything worse';
    $other->stop;
    $limits->wait_until_settled;
};

subtest 'Sentinels come and go' => sub {
    my @sentinels = $limits->sentinels;
    $sentinels[0]->kill;
    my $other = start_nginx(conf($limits->url));
    until_decided($other);
    is ask($other, new_client(), 3), $enforced, 'a Sentinel that does not answer is skipped';
    $_->kill for @sentinels[ 1, 2 ];
    is ask($other, new_client(), 3), $enforced, 'without Sentinels, the known primary is used';
    $_->restart for @sentinels;
    $limits->wait_until_settled;
    my $old = $limits->primary;
    my $new = $limits->failover;
    isnt $new->port, $old->port, 'another server is the primary';
    until_decided($other);
    is ask($other, new_client(), 3), $enforced, 'the Sentinels are followed again';
    $other->stop;
};

subtest 'no Sentinel at all' => sub {
    $_->kill for $limits->sentinels;
    my %want = (open => '200 fallback', closed => '503 fallback', local => '200 fallback, 200 fallback, 429 fallback');
    for my $on_error (sort keys %want) {
        my $other = start_nginx(conf($limits->url, on_error => $on_error, timeout => '200ms'));
        my $count = () = $want{$on_error} =~ /fallback/g;
        is ask($other, new_client(), $count), $want{$on_error}, "on_error=$on_error applies to a request";
        ok $other->wait_for_log(qr/redis "fleet" Sentinel 127\.0\.0\.1:\d+: refused \(Connection refused\).*; zone a: .*\(on_error=$on_error\)\n/),
            'the log has the missing Sentinels and the effect';
        $other->stop;
    }
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
