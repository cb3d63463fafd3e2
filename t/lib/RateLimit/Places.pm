# A zone for each place that a state may be in and each algorithm, and what is left of a client's limit.
#
#   use lib 't/lib';
#   use RateLimit::Places qw(algorithms_of becomes left new_name zones_of_places);
#
# FUNCTIONS
#   zones_of_places($limit, $more, one => $redis, lost => $redis)
#                               returns two texts of directives, for `http` and `server` of start_nginx:
#                               rate_limit_redis for the servers, by name; zones PLACE_ALGORITHM, which admit ten
#                               requests of a client (X-Client) at once and as many a day; and locations
#                               /PLACE_ALGORITHM, whose rate_limit has the parameters $limit, and which have the
#                               directives $more. Places: memory, redis and sync (Redis `one`), local (the fallback of
#                               Redis `lost`, which the test stops)
#   algorithms_of($place)       the algorithms that have a zone in a place
#   left($nginx, $zone, $client)
#                               how many requests remain, by the API at /api/. The API asks Redis over the connection
#                               that has sent all corrections before
#   becomes($nginx, $zone, $client, $number, $text)
#                               asserts that $number requests remain, within some time: nginx settles a request after
#                               the client has received the response
#   new_name                    the name of a client that has sent no request
package RateLimit::Places;
use strict;
use warnings;

use Exporter qw(import);
use RateLimit qw(decode_json wait_for);
use Test::More;

our @EXPORT_OK = qw(algorithms_of becomes left new_name zones_of_places);

my %places = (
    memory => '',
    redis  => 'redis=one deny_cache=off',
    local  => 'redis=lost on_error=local',
    sync   => 'redis=one sync=1h',
);
my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);
my $names      = 0;

sub algorithms_of {
    my ($place) = @_;
    return grep { $place ne 'sync' || $_ ne 'sliding_log' } @algorithms;
}

sub zones_of_places {
    my ($limit, $more, %servers) = @_;
    my ($http, $server) = ('', '');
    for my $name (sort keys %servers) {
        $http .= "rate_limit_redis $name @{[ $servers{$name}->url ]} timeout=60s connect_timeout=60s;\n";
    }
    for my $place (sort keys %places) {
        for my $algorithm (algorithms_of($place)) {
            my $name    = "${place}_$algorithm";
            my $ten     = $algorithm =~ /gcra|leaky/ ? 'rate=1r/d burst=9' : 'rate=10r/d';
            my $nodelay = $algorithm eq 'leaky_bucket' ? 'nodelay' : '';
            $http   .= "rate_limit_zone \$http_x_client zone=$name:1m $ten algorithm=$algorithm $places{$place};\n";
            $server .= "location = /$name { rate_limit zone=$name $limit $nodelay; $more empty_gif; }\n";
        }
    }
    return ($http, $server);
}

sub left {
    my ($nginx, $zone, $client) = @_;
    return decode_json($nginx->get("/api/remaining?zone=$zone&key=$client")->{body})->{remaining};
}

sub becomes {
    my ($nginx, $zone, $client, $number, $text) = @_;
    my $left;
    eval { wait_for($text, sub { $left = left($nginx, $zone, $client); return $left == $number }); 1 } or diag $@;
    is $left, $number, $text;
    return;
}

sub new_name { return 'n' . $names++ }

1;
