# Clusters with a password, a user or TLS, and nodes that announce a name, another address or none.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Redis qw(tls_files);
use RateLimit::SpareTime qw(spare_time);
use Test::More;

my ($port) = split ' ', $ENV{RL_PORTS};
my $files  = tls_files();
my $user   = 'nginx on >secret ~rate_limit:* +evalsha +script|load +mget +set +del +time +cluster|slots +asking';

# Starts nginx with a zone for each cluster, given as NAME => the parameters of rate_limit_redis.
sub start {
    my (%redis) = @_;
    my ($http, $server) = ('', "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n");
    for my $name (sort keys %redis) {
        $http .= "rate_limit_redis $name $redis{$name} timeout=10s connect_timeout=5s;\n"
            . "rate_limit_zone \$http_x_client zone=$name:1m rate=3r/d redis=$name on_error=closed deny_cache=off;\n";
        $server .= "location = /$name { rate_limit zone=$name; empty_gif; }\n";
    }
    return start_nginx(port => $port, http => $http, server => $server);
}

sub seen {
    my ($nginx, $name, $client, $count) = @_;
    return join ', ', map {
        my $answer = $nginx->get("/$name", 'X-Client' => $client);
        join ' ', $answer->{status}, $answer->header('X-Store') // '-', $answer->header('X-Error') // ()
    } 1 .. $count;
}

# Asserts that limits apply at every node, also after slots move.
sub serves {
    my ($nginx, $cluster, $name, $title) = @_;
    my @masters  = $cluster->masters;
    my $enforced = '200 redis, 200 redis, 200 redis, 429 redis';
    is seen($nginx, $name, $cluster->clients_of($_), 4), $enforced, "$title: each node" for @masters;
    my ($from, $to) = @masters;
    my ($slot) = $cluster->slots($from);
    my ($old, $new) = $cluster->clients_in($slot, 2);
    is seen($nginx, $name, $old, 1), '200 redis', "$title: a client";
    $cluster->begin_move($slot, $to);
    is seen($nginx, $name, $new, 1), '200 redis', "$title: ASK";
    $cluster->finish_move($slot);
    is seen($nginx, $name, $_, 3), '200 redis, 200 redis, 429 redis', "$title: MOVED" for $old, $new;
    $cluster->move_slot($slot, $from);
    is seen($nginx, $name, $_, 1), '429 redis', "$title: the count continues after a move back" for $old, $new;
    return;
}

sub refuses {
    my ($nginx, $name, $error, $title) = @_;
    is seen($nginx, $name, 'refused', 1), "503 fallback $error", $title;
    return;
}

sub nothing_worse {
    my ($nginx, @words) = @_;
    my $secrets = join '|', @words;
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
    unlike $nginx->error_log, qr/$secrets/, 'the log has no password' if @words;
    return;
}

for my $kind (qw(redis valkey)) {
    subtest "$kind with a password" => sub {
        my $cluster = start_cluster(server => $kind, replicas => 0, node_timeout => 60_000, password => 'sesame', acl => $user);
        my $file    = "$ENV{RL_DIR}/password-$kind";
        open my $out, '>', $file or die "$file: $!\n";
        print {$out} "secret\n";
        close $out or die "$file: $!\n";
        my $open  = $cluster->url(nodes => [ ($cluster->nodes)[0] ]) =~ s/:sesame\@//r;
        my $nginx = start(
            default => $cluster->url,
            user    => $cluster->url(user => 'nginx', password => 'secret'),
            file    => "$open user=nginx password_file=$file",
            wrong   => $cluster->url(password => 'sesam'),
            none    => $open,
        );
        serves($nginx, $cluster, 'default', 'the default user');
        serves($nginx, $cluster, 'user',    'a user with only the documented rights');
        serves($nginx, $cluster, 'file',    'a password from a file');
        refuses($nginx, 'wrong', 'auth', 'another password');
        refuses($nginx, 'none',  'auth', 'no password');
        nothing_worse($nginx, qw(sesam secret));
    };
}

subtest 'a changed password' => sub {
    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000, password => 'sesame');
    my $nginx   = start(main => $cluster->url);
    serves($nginx, $cluster, 'main', 'before');
    for my $node ($cluster->nodes) {
        $node->command('CONFIG', 'SET', 'requirepass', 'other');
        $node->command('CLIENT', 'KILL', 'USER', 'default');
    }
    my ($client) = $cluster->clients_of(($cluster->masters)[0]);
    wait_for('the change', sub { seen($nginx, 'main', $client, 1) =~ /^503 fallback (?:auth|unavailable)/ });
    $_->command('CONFIG', 'SET', 'requirepass', 'sesame') for $cluster->nodes;
    wait_for('the end of the failures', sub { !grep { seen($nginx, 'main', $cluster->clients_of($_), 1) ne '200 redis' } $cluster->masters });
    serves($nginx, $cluster, 'main', 'the old password again');
    nothing_worse($nginx, 'sesame');
};

