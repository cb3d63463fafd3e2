# rate_limit_jwt_key: which tokens are valid, which claims are used, and until when.
use strict;
use warnings;

use lib 't/lib';
use Digest::SHA qw(hmac_sha256_base64);
use RateLimit qw(start_nginx format_request wait_for);
use Test::More;
use Time::HiRes qw(sleep time);
use Token qw(new_key new_secret token forge header json part key_file jwks jwk);

my @hs    = qw(HS256 HS384 HS512);
my @rsa   = qw(RS256 RS384 RS512 PS256 PS384 PS512);
my %curve = (ES256 => 'P-256', ES384 => 'P-384', ES512 => 'P-521');

# Keys by algorithm. All RSA algorithms share one key, so that only the algorithm distinguishes their tokens.
my %key = map { $_ => new_key($curve{$_}) } keys %curve;
@key{@rsa} = (new_key('rsa')) x @rsa;
$key{$_} = new_secret(64) for @hs;
my %edwards    = (Ed25519 => new_key('ed25519'), Ed448 => new_key('ed448'));
my @algorithms = (@hs, @rsa, sort keys %curve);
my @names      = (@algorithms, sort keys %edwards);
my $stranger   = new_key('rsa');
my $other_rsa  = new_key('rsa');
my $pss        = new_key('rsa-pss');

