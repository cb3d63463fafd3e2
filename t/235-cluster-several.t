# A request whose clients are in different slots is charged to all its limits or to none, as in a single Redis.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(shuffle);
use RateLimit qw(start_nginx);
use RateLimit::Async qw(exchange statuses);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $cluster = start_cluster(replicas => 0, node_timeout => 60_000, config => 'cluster-require-full-coverage no');
my $single  = start_redis();
my @masters = $cluster->masters;
my $seed    = $ENV{RL_SEED} // 40_127;
my @keys    = qw(a b c);    # the name of a zone contains the letters of its clients' headers
note "RL_SEED=$seed repeats this";
srand $seed;

my %kinds = (
    log    => 'algorithm=sliding_log',
    bucket => 'algorithm=token_bucket',
    window => 'algorithm=sliding_window',
    fixed  => 'algorithm=fixed_window align=first',
    parts  => 'algorithm=sliding_buckets',
    every  => 'algorithm=sliding_log count=all',
    full   => 'algorithm=fixed_window align=first count=all',
    (map { ("two_$_" => "algorithm=$_ two") } qw(sliding_log sliding_window sliding_buckets fixed_window token_bucket)),
    two_first => 'algorithm=fixed_window align=first two',
);
my ($http, $server) = ('', '');
for my $key (@keys) {
    for my $kind (sort keys %kinds) {
        for my $limit (2, 5) {
            my $zone = "$key$kind$limit";
            my $cache = $kinds{$kind} =~ /count=all/ ? '' : 'deny_cache=off';
            my $words = $kinds{$kind};
            my $rate  = $words =~ s/ two$// ? "${limit}r/300d,@{[ $limit + 1 ]}r/366d" : "${limit}r/366d";
            $http .= "rate_limit_zone \$http_x_$key zone=$zone:1m rate=$rate $words redis=fleet on_error=closed $cache;\n";
            $server .= "location = /look/$zone { rate_limit zone=$zone cost=0; empty_gif; }\n";
        }
    }
}
$http .= "rate_limit_zone \$http_x_a zone=slow_$_:1m rate=9r/366d algorithm=$_ min_interval=1d redis=fleet deny_cache=off;\n"
    for qw(sliding_log sliding_window fixed_window token_bucket);
$server .= "location = /slow/$_ { rate_limit zone=slow_$_; empty_gif; }\n"
    . "location = /slow_then/$_ { rate_limit zone=slow_$_; rate_limit zone=blog2; empty_gif; }\n"
    for qw(sliding_log sliding_window fixed_window token_bucket);
$http .= "rate_limit_zone \$http_x_a zone=memory2:1m rate=2r/366d algorithm=sliding_log;\n"
    . "rate_limit_zone \$http_x_a zone=memory5:1m rate=5r/366d algorithm=sliding_log;\n";
$server .= "location = /look/$_ { rate_limit zone=$_ cost=0; empty_gif; }\n" for qw(memory2 memory5);

# The configuration must have all locations that the test uses later.
my @sets = map { [ split /:/ ] } qw(
    alog5:blog2 alog2:blog5 abucket5:bwindow2 awindow2:bbucket5 afixed5:bparts2 aparts5:bfixed2
    alog5:blog5:clog2 alog5:blog2:clog5 alog2:blog5:clog5 abucket5:bwindow5:cfixed2
    alog5:abucket5:blog2 alog5:blog2:abucket5 alog5:blog5:afixed2:clog5 alog5:blog5:awindow5:bbucket2
    memory5:alog5:blog2 alog5:memory2:blog5 alog5:blog5:memory5:clog2
    aevery2:blog5 blog5:aevery2 aevery5:blog2 blog2:aevery5 aevery5:bevery2 afull5:bfull2:cfull5
);
for my $number (1 .. 60) {
    my @zones = map { my $key = $keys[ rand @keys ]; $key . (sort keys %kinds)[ rand keys %kinds ] . (2, 5)[ rand 2 ] } 1 .. 2 + rand 4;
    my %seen;
    push @sets, [ shuffle grep { !$seen{$_}++ } @zones ];
}
for my $number (0 .. $#sets) {
    $server .= "location = /set/$number { " . join(' ', map {"rate_limit zone=$_;"} @{ $sets[$number] }) . " empty_gif; }\n";
    my @costs = map { 1 + int rand 2 } @{ $sets[$number] };
    my $limits = join ' ', map {"rate_limit zone=$sets[$number][$_] cost=$costs[$_];"} 0 .. $#costs;
    $server .= "location = /costs/$number { $limits empty_gif; }\n";
}

sub start {
    my ($url) = @_;
    return start_nginx(
        http   => "rate_limit_redis fleet $url timeout=5s;\n$http",
        server => <<"SERVER",
add_header X-Store \$rate_limit_store always;
add_header X-Error \$rate_limit_error always;
add_header X-Zone \$rate_limit_zone always;
$server
SERVER
    );
}
my $nginx  = start($cluster->url);
my $oracle = start($single->url);

# Returns clients for the three headers, in slots of different nodes, of one node, or anywhere.
sub clients {
    my ($where) = @_;
    my @nodes = $where eq 'nodes' ? shuffle(@masters) : $where eq 'node' ? ($masters[1]) x 3 : map { $masters[ rand 3 ] } 1 .. 3;
    my @names = map { $cluster->clients_of($_) } @nodes;
    return map { ("X-$keys[$_]" => $names[$_]) } 0 .. 2;
}

