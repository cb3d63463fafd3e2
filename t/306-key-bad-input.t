# Each invalid rate_limit_key, rate_limit_jwt_key and rate_limit_jwt_source makes `nginx -t` fail with one clear
# message.
use strict;
use warnings;

use lib 't/lib';
use POSIX qw(mkfifo);
use RateLimit qw(check_config);
use RateLimit::Redis qw(tls_files);
use Test::More;
use Token qw(new_key new_secret key_file jwks jwk json part);

my %key = (
    rsa     => new_key('rsa'),
    small   => new_key('rsa', bits => 1024),
    pss     => new_key('rsa-pss'),
    dsa     => new_key('dsa', bits => 1024),
    map { $_ => new_key($_) } qw(P-256 P-384 P-521 secp256k1 ed25519 ed448 x25519 x448),
);
my %pem = map { $_ => key_file("$_.pem", $key{$_}{public}) } keys %key;
my %private = map { $_ => key_file("$_.private.pem", $key{$_}{private}) } qw(rsa P-256 ed25519);
my $certificate = tls_files()->{ca};
my %secret = map { $_ => key_file("secret.$_", new_secret($_)->{secret}) } 1, 31, 32, 33, 47, 48, 63, 64, 200;
my $short_line = key_file('secret.31.line', new_secret(31)->{secret} . "\n");
my $long_line  = key_file('secret.32.line', new_secret(32)->{secret} . "\n");
my $empty      = key_file('empty', '');
my $newline    = key_file('newline', "\n");
my $garbage    = key_file('garbage', "this is no key\n" x 20);
my $bytes      = key_file('bytes', join '', map {chr} 0 .. 255);
my $broken     = key_file('broken.pem', $key{rsa}{public} =~ s/[A-Z]{3}/+++/gr);
my $cut        = key_file('cut.pem', substr $key{rsa}{public}, 0, 200);
my $mixed      = key_file('mixed.pem', $key{rsa}{public} . $key{'P-256'}{public});
my $small_too  = key_file('small-too.pem', $key{rsa}{public} . $key{small}{public});
my $half       = key_file('half.pem', $key{rsa}{public} . "-----BEGIN PUBLIC KEY-----\nMIIB\n");
my $absent     = "$ENV{RL_DIR}/keys/absent";
my $folder     = "$ENV{RL_DIR}/keys";

sub set_file { my ($name, $text) = @_; return key_file("$name.json", $text) }
my $set = set_file('good', jwks(jwk($key{rsa}, kid => 'a')));

my $jwk  = set_file('single', json(jwk($key{rsa}, kid => 'a')));
my $der  = key_file('rsa.der', $key{rsa}{der});
my $ssh  = key_file('id_rsa.pub', 'ssh-rsa ' . ('AAAAB3NzaC1yc2EAAAADAQAB' x 10) . " someone\@example\n");
my $fifo = "$folder/fifo";
mkfifo($fifo, oct 600) or die "mkfifo: $!\n";

my $jwt = "rate_limit_jwt_key HS256 $secret{32};";

