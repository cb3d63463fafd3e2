# nginx with a zone of each algorithm in a Redis that may have the native module, and questions to it.
#
#   use RateLimit::Native qw(native_module start_native ask server_of is_native key_of stays_loaded);
#
# The tests that use this package choose the servers that have the module: RL_NATIVE does not apply to them.
#
#   native_module                     the file of the module
#   start_native($redis, $limit, %)   starts nginx; each zone is named after its algorithm, and admits $limit requests of
#                                     each client, the header X-Client. $redis is a server or a URL; options: options
#                                     (of rate_limit_redis), workers, zone: further options of each zone
#   ask($nginx, $zone, $client, $n)   the statuses of $n requests, as a text
#   server_of($nginx)                 what the API says about the Redis
#   is_native($nginx)                 1 if the module has decided the last call, otherwise 0
#   key_of($zone, $client)            the name of the client's key
#   stays_loaded($redis)              whether the module refuses to be unloaded: on Redis 8
package RateLimit::Native;
use strict;
use warnings;

use Carp qw(croak);
use Cwd qw(abs_path);
use Exporter qw(import);
use RateLimit qw(start_nginx decode_json);
use RateLimit::Parallel qw(exact_rate @algorithms);

delete $ENV{RL_NATIVE};

our @EXPORT_OK = qw(native_module start_native ask server_of is_native key_of stays_loaded);

sub native_module { return abs_path('build/rate_limit.so') // croak 'build/rate_limit.so is missing: make redis-module' }

sub start_native {
    my ($redis, $limit, %more) = @_;
    my $options = $more{options} // '';
    my $http    = "access_log off;\nkeepalive_requests 1000000;\nrate_limit_log_level info;\n"
        . "rate_limit_redis fleet @{[ ref $redis ? $redis->url : $redis ]} timeout=20s $options;\n";
    my $server = "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n"
        . "location /api/ { rate_limit_api; }\nlocation = /metrics { rate_limit_metrics; }\n";
    for my $name (@algorithms) {
        my $nodelay = $name eq 'leaky_bucket' ? 'nodelay' : '';
        my $rate    = exact_rate($name, $limit);
        $http   .= "rate_limit_zone \$http_x_client zone=$name:1m algorithm=$name redis=fleet $rate deny_cache=off @{[ $more{zone} // '' ]};\n";
        $server .= "location = /$name { rate_limit zone=$name $nodelay; empty_gif; }\n";
    }
    return start_nginx(http => $http, server => $server, workers => $more{workers} // 1, log_level => 'notice');
}

sub server_of { my ($nginx) = @_; return decode_json($nginx->get('/api/zones')->{body})->{redis}[0] }

sub is_native { my ($nginx) = @_; return server_of($nginx)->{native} ? 1 : 0 }

sub ask {
    my ($nginx, $zone, $client, $count) = @_;
    return join ' ', map { $nginx->request(path => "/$zone", headers => [ 'X-Client' => $client ])->{status} } 1 .. $count;
}

sub stays_loaded {
    my ($redis) = @_;
    return $redis->info('redis_version') =~ /^(\d+)/ && $1 >= 8 && $redis->info('valkey_version') eq '';
}

sub key_of { my ($zone, $client) = @_; return "rate_limit:$zone:$zone:{$client}" }

1;
