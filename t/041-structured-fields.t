# RateLimit and RateLimit-Policy are valid lists of RFC 9651, according to an independent parser.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx decode_json);
use Test::More;

# Prints each field, parsed: [[item, {parameter: value}], …].
my $parser = <<'JAVASCRIPT';
const { parseList } = require('structured-headers');
const read = text => parseList(text).map(([item, parameters]) => [item, Object.fromEntries(parameters)]);
console.log(JSON.stringify(process.argv.slice(1).map(read)));
JAVASCRIPT

my @odd   = ('a-b', 'a.b', 'a_b', 'A', 'a:b', 'a,b', 'a=b', '(x)', '9', '~', q(;q=1), q(it's), '<>', 'x' x 200);
my $zones = '';
my $all   = '';
for my $i (0 .. $#odd) {
    $zones .= "rate_limit_zone \$http_x_client \"zone=$odd[$i]:64k\" rate=@{[ $i + 1 ]}r/h;\n";
    $all   .= "rate_limit \"zone=$odd[$i]\";\n";
}

my $nginx = start_nginx(
    http => <<"HTTP",
rate_limit_headers ietf;
rate_limit_zone \$http_x_client zone=one:1m rate=100r/m algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=two:1m rate=10000r/s algorithm=gcra burst=500;
rate_limit_zone \$http_x_client zone=rates:1m rate=10r/s,100r/m,1000r/h,5000r/d,9000r/w,99r/30s,99r/90m,99r/25h;
rate_limit_zone \$http_x_client zone=plan:1m rate=\$arg_rate algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=huge:1m rate=9007199254740991r/366d algorithm=token_bucket;
$zones
HTTP
    server => <<"SERVER",
location /one   { rate_limit zone=one; empty_gif; }
location /both  { rate_limit zone=one; rate_limit zone=two; empty_gif; }
location /rates { rate_limit zone=rates; empty_gif; }
location /plan  { rate_limit zone=plan; empty_gif; }
location /huge  { rate_limit zone=huge; empty_gif; }
location /odd   { $all empty_gif; }
location /over  { rate_limit zone=one cost=101; empty_gif; }
SERVER
);

# Returns the two fields of a response, parsed.
sub fields {
    my ($path) = @_;
    my $response = $nginx->get($path, 'X-Client' => 'alice');
    my @texts = map { $response->header($_) } qw(RateLimit-Policy RateLimit);
    open my $node, '-|', 'node', '-e', $parser, '--', @texts or die "node: $!\n";
    my $json = do { local $/ = undef; <$node> };
    close $node;
    return @{ decode_json($json || '[]') };
}

sub policies {
    my ($list) = @_;
    return { map { $_->[0] => "$_->[1]{q} in $_->[1]{w}" } @{$list} };
}

{
    my ($policy, $limit) = fields('/one');
    is_deeply $policy, [ [ 'one', { q => 100, w => 60 } ] ], 'one policy';
    is $limit->[0][0],    'one', 'the limit has the name of its policy';
    is $limit->[0][1]{r}, 99,    'r is the remaining quota';
    is $limit->[0][1]{t}, 1,     't is in seconds, rounded up';
    is_deeply [ sort keys %{ $limit->[0][1] } ], [qw(r t)], 'no other parameters, and no key';
}
{
    my ($policy, $limit) = fields('/both');
    is_deeply [ map { $_->[0] } @{$policy} ], [qw(one two)], 'two zones are two policies';
    is scalar @{$limit}, 1, 'one limit is shown';
    is $limit->[0][0], 'one', 'the limit is the zone with less remaining';
}
{
    my ($policy, $limit) = fields('/rates');
    is_deeply policies($policy), {
        'rates-1s'  => '10 in 1',
        'rates-1m'  => '100 in 60',
        'rates-1h'  => '1000 in 3600',
        'rates-1d'  => '5000 in 86400',
        'rates-1w'  => '9000 in 604800',
        'rates-30s' => '99 in 30',
        'rates-90m' => '99 in 5400',
        'rates-25h' => '99 in 90000',
    }, 'each rate of a zone is a policy';
    is $limit->[0][0], 'rates-1s', 'the limit has the name of the tightest rate';
}
{
    my ($policy) = fields('/plan?rate=7r/m');
    is_deeply policies($policy), { plan => '7 in 60' }, 'a variable rate';
    ($policy) = fields('/plan?rate=7r/m,70r/h');
    is_deeply policies($policy), { 'plan-1m' => '7 in 60', 'plan-1h' => '70 in 3600' }, 'several variable rates';
}
{
    my ($policy) = fields('/huge');
    is_deeply policies($policy), { huge => '999999999999999 in 31622400' }, 'the largest number has 15 digits';
}
{
    my ($policy, $limit) = fields('/odd');
    is_deeply [ map { $_->[0] } @{$policy} ], \@odd, 'unusual zone names are unchanged';
    is $limit->[0][0], $odd[0], 'in both fields';
}
{
    my ($policy, $limit) = fields('/over');
    is $policy->[0][0], 'one', 'a rejected request has a policy';
    is $limit->[0][0],  'one', 'a rejected request has a limit';
    like $limit->[0][1]{r}, qr/^\d+$/, 'r of a rejected request is a number';
}

done_testing;
