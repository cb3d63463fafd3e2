# While slots move under load, each client is admitted exactly its limit, and undecided requests are reported.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(max shuffle sum0);
use RateLimit qw(start_nginx);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Load qw(start_load);
use Test::More;
use Time::HiRes qw(time);

my $limit   = $ENV{RL_LONG} ? 40 : 20;
my $moves   = 300;     # slots
my $seed    = $ENV{RL_SEED} // 20_817;
my $cluster = start_cluster(replicas => 0, node_timeout => 60_000);
my @masters = $cluster->masters;
note "RL_SEED=$seed repeats this";
srand $seed;

my %zones = (
    single => '$http_x_client algorithm=sliding_window',
    first  => '$http_x_client algorithm=token_bucket',
    second => '$http_x_client algorithm=sliding_log',
    left   => '$http_x_client algorithm=sliding_log',
    right  => '$http_x_other algorithm=sliding_log',
);
my $words  = "rate=${limit}r/366d redis=fleet on_error=closed deny_cache=off";
my $http   = join '', map {"rate_limit_zone $zones{$_} zone=$_:1m $words;\n"} sort keys %zones;
my $server = <<'SERVER';
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /single { rate_limit zone=single; empty_gif; }
location = /double { rate_limit zone=first; rate_limit zone=second; empty_gif; }
location = /apart { rate_limit zone=left; rate_limit zone=right; empty_gif; }
location = /left { rate_limit zone=left; empty_gif; }
location = /look/left { rate_limit zone=left cost=0; empty_gif; }
location = /look/right { rate_limit zone=right cost=0; empty_gif; }
SERVER
my @fleet = map {
    start_nginx(
        workers => 2,
        http    => "keepalive_requests 1000000;\naccess_log off;\nrate_limit_log_level info;\n"
            . "rate_limit_redis fleet @{[ $cluster->url ]} timeout=10s;\n$http",
        server => $server,
    )
} 1, 2;
my @ports = map { $_->port } @fleet;

# Clients in slots that move, and in other slots.
my @moving = ($cluster->slots($masters[0]))[ 0 .. $moves - 1 ];
my @names  = map { $cluster->clients_in($_) } (shuffle(@moving))[ 0 .. 29 ];
push @names, map { $cluster->clients_of($_, 10) } @masters;
my @new = map { $cluster->clients_in($_, 6) } @moving;    # clients that send one request each

sub load {
    my (%options) = @_;
    return start_load(ports => \@ports, connections => 4, %options);
}

# Moves all of the slots to and fro until each load has a number of responses.
sub move_under {
    my ($count, @loads) = @_;
    my ($began, $moved, $rounds) = (time, 0, 0);
    my ($from, $to) = @masters[ 0, 1 ];
    while (grep { $_->count < $count } @loads) {
        my @later = @moving;
        while (my @some = splice @later, 0, 100) {
            $rounds++ % 2 ? $cluster->move_slots($to, @some) : $cluster->move_together($to, @some);
        }
        ($from, $to) = ($to, $from);
        $moved += @moving;
        last if time - $began > 10;
    }
    $cluster->move_slots($to, @moving) if $to == $masters[0];
    note sprintf '%d moves of a slot in %.1f s', $moved, time - $began;
    return;
}

sub kinds {
    my (@answers) = @_;
    my %count;
    $count{"$_->{status} $_->{store} $_->{error}"}++ for @answers;
    return join ', ', map {"$count{$_} x $_"} sort keys %count;
}

# Returns how often each request of a load was admitted, and how often it was sent.
sub tally {
    my (@answers) = @_;
    my (%admitted, %sent);
    for my $answer (@answers) {
        $sent{ $answer->{request} }++;
        $admitted{ $answer->{request} } += $answer->{status} == 200;
    }
    return (\%admitted, \%sent);
}

sub exact {
    my ($title, @answers) = @_;
    my ($admitted, $sent) = tally(@answers);
    is scalar(keys %{$admitted}), @names, "$title: all clients send requests";
    is scalar(grep { $_ <= $limit } values %{$sent}), 0, "$title: all clients exceed their limit";
    is_deeply [ grep { $_ != $limit } values %{$admitted} ], [], "$title: each client is admitted $limit times";
    note sprintf '%s: %s, the slowest takes %.0f ms', $title, kinds(@answers), 1000 * max(map { $_->{after} } @answers);
    return;
}