# Each row: a title, the directives, and the word that the message must name.
my @keys = (
    [ 'no arguments',                      'rate_limit_key' ],
    [ 'no source',                         'rate_limit_key $k' ],
    [ 'not a variable',                    'rate_limit_key k ip',                      '"k"' ],
    [ 'an empty word for a variable',      'rate_limit_key "" ip' ],
    [ 'a $ without a name',                'rate_limit_key $ ip',                      '"$"' ],
    [ 'two variables in one word',         'rate_limit_key $a$b ip',                   '$a$b' ],
    [ 'an invalid variable name',          'rate_limit_key $a-b ip',                   '$a-b' ],
    [ 'an invalid variable name',          "rate_limit_key \$\xc3\xa9 ip",             "\$\xc3\xa9" ],
    [ 'a source in place of the variable', 'rate_limit_key ip $k',                   '"ip"' ],
    ( map { [ "an unknown source: $_", "rate_limit_key \$k $_", $_ ] }
        qw(foo foo:x IP Header:x ips ip:4 ip= header cookie arg jwt header=x header.x remote_addr :x claim:sub query:x) ),
    [ 'an empty source',                 'rate_limit_key $k ""' ],
    [ 'an unknown source after others',  'rate_limit_key $k header:a foo ip',        'foo' ],
    ( map { [ "bad prefix lengths: $_", "rate_limit_key \$k $_", $_ ] }
        split ' ', 'ip/ ip/24 ip/24, ip/,48 ip/, ip/0,48 ip/33,64 ip/24,0 ip/24,129 ip/a,b ip/24,48,1 ip/-1,64 ip/24,-1 ip/24/48 '
            . 'ip/+24,48 ip/24.5,48 ip/999999999999999999999,48 ip/24,4294967344 ip/24,48/ ip//24,48 ip/0x18,48' ),
    [ 'bad prefix lengths: a blank',     'rate_limit_key $k "ip/24, 48"',            'ip/24, 48' ],
    ( map { [ "an empty name: $_", "rate_limit_key \$k $_", $_ ] } qw(header: cookie: arg: $) ),
    [ 'an empty claim',                  "$jwt rate_limit_key \$k jwt:",             'jwt:' ],
    ( map { [ "an invalid header name: $_", "rate_limit_key \$k '$_'", $_ ] }
        'header:x y', 'header: x', 'header:x:y', 'header:x/y', 'header:x,y', 'header:x@y', 'header:x=y', 'header:[x]', 'header:x(y)',
        'header:x"y', "header:x\xc3\xa9", "header:x\x01", "header:x\ty", 'header:x;y', 'header:x?y' ),
    ( map { [ "an invalid name: $_", "rate_limit_key \$k '$_'", $_ ] } 'cookie:a;b', 'cookie:a=b', 'cookie:a b', 'arg:a&b', 'arg:a=b', 'arg:a:b' ),
    ( map { [ "not one variable: $_", "rate_limit_key \$k '$_'", $_ ] } '$uri$host', 'x$uri', '$uri-', '$1' ),
    ( map { my ($text, $word) = @{$_}; [ "a source after ip: $text", "rate_limit_key \$k $text", $word ] }
        [ 'ip header:a', 'header:a' ], [ 'header:a ip arg:b', 'arg:b' ], [ 'ip/24,48 cookie:a', 'cookie:a' ], [ 'ip/24,48 ip', 'ip' ],
        [ 'ip ip/24,48', 'ip/24,48' ], [ 'ip ip', 'ip' ], [ 'ip $uri', '$uri' ] ),
    ( map { my ($one, $two) = @{$_}; [ "a source twice: $one $two", "$jwt rate_limit_key \$k $one $two ip", $two ] }
        [ 'header:a', 'header:a' ], [ 'header:X-A', 'header:x-a' ], [ 'header:x-a', 'header:x_a' ], [ 'cookie:a', 'cookie:a' ], [ 'cookie:a', 'cookie:A' ], [ 'arg:a', 'arg:a' ],
        [ 'arg:a', 'arg:A' ], [ 'jwt:sub', 'jwt:sub' ], [ '$uri', '$uri' ], [ '$uri', '$URI' ], [ 'header:a arg:b', 'header:a' ] ),
    [ 'itself',                          'rate_limit_key $k $k ip',                  '$k' ],
    [ 'itself in capitals',              'rate_limit_key $k $K ip',                  '$K' ],
    ( map { [ "a variable of nginx: $_", "rate_limit_key $_ header:a", $_ ] }
        qw($http_x $arg_x $cookie_x $sent_http_x $rate_limit_jwt_sub $1 $remote_addr $uri $URI $request_id $binary_remote_addr $rate_limit_status $host $realip_remote_addr) ),
    [ 'a variable of map',               'map $uri $k { default 1; } rate_limit_key $k header:a', '$k' ],
    [ 'a variable of geo',               'geo $k { default 1; } rate_limit_key $k header:a',      '$k' ],
    [ 'a variable of split_clients',     'split_clients $uri $k { * 1; } rate_limit_key $k header:a', '$k' ],
    [ 'a variable of another rate_limit_key', 'rate_limit_key $k header:b; rate_limit_key $k header:a',    '$k' ],
    [ 'a variable of another rate_limit_key in upper case', 'rate_limit_key $k header:b; rate_limit_key $K header:a', '$K' ],
    [ 'a key that is defined later',     'rate_limit_key $b $a ip; rate_limit_key $a header:x', '$a' ],
    [ 'two keys that refer to each other', 'rate_limit_key $b $a ip; rate_limit_key $a $b ip',    '$a' ],
    [ 'a name that begins with another', "$jwt rate_limit_key \$k jwt:a jwt:a:b",              'jwt:a:b' ],
    [ 'a name that another begins with', "$jwt rate_limit_key \$k jwt:a:b jwt:a",              'jwt:a' ],
    [ 'an unknown variable',             'rate_limit_key $k $nowhere',               '$nowhere' ],
    [ 'an unknown variable after others', 'rate_limit_key $k header:a $nowhere ip',  '$nowhere' ],
    [ 'jwt: without any key',            'rate_limit_key $k jwt:sub ip',             'jwt:sub' ],
    [ 'jwt: without any key, used',      'rate_limit_key $k jwt:sub ip; rate_limit_zone $k zone=a:1m rate=1r/s', 'jwt:sub' ],
);

