# What the API reports of a client: whether state is stored, the address if the key is one, and a variable rate.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::UNIX;
use RateLimit qw(start_nginx wait_for decode_json format_request);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::Redis qw(start_redis);
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};

sub encode { my ($text) = @_; return $text =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger }

sub json_of {
    my ($answer) = @_;
    my $json = eval { decode_json($answer->{body}) } // {};
    return { %{$json}, status => $answer->{status} };
}

sub remaining {
    my ($nginx, $zone, $key, $more) = @_;
    return json_of($nginx->get("/api/remaining?zone=$zone&key=" . encode($key) . ($more // '')));
}

sub reset_client {
    my ($nginx, $zone, $key) = @_;
    return json_of($nginx->request(method => 'DELETE', path => "/api/reset?zone=$zone&key=" . encode($key)));
}

sub text_of { my ($value) = @_; return !defined $value ? 'null' : ref $value ? ($value ? 'true' : 'false') : $value }

# A zone of each kind of store.
my %stores = (
    memory => '',
    redis  => 'redis=fleet deny_cache=off',
    deny   => 'redis=fleet deny_cache=1h',
    local  => 'redis=fleet on_error=local',
    sync   => 'redis=fleet sync=20ms',
    lazy   => 'redis=fleet sync=1h',
);

sub conf {
    my ($url, $port) = @_;
    my ($http, $server) = ("rate_limit_redis fleet $url timeout=5s;\n", "location /api/ { rate_limit_api write=on; }\n");
    for my $store (sort keys %stores) {
        $http   .= "rate_limit_zone \$http_x_client zone=$store:1m rate=5r/h algorithm=gcra burst=4 $stores{$store};\n";
        $server .= "location = /$store { rate_limit zone=$store; empty_gif; }\n";
    }
    return (port => $port, http => $http, server => $server);
}

for my $kind (qw(redis cluster)) {
    my $redis = $kind eq 'redis' ? start_redis() : start_cluster(replicas => 0, node_timeout => 60_000);
    my ($here, $there) = map { start_nginx(conf($redis->url, $_)) } @ports[ 0, 1 ];
    wait_for('Redis', sub { defined remaining($_, 'redis', 'nobody')->{known} }) for $here, $there;

    for my $store ($kind eq 'redis' ? sort keys %stores : grep { $_ ne 'memory' } sort keys %stores) {
        subtest "$kind: $store: an unknown client, and a known one" => sub {
            my $stranger = remaining($here, $store, 'stranger');
            is join(' ', $stranger->{status}, map { text_of($_) } @{$stranger}{qw(known remaining)}), '200 false 5',
                'nothing is stored of an unknown client';
            my $refused = reset_client($here, $store, 'stranger');
            is $refused->{status}, 404, 'there is no state to reset';
            is $refused->{title}, 'Not Found', 'the reply is a problem document';
            is $refused->{detail}, qq(nothing is stored of client "stranger" in zone "$store": it was not counted, or it has its whole quota again),
                'the problem document has the reason';
            is text_of(remaining($here, $store, 'stranger')->{known}), 'false', 'inspect and reset store nothing';

            is $here->get("/$store", 'X-Client' => 'alice')->{status}, 200, 'one request';
            is text_of(remaining($here, $store, 'alice')->{known}), 'true', 'a charge stores the client';
            is text_of(remaining($here, $store, 'Alice')->{known}), 'false', 'no other client is stored';
            is reset_client($here, $store, 'alice')->{status}, 204, 'the client is reset';
            is text_of(remaining($here, $store, 'alice')->{known}), 'false', 'the client is not known after the reset';
            is reset_client($here, $store, 'alice')->{status}, 404, 'a second reset finds no state';
        };
    }

    subtest "$kind: a client that only another instance has served" => sub {
        for my $store (qw(redis sync)) {
            is $there->get("/$store", 'X-Client' => 'far')->{status}, 200, "$store: one request at another instance";
            ok wait_for('Redis to be told', sub { text_of(remaining($here, $store, 'far')->{known}) eq 'true' }),
                "$store: the client is known at this instance";
            is reset_client($here, $store, 'far')->{status}, 204, "$store: the client can be reset";
        }
    };

    next if $kind eq 'cluster';
    subtest 'while Redis is down, no client is reported as unknown' => sub {
        $here->get('/lazy', 'X-Client' => 'near');
        $redis->kill;
        is text_of(remaining($here, $_, 'stranger')->{known}), 'null',
            "$_: the client may be known" for qw(redis local sync);
        is text_of(remaining($here, 'lazy', 'near')->{known}), 'true',
            'a client in the memory of this instance is known';
        is reset_client($here, $_, 'stranger')->{status}, 503,
            "$_: the client cannot be reset" for qw(redis local sync);
        $redis->restart;
        wait_for('Redis', sub { defined remaining($here, 'redis', 'nobody')->{known} });
    };
    unlike $_->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors' for $here, $there;
}

subtest 'a user without the right to read' => sub {
    my $redis = start_redis(acl => 'old on >x ~rate_limit:* +evalsha +script|load +mget +set +del +time +select');
    my $nginx = start_nginx(port => $ports[3], http => "rate_limit_redis fleet @{[ $redis->url(user => 'old', password => 'x') ]} timeout=5s;\nrate_limit_zone \$http_x_client zone=redis:1m rate=5r/h redis=fleet;",
        server => 'location /api/ { rate_limit_api; } location = /redis { rate_limit zone=redis; empty_gif; }');
    $nginx->get('/redis', 'X-Client' => 'alice');
    for my $round (1 .. 20) {
        my $look = remaining($nginx, 'redis', 'alice');
        is join(' ', map { text_of($_) } @{$look}{qw(status remaining known store)}), '200 4 null redis',
            "inspect $round reports the remaining count";
    }
    my ($fleet) = @{ json_of($nginx->get('/api/zones'))->{redis} };
    ok $fleet->{up} && !$fleet->{breakerOpen}, 'no breaker opens';
};

subtest 'a rate that differs between clients' => sub {
    my $redis = start_redis();
    my ($http, $server) = ("rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;\nmap \$http_x_plan \$plan { default 3r/d; premium 100r/d; }\n", "location /api/ { rate_limit_api write=on; }\n");
    my %places = (memory => '', redis => 'redis=fleet', sync => 'redis=fleet sync=20ms');
    for my $place (sort keys %places) {
        $http   .= "rate_limit_zone \$http_x_client zone=$place:1m rate=\$plan algorithm=gcra burst=2 $places{$place};\n";
        $server .= "location = /$place { rate_limit zone=$place; empty_gif; }\n";
    }
    my $plans  = start_nginx(port => $ports[4], http => $http, server => $server);
    my @fields = qw(status allowed rate limit remaining resetAfterSeconds retryAfterSeconds store known);
    my $look   = sub { my $json = remaining($plans, @_); return join ' ', map { text_of($json->{$_}) } @fields };
    for my $place (sort keys %places) {
        is $plans->get("/$place", 'X-Client' => 'vip', 'X-Plan' => 'premium')->{status}, 200, "$place: a client of one plan";
        is $look->($place, 'vip'), '200 null null null null null null null true',
            "$place: the rate of the client is not known in an API request";
        like remaining($plans, $place, 'vip')->{detail}, qr/^the rate of this zone is \$plan, and that of this client is not known; the argument rate tells it$/,
            "$place: the reply says that the rate is not known";
        is $look->($place, 'nobody'), '200 null null null null null null null false',
            "$place: the reply says whether the client is known";
        my $answer = json_of($plans->get("/api/remaining?zone=$place&key=vip", 'X-Plan' => 'premium'));
        is text_of($answer->{remaining}), 'null', "$place: the plan of the API request does not matter";
        my $store = $place eq 'redis' ? 'redis' : 'memory';
        my $own = remaining($plans, $place, 'vip', '&rate=100r/d');
        is join(' ', map { text_of($own->{$_}) } qw(status allowed rate limit remaining store known)), "200 true 100r/d 3 2 $store true",
            "$place: with a rate parameter the rate is known";
        cmp_ok $own->{resetAfterSeconds}, '<=', 864, "$place: a request takes a hundredth of a day at this rate";
        is $look->($place, 'vip', '&rate=off'), '200 true off null null null 0 null true',
            "$place: the rate parameter may be off";
        my @checks = map { $plans->get("/api/check?zone=$place&key=service&rate=$_", 'X-Rate-Limit-Api' => 1)->{status} } ('2r/d') x 4;
        is "@checks", '200 200 200 429', "$place: a check accepts a rate too";
        my $patched = $plans->request(method => 'PATCH', path => "/api/zones/$place", headers => [ 'Content-Type' => 'application/json' ], body => '{"rate":"50r/d"}');
        is $patched->{status}, 200, "$place: a live rate applies to every client";
        like $look->($place, 'nobody'), qr/^200 true 50r\/d 3 3 0 0 $store false$/, "$place: the live rate is known";
        like $look->($place, 'nobody', '&rate=7r/d'), qr/^200 true 50r\/d 3 3 0 0 $store false$/,
            "$place: the live rate overrides the parameter";
    }
    unlike $plans->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
};

# Addresses, set by a trusted proxy.
my $redis = start_redis();
my %zones = (address => '$binary_remote_addr', braces => '${Binary_Remote_Addr}', text => '$http_x_client');
my ($http, $server) = ("rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;\n", <<'SERVER');
set_real_ip_from 127.0.0.1;
real_ip_header X-Forwarded-For;
listen unix:%DIR%/nginx.sock;
location /api/ { rate_limit_api write=on; }
SERVER
for my $zone (sort keys %zones) {
    for my $place ('', 'redis=fleet deny_cache=off') {
        my $name = $place ? "r_$zone" : "m_$zone";
        $http   .= "rate_limit_zone $zones{$zone} zone=$name:1m rate=2r/h algorithm=token_bucket $place;\n";
        $server .= "location = /$name { rate_limit zone=$name; empty_gif; }\n";
    }
}
my $nginx = start_nginx(http => $http, server => $server, port => $ports[2]);

sub limited {
    my ($zone) = @_;
    return map { $_->{key} } @{ json_of($nginx->get("/api/zones/$zone"))->{limited} };
}

# Returns the name in the log of a client that has exhausted its quota.
sub logged {
    my ($zone, @headers) = @_;
    my $at = length $nginx->error_log;
    is join(' ', map { $nginx->get("/$zone", @headers)->{status} } 1 .. 3), '200 200 429',
        "$zone: two requests are admitted";
    my ($key) = substr($nginx->error_log, $at) =~ /limiting requests, .*zone "\Q$zone\E".*?key "(.*?)"/;
    return $key;
}

# Addresses whose bytes are digits or letters, and the first bytes of a digest.
my @addresses = qw(192.0.2.7 125.1.2.3 115.104.97.50 58.58.102.102 0.0.0.0 255.255.255.254
    2001:db8::1 ::1 ::ff 7d00::1 ::ffff:192.0.2.7 3230:3031:3a64:6238:3a31:3233:343a:3a31);
for my $zone (qw(m_address m_braces r_address)) {
    subtest "$zone: addresses" => sub {
        for my $address (@addresses) {
            my @from = ('X-Forwarded-For' => $address);
            is logged($zone, @from), $address, "$address: the log has the address";
            is scalar(grep { $_ eq $address } limited($zone)), 1, "$address: the list of top clients has the address";
            my $look = remaining($nginx, $zone, $address);
            is join(' ', map { text_of($_) } @{$look}{qw(key remaining known)}), "$address 0 true",
                "$address: the address names the client";
            is reset_client($nginx, $zone, $address)->{status}, 204, "$address: the client is reset";
            is $nginx->get("/$zone", @from)->{status}, 200, "$address: the client is admitted";
        }
        my $bytes = '\x7F\x00\x00\x01';
        $nginx->get("/$zone");
        is remaining($nginx, $zone, $bytes)->{key}, '127.0.0.1', 'escaped bytes are an address too';
        is text_of(remaining($nginx, $zone, $bytes)->{known}), 'true', 'escaped bytes name the same client';
        is text_of(remaining($nginx, $zone, "\x7f\x00\x00\x01")->{known}), 'true', 'escaped or not';
        is reset_client($nginx, $zone, '10.1.2.3')->{detail}, qq(nothing is stored of client "10.1.2.3" in zone "$zone": it was not counted, or it has its whole quota again),
            'the address of an unknown client';
        is text_of(remaining($nginx, $zone, 'localhost')->{known}), 'false', 'an invalid address names no client';
    };
}

subtest 'a text key is text, at any length' => sub {
    for my $zone (qw(m_text r_text)) {
        my %clients = (user => 'user', sixteen_letters_ => 'sixteen_letters_', '192.0.2.7' => '192.0.2.7', "\xff\xfe\x80\x81" => '\xFF\xFE\x80\x81');
        for my $client (sort keys %clients) {
            is logged($zone, 'X-Client' => $client), $clients{$client}, 'the log has the text';
            is scalar(grep { $_ eq $clients{$client} } limited($zone)), 1, 'the list of top clients has the text';
            is remaining($nginx, $zone, $clients{$client})->{key}, $clients{$client}, 'the API returns the text';
            is reset_client($nginx, $zone, $clients{$client})->{status}, 204, 'the API accepts the text';
        }
        is text_of(remaining($nginx, $zone, '117.115.101.114')->{known}), 'false',
            'an address does not name a text key';
    }
};

subtest 'a client without an address' => sub {
    for (1 .. 3) {
        my $socket = IO::Socket::UNIX->new(Peer => $nginx->dir . '/nginx.sock') // die "nginx.sock: $!\n";
        my $connection = bless { socket => $socket, bytes => '', began => time }, 'RateLimit::Connection';
        $connection->send(format_request(path => '/m_address'));
        $connection->receive;
        $connection->close;
    }
    is remaining($nginx, 'm_address', 'unix:')->{remaining}, 0, 'is unix:, as in nginx';
    is scalar(grep { $_ eq 'unix:' } limited('m_address')), 1, 'the list of top clients has unix:';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
