# Several nginx with the same zones in one Redis: their configuration, requests to them, and their counters.
#
#   use lib 't/lib';
#   use RateLimit::Fleet qw(zone_config ask left load told metric sum_metric senders worker_at tellers);
#
# FUNCTIONS
#   zone_config($url, \%zones, %more)
#                               configuration for start_nginx. A zone is NAME => its parameters without key and size;
#                               the key is X-Client. /NAME charges it, or N with ?cost=N, /look/NAME charges 0, /metrics
#                               has its counters. More: words (parameters of each zone, as 'sync=50ms'), redis
#                               (parameters of rate_limit_redis), and all options of start_nginx; http and server are
#                               appended
#   ask($nginx, $zone, $client, $count, $cost)
#                               $count requests (1), one after the other; returns the responses
#   left($nginx, $zone, $client)
#                               X-RateLimit-Remaining of a request with cost=0
#   load(\@nginxes, $zone, \@clients, $count, %more)
#                               $count requests of each client, over `connections` (4) to each nginx at once, each in
#                               another order; returns { client => how many were admitted }, and in 'other' those that
#                               were neither admitted nor rejected by memory. More: during => code that is called
#                               halfway
#   told($limit, $reader, $zone, \%admitted, $title)
#                               asserts that an nginx without sync= sees in Redis, within some time, what load returned
#   metric($nginx, $name, $zone)
#                               the value of a counter
#   sum_metric($name, $zone, @nginxes)
#   senders($nginx, @servers)   process ids of its workers, one for each connection to one of these servers or proxies
#   worker_at($nginx, $address) process id of its worker that has the connection from this ADDRESS:PORT, or undef
#   tellers($nginx, $zone, $monitor)
#                               process ids of its workers that have sent counts of a zone with sync= or on_error=local
#                               since the monitor began, if they still have the connection
package RateLimit::Fleet;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use List::Util qw(sum0);
use RateLimit qw(slurp wait_for);
use RateLimit::Async qw(await_answers request_text);
use Test::More;

our @EXPORT_OK = qw(zone_config ask left load told metric sum_metric senders worker_at tellers);

