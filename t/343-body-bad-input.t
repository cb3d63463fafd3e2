# Invalid rate_limit_request and rate_limit_response make `nginx -t` fail with one message, and valid ones pass.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config);
use Test::More;

my $deep = join '.', ('a') x 17;
my $many = join ' ', map {"rate_limit_response \$v$_ json:a$_;"} 1 .. 9;

# Each row: a title, the directives, and what the message says after the name of the directive.
my @bad = (
    [ 'no arguments',     'rate_limit_response;',              'requires a variable and a path: $VARIABLE json:PATH' ],
    [ 'no path',          'rate_limit_response $a;',           'requires a variable and a path: $VARIABLE json:PATH' ],
    [ 'no path',          'rate_limit_request $a;', 'requires a variable and a path: $VARIABLE json:PATH [max=SIZE]' ],
    [ 'no variable',      'rate_limit_response a json:b;',     'invalid variable "a", it must be $VARIABLE json:PATH' ],
    [ 'an empty name',    'rate_limit_response $ json:b;',     'invalid variable "$", it must be $VARIABLE json:PATH' ],
    [ 'a capture',        'rate_limit_request $1 json:b;', 'invalid variable "$1", it must be $VARIABLE json:PATH [max=SIZE]' ],
    [ 'a variable of nginx', 'rate_limit_response $uri json:b;', 'variable "$uri" is duplicate, it must be a new name' ],
    [ 'a variable of set', 'set $b 1; rate_limit_response $b json:b;', 'variable "$b" is duplicate, it must be a new name' ],
    [ 'twice in a level', 'rate_limit_response $a json:b; rate_limit_response $a json:c;', 'variable "$a" is duplicate here' ],
    [ 'of both directives', 'rate_limit_response $a json:b; rate_limit_request $a json:c;',
        'variable "$a" is also of rate_limit_response, it must be another name' ],
    [ 'of both directives', 'rate_limit_request $a json:b; location /x { rate_limit_response $a json:c; }',
        'variable "$a" is also of rate_limit_request, it must be another name' ],
    [ 'another source', 'rate_limit_request $a header:X-Tokens;',
        'invalid source "header:X-Tokens", it must be json:PATH such as json:usage.total_tokens' ],
    [ 'an empty path', 'rate_limit_response $a json:;',
        'invalid path in "json:", it must be names separated by dots, such as usage.total_tokens' ],
    ( map { [ "the path $_", "rate_limit_response \$a 'json:$_';", qr/invalid path in "json:.*", it must be names of 1 to 64 bytes/ ] }
        '.', 'a.', '.a', 'a..b', 'a"b', 'a\\\\b', 'a' x 65 ),
    [ 'a path that is too long', "rate_limit_response \$a json:$deep;", qr/invalid path in .*, it must be a path of at most 16 names/ ],
    [ 'too many paths', $many, '"json:a9" is one path too many here, there must be at most 8' ],
    [ 'an unknown parameter', 'rate_limit_response $a json:b max=1k;', 'unknown parameter "max=1k", it must be $VARIABLE json:PATH' ],
    [ 'an unknown parameter', 'rate_limit_request $a json:b most=1k;', 'unknown parameter "most=1k", it must be max=SIZE' ],
    [ 'max= twice', 'rate_limit_request $a json:b max=1k max=2k;', '"max=2k" is duplicate, it follows "max=1k"' ],
    ( map { [ "max=$_", "rate_limit_request \$a json:b max=$_;", qq(invalid value "max=$_", it must be a size from 1k to 16m) ] }
        '', '0', '1023', '17m', 'many', '-1k' ),
    [ 'two max=', 'rate_limit_request $a json:b max=1k; rate_limit_request $c json:d;',
        'max= differs from an earlier rate_limit_request here, it must be 1024' ],
);
for my $row (@bad) {
    my ($title, $directives, $message) = @$row;
    my ($directive) = $directives =~ /.*(rate_limit_\w+)/;
    my $result = check_config(server => $directives);
    is scalar @{ $result->{emerg} }, 1, "$title: one message" or diag $result->{stderr};
    my $expected = ref $message ? $message : qr/\Q$message\E/;
    like $result->{emerg}[0] // '', qr/\[emerg\].* "$directive": $expected.* in .*nginx\.conf:\d+$/, "$title: its words";
}

my @good = (
    'rate_limit_response $a json:b;',
    'rate_limit_response $a json:b.0.c; rate_limit_response $c json:d;',
    'rate_limit_response $a json:b; location /x { rate_limit_response $a json:c; }',
    'rate_limit_request $a json:b max=1k; rate_limit_request $c json:d max=1024;',
    'rate_limit_request $a json:b max=16m; location /x { rate_limit_request $a json:c; }',
    'rate_limit_request $a json:b; rate_limit_response $c json:d;',
    "rate_limit_response \$a 'json:with space.\xc3\xa9.\$x';",
);
for my $directives (@good) {
    my $result = check_config(server => $directives);
    is $result->{exit}, 0, $directives or diag $result->{stderr};
    is $result->{stderr} =~ s/^nginx: (?:the configuration file|configuration file).*\n//mgr, '', 'without a message';
}
is check_config(http => 'rate_limit_response $a json:b; rate_limit_request $c json:d;')->{exit}, 0, 'in http';
isnt check_config(server => 'location / { if ($uri) { rate_limit_response $a json:b; } }')->{exit}, 0, 'not in if';

done_testing;
