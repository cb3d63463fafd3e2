# With the native module, each client gets its limit exactly while the module comes and goes, the primary is killed, and a
# replica with or without the module takes over.
#
# Replication is asynchronous: what the killed primary had not sent yet is lost. So the clients whose requests are
# counted exactly get no answer but a rejection between the time when the replica has all their requests and the
# promotion. Other clients send requests all the time, and may get their limit at most once more.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(wait_for);
use RateLimit::Load qw(start_load);
use RateLimit::Native qw(native_module start_native is_native stays_loaded);
use RateLimit::Parallel qw(@algorithms);
use RateLimit::Sentinels qw(start_sentinels);
use Test::More;
use Time::HiRes qw(time);

my $so    = native_module();
my $limit = 12;
my $slice = 2;             # requests of a client in a slice
my $each  = 4 * $slice;    # before the kill, and again after it

# The test triggers the failovers; a server that is slow on a busy machine does not.
my $limits = start_sentinels(down_after => 60_000, config => "loadmodule $so\nenable-module-command yes\n");
# Each round unloads the module under load.
plan skip_all => 'on Redis 8, the module refuses to be unloaded' if stays_loaded($limits->primary);
my $nginx  = start_native($limits->url, $limit, zone => 'on_error=closed');

# New clients, which are always admitted, so that nginx keeps asking.
my $newcomers = start_load(
    ports       => [ $nginx->port ],
    requests    => [ [ '/gcra', 'X-Client' => 'new-%N%' ] ],
    connections => 2,
    pause       => 0.03,
);

sub has_module { my ($server) = @_; return scalar grep { $_->[1] eq 'ratelimit' } @{ $server->command('MODULE', 'LIST') } }

sub change_module {
    my ($server) = @_;
    return $server->command('MODULE', has_module($server) ? ('UNLOAD', 'ratelimit') : ('LOAD', $so));
}

sub load {
    my ($clients, %more) = @_;
    my @requests = map { my $client = $_; map { [ "/$_", 'X-Client' => $client ] } @algorithms } @$clients;
    return start_load(ports => [ $nginx->port ], requests => \@requests, %more);
}

# nginx asks a server without the module every five seconds whether it has one now.
sub wait_for_module {
    my ($server) = @_;
    return wait_for(
        'the module to decide',
        sub {
            my ($scripts, $checks) = map { $server->commandstats($_) } qw(evalsha ratelimit.check);
            $newcomers->wait_for(10, 1);
            return $server->commandstats('evalsha') == $scripts && $server->commandstats('ratelimit.check') > $checks;
        }
    );
}

# Sends $each requests of each client in slices, in the middle of which the module comes or goes. Returns the answers.
sub ask_while_it_changes {
    my ($server, @clients) = @_;
    my $most = $slice * @clients * @algorithms;
    my @answers;
    for my $changes (1, 1, 2, 0) {
        wait_for_module($server) if has_module($server);
        my $load = load(\@clients, most => $most);
        for my $change (1 .. $changes) {
            $load->wait_for($change * $most / 3);
            change_module($server);
        }
        $load->wait_for($most);
        push @answers, $load->stop;
    }
    return @answers;
}

# Adds the answers to a table: kind of answer by client and zone.
sub sum {
    my ($table, @answers) = @_;
    $table->{ $_->{request} }{"$_->{status} $_->{store}"}++ for @answers;
    return;
}

# Returns texts about those requests whose answers are not the expected ones.
sub different {
    my ($table, %expected) = @_;
    my $as_text = sub { my ($kinds) = @_; return join ', ', map {"$kinds->{$_} x $_"} sort keys %$kinds };
    my $want    = $as_text->(\%expected);
    my @wrong   = grep { $as_text->($table->{$_}) ne $want } sort { $a <=> $b } keys %$table;
    return map { $algorithms[ $_ % @algorithms ] . ': ' . $as_text->($table->{$_}) } @wrong;
}

