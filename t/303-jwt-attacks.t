# An invalid token has no claims: each known way of forging one, and the log message for it.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx slurp);
use Test::More;
use Time::HiRes qw(time);
use Token qw(new_key new_secret token forge header signature part decode_part json key_file jwks jwk);

my $rsa     = new_key('rsa');
my $rsa_too = new_key('rsa');
my $ec      = new_key('P-256');
my $ed      = new_key('ed25519');
my $secret  = new_secret(64);
my $mallory = new_key('rsa');
my $mallory_ec = new_key('P-256');
my $koblitz = new_key('secp256k1');

my %file = (
    rs => key_file('rs', $rsa->{public}),
    es => key_file('es', $ec->{public}),
    hs => key_file('hs', $secret->{secret}),
    ed => key_file('ed', $ed->{public}),
);
my $set = key_file(
    'set.json',
    jwks(
        jwk($rsa, kid => 'a', alg => 'RS256'), jwk($rsa_too, kid => 'b'),
        jwk($ec, kid => 'c'), jwk($secret, kid => 'd', alg => 'HS256')
    )
);
my %algorithm = (rs => 'RS256', es => 'ES256', hs => 'HS256', ed => 'EdDSA');

my $servers = '';
for my $row (
    (map { [ $_, "$algorithm{$_} $file{$_}" ] } sort keys %algorithm),
    [ 'set',    "jwks $set" ],
    [ 'leeway', "HS256 $file{hs} leeway=10s" ],
    [ 'quiet',  "HS256 $file{hs}; error_log %DIR%/quiet.log notice" ],
    )
{
    my ($name, $key) = @{$row};
    $servers .= <<"SERVER";
server {
    listen 127.0.0.1:%PORT%;
    server_name $name;
    rate_limit_jwt_key $key;
    location / {
        rate_limit zone=one;
        rate_limit zone=two;
        add_header X-Who \$who always;
        add_header X-Claims "<\$rate_limit_jwt_sub\$rate_limit_jwt_x>" always;
        empty_gif;
    }
}
SERVER
}
my $nginx = start_nginx(
    http => <<'HTTP',
large_client_header_buffers 8 64k;
rate_limit_key $who jwt:sub jwt:x ip;
rate_limit_zone $who zone=one:1m rate=100000r/d;
rate_limit_zone $who zone=two:1m rate=100000r/d;
HTTP
    servers => $servers,
);

my $now    = int time;
my $claims = json({ sub => 'mallory' });
my %reason = (
    long      => 'it is longer than 16384 bytes',
    malformed => 'it is malformed',
    crit      => 'its header has "crit"',
    key       => 'there is no key for its algorithm and key id',
    signature => 'its signature is wrong',
    claims    => 'its claims are malformed',
    expired   => 'it has expired',
    early     => 'it is not valid yet',
);
my %known = map { $_ => 1 } values %reason;
my @sent;    # all tokens that were sent
my $seen = 0;

# Returns the reasons that were logged since the last call.
sub reasons {
    my $log = $nginx->error_log;
    my $new = substr $log, $seen;
    $seen = length $log;
    my @reasons;
    for my $line (split /\n/, $new) {
        next if $line !~ /token is not valid/;
        push @reasons, $line =~ /\[info\] \S+ \S+ .*token is not valid and has no claims: (.*?), client: 127/ ? $1 : "?? $line";
    }
    return @reasons;
}