my @jwt_keys = (
    [ 'no arguments',                'rate_limit_jwt_key' ],
    [ 'no file',                     'rate_limit_jwt_key HS256' ],
    [ 'no file for a key set',       'rate_limit_jwt_key jwks' ],
    [ 'an empty file name',          'rate_limit_jwt_key HS256 ""' ],
    [ 'a file without an algorithm', "rate_limit_jwt_key $secret{32}" ],
    ( map { [ "an unknown algorithm: $_", "rate_limit_jwt_key $_ $secret{64}", $_ ] }
        qw(HS128 HS255 HS2560 hs256 none None NONE RS1 ES256K ES521 JWKS EdDSA2 eddsa Ed25519 dir A256KW * HS256/HS384 leeway=1s) ),
    [ 'an empty algorithm',        "rate_limit_jwt_key '' $secret{64}" ],
    ( map { [ "an invalid option: $_", "rate_limit_jwt_key HS256 $secret{32} $_", $_ ] } qw(foo foo=1 leeway LEEWAY=1s kid=a) ),
    [ 'a third word',              "rate_limit_jwt_key HS256 $secret{32} leeway=1s more", 'more' ],
    [ 'leeway= twice',             "rate_limit_jwt_key HS256 $secret{32} leeway=1s leeway=2s", 'leeway=2s' ],
    ( map { [ $_, "rate_limit_jwt_key HS256 $secret{32} $_", $_ ] }
        qw(leeway= leeway=abc leeway=-1s leeway=25h leeway=2d leeway=86401 leeway=86401s leeway=1.5s leeway=1x leeway=99999999999999999999s leeway=$uri) ),
    [ 'leeway= of a key set',      "rate_limit_jwt_key jwks $set leeway=2d",              'leeway=2d' ],
);

