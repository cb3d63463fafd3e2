# rate_limit_key with ip: which address is used, and which addresses are one client.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use IO::Socket::IP;
use IO::Socket::UNIX;
use RateLimit qw(start_nginx format_request);
use RateLimit::Async qw(statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Time::HiRes qw(time);

my $ipv6  = IO::Socket::IP->new(LocalAddr => '::1', Listen => 1);
my $redis = start_redis();
my @more  = reverse split ' ', $ENV{RL_PORTS};
my %port  = (plain => $more[0], protocol => $more[1], recursive => $more[2], mapped => $more[3]);

my ($zones, $locations) = ('', '');
for my $store ('', '_r') {
    my $where = $store eq '' ? '' : 'redis=main';
    $zones .= "rate_limit_zone \$host64 zone=host$store:1m rate=2r/366d algorithm=token_bucket $where;\n";
    $zones .= "rate_limit_zone \$site48 zone=site$store:1m rate=3r/366d algorithm=token_bucket $where;\n";
    $locations .= "location = /$_$store { rate_limit zone=$_$store cost=0; empty_gif; }\n" for qw(host site);
    $locations .= "location = /both$store { rate_limit zone=host$store; rate_limit zone=site$store; empty_gif; }\n";
    $locations .= "location = /turned$store { rate_limit zone=site$store; rate_limit zone=host$store; empty_gif; }\n";
}

my $nginx = start_nginx(
    http => <<"HTTP" . <<'HTTP',
rate_limit_redis main @{[ $redis->url ]} timeout=5s;
rate_limit_key \$host64 ip/32,64;
rate_limit_key \$site48 ip/24,48;
$zones
HTTP
rate_limit_key $ip    ip;
rate_limit_key $whole ip/32,128;
rate_limit_key $wide  ip/24,48;
rate_limit_key $first ip/1,1;
rate_limit_key $odd   ip/21,53;
rate_limit_key $pair  ip/31,127;
rate_limit_key $bound header:x-api-key ip/8,16;
rate_limit_zone $ip   zone=ip:1m   rate=2r/d algorithm=token_bucket;
rate_limit_zone $wide zone=wide:1m rate=2r/d algorithm=token_bucket;
add_header X-Ip    $ip    always;
add_header X-Whole $whole always;
add_header X-Wide  $wide  always;
add_header X-First $first always;
add_header X-Odd   $odd   always;
add_header X-Pair  $pair  always;
add_header X-Bound $bound always;
add_header X-Addr  $remote_addr always;
HTTP
    server => ($ipv6 ? 'listen [::1]:%PORT%;' : '') . <<"SERVER" . <<'SERVER',
listen unix:%DIR%/nginx.sock;
$locations
SERVER
set_real_ip_from 127.0.0.1;
set_real_ip_from unix:;
real_ip_header X-Forwarded-For;
location = /keys { empty_gif; }
location = /ip   { rate_limit zone=ip; empty_gif; }
location = /wide { rate_limit zone=wide; empty_gif; }
SERVER
    servers => <<'SERVERS' . ($ipv6 ? 'server { listen [::]:%PORT4% ipv6only=off; location / { empty_gif; } }' : ''),
server {
    listen 127.0.0.1:%PORT1%;
    listen unix:%DIR%/plain.sock;
    location / { empty_gif; }
    location /late { set_real_ip_from 127.0.0.1; real_ip_header X-Real-Ip; rate_limit zone=ip cost=0; empty_gif; }
}
server {
    listen 127.0.0.1:%PORT2% proxy_protocol;
    set_real_ip_from 127.0.0.1;
    real_ip_header proxy_protocol;
    location / { empty_gif; }
}
server {
    listen 127.0.0.1:%PORT3%;
    set_real_ip_from 127.0.0.1;
    set_real_ip_from 10.0.0.0/8;
    set_real_ip_from 2001:db8:ffff::/48;
    real_ip_header X-Forwarded-For;
    real_ip_recursive on;
    location / { empty_gif; }
}
SERVERS
);

# Returns the response to a request over a socket that begins with the given bytes.
sub over {
    my ($socket, $path, $headers, $before) = @_;
    my $connection = bless { socket => $socket // die("no socket: $@\n"), bytes => '', began => time }, 'RateLimit::Connection';
    $connection->send(($before // '') . format_request(path => $path, headers => $headers // []));
    my $answer = $connection->receive;
    $connection->close;
    return $answer;
}

sub tcp {
    my ($port, $from) = @_;
    return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, LocalAddr => $from // '127.0.0.1');
}

sub local_socket { my ($name) = @_; return IO::Socket::UNIX->new(Peer => $nginx->dir . "/$name.sock") }

# Returns the response to a client whose address a trusted proxy sets.
sub from {
    my ($address, $path) = @_;
    return over(tcp($nginx->port), $path // '/keys', [ 'X-Forwarded-For' => $address ]);
}

sub ask {
    my ($count, $path, @addresses) = @_;
    return statuses(map { from($_, $path) } map { ($_) x $count } @addresses);
}

# Returns the remaining count of a client's address.
sub left {
    my ($address, $path) = @_;
    return from($address, $path)->header('X-RateLimit-Remaining');
}

my @addresses = (
    #  client             ip               whole             wide (24,48)      first (1,1)   odd (21,53)             pair (31,127)
    [qw(192.0.2.7         192.0.2.7        192.0.2.7         192.0.2.0/24      128.0.0.0/1   192.0.0.0/21            192.0.2.6/31)],
    [qw(203.0.113.255     203.0.113.255    203.0.113.255     203.0.113.0/24    128.0.0.0/1   203.0.112.0/21          203.0.113.254/31)],
    [qw(10.255.255.255    10.255.255.255   10.255.255.255    10.255.255.0/24   0.0.0.0/1     10.255.248.0/21         10.255.255.254/31)],
    [qw(0.0.0.0           0.0.0.0          0.0.0.0           0.0.0.0/24        0.0.0.0/1     0.0.0.0/21              0.0.0.0/31)],
    [qw(255.255.255.253   255.255.255.253  255.255.255.253   255.255.255.0/24  128.0.0.0/1   255.255.248.0/21        255.255.255.252/31)],
    [qw(2001:db8:0:1::1   2001:db8:0:1::/64 2001:db8:0:1::1  2001:db8::/48     ::/1          2001:db8::/53           2001:db8:0:1::/127)],
    [qw(2001:db8::1       2001:db8::/64    2001:db8::1       2001:db8::/48     ::/1          2001:db8::/53           2001:db8::/127)],
    [qw(2001:db8:1:2:3:4:5:6 2001:db8:1:2::/64 2001:db8:1:2:3:4:5:6 2001:db8:1::/48 ::/1     2001:db8:1::/53         2001:db8:1:2:3:4:5:6/127)],
    [qw(2001:DB8:A:FFFF:B:C:D:E 2001:db8:a:ffff::/64 2001:db8:a:ffff:b:c:d:e 2001:db8:a::/48 ::/1 2001:db8:a:f800::/53 2001:db8:a:ffff:b:c:d:e/127)],
    [qw(ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff::/64 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
        ffff:ffff:ffff::/48 8000::/1 ffff:ffff:ffff:f800::/53 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127)],
    [qw(::1               ::/64            ::1               ::/48             ::/1          ::/53                   ::/127)],
    [qw(::ffff:192.0.2.7  192.0.2.7        192.0.2.7         192.0.2.0/24      128.0.0.0/1   192.0.0.0/21            192.0.2.6/31)],
    [qw(::ffff:c000:0207  192.0.2.7        192.0.2.7         192.0.2.0/24      128.0.0.0/1   192.0.0.0/21            192.0.2.6/31)],
    [qw(::fffe:c000:207   ::/64            ::fffe:c000:207   ::/48             ::/1          ::/53                   ::fffe:c000:206/127)],
    [qw(1::ffff:c000:207  1::/64           1::ffff:c000:207  1::/48            ::/1          1::/53                  1::ffff:c000:206/127)],
);

subtest 'the network of a client, in the same form for all its addresses' => sub {
    for my $row (@addresses) {
        my ($address, @networks) = @{$row};
        my $answer = from($address);
        is_deeply(
            [ map { $answer->header("X-$_") } qw(Ip Whole Wide First Odd Pair) ],
            [ map {"ip:$_"} @networks ], $address
        );
    }
    is from('192.0.2.7')->header('X-Bound'), 'ip:192.0.0.0/8', 'as the last of several sources';
    is over(tcp($nginx->port), '/keys', [ 'X-Api-Key' => 'k', 'X-Forwarded-For' => '192.0.2.7' ])->header('X-Bound'),
        'header:x-api-key:k', 'if the first source is empty';
};

subtest 'real addresses' => sub {
    is over(tcp($port{plain}), '/')->header('X-Ip'), 'ip:127.0.0.1', 'IPv4';
    is over(tcp($port{plain}, '127.0.0.9'), '/')->header('X-Ip'), 'ip:127.0.0.9', 'another address';
    is over(tcp($port{plain}, '127.0.0.9'), '/')->header('X-Wide'), 'ip:127.0.0.0/24', 'its network';
    for my $name (qw(Ip Whole Wide Pair)) {
        is over(local_socket('plain'), '/')->header("X-$name"), 'ip:unix:', "a Unix socket, $name";
    }
SKIP: {
        skip 'no IPv6 here', 7 if !$ipv6;
        my $six = IO::Socket::IP->new(PeerHost => '::1', PeerPort => $nginx->port);
        is over($six, '/keys')->header('X-Ip'), 'ip:::/64', 'IPv6';
        $six = IO::Socket::IP->new(PeerHost => '::1', PeerPort => $nginx->port);
        is over($six, '/keys')->header('X-Whole'), 'ip:::1', 'IPv6, whole';
        $six = IO::Socket::IP->new(PeerHost => '::1', PeerPort => $nginx->port);
        my $spoofed = over($six, '/keys', [ 'X-Forwarded-For' => '192.0.2.7' ]);
        is $spoofed->header('X-Whole'), 'ip:::1', 'IPv6 is not trusted here';
        my $mapped = over(tcp($port{mapped}, '127.0.0.9'), '/');
        is $mapped->header('X-Addr') =~ s/^::ffff://r, '127.0.0.9', 'IPv4 over an IPv6 socket';
        is $mapped->header('X-Ip'),    'ip:127.0.0.9',    'is IPv4';
        is $mapped->header('X-Whole'), 'ip:127.0.0.9',    'whole';
        is $mapped->header('X-Wide'),  'ip:127.0.0.0/24', 'the network of a mapped address';
    }
};

subtest 'which addresses are one client' => sub {
    is ask(1, '/ip', '2001:db8:0:1::1', '2001:db8:0:1:ffff::2', '2001:db8:0:1::3'), '200 200 429',
        'three addresses of one /64';
    is ask(3, '/ip', '2001:db8:0:2::1'), '200 200 429', 'the next /64 is another client';
    is ask(1, '/ip', '198.51.100.1', '198.51.100.1', '198.51.100.1'), '200 200 429', 'IPv4 whole';
    is ask(3, '/ip', '198.51.100.2'), '200 200 429', 'the next address is another client';
    is ask(1, '/ip', '::ffff:198.51.100.1'), 429, 'another notation of the address is the same client';
    is ask(1, '/wide', '2001:db8:5:1::1', '2001:db8:5:2::1', '2001:db8:5:ffff::1'), '200 200 429',
        'three addresses of one /48';
    is ask(1, '/wide', '2001:db8:6:1::1'), 200, 'the next /48 is another client';
    is ask(1, '/wide', '198.51.100.1', '198.51.100.200', '198.51.100.255'), '200 200 429', 'three addresses of one /24';
    is ask(1, '/wide', '198.51.101.1'), 200, 'the next /24 is another client';
};

subtest 'only a trusted proxy may set the address of a client' => sub {
    my $spoof = [ 'X-Forwarded-For' => '192.0.2.66', 'X-Real-Ip' => '192.0.2.67', Forwarded => 'for=192.0.2.68' ];
    is over(tcp($nginx->port, '127.0.0.2'), '/keys', $spoof)->header('X-Ip'), 'ip:127.0.0.2',
        'an untrusted address cannot set the address';
    is over(tcp($port{plain}), '/', $spoof)->header('X-Ip'), 'ip:127.0.0.1',
        'without trusted proxies the header is ignored';
    is over(tcp($nginx->port), '/keys', $spoof)->header('X-Ip'), 'ip:192.0.2.66', 'a trusted proxy sets the address';
    is over(local_socket('nginx'), '/keys', $spoof)->header('X-Ip'), 'ip:192.0.2.66',
        'a trusted proxy over a Unix socket sets the address';
    is over(local_socket('nginx'), '/keys')->header('X-Ip'), 'ip:unix:',
        'without the header, the address is that of the proxy';
    is over(local_socket('plain'), '/', $spoof)->header('X-Ip'), 'ip:unix:',
        'an untrusted proxy cannot set the address';
    is from($_)->header('X-Ip'), 'ip:127.0.0.1',
        "an invalid address is ignored: $_" for 'nonsense', 'unix:', '1.2.3', '::g';
    is over(tcp($port{plain}), '/late', $spoof)->header('X-Ip'), 'ip:192.0.2.67', 'a location may trust other proxies';
    is statuses(map { over(tcp($nginx->port, '127.0.0.3'), '/ip', [ 'X-Forwarded-For' => "192.0.2.$_" ]) } 1 .. 3),
        '200 200 429', 'an untrusted client gets no new quota with forged headers';
};

subtest 'a chain of proxies' => sub {
    my @chains = (
        #  from         X-Forwarded-For                              one step             all trusted ones
        [ '127.0.0.1', '192.0.2.1',                                  'ip:192.0.2.1',      'ip:192.0.2.1' ],
        [ '127.0.0.1', '192.0.2.66, 192.0.2.1',                      'ip:192.0.2.1',      'ip:192.0.2.1' ],
        [ '127.0.0.1', '192.0.2.66, 192.0.2.1, 10.0.0.1, 10.0.0.2',  'ip:10.0.0.2',       'ip:192.0.2.1' ],
        [ '127.0.0.1', '2001:db8:1::1, 2001:db8:ffff::1',            'ip:2001:db8:ffff::/64', 'ip:2001:db8:1::/64' ],
        [ '127.0.0.1', '::ffff:192.0.2.1, 10.0.0.1',                 'ip:10.0.0.1',       'ip:192.0.2.1' ],
        [ '127.0.0.1', '10.0.0.3, 10.0.0.4',                         'ip:10.0.0.4',       'ip:10.0.0.3' ],
        [ '127.0.0.5', '192.0.2.1, 10.0.0.1',                        'ip:127.0.0.5',      'ip:127.0.0.5' ],
    );
    for my $row (@chains) {
        my ($from, $chain, $one, $all) = @{$row};
        my $headers = [ 'X-Forwarded-For' => $chain ];
        is over(tcp($nginx->port, $from), '/keys', $headers)->header('X-Ip'), $one, "$from sends $chain: one step";
        is over(tcp($port{recursive}, $from), '/', $headers)->header('X-Ip'), $all,
            "$from sends $chain: all trusted proxies";
    }
    is over(tcp($port{recursive}), '/', [ 'X-Forwarded-For' => '192.0.2.66', 'X-Forwarded-For' => '192.0.2.1, 10.0.0.1' ])
        ->header('X-Ip'), 'ip:192.0.2.1', 'two headers are one chain';
};

subtest 'the PROXY protocol' => sub {
    my $ask = sub {
        my ($line, $from) = @_;
        return over(tcp($port{protocol}, $from), '/', [], "PROXY $line\r\n");
    };
    is $ask->('TCP4 192.0.2.7 127.0.0.1 1000 80')->header('X-Ip'), 'ip:192.0.2.7', 'IPv4';
    is $ask->('TCP6 2001:db8:0:1::1 ::1 1000 80')->header('X-Ip'), 'ip:2001:db8:0:1::/64', 'IPv6';
    is $ask->('TCP6 2001:db8:0:1::1 ::1 1000 80')->header('X-Whole'), 'ip:2001:db8:0:1::1', 'IPv6, whole';
    is $ask->('TCP6 ::ffff:192.0.2.7 ::1 1000 80')->header('X-Ip'), 'ip:192.0.2.7', 'IPv4 as IPv6';
    is $ask->('UNKNOWN')->header('X-Ip'), 'ip:127.0.0.1', 'the PROXY protocol with an unknown address';
    is $ask->('TCP4 192.0.2.7 127.0.0.1 1000 80', '127.0.0.4')->header('X-Ip'), 'ip:127.0.0.4',
        'an untrusted client is ignored';
};

# A host may send 2 requests, and its site 3 in all.
my $serial = 0;
my @kinds  = (
    [ 'IPv4',                                 sub { my ($site, $host) = @_; return "198.18.$site.$host" } ],
    [ 'IPv6',                                 sub { my ($site, $host) = @_; return "2001:db8:$site:$host\::1" } ],
    [ 'IPv6 clients with changing addresses', sub { my ($site, $host) = @_; return "2001:db8:$site:$host\::" . ++$serial } ],
);
my $site = 0;
for my $store ('', '_r') {
    for my $row (@kinds) {
        my ($kind, $address) = @{$row};
        for my $both ("/both$store", "/turned$store") {
            $site++;
            my ($one, $other, $third) = map { my $host = $_; sub { $address->($site, $host) } } 1 .. 3;
            my $title = ($store eq '' ? 'memory' : 'Redis') . ", $kind, $both";
            is ask(1, $both, map { $one->() } 1 .. 3), '200 200 429', "$title: a host has exhausted its limit";
            is left($one->(), "/site$store"), 1, "$title: rejections of the host are not charged to its site";
            is ask(1, $both, map { $other->() } 1, 2), '200 429',
                "$title: another host gets the rest of the site's limit";
            is left($other->(), "/host$store"), 1, "$title: rejections by the site are not charged to the host";
            is ask(1, $both, $third->()), '429', "$title: a third host is rejected";
            is left($third->(), "/host$store"), 2, "$title: the third host was not charged";
        }
    }
}

unlike $nginx->error_log, qr/exited on signal|\[(?:alert|crit)\]/, 'no worker died';

done_testing;
