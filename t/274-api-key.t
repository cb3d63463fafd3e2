# A key that is copied from the error log into an API call names the client of the logged request.
use strict;
use warnings;

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use RateLimit qw(start_nginx decode_json);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $redis = start_redis();
my %keys  = (header => '$http_x_client', address => '$binary_remote_addr', tagged => '$client', argument => '$decoded');
my ($http, $server) = (<<"HTTP", "location /api/ { rate_limit_api write=on; }\n");
large_client_header_buffers 4 32k;
rate_limit_redis fleet @{[ $redis->url ]} timeout=5s;
rate_limit_key \$client header:X-Client ip;
rate_limit_key \$decoded arg:who;
HTTP
for my $name (sort keys %keys) {
    for my $store ('', 'redis=fleet deny_cache=off') {
        my $zone = $store ? "r_$name" : "m_$name";
        $http   .= "rate_limit_zone $keys{$name} zone=$zone:1m rate=2r/h algorithm=token_bucket $store;\n";
        $server .= "location = /$zone { rate_limit zone=$zone; empty_gif; }\n";
    }
}
my $nginx = start_nginx(http => $http, server => $server);

sub encode { my ($text) = @_; return $text =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger }

# Exhausts a quota, and returns the key from the log.
sub logged_key {
    my ($zone, $path, @headers) = @_;
    my $at = length $nginx->error_log;
    my @statuses = map { $nginx->get("/$path", @headers)->{status} } 1 .. 3;
    is "@statuses", '200 200 429', "$zone: two requests are admitted";
    my ($key) = substr($nginx->error_log, $at) =~ /limiting requests, .* by zone "\Q$zone\E", client: [^,]+, key "(.*?)", algorithm/;
    return $key;
}

sub names_the_client {
    my ($title, $zone, $key, $path, @headers) = @_;
    my $query  = "zone=$zone&key=" . encode($key);
    my $answer = $nginx->get("/api/remaining?$query");
    my $json   = decode_json($answer->{body});
    is $json->{remaining}, 0, "$title: nothing remains";
    is $json->{key}, $key, "$title: the API returns the same name";
    is $nginx->get("/api/check?$query", 'X-Rate-Limit-Api' => 1)->{status}, 429, "$title: a check is rejected";
    is $nginx->request(method => 'DELETE', path => "/api/reset?$query")->{status}, 204, "$title: the client is reset";
    is $nginx->get("/$path", @headers)->{status}, 200, "$title: a request is admitted";
    is $nginx->get("/api/check?$query", 'X-Rate-Limit-Api' => 1)->{status}, 200,
        "$title: a check charges the second request";
    is $nginx->get("/$path", @headers)->{status}, 429, "$title: no request remains";
    $nginx->request(method => 'DELETE', path => "/api/reset?$query");
    return;
}

my %clients = (
    plain          => 'alice',
    blanks         => 'two words',
    quotes         => '"quoted" \\ and \\x41 and \'',
    'UTF-8'        => "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xa9",
    'no UTF-8'     => "\xff\xfe\x80",
    percent        => '100%25 %41 %',
    plus           => 'a+b c&d=e;f#g?h/i',
    markup         => '<img src=x onerror=alert(1)>',
    braces         => '{tag} }',
    '128 bytes'    => 'l' x 128,
    digest         => 'sha256:abc',
    'JSON'         => '{"key":[1,2,null]}',
);
for my $store (qw(m r)) {
    for my $name (sort keys %clients) {
        subtest "$store: $name" => sub {
            my ($zone, @headers) = ("${store}_header", 'X-Client' => $clients{$name});
            my $key = logged_key($zone, $zone, @headers);
            names_the_client($name, $zone, $key, $zone, @headers);
        };
    }
    subtest "$store: a binary address" => sub {
        my $key = logged_key("${store}_address", "${store}_address");
        is $key, '127.0.0.1', 'the log has the address as text';
        names_the_client('address', "${store}_address", $key, "${store}_address");
    };
    subtest "$store: a key with its source" => sub {
        my $key = logged_key("${store}_tagged", "${store}_tagged", 'X-Client' => "a\"b\xff");
        is $key, 'header:x-client:a\x22b\xFF', 'the log has the source and the escaped value';
        names_the_client('tagged', "${store}_tagged", $key, "${store}_tagged", 'X-Client' => "a\"b\xff");
        $key = logged_key("${store}_tagged", "${store}_tagged");
        is $key, 'ip:127.0.0.1', 'an address, too';
        names_the_client('address', "${store}_tagged", $key, "${store}_tagged");
        my $path = "${store}_argument?who=a%00b%0A%25";
        $key = logged_key("${store}_argument", $path);
        is $key, 'arg:who:a%00b%0A%25', 'control characters have the escapes of the log';
        names_the_client('argument', "${store}_argument", $key, $path);
    };
    subtest "$store: a long name" => sub {
        for my $length (129, 8000) {
            my ($zone, $name) = ("${store}_header", "\xe9" . 'n' x ($length - 1));
            my $logged = logged_key($zone, $zone, 'X-Client' => $name);
            is $logged, 'sha256:' . sha256_hex($name), "$length bytes: the log has the digest";
            names_the_client("$length bytes", $zone, $logged, $zone, 'X-Client' => $name);
            my $query = "zone=$zone&key=" . encode($name);
            is $nginx->get("/api/check?$query&permits=2", 'X-Rate-Limit-Api' => 1)->{status}, 200,
                "$length bytes: the whole name is the same client";
            is $nginx->get("/$zone", 'X-Client' => $name)->{status}, 429, "$length bytes: client";
            is $nginx->get("/$zone", 'X-Client' => $logged)->{status}, 200,
                "$length bytes: no other client has this digest";
            $nginx->request(method => 'DELETE', path => "/api/reset?zone=$zone&key=$logged");
            is $nginx->get("/$zone", 'X-Client' => $name)->{status}, 200, "$length bytes: the digest resets the client";
            $nginx->request(method => 'DELETE', path => "/api/reset?$query");
        }
    };
}

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