# Files: an algorithm, the file, and its content.
my @files = (
    ( map { [ $_, $absent, 'absent' ], [ $_, $folder, 'a folder' ], [ $_, $empty, 'empty' ] } qw(HS256 RS256 ES256 EdDSA jwks) ),
    ( map { [ $_, '/dev/zero', 'endless' ], [ $_, $fifo, 'a FIFO' ] } qw(HS256 RS256 jwks) ),
    ( map { [ 'HS256', $_, 'a public key that is not PEM' ] } $der, $ssh, $set, $jwk ),
    [ 'RS256', $pem{pss}, 'a key that is for PSS only' ],
    [ 'HS256', $newline,    'a newline' ],
    [ 'HS256', $secret{1},  '1 byte' ],
    [ 'HS256', $secret{31}, '31 bytes' ],
    [ 'HS256', $short_line, '31 bytes and a newline' ],
    [ 'HS384', $secret{32}, '32 bytes' ],
    [ 'HS384', $secret{47}, '47 bytes' ],
    [ 'HS512', $secret{48}, '48 bytes' ],
    [ 'HS512', $secret{63}, '63 bytes' ],
    ( map { [ 'HS256', $pem{$_}, "a public key in PEM, $_" ] } qw(rsa P-256 ed25519) ),
    ( map { [ 'HS512', $private{$_}, "a private key in PEM, $_" ] } qw(rsa P-256) ),
    [ 'HS256', $certificate, 'a certificate' ],
    ( map { my $alg = $_; map { [ $alg, $pem{$_}, "a key of $_" ] } qw(P-256 ed25519 x25519 dsa small) } qw(RS256 RS512 PS256) ),
    ( map { my $alg = $_; map { [ $alg, $pem{$_}, "a key of $_" ] } qw(rsa P-384 P-521 secp256k1 ed25519 x25519 dsa) } qw(ES256) ),
    ( map { [ 'ES384', $pem{$_}, "a key of $_" ] } qw(P-256 P-521 secp256k1 rsa) ),
    ( map { [ 'ES512', $pem{$_}, "a key of $_" ] } qw(P-256 P-384 secp256k1 ed448) ),
    ( map { [ 'EdDSA', $pem{$_}, "a key of $_" ] } qw(rsa P-256 x25519 x448 dsa) ),
    [ 'RS256', $private{rsa},     'a private key' ],
    [ 'PS512', $private{rsa},     'a private key' ],
    [ 'ES256', $private{'P-256'}, 'a private key' ],
    [ 'EdDSA', $private{ed25519}, 'a private key' ],
    ( map { my $alg = $_; map { [ $alg, $_, 'no key at all' ] } $garbage, $bytes, $broken, $cut, $secret{200} } qw(RS256 ES256 EdDSA) ),
    [ 'RS256', $mixed,     'keys of two types' ],
    [ 'ES256', $mixed,     'keys of two types' ],
    [ 'RS256', $small_too, 'a key that is too small after a good one' ],
    [ 'RS256', $half,      'half a key after a good one' ],
    [ 'RS256', $set,       'a key set' ],
    ( map { [ 'jwks', $pem{$_}, 'PEM' ] } qw(rsa P-256) ),
    [ 'jwks', $garbage, 'no JSON' ],
    [ 'jwks', $bytes,   'bytes' ],
);

my $number = 0;
my @bad_sets = (
    [ 'a single key',         json(jwk($key{rsa})) ],
    [ 'an empty object',      '{}' ],
    [ 'an array',             '[]' ],
    [ 'a text',               '"keys"' ],
    [ 'no key',               '{"keys":[]}' ],
    [ 'keys is an object',    '{"keys":{}}' ],
    [ 'keys is null',         '{"keys":null}' ],
    [ 'keys is a text',       '{"keys":"a"}' ],
    [ 'keys of other types',  '{"keys":[1,null,"a",[],{}]}' ],
    [ 'JSON that is cut',     substr jwks(jwk($key{rsa})), 0, 60 ],
    [ 'JSON and more',        jwks(jwk($key{rsa})) . '}' ],
    [ 'only for encryption',  jwks(jwk($key{rsa}, use => 'enc')) ],
    [ 'only for other operations', jwks(jwk($key{rsa}, key_ops => ['encrypt']), jwk($key{'P-256'}, key_ops => ['sign'])) ],
    [ 'an unknown type',      '{"keys":[{"kty":"XYZ","n":"AQAB"}]}' ],
    [ 'no type',              '{"keys":[{"n":"AQAB","e":"AQAB"}]}' ],
    [ 'an unknown algorithm', jwks(jwk($key{rsa}, alg => 'RS1')) ],
    [ 'algorithm none',       jwks(jwk($key{rsa}, alg => 'none')) ],
    [ 'an algorithm of another type', jwks(jwk($key{rsa}, alg => 'ES256')) ],
    [ 'an algorithm of another curve', jwks(jwk($key{'P-256'}, alg => 'ES384')) ],
    [ 'a secret for an RSA algorithm', jwks(jwk(new_secret(64), alg => 'RS256')) ],
    [ 'RSA too small',        jwks(jwk($key{small})) ],
    [ 'another curve',        jwks(jwk($key{secp256k1})) ],
    [ 'a key for agreement',  jwks(jwk($key{x25519}), jwk($key{x448})) ],
    [ 'a secret too short',   jwks(jwk(new_secret(31), alg => 'HS256')) ],
    [ 'a secret too short for its algorithm', jwks(jwk(new_secret(47), alg => 'HS384'), jwk(new_secret(63), alg => 'HS512')) ],
    [ 'RSA without a modulus', '{"keys":[{"kty":"RSA","e":"AQAB"}]}' ],
    [ 'RSA without an exponent', json({ keys => [ { kty => 'RSA', n => $key{rsa}{jwk}{n} } ] }) ],
    [ 'a point that is not on the curve', jwks(jwk($key{'P-256'}, y => $key{'P-256'}{jwk}{x})) ],
    [ 'half a point',         json({ keys => [ { kty => 'EC', crv => 'P-256', x => $key{'P-256'}{jwk}{x} } ] }) ],
    [ 'a secret without bytes', '{"keys":[{"kty":"oct"}]}' ],
    [ 'not base64url',        jwks(jwk($key{rsa}, n => '!!!!')) ],
);