sub zone_config {
    my ($url, $zones, %more) = @_;
    my $words = delete $more{words} // '';
    my $redis = delete $more{redis} // 'timeout=5s';
    my $http  = <<"HTTP" . (delete $more{http} // '');
map \$arg_cost \$cost { "" 1; default \$arg_cost; }
large_client_header_buffers 4 32k;
keepalive_requests 1000000;
rate_limit_redis fleet $url $redis;
HTTP
    my $server = <<'SERVER' . (delete $more{server} // '');
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
add_header X-Worker $pid always;
location = /metrics { rate_limit_metrics; }
location = /free { empty_gif; }
SERVER
    for my $name (sort keys %{$zones}) {
        my $options = $zones->{$name};
        my $nodelay = $options =~ /leaky_bucket/ ? 'nodelay' : '';
        $http   .= "rate_limit_zone \$http_x_client zone=$name:1m $options redis=fleet $words;\n";
        $server .= "location = /$name { rate_limit zone=$name cost=\$cost $nodelay; empty_gif; }\n"
            . "location = /look/$name { rate_limit zone=$name cost=0 $nodelay; empty_gif; }\n";
    }
    return (http => $http, server => $server, %more);
}

sub ask {
    my ($nginx, $zone, $client, $count, $cost) = @_;
    my $path = defined $cost ? "/$zone?cost=$cost" : "/$zone";
    my @answers = map { $nginx->get($path, 'X-Client' => $client) } 1 .. $count // 1;
    return wantarray ? @answers : $answers[-1];
}

sub left {
    my ($nginx, $zone, $client) = @_;
    return $nginx->get("/look/$zone", 'X-Client' => $client)->header('X-RateLimit-Remaining');
}

sub load {
    my ($fleet, $zone, $clients, $count, %more) = @_;
    my @connections = map { my $nginx = $_; map { RateLimit::Async->new($nginx->port) } 1 .. $more{connections} // 4 } @{$fleet};
    my @requests = (@{$clients}) x $count;
    my ($each, $halfway) = (10, @requests / 2);    # requests in flight on a connection
    my %admitted = (other => 0, map { $_ => 0 } @{$clients});
    while (@requests) {
        delete($more{during})->() if $more{during} && @requests <= $halfway;
        my @asked;
        for my $number (0 .. $#connections) {
            my @some = splice @requests, 0, $each;
            $asked[$number] = \@some;
            my $text = join '', map { request_text('GET', "/$zone", [ 'X-Client' => $_ ]) } @some;
            $connections[$number]->raw($text, ('GET') x @some) if @some;
        }
        await_answers(30, @connections) or croak 'no answer in 30 seconds';
        for my $number (0 .. $#connections) {
            my @answers = $connections[$number]->answers;
            $admitted{other} += @{ $asked[$number] } - @answers;
            for my $place (0 .. $#answers) {
                my ($status, $store) = ($answers[$place]{status}, $answers[$place]->header('X-Store') // '');
                $admitted{other}++ if $store ne 'memory' || $status !~ /^(?:200|429)$/;
                $admitted{ $asked[$number][$place] }++ if $status == 200;
            }
        }
    }
    return \%admitted;
}

sub told {
    my ($limit, $reader, $zone, $admitted, $title) = @_;
    my @wrong;
    my $all = sub {
        @wrong = ();
        for my $client (grep { $_ ne 'other' } sort keys %{$admitted}) {
            my $told = $limit - (left($reader, $zone, $client) // $limit);
            push @wrong, "$client: $told instead of $admitted->{$client}" if $told != $admitted->{$client};
        }
        return !@wrong;
    };
    eval { wait_for('it', $all) };
    return is_deeply \@wrong, [], $title;
}

sub metric {
    my ($nginx, $name, $zone) = @_;
    my ($value) = $nginx->get('/metrics')->{body} =~ /^\Q$name\E\{zone="\Q$zone\E"\} (\S+)$/m;
    return $value;
}

sub sum_metric {
    my ($name, $zone, @nginxes) = @_;
    return sum0 map { metric($_, $name, $zone) // croak "no $name of $zone" } @nginxes;
}

# Calls a function for each TCP connection, with the local port, the port of the peer, and the inode of the socket.
sub each_connection {
    my ($code) = @_;
    for (split /\n/, slurp('/proc/net/tcp')) {
        my ($own, $peer, $inode) = /^ *\d+: [0-9A-F]{8}:([0-9A-F]{4}) [0-9A-F]{8}:([0-9A-F]{4}) 01 (?:\S+ +){5}(\d+)/ or next;
        $code->(hex $own, hex $peer, $inode);
    }
    return;
}

# Returns the workers that have these sockets, one for each socket.
sub owners {
    my ($nginx, %inodes) = @_;
    my @owners;
    for my $pid ($nginx->workers) {
        push @owners, ($pid) x grep { $inodes{$_} } map { (readlink // '') =~ /^socket:\[(\d+)\]/ } glob "/proc/$pid/fd/*";
    }
    return @owners;
}

sub senders {
    my ($nginx, @servers) = @_;
    my %ports = map { $_->port => 1 } @servers;
    my %inodes;
    each_connection(sub { my ($own, $peer, $inode) = @_; $inodes{$inode} = 1 if $ports{$peer} });
    return owners($nginx, %inodes);
}

sub worker_at {
    my ($nginx, $address) = @_;
    my ($port) = $address =~ /(\d+)$/;
    my %inodes;
    each_connection(sub { my ($own, $peer, $inode) = @_; $inodes{$inode} = 1 if $own == $port });
    my ($pid) = owners($nginx, %inodes);
    return $pid;
}

sub tellers {
    my ($nginx, $zone, $monitor) = @_;
    my %addresses;
    for my $call (grep { uc $_->{words}[0] eq 'EVALSHA' } $monitor->commands) {
        $addresses{ $call->{client} } = 1 if grep {/^rate_limit:sync:\Q$zone\E:/} @{ $call->{words} };
    }
    my %pids = map { (worker_at($nginx, $_) // 0) => 1 } keys %addresses;
    delete $pids{0};
    my @pids = sort { $a <=> $b } keys %pids;
    return @pids;
}

1;
