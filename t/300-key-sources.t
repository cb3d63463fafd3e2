# rate_limit_key: which source names the client, in which form, and that no client can take another's name.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx format_request wait_for);
use RateLimit::Async qw(statuses);
use RateLimit::HTTP2;
use Test::More;
use Token qw(new_secret key_file);

my $secret = key_file('secret', new_secret(32)->{secret});

my $nginx = start_nginx(
    http => <<"HTTP" . <<'HTTP',
rate_limit_jwt_key HS256 $secret;
HTTP
large_client_header_buffers 4 32k;
underscores_in_headers on;
map $http_x_tenant $tenant { default $http_x_tenant; none ""; }
map $arg_n $Mixed { default $arg_n; }

rate_limit_key $by_ip      ip;
rate_limit_key $by_header  header:X-Api-Key;
rate_limit_key $by_agent   header:user-agent;
rate_limit_key $by_cookie  cookie:SID;
rate_limit_key $by_arg     arg:Key;
rate_limit_key $by_tenant  $tenant;
rate_limit_key $by_mixed   $Mixed;
rate_limit_key $by_order   header:x-api-key cookie:sid arg:key $tenant ip;
rate_limit_key $by_reverse $tenant arg:key cookie:sid header:x-api-key ip;
rate_limit_key $by_token   header:x-api-key jwt:sub ip;
rate_limit_key $by_two     header:x-first header:x-second ip;
rate_limit_key $by_key     $by_header ip;
rate_limit_key $by_uri     $uri;
rate_limit_key $by_nothing header:x-never;

rate_limit_zone $by_order   zone=order:1m   rate=2r/d algorithm=token_bucket;
rate_limit_zone $by_header  zone=header:1m  rate=2r/d algorithm=token_bucket;
rate_limit_zone $by_arg     zone=arg:1m     rate=2r/d algorithm=token_bucket;
rate_limit_zone $by_nothing zone=nothing:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone "$by_header/$by_arg" zone=both:1m rate=2r/d algorithm=token_bucket;
rate_limit_zone $by_uri     zone=uri:1m     rate=1000r/d;
rate_limit_zone $by_token   zone=token:1m   rate=1000r/d;
rate_limit_zone $by_token   zone=token2:1m  rate=1000r/d;
map $by_header $is_gold { default no; header:x-api-key:gold yes; }

log_format keys '$status $by_order|$by_token|$by_ip|$by_arg|$by_cookie|$by_header|$by_uri';
access_log keys.log keys;
HTTP
    server => <<'SERVER',
add_header X-Status $rate_limit_status always;
location = /        { return 200 "<$by_order>"; }
location = /ip      { return 200 "<$by_ip>"; }
location = /header  { return 200 "<$by_header>"; }
location = /agent   { return 200 "<$by_agent>"; }
location = /cookie  { return 200 "<$by_cookie>"; }
location = /arg     { return 200 "<$by_arg>"; }
location = /tenant  { return 200 "<$by_tenant>"; }
location = /mixed   { return 200 "<$by_mixed>"; }
location = /order   { return 200 "<$by_order>"; }
location = /reverse { return 200 "<$by_reverse>"; }
location = /two     { return 200 "<$by_two>"; }
location = /key     { return 200 "<$by_key>"; }
location = /gold    { return 200 "<$is_gold>"; }
location = /twice   { return 200 "<$by_order><$by_order>"; }

location /limit/order   { rate_limit zone=order; empty_gif; }
location /limit/header  { rate_limit zone=header; empty_gif; }
location /limit/arg     { rate_limit zone=arg; empty_gif; }
location /limit/nothing { rate_limit zone=nothing; empty_gif; }
location /limit/both    { rate_limit zone=both; empty_gif; }

location /free/       { access_log off; empty_gif; }
location /token/      { access_log off; rate_limit zone=token; rate_limit zone=token2; add_header X-Key $by_token; empty_gif; }

location = /shown     { return 200 "<$by_uri>"; }
location /shown/      { return 200 "<$by_uri>"; }
location @named       { return 200 "<$by_uri>"; }
location /page/       { rate_limit zone=uri; error_page 404 =200 /shown; }
location /page-named/ { rate_limit zone=uri; error_page 404 =200 @named; }
location /page-late/  { error_page 404 =200 /shown; }
location /try/        { rate_limit zone=uri; try_files /absent /shown; }
location /accel/      { rate_limit zone=uri; proxy_pass http://127.0.0.1:%PORT1%; }
location = /shown-arg { return 200 "<$by_arg>"; }
location /rewritten/  { rewrite ^ /shown-arg?key=forged last; }
location /replaced/   { rewrite ^ /shown-arg?key=forged? last; }
location /set/        { set $args key=forged; rewrite ^ /shown-arg last; }
location /page-arg/   { error_page 404 =200 /shown-arg?key=forged; }
location /ssi-arg/    { ssi on; }
location /stale/      { set $seen $uri; rewrite ^ /shown last; }
location /ssi/        { ssi on; rate_limit zone=uri; }
location /ssi-late/   { ssi on; }
location /auth/       { rate_limit zone=uri; auth_request /shown/auth; try_files /absent /shown; }
location /auth-first/ { auth_request /used; error_page 404 =200 /shown; }
location = /used      { internal; proxy_set_header X-Used $by_uri; proxy_pass http://127.0.0.1:%PORT1%/ok; }
SERVER
    servers => <<'SERVERS',
server { listen 127.0.0.1:%PORT2% http2; location / { return 200 "<$by_order>"; } }
server {
    listen 127.0.0.1:%PORT1%;
    access_log off;
    location /accel/ { add_header X-Accel-Redirect /shown; return 200; }
    location = /ok   { return 200; }
}
SERVERS
);
my $http2_port = (split ' ', $ENV{RL_PORTS})[-2];
my $include    = join ' ', map {qq(<!--#include virtual="/shown/$_" -->)} 1, 2;
$nginx->write_file("$_/x.html", $include) for qw(ssi ssi-late);
$nginx->write_file('ssi-arg/x.html', '<!--#include virtual="/shown-arg?key=forged" -->');

# Returns the value of a key, without the brackets that the location adds. Headers may repeat.
sub value {
    my ($path, @headers) = @_;
    return $nginx->request(path => $path, headers => \@headers)->{body} =~ s/^<(.*)>$/$1/sr;
}

# Returns the statuses of $count requests.
sub ask {
    my ($count, $path, @headers) = @_;
    return statuses(map { $nginx->request(path => $path, headers => \@headers) } 1 .. $count);
}

subtest 'each source, and the form of its value' => sub {
    is value('/ip'), 'ip:127.0.0.1', 'an address';
    is value('/header', 'X-Api-Key' => 'abc'), 'header:x-api-key:abc', 'a header, its name in lower case';
    is value('/agent', 'User-Agent' => 'curl/8'), 'header:user-agent:curl/8', 'a header that nginx knows itself';
    is value('/cookie', Cookie => 'sid=abc'), 'cookie:sid:abc', 'a cookie';
    is value('/arg?key=abc'), 'arg:key:abc', 'an argument';
    is value('/tenant', 'X-Tenant' => 'acme'), '$tenant:acme', 'a variable';
    is value('/mixed?n=1'), '$mixed:1', 'a variable, its name in lower case';
    is value('/key', 'X-Api-Key' => 'a'), '$by_header:header:x-api-key:a', 'another key';
    is value('/key'), 'ip:127.0.0.1', 'another key that is empty';
};

subtest 'without a source the key is empty, and the request is not limited' => sub {
    is value("/$_"), '', "$_: nothing" for qw(header cookie arg tenant mixed);
    my @answers = map { $nginx->get('/limit/nothing') } 1 .. 3;
    is statuses(@answers), '200 200 200', 'not limited';
    is $answers[2]->header('X-Status'), 'BYPASSED', 'the status is BYPASSED';
    is $answers[2]->count('X-RateLimit-Limit'), 0, 'without headers';
    is value('/agent', 'User-Agent' => ''), '', 'a header that is empty';
};

subtest 'the first source that has a value wins' => sub {
    my @all     = ('X-Api-Key' => 'H', Cookie => 'sid=C', 'X-Tenant' => 'T');
    my @sources = (
        [ 'header:x-api-key:H', 'X-Api-Key' => 'H' ],
        [ 'cookie:sid:C',       Cookie      => 'sid=C' ],
        [ 'arg:key:A' ],
        [ '$tenant:T',          'X-Tenant' => 'T' ],
    );
    for my $first (0 .. 3) {
        my @headers = map { @{$_}[ 1 .. $#{$_} ] } @sources[ $first .. 3 ];
        my $args    = $first <= 2 ? '?key=A' : '';
        is value("/order$args", @headers), $sources[$first][0], "from source $first on";
    }
    is value('/order'), 'ip:127.0.0.1', 'the address if no other source has a value';
    is value('/reverse?key=A', @all), '$tenant:T',   'another order, another client';
    is value('/order?key=A', 'X-Tenant' => 'T', Cookie => 'sid=C', 'X-Api-Key' => 'H'), 'header:x-api-key:H',
        'the order of the headers makes no difference';
    is value('/two', 'X-Second' => 's'), 'header:x-second:s', 'two headers: the second if the first is absent';
    is value('/two', 'X-First' => '', 'X-Second' => 's'), 'header:x-second:s',
        'two headers: the second if the first is empty';
    is value('/two', 'X-First' => 'f', 'X-Second' => 's'), 'header:x-first:f', 'the first if both are present';
};

# Each row: a title, the value (undefined if the address is used), the path, and headers.
my @rows = (
    [ 'a header name in another case',     'header:x-api-key:a', '/order', 'X-API-KEY' => 'a' ],
    [ 'its value keeps its case',          'header:x-api-key:aBc', '/order', 'x-api-key' => 'aBc' ],
    [ 'a header twice',                    undef, '/order', 'X-Api-Key' => 'a', 'X-Api-Key' => 'b' ],
    [ 'a header twice with one value',     undef, '/order', 'X-Api-Key' => 'a', 'X-Api-Key' => 'a' ],
    [ 'a header twice in another case',    undef, '/order', 'X-Api-Key' => 'a', 'x-API-key' => 'b' ],
    [ 'a header twice, first empty',       undef, '/order', 'X-Api-Key' => '',  'X-Api-Key' => 'b' ],
    [ 'a header twice, second empty',      undef, '/order', 'X-Api-Key' => 'a', 'X-Api-Key' => '' ],
    [ 'a header three times',              undef, '/order', ('X-Api-Key' => 'a') x 3 ],
    [ 'a header twice, far apart',         undef, '/order', 'X-Api-Key' => 'a', (map { ("X-$_" => 1) } 1 .. 60), 'X-Api-Key' => 'b' ],
    [ 'a header that is empty',            undef, '/order', 'X-Api-Key' => '' ],
    [ 'a header of blanks',                undef, '/order', 'X-Api-Key' => " \t " ],
    [ 'blanks around a value',             'header:x-api-key:a', '/order', 'X-Api-Key' => '  a  ' ],
    [ 'a tab after a value',               'header:x-api-key:a', '/order', 'X-Api-Key' => "a\t" ],
    [ 'a tab before a value',              'header:x-api-key:a', '/order', 'X-Api-Key' => "\ta" ],
    [ 'a tab inside a value',              "header:x-api-key:a%09b", '/order', 'X-Api-Key' => "a\tb" ],
    [ 'a comma is part of a value',        'header:x-api-key:a, b', '/order', 'X-Api-Key' => 'a, b' ],
    [ 'a longer name',                     undef, '/order', 'X-Api-Key2' => 'a' ],
    [ 'a shorter name',                    undef, '/order', 'X-Api-Ke' => 'a' ],
    [ 'an underscore equals a hyphen',     'header:x-api-key:a', '/order', 'X_Api_Key' => 'a' ],
    [ 'a header twice, one with underscores', undef, '/order', 'X_Api_Key' => 'b', 'X-Api-Key' => 'a' ],
    [ 'a percent sign in a value',         'header:x-api-key:a%2541', '/order', 'X-Api-Key' => 'a%41' ],
    [ 'one header among two hundred',      'header:x-api-key:a', '/order', (map { ("X-$_" => 1) } 1 .. 200), 'X-Api-Key' => 'a' ],
    [ 'a second header twice, a first once', 'header:x-api-key:a', '/order', Cookie => 'sid=1; sid=2', 'X-Api-Key' => 'a' ],

    [ 'a cookie name in another case',     'cookie:sid:a', '/order', Cookie => 'SiD=a' ],
    [ 'a cookie after another',            'cookie:sid:a', '/order', Cookie => 'x=1; sid=a' ],
    [ 'a cookie before another',           'cookie:sid:a', '/order', Cookie => 'sid=a; x=1' ],
    [ 'a cookie without a blank',          'cookie:sid:a', '/order', Cookie => 'x=1;sid=a;y=2' ],
    [ 'a cookie in a second header',       'cookie:sid:a', '/order', Cookie => 'x=1', Cookie => 'sid=a' ],
    [ 'a cookie with = in it',             'cookie:sid:a=b==', '/order', Cookie => 'sid=a=b==' ],
    [ 'a cookie is not percent-decoded',   'cookie:sid:a%2562+c', '/order', Cookie => 'sid=a%62+c' ],
    [ 'a longer name of a cookie',         undef, '/order', Cookie => 'sid2=a; xsid=b' ],
    [ 'a name inside a value',             undef, '/order', Cookie => 'x=sid=a' ],
    [ 'a cookie twice',                    undef, '/order', Cookie => 'sid=a; sid=b' ],
    [ 'a cookie twice with one value',     undef, '/order', Cookie => 'sid=a; sid=a' ],
    [ 'a cookie twice in another case',    undef, '/order', Cookie => 'sid=a; SID=b' ],
    [ 'a cookie twice without a blank',    undef, '/order', Cookie => 'sid=a;sid=b' ],
    [ 'a cookie in two headers',           undef, '/order', Cookie => 'sid=a', Cookie => 'sid=b' ],
    [ 'a cookie twice, one empty',         undef, '/order', Cookie => 'sid=; sid=b' ],
    [ 'a cookie that is empty',            undef, '/order', Cookie => 'sid=' ],
    [ 'an empty cookie before another',    undef, '/order', Cookie => 'sid=; x=1' ],
    [ 'a header of cookies without any',   undef, '/order', Cookie => ';;; ; =; ' ],

    [ 'an argument name in another case',       'arg:key:a', '/order?KEY=a' ],
    [ 'an argument after another',              'arg:key:a', '/order?x=1&key=a' ],
    [ 'an argument before another',             'arg:key:a', '/order?key=a&x=1' ],
    [ 'an argument among empty ones',           'arg:key:a', '/order?&&=&key=a&' ],
    [ 'an encoded value',                       'arg:key:abc', '/order?key=a%62c' ],
    [ 'an encoded value, all of it',            'arg:key:abc', '/order?key=%61%62%63' ],
    [ 'hexadecimal digits of either case',      'arg:key:JJ', '/order?key=%4a%4A' ],
    [ 'a + is a space',                         'arg:key:a b', '/order?key=a+b' ],
    [ 'an encoded space is a space',            'arg:key:a b', '/order?key=a%20b' ],
    [ 'an encoded + is a +',                    'arg:key:a+b', '/order?key=a%2Bb' ],
    [ 'an encoded % is decoded once',           'arg:key:a%2562c', '/order?key=a%2562c' ],
    [ 'an encoded newline is no newline',       'arg:key:a%0D%0Ab', '/order?key=a%0d%0ab' ],
    [ 'an encoded name',                        'arg:key:a', '/order?k%65y=a' ],
    [ 'an encoded name in upper case',          'arg:key:a', '/order?%4B%45%59=a' ],
    [ 'an encoded & is part of a value',        'arg:key:a&key=b', '/order?key=a%26key%3Db' ],
    [ 'an = is part of a value',                'arg:key:a=b', '/order?key=a=b' ],
    [ 'a ; is part of a value',                 'arg:key:a;key=b', '/order?key=a;key=b' ],
    [ 'a ? is part of a value',                 'arg:key:a?key=b', '/order?key=a?key=b' ],
    [ 'an argument in a fragment',              undef, '/order?x=1#&key=a' ],
    [ 'an argument before a fragment',          'arg:key:a', '/order?key=a#b' ],
    [ 'an argument of a whole URL',             'arg:key:a', 'http://localhost/order?key=a' ],
    [ 'an argument of a URL without a path',    'arg:key:a', 'http://localhost?key=a' ],
    [ 'an argument twice in a whole URL',       undef, 'http://localhost/order?key=a&key=b' ],
    [ 'an encoded ? does not begin arguments',  undef, '/order%3Fkey=a/../order' ],
    [ 'an argument twice',                      undef, '/order?key=a&key=b' ],
    [ 'an argument twice with one value',       undef, '/order?key=a&key=a' ],
    [ 'an argument twice in another case',      undef, '/order?key=a&KEY=b' ],
    [ 'an argument twice, one encoded',         undef, '/order?key=a&k%65y=b' ],
    [ 'an argument twice, first empty',         undef, '/order?key=&key=b' ],
    [ 'an argument twice, one without =',       undef, '/order?key=a&key' ],
    [ 'an argument without =',                  undef, '/order?key' ],
    [ 'an argument that is empty',              undef, '/order?key=' ],
    [ 'an argument of another name',            undef, '/order?keys=a&xkey=b&x=key=c' ],
    [ 'an encoded = makes another name',        undef, '/order?key%3Da' ],
    [ 'an encoded NUL after the name',          undef, '/order?key%00=a' ],
    [ 'a thousand others',                      'arg:key:a', '/order?' . ('x=1&' x 1000) . 'key=a' ],
    [ 'a thousand other arguments between two', undef, '/order?key=a&' . ('x=1&' x 1000) . 'key=b' ],
);
for my $row (@rows) {
    my ($title, $value, @request) = @{$row};
    is value(@request), $value // 'ip:127.0.0.1', $title . (defined $value ? '' : ' yields nothing');
}

subtest 'invalid percent escapes are ordinary text' => sub {
    my %seen;
    for my $text ('%', 'a%', '%4', '%zz', '%%41', '%4g', '%-1', '%+1', '%x41') {
        my $value = value("/order?key=$text");
        like $value, qr/^arg:key:./s, "$text has a value";
        ok !$seen{$value}++, 'the value is distinct';
    }
};

subtest 'no value equals that of another source' => sub {
    for my $text ('x', '127.0.0.1', 'ip:127.0.0.1', 'header:x-api-key:x') {
        is ask(3, '/limit/order', 'X-Api-Key' => $text), '200 200 429', "header $text";
        is ask(3, '/limit/order', Cookie => "sid=$text"), '200 200 429', "cookie $text";
        is ask(3, "/limit/order?key=$text"), '200 200 429', "argument $text";
        is ask(3, '/limit/order', 'X-Tenant' => $text), '200 200 429', "variable $text";
    }
    is ask(3, '/limit/order'), '200 200 429', 'no value is the address';
};

subtest 'a repeated or encoded name gives no second quota' => sub {
    is ask(3, '/limit/arg?key=evader'), '200 200 429', 'an argument';
    is ask(1, "/limit/arg?$_"), 429, "$_ is the same client"
        for 'key=%65vader', 'KEY=evader', 'k%65y=evade%72', 'x=1&key=evader', '%6b%65%79=%65%76%61%64%65%72';
    is ask(3, '/limit/header', 'X-Api-Key' => 'evader'), '200 200 429', 'a header';
    is ask(1, '/limit/header', 'x-aPI-kEY' => ' evader '), 429, 'a name in another case is the same client';
    is ask(1, '/limit/header', 'X-Api-Key' => 'Evader'), 200, 'a value in another case is another client';
    is ask(2, '/limit/order?key=a&key=' . $_), '429 429', 'a client that doubles its argument is limited by its address'
        for 1 .. 3;
};

subtest 'a key may be part of a zone\'s key, or of a map' => sub {
    is ask(3, '/limit/both?key=1', 'X-Api-Key' => 'a'), '200 200 429', 'two keys together';
    is ask(1, '/limit/both?key=2', 'X-Api-Key' => 'a'), '200', 'both variables distinguish clients';
    is value('/gold', 'X-Api-Key' => 'gold'), 'yes', 'a map';
    is value('/gold', 'X-Api-Key' => 'tin'),  'no',  'a map of the key';
};

subtest 'a request does not use values of an earlier request on the connection' => sub {
    my $connection = $nginx->connect;
    my $value = sub {
        my ($path, @headers) = @_;
        $connection->send(format_request(path => $path, headers => [ Connection => 'keep-alive', @headers ]));
        return $connection->receive->{body};
    };
    is $value->('/order', 'X-Api-Key' => 'a'), '<header:x-api-key:a>', 'one';
    is $value->('/order', 'X-Api-Key' => 'b'), '<header:x-api-key:b>', 'another';
    is $value->('/order'), '<ip:127.0.0.1>', 'a request without values';
    is $value->('/order?key=c'), '<arg:key:c>', 'a request with an argument';
};

subtest 'a source is evaluated only when needed' => sub {
    my $bad   = 'Bearer no.such.token';
    my $count = sub { return scalar(() = $nginx->error_log =~ /token is not valid/g) };
    is $nginx->get('/free/', Authorization => $bad)->{status}, 200, 'a request that uses no key';
    is $count->(), 0, 'the token of a request without a key is not verified';
    is $nginx->get('/token/', Authorization => $bad, 'X-Api-Key' => 'a')->header('X-Key'), 'header:x-api-key:a',
        'a request that an earlier source names';
    is $count->(), 0, 'a token that is not needed is not verified';
    is $nginx->get('/token/', Authorization => $bad)->header('X-Key'), 'ip:127.0.0.1', 'a request that needs its token';
    is $count->(), 1, 'the token is verified once, although two zones and a header use the key';
};

subtest 'a key is evaluated once per request' => sub {
    is value('/page/absent'),       '$uri:/page/absent',       'an error page has the same value';
    is value('/page-named/absent'), '$uri:/page-named/absent', 'a named location has the same value';
    is value('/page-late/absent'),  '$uri:/shown',             'an error page evaluates the key if nothing did before';
    is value('/try/x'),             '$uri:/try/x',             'try_files';
    is value('/accel/x'),           '$uri:/accel/x',           'X-Accel-Redirect';
    is value('/ssi/x.html'), '$uri:/ssi/x.html> <$uri:/ssi/x.html', 'subrequests have the value of the request';
    is value('/auth/x'), '$uri:/auth/x', 'subrequests do not change the value';
    is value('/stale/x'), '$uri:/shown', 'a variable that changed before has its current value';
    my ($one, $other) = split /> </, value('/ssi-late/x.html');
    is $one, $other, 'subrequests that evaluate first agree';
    like value('/auth-first/absent'), qr{^\$uri:/(?:used|auth-first/absent)$}, 'the value of the subrequests is kept';
};

subtest 'an argument is the client\'s own, whatever nginx makes of the request' => sub {
    is value("$_?key=own"), 'arg:key:own', $_ for qw(/rewritten/x /replaced/x /set/x /page-arg/absent /ssi-arg/x.html);
    is value($_), '', "$_, without one" for qw(/rewritten/x /replaced/x /set/x /page-arg/absent /ssi-arg/x.html);
};

subtest 'HTTP/2' => sub {
    my $get = sub {
        my ($path, @headers) = @_;
        my $client = RateLimit::HTTP2->new($http2_port);
        my $stream = $client->request('GET', $path, headers => \@headers);
        $client->send->await(10) or return 'no answer';
        return $client->stream($stream)->{body};
    };
    is $get->('/', 'x-api-key' => 'a'), '<header:x-api-key:a>', 'a header';
    is $get->('/', 'x-api-key' => 'a', 'x-api-key' => 'b'), '<ip:127.0.0.1>', 'a header twice';
    is $get->('/', 'x-api-key' => $_), '<header:x-api-key:a>', 'a header with blanks' for ' a', 'a ', "a\t";
    is $get->('/', 'x-api-key' => $_), '<ip:127.0.0.1>', 'a header of blanks only' for '', ' ', "\t";
    is $get->('/', cookie => 'x=1', cookie => 'sid=a', cookie => 'y=2'), '<cookie:sid:a>', 'a cookie among split ones';
    is $get->('/', cookie => 'sid=a', cookie => 'sid=b'), '<ip:127.0.0.1>', 'a cookie twice in split ones';
    is $get->('/', cookie => 'sid=a', cookie => 'x=1', cookie => 'sid=b; y=1'), '<ip:127.0.0.1>',
        'cookies that are not adjacent';
    is $get->('/', cookie => 'sid=a; sid=b'), '<ip:127.0.0.1>', 'a cookie twice in one';
    is $get->('/?k%65y=a%62'), '<arg:key:ab>', 'an argument';
    is $get->('/?key=a&KEY=b'), '<ip:127.0.0.1>', 'an argument twice';
    is $get->('/'), '<ip:127.0.0.1>', 'an address';
};

subtest 'invalid requests have a key in the access log' => sub {
    my %bytes = (
        'an invalid request line' => "GARBAGE\r\n\r\n",
        'no header at all'            => "GET /order HTTP/1.0\r\n\r\n",
        'HTTP/0.9'                    => "GET /order?key=nine\r\n",
        'an invalid header'       => "GET /order HTTP/1.1\r\nX-Api-Key\x01: a\r\n\r\n",
        'no Host'                     => "GET /order HTTP/1.1\r\nX-Api-Key: nohost\r\n\r\n",
        'a header too long'           => "GET /order HTTP/1.1\r\nX-Api-Key: " . ('a' x 40_000) . "\r\n\r\n",
        'a line too long'             => 'GET /order?key=' . ('a' x 40_000) . " HTTP/1.1\r\n\r\n",
    );
    for my $title (sort keys %bytes) {
        my $connection = $nginx->connect;
        $connection->send($bytes{$title});
        1 while $connection->more;
        $connection->close;
    }
    my $log = sub { return RateLimit::slurp($nginx->dir . '/keys.log') };
    wait_for('a line for each request', sub { 6 <= grep {/^(?:4\d\d|200) /} split /\n/, $log->() });
    my @lines = grep {/^400 |^414 |^494 /} split /\n/, $log->();
    cmp_ok scalar @lines, '>=', 4, 'rejected requests are logged';
    is scalar(grep { !/\|ip:127\.0\.0\.1\|/ } @lines), 0, 'with their address';
    is value('/order'), 'ip:127.0.0.1', 'nginx is still running';
};

unlike $nginx->error_log, qr/exited on signal|\[(?:alert|crit)\]/, 'no worker died';

done_testing;