# Sets with a usable key and others: each of the others gives a warning.
my $good     = jwk($key{'P-256'}, kid => 'good');
my @warnings = (
    [ 'for encryption',       1, jwks($good, jwk($key{rsa}, use => 'enc', kid => 'bad')) ],
    [ 'for other operations', 1, jwks(jwk($key{rsa}, key_ops => ['encrypt'], kid => 'bad'), $good) ],
    [ 'an unknown type',      1, jwks($good, { kty => 'XYZ', kid => 'bad' }) ],
    [ 'an unknown algorithm', 1, jwks($good, jwk($key{rsa}, alg => 'RSA-OAEP', kid => 'bad')) ],
    [ 'no operation',         1, jwks($good, jwk($key{rsa}, key_ops => [], kid => 'bad')) ],
    [ 'another use',          1, jwks($good, jwk($key{rsa}, use => 'other', kid => 'bad')) ],
    [ 'an exponent of 1',     1, jwks($good, jwk($key{rsa}, e => 'AQ', kid => 'bad')) ],
    [ 'an exponent that is even', 1, jwks($good, jwk($key{rsa}, e => 'AQAA', kid => 'bad')) ],
    [ 'a secret that is a public key', 1, jwks($good, { kty => 'oct', k => part($key{rsa}{public}), kid => 'bad' }) ],
    [ 'a secret that is a public key in DER', 1, jwks($good, { kty => 'oct', k => part($key{rsa}{der}), kid => 'bad' }) ],
    [ 'RSA too small',        1, jwks($good, jwk($key{small}, kid => 'bad')) ],
    [ 'a secret too short',   1, jwks($good, jwk(new_secret(20), kid => 'bad')) ],
    [ 'another curve',        1, jwks($good, jwk($key{secp256k1}, kid => 'bad')) ],
    [ 'a broken key',         1, jwks($good, { kty => 'RSA', n => '!', e => 'AQAB', kid => 'bad' }) ],
    [ 'a kid that is not a string', 1, jwks($good, jwk($key{rsa}, kid => 5)) ],
    [ 'a use that is not a string', 1, jwks($good, jwk($key{rsa}, use => ['enc'], kid => 'bad')) ],
    [ 'operations that are not an array', 1, jwks($good, jwk($key{rsa}, key_ops => 'encrypt', kid => 'bad')) ],
    [ 'algorithm none',       1, jwks($good, jwk($key{rsa}, alg => 'none', kid => 'bad')) ],
    [ 'not an object',        1, jwks($good, 5) ],
    [ 'two of them',          2, jwks($good, { kty => 'XYZ', kid => 'bad' }, jwk($key{rsa}, use => 'enc', kid => 'worse')) ],
);

my @sources = (
    [ 'no arguments',         'rate_limit_jwt_source' ],
    [ 'two words',            'rate_limit_jwt_source $cookie_a $cookie_b' ],
    [ 'not a variable',       'rate_limit_jwt_source token',               'token' ],
    [ 'two variables',        'rate_limit_jwt_source $arg_a$arg_b',        '$arg_a$arg_b' ],
    [ 'text and a variable',  'rate_limit_jwt_source "Bearer $arg_b"',     'Bearer $arg_b' ],
    [ 'an empty word',        'rate_limit_jwt_source ""' ],
    [ 'a $ without a name',   'rate_limit_jwt_source $',                   '$' ],
    [ 'an unknown variable',  'rate_limit_jwt_source $nowhere',            '$nowhere' ],
    [ 'given twice',          'rate_limit_jwt_source $cookie_a; rate_limit_jwt_source $cookie_a', '$cookie_a' ],
);

