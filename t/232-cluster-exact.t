# A limit in a cluster is exact: two instances of four workers, three shards, 64 connections.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(await_answers request_text);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Parallel qw(in_parallel exact_rate @algorithms);
use Test::More;
use Time::HiRes qw(time);

my $limit   = 40;     # of the 64 requests that each client sends
my $clients = $ENV{RL_LONG} ? 100 : 30;    # of each run, in slots of all nodes
my $asking  = 4;      # client processes, each with
my $each    = 16;     # connections, half to each instance
my $hot     = 500;    # the limit of one client that sends 16 requests over each of 64 connections

my $cluster    = start_cluster(replicas => 0, node_timeout => 60_000);
my @masters    = $cluster->masters;

my $http = "access_log off;\nkeepalive_requests 1000000;\nrate_limit_log_level info;\n"
    . "rate_limit_redis fleet @{[ $cluster->url ]} timeout=20s;\n";
my $server = "add_header X-Store \$rate_limit_store always;\n";
for my $name (@algorithms) {
    my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
    my %zones   = (
        $name         => '$http_x_client ' . exact_rate($name, $limit),
        "asked_$name" => '$http_x_client ' . exact_rate($name, $limit) . ' deny_cache=off',
        "hot_$name"   => '$http_x_client ' . exact_rate($name, $hot) . ' deny_cache=off',
        "wide_$name"  => '$http_x_other ' . exact_rate($name, 9000) . ' deny_cache=off',
    );
    for my $zone (sort keys %zones) {
        $http   .= "rate_limit_zone $zones{$zone} zone=$zone:1m algorithm=$name redis=fleet;\n";
        $server .= "location = /$zone { rate_limit zone=$zone $nodelay; empty_gif; }\n";
    }
    my ($narrow, $wide) = map {"rate_limit zone=${_}_$name $nodelay;"} qw(asked wide);
    $server .= "location = /narrow_wide_$name { $narrow $wide empty_gif; }\n"
        . "location = /wide_narrow_$name { $wide $narrow empty_gif; }\n"
        . "location = /look_$name { rate_limit zone=wide_$name cost=0 $nodelay; empty_gif; }\n";
}
$server .= 'location = /all { ' . join(' ', map { "rate_limit zone=asked_$_" . ($_ eq 'leaky_bucket' ? ' nodelay;' : ';') } @algorithms)
    . " empty_gif; }\n";
my @fleet = map { start_nginx(http => $http, server => $server, workers => 4, log_level => 'notice') } 1, 2;

# Sends one request of each client over every connection, in rounds of five clients, in another order on each
# connection.
sub ask_all {
    my ($path, @names) = @_;
    my @connections = map { RateLimit::Async->new($fleet[ $_ % @fleet ]->port) } 1 .. $each;
    my %count;
    while (my @some = splice @names, 0, 5) {
        my @order;
        for my $number (0 .. $#connections) {
            $order[$number] = [ map { $some[ ($_ + $number) % @some ] } 0 .. $#some ];
            my $text = join '', map { request_text('GET', $path, [ 'X-Client' => $_, 'X-Other' => "other-of-$_" ]) } @{ $order[$number] };
            $connections[$number]->raw($text, ('GET') x @some);
        }
        await_answers(60, @connections) or $count{late}++;
        for my $number (0 .. $#connections) {
            my @answers = $connections[$number]->answers;
            for my $place (0 .. $#answers) {
                my ($status, $store) = ($answers[$place]{status}, $answers[$place]->header('X-Store') // 'none');
                $count{"client $order[$number][$place]"}++ if $status == 200;
                $count{"$status by $store"}++;
            }
        }
    }
    return \%count;
}

my @table = (sprintf '%-28s %8s %6s %9s %5s %6s', qw(requests clients limit admitted over under));

# Asserts that each client was admitted exactly $often times.
sub exact {
    my ($path, $often, @names) = @_;
    my %seen;
    my @once  = grep { !$seen{$_}++ } @names;
    my $began = time;
    my $count = in_parallel($asking, sub { ask_all($path, @names) });
    my ($total, $over, $under, $sent) = (0, 0, 0, 0);
    for my $admitted (map { $count->{"client $_"} // 0 } @once) {
        $total += $admitted;
        $over++  if $admitted > $often;
        $under++ if $admitted < $often;
    }
    push @table, sprintf '%-28s %8d %6d %9d %5d %6d', $path, scalar @once, $often, $total, $over, $under;
    $sent += $count->{$_} for grep {/ by /} keys %{$count};
    is $sent,  @names * $asking * $each, "$path: every request gets a response";
    is $over,  0, "$path: no client of " . @once . " is admitted more than $often times";
    is $under, 0, "$path: none less";
    is scalar(grep {/none|fallback|memory|late|died|503/} keys %{$count}), 0, "$path: Redis decided all requests"
        or diag join ', ', map {"$_: $count->{$_}"} grep { !/^client/ } sort keys %{$count};
    note sprintf '%s: %.1f s', $path, time - $began;
    return;
}

my $runs = 0;

sub names {
    my ($count) = @_;
    $runs++;
    return map {"run$runs-$_"} 1 .. $count;
}

subtest 'a hundred clients of each algorithm' => sub {
    exact("/$_", $limit, names($clients)) for @algorithms;
    my @keys = map { $_->command('DBSIZE') } @masters;
    is scalar(grep { $_ < $clients * @algorithms / 5 } @keys), 0, "each of the three nodes has many keys (@keys)";
};

subtest 'without a deny cache' => sub {
    exact("/asked_$_", $limit, names($clients / 2)) for @algorithms;
};

subtest 'one hot client' => sub {
    exact("/hot_$_", $hot, (names(1)) x 16) for @algorithms;
};

subtest 'seven zones of a client' => sub {
    exact('/all', $limit, names($clients / 2));
};

subtest 'two zones in different slots' => sub {
    for my $name (qw(sliding_log token_bucket sliding_window)) {
        for my $order (qw(narrow_wide wide_narrow)) {
            my @names = names(20);
            exact("/${order}_$name", $limit, @names);
            my @left = map { $fleet[0]->get("/look_$name", 'X-Other' => "other-of-$_")->header('X-RateLimit-Remaining') } @names;
            is join(' ', @left), join(' ', (9000 - $limit) x @names),
                "$order, $name: the other zone was charged for admitted requests only";
        }
    }
};

unlike $_->error_log, qr/redis "|\[(?:alert|crit|emerg)\]/, 'the log has no critical errors' for @fleet;
note $_ for @table;
done_testing;
