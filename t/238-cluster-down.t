# While a cluster that requires all slots replies CLUSTERDOWN, and only then, requests are handled by on_error.
use strict;
use warnings;

use lib 't/lib';
use List::Util qw(max);
use RateLimit qw(start_nginx wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Load qw(start_load);
use RateLimit::SpareTime qw(spare_time);
use Test::More;

my $cluster = start_cluster(config => 'cluster-require-full-coverage yes');
my ($http, $server) = ('', "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n");
for my $mode (qw(open closed local)) {
    $http .= "rate_limit_zone \$http_x_client zone=$mode:1m rate=3r/d redis=fleet deny_cache=off on_error=$mode;\n";
    $server .= "location = /$mode { rate_limit zone=$mode; empty_gif; }\n";
}
my $nginx = start_nginx(
    http => "keepalive_requests 1000000;\naccess_log off;\nrate_limit_log_level info;\n"
        . "rate_limit_redis fleet @{[ $cluster->url ]} timeout=10s;\n$http",
    server => $server,
);
my $enforced = '200 redis, 200 redis, 200 redis, 429 redis';
my %goes     = (
    open   => join(', ', ('200 fallback') x 4),
    closed => join(', ', ('503 fallback') x 4),
    local  => '200 fallback, 200 fallback, 200 fallback, 429 fallback',
);

sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status}, $answer->header('X-Store') // '-';
}

sub ask {
    my ($client, $count, $mode) = @_;
    return join ', ', map { seen($nginx->get("/$mode", 'X-Client' => $client)) } 1 .. $count;
}

# Starts traffic of clients of some nodes.
sub traffic {
    my (@nodes) = @_;
    my @names = map { $cluster->clients_of($_, 20) } @nodes;
    my $load  = start_load(ports => [ $nginx->port ], pause => 0.02, requests => [ map { [ '/closed', 'X-Client' => $_ ] } @names ]);
    $load->wait_for(5 * @names);
    return $load;
}

subtest 'a master is killed' => sub {
    my ($lost, @left) = $cluster->masters;
    my ($replica) = $cluster->replicas($lost);
    my $load = traffic(@left);
    $cluster->kill($lost);
    $cluster->wait_for_promotion($replica);
    $cluster->wait_for_state('ok', @left, $replica);
    my $up = spare_time();
    $load->wait_for(300, 'more');
    my @answers = $load->stop;
    my @wrong   = grep { $_->{store} ne 'redis' } @answers;
    my %errors  = map { ("$_->{status} $_->{error}" => 1) } @wrong;
    is scalar(grep { !/^503 (?:clusterdown|unavailable)$/ } keys %errors), 0,
        'clients of other nodes see no error but CLUSTERDOWN: '
        . join ', ', sort keys %errors;
    my $last = @wrong ? max(map { $_->{spare} } @wrong) - $up : 0;
    cmp_ok $last, '<', 1, sprintf '%d of %d, the last %.2f s after the cluster is up', scalar @wrong, scalar @answers, $last;
    is scalar(grep { $_->{waited} > 0.25 } @answers), 0, sprintf 'no request waits, the slowest takes %.0f ms', 1000 * max(map { $_->{waited} } @answers);
    my %admitted;
    $admitted{ $_->{request} }++ for grep { $_->{status} == 200 } @answers;
    is join(' ', values %admitted), join(' ', (3) x 40), 'each client is admitted exactly its limit';
    # A node that replied CLUSTERDOWN is asked again after some time.
    my @others = map { $cluster->clients_of($_) } @left;
    wait_for('limits', sub { return !grep { seen($nginx->get('/open', 'X-Client' => $_)) !~ /redis$/ } @others });
    my $took = spare_time() - $up;
    cmp_ok $took, '<', 2, sprintf 'limits apply again %.2f s after the cluster is up', $took;
    $cluster->revive($lost);
    $cluster->wait_until_ok;
    is ask($cluster->clients_of($_), 4, 'closed'), $enforced, 'limits apply' for $cluster->masters;
};

subtest 'a master and its replica are killed' => sub {
    my ($lost, @left) = $cluster->masters;
    my ($replica) = $cluster->replicas($lost);
    my @its       = $cluster->clients_of($lost, 3);
    my @others    = map { $cluster->clients_of($_, 3) } @left;
    $cluster->kill($_) for $replica, $lost;
    $cluster->wait_for_state('fail', @left);
    is ask(shift @its,    4, $_), $goes{$_}, "on_error=$_ applies to clients of the node" for sort keys %goes;
    is ask(shift @others, 4, $_), $goes{$_}, "on_error=$_ applies to other clients too" for (sort keys %goes) x 2;
    my $answer = $nginx->get('/open', 'X-Client' => ($cluster->clients_of($left[0]))[0]);
    like $answer->header('X-Error') // '', qr/^(?:clusterdown|unavailable)$/, '$rate_limit_error';
    like $nginx->error_log, qr/\[error\] .*redis "fleet" 127\.0\.0\.1:\d+: clusterdown \(.*CLUSTERDOWN/,
        'the log has the error of Redis';
    my $fresh = start_nginx(http => "rate_limit_redis fleet @{[ $cluster->url ]} timeout=10s prefix=fresh:;\n$http", server => $server);
    is seen($fresh->get('/closed', 'X-Client' => $cluster->clients_of($_))), '503 fallback',
        'a new nginx cannot load a slot map' for @left;
    $answer = $fresh->get('/open', 'X-Client' => 'x');
    is seen($answer), '200 fallback', 'on_error applies';

    my %names = map { $_->port => [ $cluster->clients_of($_, 1000) ] } $lost, @left;
    $cluster->revive($_) for $lost, $replica;
    $cluster->wait_for_state('ok', @left, $lost);
    my $up = spare_time();
    for my $server ($nginx, $fresh) {
        wait_for('limits', sub {
            return !grep { seen($server->get('/open', 'X-Client' => shift @{ $names{ $_->port } })) ne '200 redis' } $lost, @left;
        });
        my $took = spare_time() - $up;
        cmp_ok $took, '<', 2, sprintf 'limits apply again %.2f s after the cluster is up', $took;
    }
    $cluster->wait_until_ok;
    is ask($cluster->clients_of($_), 4, 'closed'), $enforced, 'exactly' for $cluster->masters;
    $fresh->stop;
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
my @lines = grep {/redis "fleet"/} split /\n/, $nginx->error_log;
cmp_ok scalar @lines, '<=', 40, 'few lines are logged' or diag join "\n", @lines;
done_testing;