my @passing = (
    [ 'each source',            "$jwt rate_limit_key \$k header:X-Api-Key cookie:sid arg:key jwt:sub \$uri ip;" ],
    [ 'an address',             'rate_limit_key $k ip;' ],
    ( map { [ "prefix lengths $_", "rate_limit_key \$k $_;" ] } 'ip/1,1', 'ip/32,128', 'ip/24,48', 'ip/32,64' ),
    [ 'many keys',              join ' ', map {"rate_limit_key \$k$_ header:x-$_ ip;"} 1 .. 100 ],
    [ 'many sources',           'rate_limit_key $k ' . join(' ', map {"header:x-$_"} 1 .. 50) . ' ip;' ],
    [ 'every letter of a header', q(rate_limit_key $k "header:!#$) . q(%&'*+-.^_`|~09azAZ";) =~ s/\$%/%/r ],
    [ 'a key of a key',         'rate_limit_key $a header:x; rate_limit_key $b $a ip;' ],
    [ 'a variable of set',      'rate_limit_key $b $mine ip; server { listen 127.0.0.1:%PORT1%; set $mine 1; }' ],
    [ 'a zone before its key',  'rate_limit_zone $k zone=a:1m rate=1r/s; rate_limit_key $k ip;' ],
    [ 'a claim with dots',      "$jwt rate_limit_key \$k jwt:a.b.c;" ],
    [ 'a claim that is a URL',  "$jwt rate_limit_key \$k jwt:https://example.com/plan;" ],
    [ 'jwt: before the key',    "rate_limit_key \$k jwt:sub; $jwt" ],
    [ 'jwt: with a key in one server', "rate_limit_key \$k jwt:sub; server { listen 127.0.0.1:%PORT1%; $jwt }" ],
    [ 'a claim as a variable',  "$jwt map \$rate_limit_jwt_plan \$plan { default 1; }" ],
    [ 'unused keys',            $jwt ],
    ( map { [ "HS256, $_ bytes", "rate_limit_jwt_key HS256 $secret{$_};" ] } 32, 33, 64, 200 ),
    [ 'HS256, 32 bytes and a newline', "rate_limit_jwt_key HS256 $long_line;" ],
    [ 'HS384, 48 bytes',               "rate_limit_jwt_key HS384 $secret{48};" ],
    [ 'HS512, 64 bytes',               "rate_limit_jwt_key HS512 $secret{64};" ],
    [ 'HS256, any bytes',              "rate_limit_jwt_key HS256 $bytes;" ],
    ( map { [ $_, "rate_limit_jwt_key $_ $pem{rsa};" ] } qw(RS256 RS384 RS512 PS256 PS384 PS512) ),
    ( map { [ "$_, a key for PSS only", "rate_limit_jwt_key $_ $pem{pss};" ] } qw(PS256 PS512) ),
    [ 'ES256',                     "rate_limit_jwt_key ES256 $pem{'P-256'};" ],
    [ 'ES384',                     "rate_limit_jwt_key ES384 $pem{'P-384'};" ],
    [ 'ES512',                     "rate_limit_jwt_key ES512 $pem{'P-521'};" ],
    [ 'EdDSA, Ed25519',            "rate_limit_jwt_key EdDSA $pem{ed25519};" ],
    [ 'EdDSA, Ed448',              "rate_limit_jwt_key EdDSA $pem{ed448};" ],
    [ 'EdDSA, both',               'rate_limit_jwt_key EdDSA ' . key_file('both.pem', $key{ed25519}{public} . $key{ed448}{public}) . ';' ],
    [ 'text around a key',         'rate_limit_jwt_key RS256 ' . key_file('text.pem', "the key:\n$key{rsa}{public}\nends\n") . ';' ],
    [ 'a key set',                 "rate_limit_jwt_key jwks $set;" ],
    [ 'a key set with more in it', 'rate_limit_jwt_key jwks ' . set_file('more', json({ a => 1, keys => [ jwk($key{rsa}, x5t => 'a', more => {}) ] })) . ';' ],
    [ 'several keys',              "$jwt rate_limit_jwt_key RS256 $pem{rsa}; rate_limit_jwt_key jwks $set;" ],
    ( map { [ "leeway=$_", "rate_limit_jwt_key HS256 $secret{32} leeway=$_;" ] } qw(0 0s 1 30s 5m 24h 1d 86400s) ),
    [ 'another leeway for each',     "rate_limit_jwt_key HS256 $secret{32} leeway=1s; rate_limit_jwt_key RS256 $pem{rsa} leeway=2s;" ],
    [ 'a source',                    "$jwt rate_limit_jwt_source \$cookie_token;" ],
    [ 'a source in http and server', "rate_limit_jwt_source \$cookie_token; server { listen 127.0.0.1:%PORT1%; $jwt rate_limit_jwt_source \$http_x_token; }" ],
);