# Asserts what clients got that sent requests through the kill. The first $spent requests of the list were of clients
# whose limit was used up before. The primary had ended at the time $killed.
sub check_traffic {
    my ($spent, $killed, @answers) = @_;
    my %table;
    sum(\%table, @answers);
    my %kinds = map { $_ => 1 } map { keys %$_ } values %table;
    is join(', ', sort keys %kinds), '200 redis, 429 redis, 503 fallback', 'Redis decides, or on_error=closed while there is no primary';
    my @admitted = grep { $_ < $spent && $table{$_}{'200 redis'} } keys %table;
    is "@admitted", '', 'no client whose limit was used up is admitted';
    my @others = grep { $_ >= $spent } keys %table;
    is join(' ', grep { ($table{$_}{'200 redis'} // 0) > 2 * $limit } @others), '', 'other clients get their limit at most once more';
    # The killed primary may have counted a request that it had not answered.
    my %unanswered;
    $unanswered{ $_->{request} }++ for grep { $_->{status} == 503 && $_->{sent} <= $killed } @answers;
    my @less = grep { ($table{$_}{'200 redis'} // 0) + ($unanswered{$_} // 0) < $limit } @others;
    is "@less", '', 'and no less than it';
    return;
}

my $round = 0;
for my $with (1, 0) {
    subtest 'a replica ' . ($with ? 'with' : 'without') . ' the module takes over' => sub {
        my $primary   = $limits->primary;
        my ($replica) = $limits->replicas;
        change_module($replica) if has_module($replica) != $with;
        my @clients = map {"exact-$round-$_"} 1 .. 5;
        my @spent   = map {"spent-$round-$_"} 1 .. 2;
        my @crowd   = map {"crowd-$round-$_"} 1 .. 2;
        $round++;

        my %table;
        my @before = ask_while_it_changes($primary, @clients);
        sum(\%table, @before);
        is_deeply [ different(\%table, '200 redis' => $each) ], [], "Redis admits $each of $each requests";
        is has_module($primary), 1, 'the primary has the module';
        wait_for_module($primary);
        my $spending = load(\@spent, most => $limit * @spent * @algorithms);
        $spending->wait_for($limit * @spent * @algorithms);
        is scalar(grep { $_->{status} != 200 } $spending->stop), 0, 'some clients use up their limit';
        $primary->await_replicas($replica);

        my $traffic = load([ @spent, @crowd ], pause => 0.01);
        $traffic->wait_for(3 * (@spent + @crowd) * @algorithms);
        ok is_native($nginx), 'the module decides when the primary is killed';
        $_->command('SENTINEL', 'SET', $limits->name, 'down-after-milliseconds', 1000) for $limits->sentinels;
        $limits->kill_primary;
        my $killed = time;
        my $new = $limits->wait_for_primary($primary);
        is $new->port, $replica->port, 'the replica is promoted';
        wait_for('Redis to decide', sub { ($traffic->answers)[-1]{store} eq 'redis' });
        $traffic->wait_for(3 * $limit * (@spent + @crowd) * @algorithms, 1);
        check_traffic(@spent * @algorithms, $killed, $traffic->stop);
        $_->command('SENTINEL', 'SET', $limits->name, 'down-after-milliseconds', 60_000) for $limits->sentinels;

        is has_module($new), $with, 'it has' . ($with ? '' : ' not') . ' the module';
        is $new->commandstats($with ? 'ratelimit.check' : 'evalsha') > 0, 1, 'and has decided by the ' . ($with ? 'module' : 'script');
        my @after = ask_while_it_changes($new, @clients);
        sum(\%table, @after);
        is_deeply [ different(\%table, '200 redis' => $limit, '429 redis' => 2 * $each - $limit) ], [],
            "each of @{[ scalar keys %table ]} clients gets $limit of @{[ 2 * $each ]} requests, by Redis";
        $limits->revive($primary);
        $limits->wait_until_settled;
    };
}

my %kinds = map { ("$_->{status} $_->{store}" => 1) } $newcomers->stop;
is join(', ', sort keys %kinds), '200 redis, 503 fallback', 'new clients are admitted, but for the time without a primary';
unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';

done_testing;