sub left {
    my ($server, $zone, @clients) = @_;
    return $server->get("/look/$zone", @clients)->header('X-RateLimit-Remaining');
}

for my $number (0 .. 16) {
    my @zones = @{ $sets[$number] };
    for my $where (qw(nodes node)) {
        my @clients = clients($where);
        my @answers = map { $nginx->get("/set/$number", @clients) } 1 .. 4;
        my $title   = join(' ', @zones) . ($where eq 'nodes' ? ', three nodes' : ', three slots of a node');
        is statuses(@answers), '200 200 429 429', "$title: two requests are admitted";
        my ($small) = grep {/2$/} @zones;
        is $answers[2]->header('X-Zone'), $small, "$title: the zone of two rejects";
        is join(' ', map { $answers[$_]->header('X-RateLimit-Remaining') } 0, 1), '1 0',
            "$title: the zone of two is shown from the first request on";
        is join(' ', map { left($nginx, $_, @clients) } @zones), join(' ', map { /2$/ ? 0 : 3 } @zones),
            "$title: only admitted requests were charged";
    }
}

subtest 'the charge of min_interval is given back too' => sub {
    for my $name (qw(sliding_log sliding_window fixed_window token_bucket)) {
        my %clients = clients('nodes');
        $nginx->get("/slow_then/$name", %clients, 'X-a' => ($cluster->clients_of($masters[0]))[0]) for 1, 2;
        is $nginx->get("/slow_then/$name", %clients)->{status}, 429, "$name: the second limit rejects";
        is $nginx->get("/slow/$name",      %clients)->{status}, 200, "$name: the first limit was not charged";
        is $nginx->get("/slow/$name",      %clients)->{status}, 429,
            "$name: the first limit rejects after an admitted request";
    }
};

subtest 'limits of one slot share a call' => sub {
    my ($number) = grep {"@{ $sets[$_] }" eq 'alog5 abucket5 blog2'} 0 .. $#sets;
    my @clients = clients('nodes');
    $cluster->reset_stats;
    $nginx->get("/set/$number", @clients);
    is $cluster->total('evalsha'), 2, 'two limits of a client and one of another are two calls';
};

subtest 'a single Redis and a cluster give the same decisions' => sub {
    my ($asked, $admitted, $rejected, @wrong) = (0, 0, 0);
    for my $round (1 .. 160) {
        my @clients = clients((qw(nodes node anywhere))[ rand 3 ]);
        my @trace;
        my %zones;
        for my $step (1 .. 3 + rand 8) {
            my $number = rand 4 < 3 && @trace ? $trace[ rand @trace ] : int rand @sets;
            my $path   = (rand 4 < 3 ? '/set/' : '/costs/') . $number;
            push @trace, $number;
            $zones{$_} = 1 for @{ $sets[$number] };
            my ($here, $there) = map { $_->get($path, @clients) } $nginx, $oracle;
            $asked++;
            $here->{status} == 200 ? $admitted++ : $rejected++;
            push @wrong, "round $round, step $step, $path (@{ $sets[$number] }): $here->{status} instead of $there->{status}"
                if $here->{status} != $there->{status};
        }
        my @zones = sort keys %zones;
        my ($here, $there) = map { my $server = $_; join ' ', map { "$_=" . left($server, $_, @clients) } @zones } $nginx, $oracle;
        push @wrong, "round $round (" . join(', ', map {"@{ $sets[$_] }"} @trace) . "): $here remain instead of $there" if $here ne $there;
    }
    is scalar @wrong, 0, "$asked requests: $admitted admitted, $rejected rejected"
        or diag join "\n", @wrong[ 0 .. ($#wrong < 9 ? $#wrong : 9) ];
};

subtest 'many at once' => sub {
    my ($number) = grep {"@{ $sets[$_] }" eq 'alog5 blog5 clog2'} 0 .. $#sets;
    my @groups  = map { [ clients('nodes') ] } 1 .. 15;
    my @answers = exchange($nginx->port, map { my $clients = $_; map { [ 'GET', "/set/$number", $clients ] } 1 .. 8 } @groups);
    my %count;
    $count{ $answers[$_]{status} . ' ' . int($_ / 8) }++ for 0 .. $#answers;
    my %kinds = map { $_->{status} => 1 } @answers;
    is join(' ', sort keys %kinds), '200 429', 'all are decided';
    is scalar(grep { ($count{"200 $_"} // 0) > 2 } 0 .. $#groups), 0, 'no group is admitted more than twice';
    for my $group (0 .. $#groups) {
        my @clients = @{ $groups[$group] };
        my $more    = grep { $nginx->get("/set/$number", @clients)->{status} == 200 } 1 .. 3;
        is $more + ($count{"200 $group"} // 0), 2, "group $group: no refund is missing";
        is join(' ', map { left($nginx, $_, @clients) } @{ $sets[$number] }), '3 3 0',
            "group $group: only admitted requests were charged";
    }
};

subtest 'a node fails between two limits' => sub {
    my ($number) = grep {"@{ $sets[$_] }" eq 'alog5 blog2'} 0 .. $#sets;
    my @clients = clients('nodes');
    my %client  = @clients;
    my $second  = $cluster->node_of("{$client{'X-b'}}");
    is $nginx->get("/set/$number", @clients)->{status}, 200, 'both are there';
    $cluster->kill($second);
    is $nginx->get("/set/$number", @clients)->{status}, 503, 'the second limit cannot be checked' for 1 .. 3;
    is left($nginx, 'alog5', @clients), 4, 'the first limit was not charged';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