subtest 'slots move while all clients send' => sub {
    my $enough = @names * ($limit + 10);
    my $single = load(requests => [ map { [ '/single', 'X-Client' => $_ ] } @names ]);
    my $double = load(requests => [ map { [ '/double', 'X-Client' => $_ ] } @names ]);
    my @once_each = shuffle(@new);
    my $new       = load(requests => [ map { [ '/double', 'X-Client' => $_ ] } @once_each ], connections => 2, most => scalar @new);
    my $once   = load(requests => [ [ '/single', 'X-Client' => 'once%N%' ] ], connections => 2);
    move_under($enough, $single, $double);
    $_->wait_for($enough) for $single, $double;

    my @answers = $single->stop;
    is kinds(grep { "$_->{status} $_->{store}" !~ /^(?:200|429) redis$/ } @answers), '', 'one zone: no client sees an error';
    exact('one zone', @answers);
    my @once = $once->stop;
    is kinds(grep { "$_->{status} $_->{store}" ne '200 redis' } @once), '',
        'one zone: no error for any of ' . @once . ' who come once';

    @answers = map { { %{$_}, client => $names[ $_->{request} ] } } $double->stop;
    exact('two zones', @answers);
    push @answers, map { { %{$_}, client => $once_each[ $_->{request} ] } } $new->stop;
    my @failed = grep { "$_->{status} $_->{store}" !~ /^(?:200|429) redis$/ } @answers;
    my %errors = map { ("$_->{status} $_->{error}" => 1) } @failed;
    is join(', ', grep { $_ ne '503 tryagain' } sort keys %errors), '',
        'two zones: there is one kind of error: ' . kinds(@failed);
    my @still = grep { !$cluster->was_moving($cluster->slot_of($_->{client}), $_->{sent}, $_->{sent} + $_->{after}) } @failed;
    is scalar @still, 0, 'two zones: only clients whose slots migrate see it: ' . @failed . ' of ' . @answers;
    my @lines = grep { /\[error\].*redis "/ && !/TRYAGAIN/ } map { split /\n/, $_->error_log } @fleet;
    is join("\n", @lines), '', 'only TRYAGAIN is logged';
};

subtest 'limits in two slots while both move' => sub {
    my @pairs = map { [ '/apart', 'X-Client' => $names[$_], 'X-Other' => "other-$names[$_]" ] } 0 .. $#names;
    # Half of the right limit is used first, so that later requests charge the left limit and give the charge back.
    my $half = load(requests => [ map { [ '/apart', 'X-Client' => "early-$_->[2]", 'X-Other' => $_->[4] ] } @pairs ], most => @pairs * $limit / 2);
    move_under(@pairs * $limit / 2, $half);
    my ($used) = tally(my @half = $half->stop);
    my $load = load(requests => \@pairs, most => @pairs * $limit);
    move_under(@pairs * $limit, $load);
    my ($admitted) = tally(my @answers = $load->stop);
    is kinds(grep { "$_->{status} $_->{store}" !~ /^(?:200|429) redis$/ } @half, @answers), '', 'no client sees an error';
    is_deeply [ map { $used->{$_} + $admitted->{$_} } 0 .. $#pairs ], [ ($limit) x @pairs ], "each pair is admitted $limit times";
    my (@left, @right);
    for my $pair (@pairs) {
        push @left,  $fleet[0]->get('/look/left',  'X-Client' => $pair->[2])->header('X-RateLimit-Remaining');
        push @right, $fleet[0]->get('/look/right', 'X-Other'  => $pair->[4])->header('X-RateLimit-Remaining');
    }
    is join(' ', @right), join(' ', (0) x @pairs), 'the limit that rejects is exhausted';
    is join(' ', @left), join(' ', map { $limit - $admitted->{$_} } 0 .. $#pairs),
        'the other limit was charged for admitted requests only';
};

unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors' for @fleet;
done_testing;
