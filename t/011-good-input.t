# Each parameter, in each of its forms, passes `nginx -t` without a message.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config);
use Test::More;

my $zone = 'rate_limit_zone $binary_remote_addr zone=a:1m';
my $use  = 'location / { rate_limit zone=a; }';

my @rates = split ' ', <<'RATES';
1r/s 10r/s 100r/m 1000r/h 5r/d 20r/w 100r/30s 1r/1s 1r/90m 1r/36h 1r/366d 1r/52w 1000000000r/s 9007199254740991r/s 1r/31622400s
10r/s,100r/m 1r/s,2r/m,3r/h,4r/d,5r/w,6r/2s,7r/2m,8r/2h 5r/s,6r/s off $arg_rate ${arg_rate} $arg_n$arg_unit
RATES

my @options = (
    ( map {"algorithm=$_"} qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log) ),
    ( map {"algorithm=gcra burst=$_"} 0, 1, 999_999_999 ),
    ( map {"algorithm=leaky_bucket burst=$_"} 0, 5 ),
    ( map {"algorithm=token_bucket capacity=$_"} 1, 7, 1_000_000_000 ),
    ( map {"algorithm=sliding_buckets buckets=$_"} 2, 10, 120 ),
    ( map {"algorithm=fixed_window align=$_"} qw(clock first) ),
    ( map {"min_interval=$_"} qw(1ms 200ms 2s 1m 366d) ),
    qw(count=allowed count=all on_error=open on_error=closed),
    'burst=5 algorithm=gcra',
    'min_interval=1s count=all on_error=closed algorithm=fixed_window align=first',
);

my @variable_options = ('rates=1', 'rates=8', 'algorithm=sliding_log log=1', 'algorithm=sliding_log log=1000');

my @limits = (
    ( map {"rate_limit zone=a cost=$_;"} 0, 1, 5, 1_000_000, '$arg_n', '${arg_n}0' ),
    ( map {"rate_limit zone=leaky $_;"} 'burst=5', 'burst=5 nodelay', 'burst=5 delay=2', 'nodelay', 'delay=0' ),
    ( map {"rate_limit zone=a $_;"} 'phase=access', 'phase=precontent', 'cost=5 phase=precontent' ),
    'rate_limit zone=a; rate_limit zone=leaky phase=precontent; rate_limit_shadow zone=gcra phase=precontent;',
    'rate_limit zone=gcra burst=0;',
    'rate_limit burst=3 cost=2 zone=gcra;',
    'rate_limit off;',
    'rate_limit zone=a cost=$ARG_n;',
    'rate_limit zone=a; rate_limit zone=gcra; rate_limit zone=leaky nodelay;',
    'if ($arg_a) { rate_limit zone=a; }',
    'if ($arg_a) { rate_limit off; }',
    'rate_limit zone=a; if ($arg_a) { rate_limit zone=a cost=5; }',
    'rate_limit zone=a; location /in { rate_limit zone=a; }',
    ( map {"rate_limit_status $_;"} 400, 403, 429, 444, 503, 599 ),
    ( map {"rate_limit_grpc_status $_;"} 1, 8, 14, 16, 'off' ),
    ( map {"rate_limit zone=a headers=$_;"} qw(on off) ),
    'rate_limit_shadow zone=a headers=off;',
    ( map {"rate_limit_headers $_;"} qw(off legacy ietf all) ),
    ( map {"rate_limit_body $_;"} qw(auto problem off) ),
    ( map {"rate_limit_dry_run $_;"} qw(on off) ),
    ( map {"rate_limit_log_level $_;"} qw(info notice warn error) ),
);

my @whole = (
    [ 'a zone defined after its use', server  => $use, servers => "$zone rate=1r/s;" ],
    [ 'an unused zone',       http    => "$zone rate=1r/s;" ],
    [ 'rate_limit in http',   http    => "$zone rate=1r/s; rate_limit zone=a;" ],
    [ 'rate_limit in server', http    => "$zone rate=1r/s;", server => 'rate_limit zone=a;' ],
    [ 'all other directives in http and server', http => "$zone rate=1r/s; " . rest(), server => rest() ],
    [ 'a key of text and variables',     http => 'rate_limit_zone "$remote_addr|${http_x}y" zone=a:1m rate=1r/s;' ],
    [ 'a key with a variable that is set later',
        http   => 'rate_limit_zone $mine zone=a:1m rate=1r/s;',
        server => 'set $mine x;' ],
    [ 'a rate from a map that comes later',
        http    => 'rate_limit_zone $uri zone=a:1m rate=$plan;',
        servers => 'map $uri $plan { default 1r/s; }' ],
    [ 'a capture as the key', http => 'rate_limit_zone $1 zone=a:1m rate=1r/s;',
        server => 'location ~ ^/(.*) { rate_limit zone=a; }' ],
    [ 'names with all visible ASCII characters', http => join ' ',
        map {"rate_limit_zone \$uri 'zone=$_:1m' rate=1r/s;"}
        'a-b', 'a.b', 'a_b', 'A', 'a:b', 'a,b', 'a=b', '(x)', '9', '~' ],
    [ 'sizes', http => join ' ',
        map {"rate_limit_zone \$uri zone=a$_:$_ rate=1r/s;"} '64k', '64K', '1m', '1M', '1048576' ],
    [ 'the name of a limit_conn zone can be reused', http => "$zone rate=1r/s; limit_conn_zone \$uri zone=b:1m;" ],
);

sub rest {
    return 'rate_limit_status 503; rate_limit_grpc_status 14; rate_limit_headers all; rate_limit_body off; rate_limit_dry_run on; '
        . 'rate_limit_log_level notice;';
}

sub accepts {
    my ($title, %conf) = @_;
    my $check = check_config(%conf);
    ok $check->{exit} == 0 && $check->{stderr} eq '', $title or diag $check->{stderr};
    return;
}

accepts("rate=$_", http => "$zone rate=$_;", server => $use) for @rates;
accepts($_, http => "$zone rate=5r/s $_;", server => $use) for @options;
accepts("a variable rate with $_", http => "$zone rate=\$arg_rate $_;", server => $use) for @variable_options;
for my $text (@limits) {
    my $more = join ' ', map {"rate_limit_zone \$uri zone=$_->[0]:1m rate=1r/s algorithm=$_->[1];"}
        [ leaky => 'leaky_bucket' ], [ gcra => 'gcra' ];
    accepts($text, http => "$zone rate=5r/s; $more", server => "location / { $text }");
}
for my $row (@whole) {
    my ($title, %conf) = @{$row};
    accepts($title, %conf);
}

done_testing;