sub refuses {
    my ($title, $text, $directive, $word) = @_;
    my $check  = check_config(http => "$text;");
    my @emerg  = @{ $check->{emerg} };
    my @others = grep { !/\[emerg\]|configuration file .* test failed/ } split /\n/, $check->{stderr};
    my $line   = $emerg[0] // '';
    my @faults;
    push @faults, 'nginx -t passes' if !$check->{exit};
    push @faults, "nginx ends with $check->{exit}" if $check->{exit} > 1;
    push @faults, @emerg . ' emerg lines' if @emerg != 1;
    push @faults, 'more than one line' if @others;
    push @faults, 'the directive is not named' if $line !~ /"$directive"/;
    push @faults, "\"$word\" is not named" if defined $word && index($line, $word) < 0;
    push @faults, 'the accepted values are missing' if $line !~ /must be|requires|is duplicate/;
    push @faults, 'the file and line are missing' if $line !~ m{nginx\.conf:\d+};
    push @faults, 'a secret is shown' if $check->{stderr} =~ /abcdefgh|PRIVATE KEY|MII|"d":/;
    ok !@faults, "$directive: $title" or diag join '; ', @faults, "nginx says: $check->{stderr}";
    return;
}

# nginx does not free its pools when it exits early. The leak check would find only these, and takes longer than the
# test.
local $ENV{ASAN_OPTIONS} = "$ENV{ASAN_OPTIONS}:detect_leaks=0" if $ENV{RL_SANITIZE};

