# Tiers: each client's rate follows its plan, from a claim, a header or an address, in memory and in Redis.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use RateLimit::Async qw(statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Token qw(new_key token key_file);

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);
my %stores     = (memory => '', redis => 'redis=main deny_cache=off');
my @stores     = sort keys %stores;

my $key   = new_key('P-256');
my $file  = key_file('public.pem', $key->{public});
my $redis = start_redis();

my ($zones, $locations) = ('', '');

# Adds a zone NAME_STORE and a location /NAME/STORE for each store.
sub place {
    my ($name, $rate, $options, $words) = @_;
    for my $store (@stores) {
        $zones     .= "rate_limit_zone \$who zone=${name}_$store:1m rate=$rate $options $stores{$store};\n";
        $locations .= "location = /$name/$store { rate_limit zone=${name}_$store " . ($words // '') . "; empty_gif; }\n";
    }
    return;
}

place('claim',   '$by_claim',   'algorithm=token_bucket');
place('header',  '$by_header',  'algorithm=token_bucket');
place('address', '$by_address', 'algorithm=token_bucket');
place('user',    '$by_user',    'algorithm=token_bucket');
place('told',    '$rate_limit_jwt_rate', 'algorithm=token_bucket');
place('open',    '$arg_rate',   'algorithm=token_bucket');
place('closed',  '$arg_rate',   'algorithm=token_bucket on_error=closed');
# Costs of a request. Each row: the text, and what remains of two millions.
my @costs = (
    [ '0',       '200 2000000' ],
    [ '1',       '200 1999999' ],
    [ '7',       '200 1999993' ],
    [ '007',     undef ],
    [ '1000000', '200 1000000' ],
    map { [ $_, '200 1999999', 'wrong' ] } '9007199254740992', '-1', '-0', '+1', '1.5', '1e3', '0x10', 'abc', '1a', 'nothing', 'space', 'after', 'tab',
    '18446744073709551617', '99999999999999999999999', '1' x 500,
);
# An invalid cost is logged once a minute for each zone.
place("cost$_", '2000000r/366d', 'algorithm=token_bucket', 'cost=$cost') for 0 .. $#costs;
for my $algorithm (@algorithms) {
    my $nodelay = $algorithm eq 'leaky_bucket' ? 'nodelay' : '';
    my $burst   = $algorithm =~ /leaky|gcra/   ? 'burst=4' : '';
    place($algorithm, '$arg_rate', "algorithm=$algorithm $burst", $nodelay);
}
for my $store (@stores) {
    $locations .= "location = /good/$store { rate_limit zone=header_$store; rate_limit zone=open_$store; empty_gif; }\n";
}

my $nginx = start_nginx(
    http => <<"HTTP" . <<'HTTP',
rate_limit_redis main @{[ $redis->url ]} timeout=5s;
rate_limit_jwt_key ES256 $file;
$zones
HTTP
rate_limit_key $who jwt:sub header:x-client ip;
map $rate_limit_jwt_plan $by_claim {
    default   2r/d;
    gold      5r/d;
    admin     off;
    both      3r/h,4r/d;
    loose     9r/h,4r/d;
    three     1r/s,1r/h,1r/d;
    broken    many;
    none      "";
    42        4r/d;
    true      3r/d;
}
map $http_x_plan $by_header { default 2r/d; gold 5r/d; admin off; broken nonsense; }
map $who $by_user { default 2r/d; jwt:sub:boss off; jwt:sub:gold 5r/d; header:x-client:gold 4r/d; "~^ip:" 1r/d; }
geo $by_address { default 2r/d; 192.0.2.0/24 5r/d; 10.0.0.0/8 off; 2001:db8::/32 4r/d; }
map $arg_n $cost {
    default   $arg_n;
    space     " 1";
    after     "1 ";
    tab       "	1";
    nothing   "";
}
HTTP
    server => <<"SERVER" . <<'SERVER',
$locations
SERVER
set_real_ip_from 127.0.0.1;
real_ip_header X-Forwarded-For;
add_header X-Status $rate_limit_status always;
add_header X-Error $rate_limit_error always;
SERVER
);

# Returns the response of one store: status and remaining count, or the error; and whether there are rate limit headers.
sub answer {
    my ($path, @headers) = @_;
    my $response = $nginx->request(path => $path, headers => \@headers);
    my $left     = $response->header('X-RateLimit-Remaining');
    my $status   = $response->header('X-Status') // '-';
    my $told     = grep { defined $response->header($_) } qw(X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset Retry-After);
    return join ' ', $response->{status}, $left // '-', $status =~ /BYPASSED|ERROR/ ? $status : (), !defined $left && $told ? 'TELLS' : ();
}

# Sends the same requests to each store. All must respond as expected.
sub both {
    my ($title, $expected, $path, $count, @headers) = @_;
    for my $store (@stores) {
        my $whole = $path =~ s{^(/\w+)}{$1/$store}r;
        is join(', ', map { answer($whole, @headers) } 1 .. $count), $expected, "$store: $title";
    }
    return;
}

sub bearer { my (%claims) = @_; return (Authorization => 'Bearer ' . token($key, 'ES256', \%claims)) }

# A plan from a claim.
both('an unknown plan',          '200 1, 200 0, 429 0', '/claim', 3, bearer(sub => 'a', plan => 'tin'));
both('no plan',                  '200 1, 200 0, 429 0', '/claim', 3, bearer(sub => 'b'));
both('a plan',                   '200 4, 200 3, 200 2, 200 1, 200 0, 429 0', '/claim', 6, bearer(sub => 'c', plan => 'gold'));
both('several rates',            '200 2, 200 1, 200 0, 429 0', '/claim', 4, bearer(sub => 'd', plan => 'both'));
both('several rates, the second is the tightest', '200 3, 200 2, 200 1, 200 0, 429 0', '/claim', 5, bearer(sub => 'd2', plan => 'loose'));
both('off: no limit, and no header', '200 - BYPASSED, 200 - BYPASSED, 200 - BYPASSED', '/claim', 3, bearer(sub => 'e', plan => 'admin'));
both('a plan that is a number',  '200 3', '/claim', 1, bearer(sub => 'f', plan => 42));
both('a plan that is true',      '200 2', '/claim', 1, bearer(sub => 'g', plan => JSON::PP::true));
both('a plan that is a list',    '200 1', '/claim', 1, bearer(sub => 'h', plan => ['admin']));
both('a plan that is an object', '200 1', '/claim', 1, bearer(sub => 'i', plan => { admin => 1 }));
both('an invalid token',         '200 1', '/claim', 1, 'X-Client' => 'j', Authorization => 'Bearer ' . token(new_key('P-256'), 'ES256', { plan => 'admin' }));
both('an expired token',         '200 1', '/claim', 1, 'X-Client' => 'k', bearer(plan => 'admin', exp => 1));
both('a plan with an invalid rate: the zone is skipped', '200 - ERROR', '/claim', 1, bearer(sub => 'l', plan => 'broken'));
both('a plan with an empty rate',                       '200 - ERROR', '/claim', 1, bearer(sub => 'l', plan => 'none'));
both('a plan with more rates than the zone has room for', '200 - ERROR', '/claim', 1, bearer(sub => 'l', plan => 'three'));

both('a rate in the token itself', '200 2, 200 1, 200 0, 429 0', '/told', 4, bearer(sub => 'm', rate => '3r/d'));
both('off in the token itself',    '200 - BYPASSED', '/told', 1, bearer(sub => 'm', rate => 'off'));
both('no rate in the token',       '200 - ERROR', '/told', 1, bearer(sub => 'm'));
both('a number as the rate',       '200 - ERROR', '/told', 1, bearer(sub => 'm', rate => 5));

# A plan from a header, from the key, or from the address.
both('a plan by a header',       '200 4', '/header', 1, 'X-Client' => 'a', 'X-Plan' => 'gold');
both('no header',                '200 1', '/header', 1, 'X-Client' => 'b');
both('off by a header',          '200 - BYPASSED, 200 - BYPASSED', '/header', 2, 'X-Client' => 'c', 'X-Plan' => 'admin');
both('a plan by the key: a token',       '200 4', '/user', 1, bearer(sub => 'gold'));
both('a plan by the key: not a header',  '200 3', '/user', 1, 'X-Client' => 'gold');
both('a plan by the key: off',           '200 - BYPASSED', '/user', 1, bearer(sub => 'boss'));
both('a header with the same text is another client', '200 1', '/user', 1, 'X-Client' => 'boss');
both('a plan by the key: an address',    '200 0, 429 0', '/user', 2);
both('a plan by an address',     '200 4', '/address', 1, 'X-Forwarded-For' => '192.0.2.7');
both('IPv6',                     '200 3', '/address', 1, 'X-Forwarded-For' => '2001:db8::1');
both('off by an address',        '200 - BYPASSED', '/address', 1, 'X-Forwarded-For' => '10.9.9.9');
both('another address',          '200 1', '/address', 1, 'X-Forwarded-For' => '198.51.100.7');
both('a header, not its address', '200 4', '/address', 1, 'X-Client' => 'x', 'X-Forwarded-For' => '192.0.2.7');

# A plan changes in the middle of a window.
both('a client exhausts its plan',      '200 1, 200 0, 429 0', '/claim', 3, bearer(sub => 'mover'));
both('a better plan, minus the used requests', '200 2, 200 1, 200 0, 429 0', '/claim', 4, bearer(sub => 'mover', plan => 'gold'));
both('back again',                      '429 0', '/claim', 1, bearer(sub => 'mover'));
both('no limit at all',                 '200 - BYPASSED', '/claim', 1, bearer(sub => 'mover', plan => 'admin'));
both('forgets nothing',                 '429 0', '/claim', 1, bearer(sub => 'mover', plan => 'gold'));
both('a plan of two rates counts the used requests of the day', '429 0', '/claim', 1, bearer(sub => 'mover', plan => 'loose'));
both('a broken plan',                   '200 - ERROR', '/claim', 1, bearer(sub => 'mover', plan => 'broken'));
both('forgets nothing either',          '429 0', '/claim', 1, bearer(sub => 'mover', plan => 'gold'));

for my $algorithm (grep { !/leaky|gcra/ } @algorithms) {
    my $at = sub { return "/$algorithm?rate=$_[0]" };
    both("$algorithm: two of three",                '200 2, 200 1', $at->('3r/366d'), 2, 'X-Client' => 'up');
    both("$algorithm: up",                          '200 6',        $at->('9r/366d'), 1, 'X-Client' => 'up');
    both("$algorithm: down to the used count",      '429 0',        $at->('3r/366d'), 1, 'X-Client' => 'up');
    both("$algorithm: down below the used count",   '429 0',        $at->('1r/366d'), 1, 'X-Client' => 'up');
    both("$algorithm: up by one",                   '200 0',        $at->('4r/366d'), 1, 'X-Client' => 'up');
    both("$algorithm: rejections are not charged",  '200 5',        $at->('10r/366d'), 1, 'X-Client' => 'up');
}
for my $algorithm (qw(leaky_bucket gcra)) {
    my $at = sub { return "/$algorithm?rate=$_[0]" };
    both("$algorithm: three of five",               '200 4, 200 3, 200 2', $at->('1r/366d'), 3, 'X-Client' => 'up');
    both("$algorithm: another rate, the same level", '200 1',              $at->('2r/366d'), 1, 'X-Client' => 'up');
    both("$algorithm: up to the limit",             '200 0, 429 0',        $at->('1r/366d'), 2, 'X-Client' => 'up');
}

# A client whose plan gets worse waits no longer than one that never had the better plan.
for my $algorithm (@algorithms) {
    for my $change ([ '10r/h', '2r/h' ], [ '10r/366d', '2r/h' ], [ '90r/h', '1r/h' ], [ '10r/s', '3r/366d' ]) {
        my ($from, $to) = @{$change};
        for my $store (@stores) {
            my $ask = sub {
                my ($client, $rate) = @_;
                return $nginx->get("/$algorithm/$store?rate=$rate", 'X-Client' => "$client $from $to");
            };
            my $last;
            $ask->('rich', $from) for 1 .. 9;
            for (1 .. 10) {
                $last = $ask->('poor', $to);
                last if $last->{status} == 429;
            }
            my $fallen = $ask->('rich', $to);
            my ($waits, $longest) = map { $_->header('Retry-After') // 0 } $fallen, $last;
            cmp_ok $last->{status}, '==', 429, "$store: $algorithm: $to is exhausted";
            cmp_ok $waits, '<=', $longest + 1, "$store: $algorithm: from $from to $to the wait is no longer";
        }
    }
}

# Invalid rates.
for my $rate ('many', '0r/s', '-1r/s', '1r/s,', '', '%31r/d', '1r/s;2r/s', '1000000001r/s', 'OFF', 'off,1r/s', 'x' x 3000) {
    my $title = length $rate > 40 ? 'a long text' : "\"$rate\"";
    both("$title: open",   '200 - ERROR', "/open?rate=$rate",   1, 'X-Client' => 'wrong');
    both("$title: closed", '503 - ERROR', "/closed?rate=$rate", 1, 'X-Client' => 'wrong');
}
both('another zone of the request still applies', '200 1 ERROR, 200 0 ERROR, 429 0', '/good?rate=many', 3, 'X-Client' => 'good');
both('the zone works with a valid rate', '200 0, 429 0', '/closed?rate=1r/366d', 2, 'X-Client' => 'wrong');
for my $zone (map { ("open_$_", "closed_$_") } @stores) {
    my @lines = $nginx->error_log =~ /(.*\[error\].* rate ".*" of zone "$zone".*)/g;
    ok @lines >= 1 && @lines <= 2, "zone $zone: an invalid rate is logged once a minute" or diag scalar @lines;
}

my %written = (nothing => '', space => ' 1', after => '1 ');
for my $number (0 .. $#costs) {
    my ($text, $left, $wrong) = @{ $costs[$number] };
    my $title = length $text > 40 ? length($text) . ' digits' : $text;
    if (!defined $left) {
        is answer("/cost$number/memory?n=$text", 'X-Client' => $text), answer("/cost$number/redis?n=$text", 'X-Client' => $text), "cost $title: one for both";
        next;
    }
    both("cost $title", $left, "/cost$number?n=$text", 1, 'X-Client' => $text);
    my $logged = quotemeta substr $written{$text} // $text, 0, 30;
    $logged = '.*1' if $text eq 'tab';
    for my $store (@stores) {
        my @lines = $nginx->error_log =~ /(.*\[error\].*cost "$logged.*" for zone "cost${number}_$store".*n=\Q$text\E .*)/g;
        is scalar @lines, $wrong ? 1 : 0, "$store: cost $title: " . ($wrong ? 'logged' : 'nothing to log');
    }
}
is scalar(grep { /[^ -~]/ } split /\n/, $nginx->error_log), 0, 'the log is printable ASCII';
unlike $nginx->error_log, qr/exited on signal|\[(?:alert|crit)\]/, 'no worker died';

done_testing;