subtest 'TLS' => sub {
    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000, tls => 1, tls_clients => 0);
    my $by_name = 'rediss+cluster://localhost:' . ($cluster->nodes)[1]->port;
    my $nginx   = start(
        address => $cluster->url . " ca=$files->{ca}",
        name    => "$by_name ca=$files->{ca}",
        sni     => $cluster->url . " ca=$files->{ca} sni=redis.test",
        off     => $cluster->url . ' verify=off',
        unknown => $cluster->url . " ca=$files->{stranger_ca}",
        other   => $cluster->url . " ca=$files->{ca} sni=other.test",
        plain   => $cluster->url =~ s/^rediss/redis/r,
    );
    serves($nginx, $cluster, 'address', 'verified by addresses');
    serves($nginx, $cluster, 'name',    'verified by the name of a seed');
    serves($nginx, $cluster, 'sni',     'verified by the name in sni=');
    serves($nginx, $cluster, 'off',     'without verification');
    refuses($nginx, 'unknown', 'tls', 'an unknown authority');
    refuses($nginx, 'other',   'tls', 'a certificate for another name than sni=');
    like seen($nginx, 'plain', 'refused', 1), qr/^503 fallback \w+$/, 'no TLS on the client side';
    nothing_worse($nginx);
};

subtest 'TLS, with certificates of clients, a password and Valkey' => sub {
    my $cluster = start_cluster(server => 'valkey', replicas => 0, node_timeout => 60_000, tls => 1, tls_clients => 1, password => 'sesame');
    my $nginx   = start(
        mutual => $cluster->url . " ca=$files->{ca} cert=$files->{client} key=$files->{client_key}",
        none   => $cluster->url . " ca=$files->{ca}",
    );
    serves($nginx, $cluster, 'mutual', 'a client certificate that the nodes trust');
    like seen($nginx, 'none', 'refused', 1), qr/^503 fallback (?:tls|closed)$/, 'none';
    nothing_worse($nginx, 'sesame');
};

subtest 'nodes that announce names' => sub {
    my $cluster = start_cluster(
        config => "cluster-announce-hostname localhost\ncluster-preferred-endpoint-type hostname\ncluster-require-full-coverage no",
        node_timeout => 60_000,
    );
    wait_for('names', sub { !grep { ($_->[2][0] // '') ne 'localhost' } map { @{ $_->command('CLUSTER', 'SLOTS') } } $cluster->nodes });
    my ($seed)    = $cluster->masters;
    my ($replica) = $cluster->replicas($seed);
    my @names     = $cluster->clients_of($seed, 3000);
    my $nginx     = start(main => $cluster->url(nodes => [$seed]));
    serves($nginx, $cluster, 'main', 'names');
    $cluster->kill($seed);
    $cluster->promote($replica);
    $cluster->wait_for_promotion($replica);
    my $promoted = spare_time();
    my $decided = eval { wait_for('limits', sub { seen($nginx, 'main', shift @names // die("no more names\n"), 1) eq '200 redis' }) };
    my $took = spare_time() - $promoted;
    ok $decided && $took < 1, sprintf 'when the only seed is lost, another node names the new master, %.2f s later', $took or diag $@;
    nothing_worse($nginx);
};

subtest 'nodes that do not announce their address' => sub {
    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000, config => 'cluster-preferred-endpoint-type unknown-endpoint');
    my $nginx   = start(main => $cluster->url(nodes => [ ($cluster->nodes)[0] ]));
    serves($nginx, $cluster, 'main', 'the address of the asked node is used');
    nothing_worse($nginx);
};

subtest 'addresses of IPv6' => sub {
    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000, config => "bind 127.0.0.1 ::1\ncluster-announce-ip ::1");
    my $nginx   = start(main => 'redis+cluster://[::1]:' . ($cluster->nodes)[0]->port);
    serves($nginx, $cluster, 'main', '::1');
    nothing_worse($nginx);
};

subtest 'another prefix, and several clusters' => sub {
    my @clusters = map { start_cluster(masters => 1 + 2 * $_, replicas => 0, node_timeout => 60_000) } 0, 1;
    my $nginx    = start(one => $clusters[0]->url . ' prefix=one:', three => $clusters[1]->url . ' prefix=three:');
    my ($client) = $clusters[1]->clients_of(($clusters[1]->masters)[2]);
    for my $name (qw(one three)) {
        is seen($nginx, $name, $client, 4), '200 redis, 200 redis, 200 redis, 429 redis', "$name: limits";
    }
    is $_->[0]->node_of("{$client}")->command('EXISTS', "$_->[1]:$_->[1]:sliding_window:{$client}"), 1, "$_->[1]: in its own cluster"
        for [ $clusters[0], 'one' ], [ $clusters[1], 'three' ];
    nothing_worse($nginx);
};

done_testing;