for my $table ([ rate_limit_key => \@keys ], [ rate_limit_jwt_key => \@jwt_keys ], [ rate_limit_jwt_source => \@sources ]) {
    my ($directive, $rows) = @{$table};
    for my $row (@{$rows}) {
        my ($title, $text, $word) = @{$row};
        refuses($title, $text, $directive, $word);
    }
}
for my $row (@files) {
    my ($algorithm, $file, $title) = @{$row};
    refuses("$algorithm: $title", "rate_limit_jwt_key $algorithm $file", 'rate_limit_jwt_key', $file);
}
for my $row (@bad_sets) {
    my ($title, $text) = @{$row};
    my $file   = set_file('bad' . $number++, $text);
    my $check  = check_config(http => "rate_limit_jwt_key jwks $file;");
    my @emerg  = @{ $check->{emerg} };
    my @faults = grep { !/\[emerg\]|\[warn\].*"rate_limit_jwt_key"|configuration file .* test failed/ } split /\n/, $check->{stderr};
    push @faults, "it ends with $check->{exit}" if $check->{exit} != 1;
    push @faults, @emerg . ' emerg lines' if @emerg != 1;
    push @faults, 'the reason is missing' if ($emerg[0] // '') !~ /"rate_limit_jwt_key".*\Q$file\E.*nginx\.conf:\d+/;
    ok !@faults, "a key set without a usable key: $title" or diag join '; ', @faults, $check->{stderr};
}
for my $row (@warnings) {
    my ($title, $count, $text) = @{$row};
    my $file  = set_file('partly' . $number++, $text);
    my $check = check_config(http => "rate_limit_jwt_key jwks $file;");
    my @warn  = grep {/\[warn\].*"rate_limit_jwt_key".*\Q$file\E/} split /\n/, $check->{stderr};
    ok $check->{exit} == 0 && @warn == $count && $check->{stderr} !~ /good/, "a key set that is partly usable passes with a warning: $title"
        or diag "$check->{exit} $check->{stderr}";
}

# More keys of one algorithm than are tried for one token.
{
    my @some = map { new_key('P-256') } 1 .. 9;
    my %warned = (
        'eight keys of a set'  => [ 0, 'rate_limit_jwt_key jwks ' . set_file('eight', jwks(map { jwk($_) } @some[ 0 .. 7 ])) . ';' ],
        'nine keys of a set'   => [ 1, 'rate_limit_jwt_key jwks ' . set_file('nine', jwks(map { jwk($_) } @some)) . ';' ],
        'nine keys in PEM'     => [ 1, 'rate_limit_jwt_key ES256 ' . key_file('nine.pem', join '', map { $_->{public} } @some) . ';' ],
        'nine files'           => [ 1, join ' ', map { 'rate_limit_jwt_key ES256 ' . key_file("$_.pem", $some[$_]{public}) . ';' } 0 .. 8 ],
        'keys of two kinds'    => [ 0, 'rate_limit_jwt_key jwks ' . set_file('kinds', jwks((map { jwk($_) } @some[ 0 .. 7 ]), jwk($key{rsa}))) . ';' ],
    );
    for my $title (sort keys %warned) {
        my ($warns, $text) = @{ $warned{$title} };
        my $check = check_config(http => $text);
        my @lines = grep {/\[warn\].*"rate_limit_jwt_key".*\b8\b/} split /\n/, $check->{stderr};
        is "$check->{exit} @{[ scalar @lines ]}", "0 $warns", "$title: " . ($warns ? 'a warning' : 'no warning') or diag $check->{stderr};
    }
}

# A claim as a variable, without any key.
for my $row (
    [ 'in a map',     http   => 'map $rate_limit_jwt_plan $plan { default 1; }' ],
    [ 'in a zone',    http   => 'rate_limit_zone $rate_limit_jwt_sub zone=a:1m rate=1r/s;' ],
    [ 'in a rate',    http   => 'rate_limit_zone $uri zone=a:1m rate=$rate_limit_jwt_rate;' ],
    [ 'in a header',  server => 'add_header X-A $rate_limit_jwt_sub;' ],
    [ 'in a log',     http   => 'log_format a $rate_limit_jwt_sub; access_log a.log a;' ],
    )
{
    my ($title, @conf) = @{$row};
    my $check = check_config(@conf);
    ok $check->{exit} == 1 && @{ $check->{emerg} } == 1 && $check->{emerg}[0] =~ /variable "\$rate_limit_jwt_(?:plan|sub|rate)" requires "rate_limit_jwt_key"/,
        "a claim without any key, $title" or diag $check->{stderr};
}

# A variable that another directive defines later: nginx writes the message.
for my $later ('map $uri $k { default 1; }', 'geo $k { default 1; }', 'server { listen 127.0.0.1:%PORT1%; set $k 1; }') {
    my $check = check_config(http => "rate_limit_key \$k header:a; $later");
    ok $check->{exit} == 1 && @{ $check->{emerg} } == 1 && $check->{emerg}[0] =~ /"k"|\$k/, "defined again later: $later" or diag $check->{stderr};
}

# Contexts where a directive is not allowed.
my @places = (
    ( map { [ $_, 'rate_limit_key $k ip;' ] } qw(main server location if) ),
    ( map { [ $_, $jwt ] } qw(main location if) ),
    ( map { [ $_, 'rate_limit_jwt_source $cookie_a;' ] } qw(main location if) ),
);
for my $row (@places) {
    my ($place, $text) = @{$row};
    my %conf
        = $place eq 'location' ? (server => "location / { $text }")
        : $place eq 'if'       ? (server => "location / { if (\$arg_a) { $text } }")
        :                        ($place => $text);
    my ($directive) = $text =~ /(\w+)/;
    my $check = check_config(%conf);
    like join("\n", @{ $check->{emerg} }), qr/^.*"$directive" directive is not allowed here.*$/, "$directive in $place";
}

for my $row (@passing) {
    my ($title, $text) = @{$row};
    my $check = check_config(http => $text);
    is "$check->{exit}$check->{stderr}", '0', "passes without a message: $title";
}

done_testing;