# Sends a request with these values of Authorization. Returns the client's name, and the claims that variables show.
sub ask {
    my ($host, @values) = @_;
    push @sent, @values;
    my $answer = $nginx->request(path => '/', headers => [ Host => $host, map { (Authorization => $_) } @values ]);
    return $answer->{status} . ' ' . join ' ', map { $answer->header($_) // '-' } qw(X-Who X-Claims);
}

# Asserts that a token is rejected each time it is sent, with one of these reasons.
sub refused {
    my ($title, $host, $token, @names) = @_;
    my @faults;
    for my $time (1, 2) {
        my $who     = ask($host, "Bearer $token");
        my @reasons = reasons();
        push @faults, "time $time: $who" if $who ne '200 ip:127.0.0.1 <>';
        push @faults, 'logged ' . scalar @reasons . ' times' if @reasons != 1;
        push @faults, "unknown reason: $_" for grep { !$known{$_} } @reasons;
        push @faults, "reason: $_" for grep { my $reason = $_; !grep { $reason{$_} eq $reason } @names } @reasons;
    }
    ok !@faults, "$host: $title" or diag join "\n", @faults;
    return;
}

sub believed {
    my ($title, $host, $token) = @_;
    is ask($host, "Bearer $token"), '200 jwt:sub:mallory <mallory>', "$host: $title";
    is join(' ', reasons()), '', "$host: $title: nothing to log";
    return;
}

my %good = (
    rs => forge($rsa,    'RS256', header('RS256'), $claims),
    es => forge($ec,     'ES256', header('ES256'), $claims),
    hs => forge($secret, 'HS256', header('HS256'), $claims),
    ed => forge($ed,     'EdDSA', header('EdDSA'), $claims),
);
believed('a valid token',           $_, $good{$_}) for sort keys %good;
believed('a valid token',           'set', forge($rsa, 'RS256', header('RS256', kid => 'a'), $claims));

# Algorithm none.
for my $none ('none', 'None', 'NONE', 'nOnE', 'none ', ' none', 'none\u0000', '\u006eone', '') {
    my $head = part(qq({"alg":"$none"})) . '.' . part($claims);
    for my $host (qw(rs es hs ed set)) {
        refused("\"$none\" without a signature", $host, "$head.", qw(key malformed));
    }
    refused("\"$none\" without a signature nor its dot", 'rs', $head, qw(malformed));
    refused("\"$none\" with the signature of another token", 'rs', "$head." . (split /\./, $good{rs})[2], qw(key malformed));
    refused("\"$none\" signed with the right secret", 'hs', "$head." . signature($secret, 'HS256', $head), qw(key malformed));
}

# A public key used as a secret.
my %public = (
    'PEM'                    => $rsa->{public},
    'PEM without newline'    => $rsa->{public} =~ s/\n\z//r,
    'PEM in one line'        => $rsa->{public} =~ s/\n//gr,
    'PEM of PKCS#1'          => $rsa->{pkcs1},
    'DER'                    => $rsa->{der},
    'modulus'                => decode_part($rsa->{jwk}{n}),
    'modulus as in the set'  => $rsa->{jwk}{n},
    'JSON'                   => json($rsa->{jwk}),
    'name of its file'       => $file{rs},
    'empty text'             => '',
);
for my $what (sort keys %public) {
    for my $alg (qw(HS256 HS384 HS512)) {
        my $key = { secret => $public{$what} };
        refused("$alg with the public key as the secret: $what", 'rs', forge($key, $alg, header($alg), $claims), 'key');
        refused("$alg with the public key as the secret: $what", 'set', forge($key, $alg, header($alg, kid => 'a'), $claims), 'key');
    }
    refused("RS256 signed as HS256 with the public key: $what", 'rs', forge({ secret => $public{$what} }, 'HS256', header('RS256'), $claims),
        'signature');
}
refused('HS256 with the public key as the secret: ' . length($_) . ' bytes', 'es', forge({ secret => $_ }, 'HS256', header('HS256'), $claims), 'key')
    for $ec->{public}, $ec->{public} =~ s/\n\z//r, $ec->{der}, $ec->{jwk}{x}, decode_part($ec->{jwk}{x});
refused('HS256 with the public key as the secret', 'ed', forge({ secret => $ed->{public} }, 'HS256', header('HS256'), $claims), 'key');
refused('an empty secret', 'hs', forge({ secret => '' }, 'HS256', header('HS256'), $claims), 'signature');
refused('half of the secret', 'hs', forge({ secret => substr $secret->{secret}, 0, 32 }, 'HS256', header('HS256'), $claims), 'signature');

# One algorithm in place of another.
refused("$_ for RS256, correctly signed", 'rs', forge($rsa, $_, header($_), $claims), 'key') for qw(RS384 RS512 PS256 PS384 PS512);
refused("$_ that claims to be RS256",   'rs', forge($rsa, $_, header('RS256'), $claims), 'signature') for qw(RS384 RS512 PS256 PS512);
refused("RS256 that claims to be $_",   'rs', forge($rsa, 'RS256', header($_), $claims), 'key') for qw(RS512 PS256 ES256 EdDSA HS256);
refused("$_ for HS256, correctly signed", 'hs', forge($secret, $_, header($_), $claims), 'key') for qw(HS384 HS512);
refused("HS256 that claims to be $_",   'hs', forge($secret, 'HS256', header($_), $claims), 'key') for qw(HS384 hs256 HS256K);
refused('RS512 for a key of the set that is for RS256', 'set', forge($rsa, 'RS512', header('RS512', kid => 'a'), $claims), 'key');
refused('ES256K', 'es', forge($koblitz, 'ES256', header('ES256K'), $claims), 'key');
refused('ES256 by a key of another curve', 'es', forge($koblitz, 'ES256', header('ES256'), $claims), 'signature');
for my $alg ('rs256', 'RS256 ', ' RS256', 'RS256\u0000', 'RS', 'RS2560', 'A128KW', 'dir') {
    refused("alg \"$alg\"", 'rs', forge($rsa, 'RS256', qq({"alg":"$alg"}), $claims), qw(key malformed));
}
refused("alg $_", 'rs', forge($rsa, 'RS256', "{\"alg\":$_}", $claims), qw(key malformed)) for '256', 'null', 'true', '["RS256"]', '{"RS256":1}', '[]';
refused('no alg', 'rs', forge($rsa, 'RS256', '{"typ":"JWT"}', $claims), qw(key malformed));
refused('an empty header', 'rs', forge($rsa, 'RS256', '{}', $claims), qw(key malformed));

# Key ids.
refused('the kid of another key', 'set', forge($rsa, 'RS256', header('RS256', kid => 'b'), $claims), 'signature');
refused('the kids exchanged', 'set', forge($rsa_too, 'RS256', header('RS256', kid => 'a'), $claims), 'signature');
refused('the kid of a key of another type', 'set', forge($rsa, 'RS256', header('RS256', kid => 'c'), $claims), 'key');
refused('an unknown name', 'set', forge($rsa, 'RS256', header('RS256', kid => 'z'), $claims), 'key');
for my $kid ('/dev/null', '../../../../../../dev/null', $file{hs}, $set, 'a/../a', "a'--", 'a;id', '%61', 'http://127.0.0.1/', 'A', 'x' x 5000) {
    my $title = 'a key with the kid ' . (length $kid > 40 ? length($kid) . ' bytes long' : $kid);
    refused($title, 'set', forge({ secret => $_ }, 'HS256', header('HS256', kid => $kid), $claims), qw(key malformed)) for '', "\n";
}
refused("a kid that is not a string: $_", 'set', forge($mallory, 'RS256', "{\"alg\":\"RS256\",\"kid\":$_}", $claims), 'malformed') for '1', 'null', 'true', '["a"]', '{}';
refused('an empty name', 'set', forge($mallory, 'RS256', '{"alg":"RS256","kid":""}', $claims), qw(key signature));

# Keys inside a token.
my %brought = (
    jwk => $mallory->{jwk},
    jku => 'http://127.0.0.1:1/keys',
    x5u => 'http://127.0.0.1:1/certificate',
    x5c => [ MIME::Base64::encode_base64($mallory->{der}, '') ],
    x5t => 'abc',
);
for my $name (sort keys %brought) {
    refused("$name inside the token", 'rs', forge($mallory, 'RS256', header('RS256', $name => $brought{$name}), $claims), 'signature');
    refused("$name inside the token", 'set', forge($mallory, 'RS256', header('RS256', kid => 'a', $name => $brought{$name}), $claims), 'signature');
}
refused('jwk inside the token', 'es', forge($mallory_ec, 'ES256', header('ES256', jwk => $mallory_ec->{jwk}), $claims), 'signature');
refused('jwk inside the token', 'hs', forge({ secret => 'x' x 64 }, 'HS256', header('HS256', jwk => { kty => 'oct', k => part('x' x 64) }), $claims), 'signature');

# crit.
refused("crit $_", 'rs', forge($rsa, 'RS256', "{\"alg\":\"RS256\",\"crit\":$_}", $claims), 'crit') for '["exp"]', '["b64"],"b64":false', '[]', 'null', '"exp"', '{}';

# Signatures.
{
    my %signature = map { $_ => (split /\./, $good{$_})[2] } keys %good;
    for my $host (sort keys %good) {
        my ($head, $body, $bytes) = ((split /\./, $good{$host})[ 0, 1 ], decode_part($signature{$host}));
        my $flip = sub { my ($at) = @_; my $copy = $bytes; vec($copy, $at, 8) ^= 1; return "$head.$body." . part($copy) };
        refused("a signature that differs in byte $_", $host, $flip->($_), 'signature') for 0, 1, length($bytes) / 2, length($bytes) - 1;
        refused('a signature without its last byte', $host, "$head.$body." . part(substr $bytes, 0, -1), 'signature');
        refused('a signature and one byte more', $host, "$head.$body." . part("$bytes\0"), 'signature');
        refused('a signature of one byte', $host, "$head.$body.AA", 'signature');
        refused('a signature of zeros', $host, "$head.$body." . part("\0" x length $bytes), 'signature');
        refused('a signature of ones', $host, "$head.$body." . part("\xff" x length $bytes), 'signature');
        refused('a signature of 8 KB', $host, "$head.$body." . part('x' x 8000), 'signature');
        refused('other claims', $host, "$head." . part(json({ sub => 'mallory', admin => 1 })) . ".$signature{$host}", 'signature');
        refused('another header', $host, part(header($algorithm{$host}, x => 1)) . ".$body.$signature{$host}", 'signature');
        believed('the unchanged token', $host, $good{$host});
    }
    refused('a signature in DER', 'es', forge($ec, 'DER256', header('ES256'), $claims), 'signature');
    my $order = pack 'H*', 'ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551';
    my ($head, $body) = split /\./, $good{es};
    refused('r and s of the order of the curve', 'es', "$head.$body." . part($order x 2), 'signature');
    refused("the token of $_->[0]", $_->[1], $good{ $_->[0] }, 'key') for map { my $one = $_; map { [ $one, $_ ] } grep { $_ ne $one } sort keys %good } sort keys %good;
    refused('a token of another key', 'rs', forge($mallory, 'RS256', header('RS256'), $claims), 'signature');
    refused('a token of a key of another server', 'rs', forge($rsa_too, 'RS256', header('RS256'), $claims), 'signature');
}

# Time.
my %times = (
    'expired'                  => [ 'hs', 'expired', '"exp":' . ($now - 5) ],
    'expired in 1970'          => [ 'hs', 'expired', '"exp":0' ],
    'expired before 1970'      => [ 'hs', 'expired', '"exp":-5' ],
    'expired, and not yet'     => [ 'hs', 'expired', '"exp":' . ($now - 5) . ',"nbf":' . ($now - 9) ],
    'not yet'                  => [ 'hs', 'early',   '"nbf":' . ($now + 600) ],
    'expired beyond leeway'    => [ 'leeway', 'expired', '"exp":' . ($now - 11) ],
    'not yet beyond leeway'    => [ 'leeway', 'early', '"nbf":' . ($now + 600) ],
    map {
        my $name = $_;
        map { ("$name $_" => [ 'hs', 'claims', "\"$name\":$_" ]) }
            '"' . ($now + ($name eq 'exp' ? 600 : -600)) . '"', '""', 'null', 'true', 'false', '[]', '{}', '[' . ($now + 600) . ']'
    } qw(exp nbf)
);
for my $title (sort keys %times) {
    my ($host, $reason, $text) = @{ $times{$title} };
    refused($title, $host, forge($secret, 'HS256', header('HS256'), qq({"sub":"mallory",$text})), $reason);
}

# The text of a token.
{
    my ($head, $body, $signature) = split /\./, $good{rs};
    my %texts = (
        'a header only'              => $head,
        'a header and a dot'         => "$head.",
        'no signature, no dot'       => "$head.$body",
        'no header'                  => ".$body.$signature",
        'dots'                       => '..',
        'a dot'                      => '.',
        'three dots'                 => '...',
        'a fourth part'              => "$good{rs}.$signature",
        'a fourth part that is empty' => "$good{rs}.",
        'an empty part before'       => ".$good{rs}",
        'five parts, as of JWE'      => join('.', part('{"alg":"RSA-OAEP","enc":"A256GCM"}'), map { part("mallory$_") } 1 .. 4),
        'five parts, two empty'      => "$good{rs}..",
        'a hundred parts'            => join('.', ('AAAA') x 100),
        'padding after the header'   => "$head=.$body.$signature",
        'padding after the claims'   => "$head.$body=.$signature",
        'padding after the signature' => "$good{rs}==",
        'a blank inside'             => "$head. $body.$signature",
        'a blank in a part'          => substr($head, 0, 5) . ' ' . substr($head, 5) . ".$body.$signature",
        'a tab inside'               => "$head.\t$body.$signature",
        'two tokens'                 => "$good{rs} $good{rs}",
        'two tokens with a comma'    => "$good{rs}, $good{rs}",
        'a comma at the end'         => "$good{rs},",
        'quotes'                     => "\"$good{rs}\"",
        'a dot that is encoded'      => "$head%2E$body.$signature",
        'Bearer twice'               => "Bearer $good{rs}",
        'a character that is not ASCII' => "$head.$body\xc3\xa9.$signature",
        'bytes that are not text'     => "\xff\xfe.$body.$signature",
        'base64 of another alphabet' => "$head.$body." . '+/+/' . substr($signature, 4),
        'one character more in a header' => "${head}A.$body.$signature",
        'words'                      => 'this is no token at all',
        'a letter'                   => 'x',
    );
    refused($_, 'rs', $texts{$_}, 'malformed') for sort keys %texts;
    refused('cut after ' . $_, 'rs', substr($good{rs}, 0, $_), 'malformed') for 1, length($head) - 1, length($head) + 2;
    refused('half of the signature', 'rs', substr($good{rs}, 0, length($good{rs}) - 200), qw(signature malformed));
    refused('no claims', 'rs', "$head..$signature", qw(malformed claims));
    refused('without its first character', 'rs', substr($good{rs}, 1), qw(malformed));
}

# Length: the largest accepted token, and one byte more.
sub sized {
    my ($length) = @_;
    for my $head (map { header('HS256', x => 'x' x $_) } 0 .. 3) {
        my $left = $length - length(part($head)) - 2 - 43;
        for my $size (map { int($left * 3 / 4) - 24 + $_ } 0 .. 3) {
            my $text = '{"sub":"mallory","f":"' . 'x' x $size . '"}';
            return forge($secret, 'HS256', $head, $text) if length part($text) == $left;
        }
    }
    die "no token of $length bytes\n";
}
believed("$_ bytes", 'hs', sized($_)) for 16_383, 16_384;
refused("$_ bytes", 'hs', sized($_), 'long') for 16_385, 16_386, 40_000;
refused('40 KB of dots', 'hs', '.' x 40_000, 'long');
refused('16 KB of letters', 'hs', 'x' x 16_384, 'malformed');
refused('16 KB of dots', 'hs', '.' x 16_384, 'malformed');

# JSON that parsers interpret differently, correctly signed.
my $sub  = '"sub":"mallory"';
my %json = (
    'a claim twice'               => '{"sub":"alice",' . $sub . '}',
    'a claim twice, alike'        => "{$sub,$sub}",
    'a claim twice, escaped'      => "{$sub," . '"s\u0075b":"alice"}',
    'another claim twice'         => "{$sub," . '"exp":9999999999,"exp":1}',
    'nested twice'                => "{$sub," . '"a":{"b":1,"b":2}}',
    'nested twice, deep'          => "{$sub," . '"a":{"b":{"c":{"d":1,"d":1}}}}',
    'nested twice, in an array'   => "{$sub," . '"a":[1,[{"d":1,"d":2}]]}',
    'empty names twice'           => "{$sub," . '"":1,"":2}',
    'an array'                    => "[{$sub}]",
    'a text'                      => '"mallory"',
    'a number'                    => '42',
    'null'                        => 'null',
    'true'                        => 'true',
    'nothing'                     => ' ',
    'two objects'                 => "{$sub}{$sub}",
    'a letter after it'           => "{$sub}x",
    'NUL after it'                => "{$sub}\0",
    'NUL in it'                   => "{$sub\0}",
    'a brace missing'             => "{$sub",
    'a comma too many'            => "{$sub,}",
    'a comment'                   => "{$sub/* mallory */}",
    'single quotes'               => q({'sub':'mallory'}),
    'a name without quotes'       => '{sub:"mallory"}',
    'NaN'                         => "{$sub," . '"n":NaN}',
    'Infinity'                    => "{$sub," . '"n":-Infinity}',
    'a number with a zero before' => "{$sub," . '"n":01}',
    'a byte order mark'           => "\xef\xbb\xbf{$sub}",
    'UTF-16'                      => join('', map {"$_\0"} split //, "{$sub}"),
    'a newline in a text'         => "{$sub,\"a\":\"b\nc\"}",
    'invalid UTF-8'          => "{$sub,\"a\":\"\xff\xfe\"}",
    'UTF-8 cut short'             => "{$sub,\"a\":\"\xc3\"}",
    'UTF-8 too long'              => "{$sub,\"a\":\"\xc0\xaf\"}",
    'UTF-8 of a surrogate'        => "{$sub,\"a\":\"\xed\xa0\x80\"}",
    'half a surrogate'            => "{$sub," . '"a":"\ud800"}',
    'an invalid escape'      => "{$sub," . '"a":"\x"}',
    'NUL in a claim'              => '{"sub":"mallory\u0000alice"}',
    'NUL in a name'               => "{$sub," . '"a\u0000b":1}',
    'arrays in arrays'            => "{$sub,\"a\":" . '[' x 5000 . ']' x 5000 . '}',
    'arrays that do not end'      => "{$sub,\"a\":" . '[' x 11_000,
    'objects in objects'          => '{"":' x 2300 . '1' . '}' x 2300,
);
for my $title (sort keys %json) {
    refused("claims: $title", 'hs', forge($secret, 'HS256', header('HS256'), $json{$title}), 'claims');
}
my $alg     = '"alg":"HS256"';
my %headers = (
    'alg twice'                => '{"alg":"none",' . $alg . '}',
    'alg twice, alike'         => "{$alg,$alg}",
    'alg twice, escaped'       => "{$alg," . '"\u0061lg":"none"}',
    'kid twice'                => "{$alg," . '"kid":"a","kid":"b"}',
    'nested twice'             => "{$alg," . '"jwk":{"k":1,"k":2}}',
    'an array'                 => "[{$alg}]",
    'a text'                   => '"HS256"',
    'null'                     => 'null',
    'a brace missing'          => "{$alg",
    'two objects'              => "{$alg}{$alg}",
    'a letter after it'        => "{$alg}x",
    'a byte order mark'        => "\xef\xbb\xbf{$alg}",
    'invalid UTF-8'       => "{$alg,\"a\":\"\xff\"}",
    'NUL after it'             => "{$alg}\0",
    'NUL in a name'            => "{$alg," . '"a\u0000b":1}',
    'NUL in a text'            => "{$alg," . '"kid":"a\u0000"}',
    'arrays in arrays'         => "{$alg,\"a\":" . '[' x 5000 . ']' x 5000 . '}',
    'nothing'                  => ' ',
);
for my $title (sort keys %headers) {
    refused("header: $title", 'hs', forge($secret, 'HS256', $headers{$title}, $claims), 'malformed');
}

# A valid token whose claim cannot be a name: nothing is logged.
for my $value ('null', '{}', '{"sub":"mallory"}', '[]', '["mallory"]', '""') {
    is ask('hs', 'Bearer ' . forge($secret, 'HS256', header('HS256'), "{\"sub\":$value}")), '200 ip:127.0.0.1 <>', "sub is $value: no name";
    is join(' ', reasons()), '', "sub is $value: nothing to log";
}

# Requests without a token.
for my $row ([ 'no header' ], [ 'Basic', 'Basic dXNlcjpwYXNzd29yZA==' ], [ 'Basic with a token', "Basic $good{hs}" ],
    [ 'a token without Bearer', $good{hs} ], [ 'Digest', 'Digest username="mallory"' ])
{
    my ($title, @values) = @{$row};
    is ask('hs', @values), '200 ip:127.0.0.1 <>', "$title: no name";
    is join(' ', reasons()), '', "$title: nothing to log";
}
is ask('hs', $_), '200 ip:127.0.0.1 <>', "\"$_\": no name" for 'Bearer', 'Bearer ', 'bearer  x', "Bearer\tx", 'Bearer Bearer', 'Bearer: x';
for my $pair ([ 'Basic dXNlcjpwYXNzd29yZA==', "Bearer $good{hs}" ], [ "Bearer $good{hs}", 'Bearer x' ], [ "Bearer $good{hs}", "Bearer $good{hs}" ]) {
    like ask('hs', @{$pair}), qr/^(?:200 ip:127\.0\.0\.1 <>|400 .*)$/, 'two headers Authorization: no name, or no answer but 400';
}
reasons();

is ask('quiet', 'Bearer a.b.c'), '200 ip:127.0.0.1 <>', 'without info messages, an invalid token gives no name either';
is slurp($nginx->dir . '/quiet.log'), '', 'an invalid token is not logged';

# No log contains a token.
{
    # nginx itself logs duplicate headers that it rejects.
    my $log = join "\n", grep { !/client sent duplicate header line/ } split /\n/, $nginx->error_log . $nginx->access_log;
    my %found;
    for my $value (@sent) {
        for my $text (map { split /[. ]/ } $value) {
            $found{ substr $text, 0, 40 } = 1 if length $text > 8 && index($log, $text) >= 0;
        }
    }
    is_deeply [ sort keys %found ], [], scalar(@sent) . ' tokens: no part of a token is in a log';
    unlike $log, qr/mallory|bWFsbG9y|eyJ/, 'no claim is in a log';
    my ($control) = $log =~ /([^\n -~])/;
    is $control, undef, 'the logs are printable ASCII';
}
unlike $nginx->error_log, qr/exited on signal|\[(?:alert|crit)\]/, 'no worker died';

done_testing;