sub algorithm_of { my ($name) = @_; return $edwards{$name} ? 'EdDSA' : $name }
sub key_of       { my ($name) = @_; return $edwards{$name} // $key{$name} }
sub pem_of       { my ($name) = @_; my $key = key_of($name); return $key->{public} // $key->{secret} }

my %file = map { $_ => key_file($_, pem_of($_)) } @names;
my %tokens = map { $_ => token(key_of($_), algorithm_of($_), { sub => "user-$_", plan => 'gold' }) } @names;

my %sets = (
    plain => jwks(
        jwk($key{RS256}), jwk($key{ES256}), jwk($key{ES384}), jwk($key{ES512}), jwk($key{HS512}),
        jwk($edwards{Ed25519}), jwk($edwards{Ed448})
    ),
    pinned => jwks(
        jwk($key{RS256}, alg => 'RS384'),
        jwk($key{HS256}, alg => 'HS384'),
        jwk($key{ES256}, alg => 'ES256', use => 'sig'),
        jwk($edwards{Ed25519}, alg => 'EdDSA', key_ops => ['verify'])
    ),
    named => jwks(
        jwk($key{RS256},  kid => 'one', use => 'sig', alg => 'RS256'),
        jwk($other_rsa,   kid => 'two', use => 'sig', alg => 'RS256'),
        jwk($key{ES256},  kid => 'one'),
        jwk($edwards{Ed25519})
    ),
);

my @dozen = map { new_key('P-256') } 1 .. 12;
$sets{dozen} = jwks(map { jwk($dozen[$_], kid => "key$_") } 0 .. $#dozen);

sub server {
    my ($name, $directives) = @_;
    return <<"SERVER";
server {
    listen 127.0.0.1:%PORT%;
    server_name $name;
    $directives
    location / { return 200 "\$who"; }
}
SERVER
}

my $servers = '';
$servers .= server(lc $_, 'rate_limit_jwt_key ' . algorithm_of($_) . " $file{$_};") for @names;
$servers .= server("set-$_", 'rate_limit_jwt_key jwks ' . key_file("$_.json", $sets{$_}) . ';') for sort keys %sets;
$servers .= server('several', "rate_limit_jwt_key RS256 $file{RS256}; rate_limit_jwt_key HS384 $file{HS384};"
        . "rate_limit_jwt_key jwks " . key_file('es.json', jwks(jwk($key{ES512}))) . ';');
$servers .= server('bundle', 'rate_limit_jwt_key RS256 '
        . key_file('bundle.pem', "two of them\n$other_rsa->{public}\n\n$key{RS256}{public}") . ';');
$servers .= server('newline', 'rate_limit_jwt_key HS256 ' . key_file('newline', "$key{HS256}{secret}\n") . ';');
$servers .= server('lines', 'rate_limit_jwt_key HS256 ' . key_file('lines', "$key{HS256}{secret}\n\n") . ';');
my $wrapped = join "\n", 'a' x 64, 'b' x 24;
$servers .= server('wrapped', 'rate_limit_jwt_key HS256 ' . key_file('wrapped', "$wrapped\n") . ';');
$servers .= server('dos', 'rate_limit_jwt_key HS256 ' . key_file('dos', "$key{HS256}{secret}\r\n") . ';');
$servers .= server('pss', 'rate_limit_jwt_key PS384 ' . key_file('pss', $pss->{public}) . ';');
$servers .= server('inherits', '');
$servers .= server('cookie', 'rate_limit_jwt_source $cookie_token;');
$servers .= server('argument', "rate_limit_jwt_key ES256 $file{ES256}; rate_limit_jwt_source \$arg_token;");
$servers .= server('lenient', "rate_limit_jwt_key HS256 $file{HS256} leeway=3s;");
$servers .= server('day', "rate_limit_jwt_key HS256 $file{HS256} leeway=1d;");
$servers .= server('relative', 'rate_limit_jwt_key RS256 keys/rs.pem;');

my $binary = key_file('binary', "\0\xff\r" . ("\n\x80" x 20));
$servers .= server('binary', "rate_limit_jwt_key HS256 $binary;");
$servers .= <<'SERVER';
server {
    listen 127.0.0.1:%PORT%;
    server_name claims;
    location / { return 200 "<$rate_limit_jwt_value>"; }
    location /mixed { return 200 "<$rate_limit_jwt_tenantId>"; }
    location /path { return 200 "$nested|$deep|$url|$slash|$dotted"; }
    location /both { return 200 "$who $rate_limit_jwt_sub $rate_limit_jwt_plan $rate_limit_jwt_none"; }
}
SERVER

my %conf = (
    http => <<"HTTP" . <<'HTTP',
rate_limit_jwt_key RS256 $file{RS256};
HTTP
large_client_header_buffers 8 64k;
rate_limit_key $who    jwt:sub ip;
rate_limit_key $nested jwt:realm.tenant;
rate_limit_key $deep   jwt:a.b.c.d;
rate_limit_key $url    jwt:https://example.com/plan;
rate_limit_key $slash  jwt:org/team;
rate_limit_key $dotted jwt:x.y;
HTTP
    server  => 'add_header X-Worker $pid always; location / { return 200 "$who"; }',
    servers => $servers,
);
mkdir "$ENV{RL_DIR}/nginx-1";
mkdir "$ENV{RL_DIR}/nginx-1/keys";
rename key_file('rs.pem', $key{RS256}{public}), "$ENV{RL_DIR}/nginx-1/keys/rs.pem";
my $nginx = start_nginx(%conf);

my $address = 'ip:127.0.0.1';

# Returns how the named server interprets a token.
sub seen {
    my ($host, $token, $path) = @_;
    return $nginx->request(path => $path // '/', headers => [ Host => $host, Authorization => "Bearer $token" ])->{body};
}

subtest 'a token is valid at the server that has its key and algorithm, and at no other' => sub {
    for my $server (@names) {
        my @believed = grep { seen(lc $server, $tokens{$_}) eq "jwt:sub:user-$_" } @names;
        my @ignored  = grep { seen(lc $server, $tokens{$_}) eq $address } @names;
        is "@believed", $server, "$server: its own";
        is scalar @ignored, @names - 1, "$server: no other token is valid";
    }
};

subtest 'Node verifies tokens with the same result as jose' => sub {
    for my $name (@names) {
        my $algorithm = algorithm_of($name);
        my $token = forge(key_of($name), $algorithm, header($algorithm), json({ sub => 'node' }));
        is seen(lc $name, $token), 'jwt:sub:node', $name;
    }
};

subtest 'a key set' => sub {
    is seen('set-plain', $tokens{$_}), "jwt:sub:user-$_",
        "a key without alg accepts every algorithm of its type: $_" for @names;
    my %accepts = map { $_ => 1 } qw(RS384 HS384 ES256 Ed25519);
    is seen('set-pinned', $tokens{$_}), $accepts{$_} ? "jwt:sub:user-$_" : $address,
        'a key with alg accepts only that: ' . ($accepts{$_} ? $_ : "not $_") for @names;
};

subtest 'a key with a kid accepts tokens with the same kid or none' => sub {
    my $ask = sub {
        my ($key, $alg, @kid) = @_;
        return seen('set-named', token($key, $alg, { sub => 'alice' }, @kid ? (kid => $kid[0]) : ()));
    };
    my $good = 'jwt:sub:alice';
    is $ask->($key{RS256}, 'RS256', 'one'), $good,    'its own name';
    is $ask->($other_rsa,  'RS256', 'two'), $good,    'the other key by its own kid';
    is $ask->($key{RS256}, 'RS256', 'two'), $address, 'the kid of another key';
    is $ask->($other_rsa,  'RS256', 'one'), $address, 'the kids exchanged';
    is $ask->($key{RS256}, 'RS256', 'six'), $address, 'an unknown name';
    is $ask->($key{RS256}, 'RS256', 'ONE'), $address, 'a kid in another case';
    is $ask->($key{RS256}, 'RS256', 'one '), $address, 'a kid with a blank';
    is $ask->($key{RS256}, 'RS256'),        $good,    'no kid: the first';
    is $ask->($other_rsa,  'RS256'),        $good,    'no kid: the second';
    is $ask->($key{ES256}, 'ES256', 'one'), $good,    'one kid for keys of two types';
    is $ask->($edwards{Ed25519}, 'EdDSA', 'any'), $good, 'a key without a kid accepts any';
    is seen('rs256', token($key{RS256}, 'RS256', { sub => 'alice' }, kid => 'any')), $good,
        'a PEM file accepts any kid';
};

subtest 'several keys, several servers' => sub {
    is seen('several', $tokens{$_}), "jwt:sub:user-$_", "one of several directives: $_" for qw(RS256 HS384 ES512);
    is seen('several', $tokens{$_}), $address, "a key of no directive: $_" for qw(RS512 HS256 ES256 Ed448);
    is seen('bundle', token($_, 'RS256', { sub => 'alice' })), 'jwt:sub:alice', 'each key of one PEM file'
        for $key{RS256}, $other_rsa;
    is join(' ', grep { seen('set-dozen', token($dozen[$_], 'ES256', { sub => 'alice' })) eq 'jwt:sub:alice' } 0 .. 11),
        '0 1 2 3 4 5 6 7', 'without a kid, each of the first eight keys of a set of twelve';
    is join(' ', grep { seen('set-dozen', token($dozen[$_], 'ES256', { sub => 'alice' }, kid => "key$_")) eq 'jwt:sub:alice' } 0 .. 11),
        join(' ', 0 .. 11), 'with a kid, each key of the set';
    is seen('bundle', token($stranger, 'RS256', { sub => 'alice' })), $address, 'a key that is not in the PEM file';
    is seen('inherits', $tokens{RS256}), 'jwt:sub:user-RS256', 'a server without keys inherits those of http';
    is seen('es256', $tokens{RS256}), $address, 'a server with keys uses only these';
    is seen('pss', forge($pss, 'PS384', header('PS384'), '{"sub":"alice"}')), 'jwt:sub:alice', 'a key that is for PSS only';
    is seen('relative', $tokens{RS256}), 'jwt:sub:user-RS256', 'a relative file name is relative to nginx.conf';
};

subtest 'the bytes of a secret' => sub {
    is seen('newline', $tokens{HS256}), 'jwt:sub:user-HS256', 'a newline at the end is not part of the secret';
    is seen('lines', token({ secret => "$key{HS256}{secret}\n" }, 'HS256', { sub => 'alice' })), 'jwt:sub:alice',
        'one of two newlines is part of the secret';
    is seen('lines', $tokens{HS256}), $address, 'without this newline, the secret is another one';
    is seen('wrapped', token({ secret => $wrapped }, 'HS256', { sub => 'alice' })), 'jwt:sub:alice', 'a secret of two lines, as openssl writes it';
    is seen('dos', $tokens{HS256}), 'jwt:sub:user-HS256', 'CR LF is one line end';
    my $short = { secret => "\0\xff\r" . ("\n\x80" x 20) };
    is seen('binary', token($short, 'HS256', { sub => 'alice' })), 'jwt:sub:alice', 'any bytes do';
    is seen('binary', token({ secret => substr $short->{secret}, 1 }, 'HS256', { sub => 'alice' })), $address, 'NUL too';
};

subtest 'where a token is read from' => sub {
    for my $scheme ('Bearer', 'bearer', 'BEARER', 'bEaReR', 'Bearer  ') {
        my @headers = ($scheme eq 'bearer' ? 'AUTHORIZATION' : 'authorization', "$scheme $tokens{RS256}");
        is $nginx->request(path => '/', headers => \@headers)->{body}, 'jwt:sub:user-RS256', $scheme;
    }
    is $nginx->get('/', Authorization => "Bearer $_")->{body}, 'jwt:sub:user-RS256', 'blanks around it'
        for "$tokens{RS256} ", "$tokens{RS256}\t", "\t$tokens{RS256} \t ";
    for my $scheme ('Basic', 'BearerX', 'Bear', 'Token', '') {
        is $nginx->get('/', Authorization => "$scheme $tokens{RS256}")->{body}, $address, "not after \"$scheme\"";
    }
    is $nginx->get('/', Authorization => $tokens{RS256})->{body}, $address, 'no token without Bearer';
    is $nginx->get('/', Authorization => "Bearer$tokens{RS256}")->{body}, $address, 'no token without a blank';
    is $nginx->get('/', Cookie => "token=$tokens{RS256}")->{body}, $address, 'no token in a cookie';
    is $nginx->get('/', Host => 'cookie', Cookie => "token=$tokens{RS256}")->{body}, 'jwt:sub:user-RS256',
        'rate_limit_jwt_source selects another place';
    is seen('cookie', $tokens{RS256}), $address, 'only the selected place is read';
    is $nginx->get("/?token=$tokens{ES256}", Host => 'argument')->{body}, 'jwt:sub:user-ES256', 'an argument, with keys';
    is $nginx->get("/?token=$tokens{RS256}", Host => 'argument')->{body}, $address, 'only these keys are used';
    is seen('argument', $tokens{ES256}), $address, 'no token in another place';
};

subtest 'keys in one server only, and a token source for all' => sub {
    my $other = start_nginx(
        http    => 'rate_limit_key $who jwt:sub ip; rate_limit_jwt_source $http_x_token;',
        server  => "rate_limit_jwt_key RS256 $file{RS256}; location / { return 200 \"\$who\"; }",
        servers => server('none', '')
            . server('own', "rate_limit_jwt_key RS256 $file{RS256}; rate_limit_jwt_source \$cookie_token;"),
    );
    my $ask = sub {
        my ($host, @headers) = @_;
        return $other->get('/', Host => $host, @headers)->{body};
    };
    my ($header, $cookie) = ([ 'X-Token' => $tokens{RS256} ], [ Cookie => "token=$tokens{RS256}" ]);
    is $ask->('localhost', @{$header}), 'jwt:sub:user-RS256', 'the token source of http';
    is $ask->('localhost', Authorization => "Bearer $tokens{RS256}"), $address, 'no token in another place';
    is $ask->('own', @{$cookie}), 'jwt:sub:user-RS256', 'a server may have another token source';
    is $ask->('own', @{$header}), $address, 'only the source of the server is read';
    is $ask->('none', @{$header}), $address, 'a server without keys accepts no token';
    unlike $other->error_log, qr/token is not valid/, 'a server without keys logs nothing';
};

# Returns a token with the given text as its claims.
sub claims { my ($text) = @_; return forge($key{RS256}, 'RS256', header('RS256'), $text) }

subtest 'a claim as text' => sub {
    my @values = (
        [ 'a string',             '"gold"',             'gold' ],
        [ 'a string of blanks',   '" a b "',            ' a b ' ],
        [ 'an escaped string',    '"\u00e9\"\\\\/\/"', "\xc3\xa9\"\\//" ],
        [ 'a newline',            '"a\nb"',             '' ],
        [ 'a control character',  '"a\u0001"',         '' ],
        [ 'another one',          '"\u007f"',           '' ],
        [ 'UTF-8',                "\"\xe2\x82\xac\"",   "\xe2\x82\xac" ],
        [ 'a pair of surrogates', '"\ud83d\ude00"',   "\xf0\x9f\x98\x80" ],
        [ 'a long string',        '"' . 'v' x 9000 . '"', 'v' x 9000 ],
        [ 'a number',             '42',                 '42' ],
        [ 'zero',                 '0',                  '0' ],
        [ 'a negative number',    '-7',                 '-7' ],
        [ 'a fraction',           '1.5',                '1.5' ],
        [ 'a tenth',              '0.1',                '0.1' ],
        [ 'a large number',       '9007199254740993',   '9007199254740993' ],
        [ 'true',                 'true',               'true' ],
        [ 'false',                'false',              'false' ],
        [ 'null',                 'null',               '' ],
        [ 'an object',            '{"a":"b"}',          '' ],
        [ 'an array',             '["a"]',              '' ],
        [ 'an empty array',       '[]',                 '' ],
        [ 'an empty string',      '""',                 '' ],
    );
    for my $row (@values) {
        my ($title, $value, $text) = @{$row};
        is seen('claims', claims(qq({"value":$value})) ), "<$text>", $title;
    }
    is seen('claims', claims('{"other":1}')), '<>', 'no such claim';
    is seen('claims', claims('{"VALUE":1,"value":2,"Value":3}')), '<2>', 'a variable is the claim in lower case';
    is seen('claims', claims('{"Value":1}')), '<1>', 'a claim in another case is used if there is none in lower case';
    is seen('claims', claims('{"Value":1,"VALUE":1}')), '<>', 'two claims in other cases: none is used';
    is seen('claims', claims('{"Value":null,"value":2}')), '<2>', 'lower case is used, beside any other';
    is seen('claims', claims('{"Value":1,"value":null}')), '<>', 'lower case is used, even if it is null';
    is seen('claims', claims('{"tenantId":"acme"}'), '/mixed'), '<acme>', 'upper case in the name of a variable';
    is seen('claims', claims('{"tenantid":"acme"}'), '/mixed'), '<acme>',
        'upper case in the name of a variable is lower case';
    is seen('claims', claims('{}')), '<>', 'no claims at all';
    is seen('claims', claims(qq(  { \n "value" :\t"v" } \r\n))), '<v>', 'blanks between';
    is seen('claims', claims('{"val\u0075e":"v"}')), '<v>', 'an escaped name';
    is seen('claims', claims('{"sub":"s","plan":"p"}'), '/both'), 'jwt:sub:s s p ', 'a key and variables of one token';
    is seen('claims', 'no', '/both'), "$address   ", 'without a token';
};

subtest 'a claim as a source' => sub {
    my @values = (
        [ '"alice"' => 'jwt:sub:alice' ],
        [ '"jwt:sub:x"' => 'jwt:sub:jwt:sub:x' ],
        [ '"a\nb%\u007f"' => 'jwt:sub:a%0Ab%25%7F' ],
        [ '42'      => 'jwt:sub:42' ],
        [ 'true'    => 'jwt:sub:true' ],
        [ 'null'    => $address ],
        [ '""'      => $address ],
        [ '{}'      => $address ],
        [ '["a"]'   => $address ],
    );
    is seen('localhost', claims(qq({"sub":$_->[0]}))), $_->[1], "a value of $_->[0]" for @values;
    is seen('localhost', claims('{"subject":"a"}')), $address, 'no such claim';
    is seen('localhost', claims('{"Sub":"a"}')), $address, 'a name in another case is another claim';
};

subtest 'a path into a claim' => sub {
    my @rows = (
        # claims                                               nested deep url slash dotted
        [ 'an object in an object',              '{"realm":{"tenant":"acme"}}',            'jwt:realm.tenant:acme||||' ],
        [ 'four of them',                        '{"a":{"b":{"c":{"d":"x"}}}}',            '|jwt:a.b.c.d:x|||' ],
        [ 'a whole name with dots',              '{"realm.tenant":"whole"}',               'jwt:realm.tenant:whole||||' ],
        [ 'a whole name is preferred to a path', '{"realm":{"tenant":"path"},"realm.tenant":"whole"}', 'jwt:realm.tenant:whole||||' ],
        [ 'a URL',                               '{"https://example.com/plan":"gold"}',    '||jwt:https://example.com/plan:gold||' ],
        [ 'a slash',                             '{"org/team":"red"}',                     '|||jwt:org/team:red|' ],
        [ 'a number at the end',                 '{"x":{"y":5}}',                          '||||jwt:x.y:5' ],
        [ 'an object at the end',                '{"x":{"y":{}}}',                         '||||' ],
        [ 'a string in between',                 '{"x":"y"}',                              '||||' ],
        [ 'an array in between',                 '{"x":[{"y":5}]}',                        '||||' ],
        [ 'null in between',                     '{"x":null}',                             '||||' ],
        [ 'half of it',                          '{"a":{"b":{"c":5}}}',                    '||||' ],
    );
    for my $row (@rows) {
        my ($title, $text, $values) = @{$row};
        is seen('claims', claims($text), '/path'), $values, $title;
    }
};

subtest 'a token header may have other members' => sub {
    my $claims = json({ sub => 'alice' });
    for my $more ({ typ => 'at+jwt' }, { cty => 'x' }, { x5t => 'abc' }, { jku => 'https://example.com/' }, { extra => { a => [ 1, 2 ] } }) {
        is seen('localhost', forge($key{RS256}, 'RS256', json({ alg => 'RS256', %{$more} }), $claims)), 'jwt:sub:alice', json($more);
    }
    is seen('localhost', forge($key{RS256}, 'RS256', header('RS256', x5c => [ ('M' x 2000) x 4 ]), $claims)), 'jwt:sub:alice',
        'certificates of 8 KB';
};

subtest 'exp and nbf' => sub {
    my $now  = int time;
    my $case = sub {
        my ($host, $claims, $good, $title) = @_;
        my $token = forge($key{HS256}, 'HS256', header('HS256'), qq({"sub":"alice",$claims}));
        is seen($host, $token), $good ? 'jwt:sub:alice' : $address, $title // "$host: $claims";
    };
    $case->('hs256', '"exp":' . ($now + 60), 1, 'not yet expired');
    $case->('hs256', '"exp":' . ($now - 60), 0, 'expired');
    $case->('hs256', '"exp":' . ($now - 1),  0, 'just expired');
    $case->('hs256', '"nbf":' . ($now - 1),  1, 'just valid');
    $case->('hs256', '"nbf":' . ($now + 60), 0, 'not yet valid');
    $case->('hs256', '"nbf":' . ($now - 60) . ',"exp":' . ($now + 60), 1, 'between both');
    $case->('hs256', '"iat":' . ($now + 60), 1, 'iat is ignored');
    $case->('hs256', '"exp":' . ($now + 60) . '.5', 1, 'a fraction');
    $case->('hs256', '"exp":' . ($now - 60) . '.5', 0, 'a fraction, expired');
    $case->('hs256', '"exp":4e9', 1, 'an exponent');
    $case->('hs256', '"exp":0',   0, 'zero');
    $case->('hs256', '"exp":-1',  0, 'before 1970');
    $case->('hs256', '"nbf":-1',  1, 'valid since before 1970');
    $case->('lenient', '"exp":' . ($now - 60), 0, 'expired, beyond the leeway');
    my $seen = '';
    wait_for('an answer within the leeway', sub {
        $now  = int time;
        $seen = seen('lenient', token($key{HS256}, 'HS256', { sub => 'alice', exp => $now - 1 }));
        return time < $now + 2;
    });
    is $seen, 'jwt:sub:alice', 'expired, within the leeway';
    $now = int time;
    $case->('lenient', '"nbf":' . ($now + 3),  1, 'not yet valid, within the leeway');
    $case->('lenient', '"nbf":' . ($now + 60), 0, 'not yet valid, beyond the leeway');
    $case->('day', '"exp":' . ($now - 86_000), 1, 'a day of leeway');
    $case->('day', '"exp":' . ($now - 86_460), 0, 'beyond a day of leeway');
    for my $host (qw(hs256 day)) {
        $case->($host, '"exp":9223372036854775807',  1, "$host: exp is the largest time");
        $case->($host, '"exp":-9223372036854775808', 0, "$host: exp is the smallest time");
        $case->($host, '"nbf":-9223372036854775808', 1, "$host: nbf is the smallest time");
        $case->($host, '"nbf":9223372036854775807',  0, "$host: nbf is the largest time");
        $case->($host, '"exp":1e300', 1, "$host: exp is beyond the largest time");
        $case->($host, '"nbf":1e300', 0, "$host: nbf is beyond the largest time");
    }
};

subtest 'a cached token expires and becomes valid on time' => sub {
    my $turn  = int(time) + 2;
    my $token = sub { return token($key{HS256}, 'HS256', { sub => 'alice', @_ }) };
    my %ends  = (hs256 => $token->(exp => $turn), lenient => $token->(exp => $turn - 3));
    my %begins = (hs256 => $token->(nbf => $turn), lenient => $token->(nbf => $turn + 3));
    sleep 0.001 while time < $turn - 1;    # the next requests may take most of a second
    my $all = sub {
        my ($tokens) = @_;
        return join ' ', map { seen($_, $tokens->{$_}) } qw(hs256 lenient hs256 lenient);
    };
    my @good  = ('jwt:sub:alice') x 4;
    my @wrong = ($address) x 4;
    my ($ending, $beginning) = ($all->(\%ends), $all->(\%begins));
SKIP: {
        skip 'this took too long', 2 if time >= $turn;
        is $ending,    "@good",  'before exp, and exp + leeway';
        is $beginning, "@wrong", 'before nbf, and nbf - leeway';
    }
    sleep 0.001 while time < $turn + 0.01;
    is $all->(\%ends),   "@wrong", 'from exp on, and exp + leeway';
    is $all->(\%begins), "@good",  'from nbf on, and nbf - leeway';
};

# Returns true if both workers interpret a token as expected.
sub of_both_workers {
    my ($token, $value) = @_;
    my (%workers, @wrong);
    wait_for('both workers to answer', sub {
        my @connections = map { $nginx->connect } 1 .. 8;
        $_->send(format_request(headers => [ Authorization => "Bearer $token" ])) for @connections;
        for my $answer (map { $_->receive } @connections) {
            $workers{ $answer->header('X-Worker') }++;
            push @wrong, $answer->{body} if $answer->{body} ne $value;
        }
        return keys %workers == 2;
    });
    return !@wrong;
}

subtest 'a reload reads keys anew' => sub {
    my $old = $tokens{RS256};
    my $new = token($other_rsa, 'RS256', { sub => 'new' });
    is seen('localhost', $old), 'jwt:sub:user-RS256', 'before';
    key_file('RS256', $other_rsa->{public});
    is seen('localhost', $old), 'jwt:sub:user-RS256', 'a changed file without a reload changes nothing';
    is seen('localhost', $new), $address, 'the new key is not used before a reload';
    $nginx->reload(%conf, workers => 2);
    ok of_both_workers($old, $address),
        'after a reload no worker accepts a token of the old key, although it was cached';
    ok of_both_workers($new, 'jwt:sub:new'), 'each worker accepts tokens of the new key';
    is seen('set-plain', $old), 'jwt:sub:user-RS256', 'unchanged keys still work';

    key_file('RS256', 'not a key');
    $nginx->signal('HUP');
    ok $nginx->wait_for_log(qr/\[emerg\].*"rate_limit_jwt_key"/), 'an invalid key file makes a reload fail';
    ok of_both_workers($new, 'jwt:sub:new'), 'the workers keep their keys';

    key_file('RS256', $key{RS256}{public});
    $nginx->reload(%conf, workers => 2);
    ok of_both_workers($old, 'jwt:sub:user-RS256'), 'back to the old key';
    ok of_both_workers($new, $address), 'tokens of the new key are rejected';
};

subtest 'more tokens than a worker caches' => sub {
    my $head = part(header('HS256'));
    my @some;
    for my $number (1 .. 2200) {
        my $text = "$head." . part(qq({"sub":"user$number","fill":") . 'x' x 4000 . '"}');
        push @some, "$text." . hmac_sha256_base64($text, $key{HS256}{secret}) =~ tr{+/}{-_}r;
    }
    for my $round (1, 2) {
        my ($connection, @wrong);
        for my $number (1 .. @some) {
            $connection = $nginx->connect if $number % 500 == 1;
            $connection->send(format_request(headers =>
                        [ Host => 'hs256', Connection => 'keep-alive', Authorization => "Bearer $some[$number - 1]" ]));
            my $body = $connection->receive->{body};
            push @wrong, "$number: $body" if $body ne "jwt:sub:user$number";
        }
        is_deeply \@wrong, [], scalar(@some) . " tokens of more than 8 MB, round $round";
    }
};

unlike $nginx->error_log, qr/exited on signal|\[(?:alert|crit)\]/, 'no worker died';

done_testing;
