# Each invalid directive makes `nginx -t` fail with one message: the directive, the invalid word, the accepted values.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config);
use Test::More;

my $zone = 'rate_limit_zone $binary_remote_addr';

# Each row: a title, the directive, the word that the message must name, and a pattern of the accepted values if the
# message says more than the word. A row without a word has no word to name.
my @zones = (
    [ 'no arguments',             'rate_limit_zone' ],
    [ 'no key before zone=',      'rate_limit_zone zone=a:1m rate=1r/s',                'zone=a:1m' ],
    [ 'no key before rate=',      'rate_limit_zone rate=1r/s zone=a:1m',                'rate=1r/s' ],
    [ 'no key before algorithm=', 'rate_limit_zone algorithm=gcra zone=a:1m rate=1r/s', 'algorithm=gcra' ],
    [ 'zone= is missing',         "$zone rate=1r/s",                                    'zone=' ],
    [ 'rate= is missing',         "$zone zone=a:1m",                                    'rate=' ],
    [ 'rate= is empty',           "$zone zone=a:1m rate=",                              'rate=' ],
    [ 'zone= is empty',           "$zone zone= rate=1r/s",                              'zone=' ],
    [ 'a zone without a size',    "$zone zone=a rate=1r/s",                             'zone=a' ],
    [ 'a zone without a name',    "$zone zone=:1m rate=1r/s",                           'zone=:1m' ],
    [ 'an invalid size',          "$zone zone=a:big rate=1r/s",                         'zone=a:big' ],
    [ 'a negative size',          "$zone zone=a:-1m rate=1r/s",                         'zone=a:-1m' ],
    [ 'an empty size',            "$zone zone=a: rate=1r/s",                            'zone=a:' ],
    [ 'a zone too small',         "$zone zone=a:1k rate=1r/s",                          'zone=a:1k', qr/at least \d+k/ ],
    [ 'a log beyond its zone', "$zone zone=a:64k rate=99999r/h algorithm=sliding_log", 'zone=a:64k', qr/at least \d+k/ ],
    [ 'a log beyond any zone', "$zone zone=a:64m rate=2000000r/h algorithm=sliding_log", '2000000r/h', qr/to 1048576/ ],
    [ 'a space in a name',     qq($zone "zone=a b:1m" rate=1r/s),                      'zone=a b:1m' ],
    [ 'a quote in a name',     qq($zone 'zone=a"b:1m' rate=1r/s),                      'zone=a"b:1m' ],
    [ 'a backslash in a name', qq($zone 'zone=a\\\\b:1m' rate=1r/s),                   'zone=a\b:1m' ],
    [ 'UTF-8 in a name',       "$zone zone=\xc3\xa9:1m rate=1r/s",                     "zone=\xc3\xa9:1m" ],
    [ 'a zone defined twice',  "$zone zone=a:1m rate=1r/s; $zone zone=a:1m rate=2r/s", '"a"' ],
    [ 'a name of another module', "limit_req_zone \$uri zone=a:1m rate=1r/s; $zone zone=a:1m rate=1r/s", '"a"' ],
    [ 'an unknown option',     "$zone zone=a:1m rate=1r/s speed=9",                    'speed=9' ],
    [ 'an option without =',   "$zone zone=a:1m rate=1r/s burst",                      'burst' ],
    [ 'zone= twice',           "$zone zone=a:1m zone=b:1m rate=2r/s",                  'zone=b:1m' ],
    [ 'rate= twice',           "$zone zone=a:1m rate=1r/s rate=2r/s",                  'rate=2r/s' ],
    [ 'burst= twice',          "$zone zone=a:1m rate=1r/s algorithm=gcra burst=1 burst=2", 'burst=2' ],
    [ 'an unknown algorithm',  "$zone zone=a:1m rate=1r/s algorithm=leaky", 'algorithm=leaky', qr/leaky_bucket/ ],
    [ 'an empty algorithm',    "$zone zone=a:1m rate=1r/s algorithm=",                 'algorithm=' ],
    [ 'a $ without a name as the key',   'rate_limit_zone $ zone=a:1m rate=1r/s',              '"$"' ],
    [ 'a $ without a name in the rate',  "$zone zone=a:1m rate=1r/\$",                         '1r/$' ],
    [ 'an unclosed brace',               'rate_limit_zone "${uri" zone=a:1m rate=1r/s',        '${uri' ],
    [ 'an empty key',                    'rate_limit_zone "" zone=a:1m rate=1r/s' ],
    [ 'an unknown variable as the key',  'rate_limit_zone $nowhere zone=a:1m rate=1r/s',       '$nowhere' ],
    [ 'an unknown variable in the key',  'rate_limit_zone "x${nowhere}y" zone=a:1m rate=1r/s', '$nowhere' ],
    [ 'an unknown variable as the rate', "$zone zone=a:1m rate=\$nowhere",                     '$nowhere' ],
    [ 'an unknown variable in the rate', "$zone zone=a:1m rate=1r/\$nowhere",                  '$nowhere' ],
);

# Invalid rates, each for its own reason.
my @rates = split ' ', <<'RATES';
0r/s abc 1r/0s 1r/s, ,1r/s 1r/s,,2r/m 1 r/s 1r/ 1r s 1/s -1r/s +1r/s 1.5r/s 1r/1 1r/y 1r/ms 1r/-1s 1R/s 1r/S OFF
9007199254740992r/s 99999999999999999999r/s 1r/367d 1r/53w 1r/99999999999999999999s off,1r/s 1r/s,off
1r/s,2r/s,3r/s,4r/s,5r/s,6r/s,7r/s,8r/s,9r/s
RATES

# Options: the invalid word, and the reason.
my @options = (
    ( map { [ $_, 'algorithm=leaky_bucket' ] } qw(burst=-1 burst=abc burst= burst=1.5 burst=9007199254740991) ),
    ( map { [ $_, 'algorithm=gcra' ] } qw(burst=-1 capacity=5 buckets=5 align=first) ),
    ( map { [ "burst=5", "algorithm=$_" ] }
        qw(token_bucket fixed_window sliding_window sliding_buckets sliding_log) ),
    ( map { [ "capacity=5", "algorithm=$_" ] }
        qw(leaky_bucket fixed_window sliding_window sliding_buckets sliding_log) ),
    ( map { [ "buckets=5", "algorithm=$_" ] }
        qw(token_bucket leaky_bucket fixed_window sliding_window sliding_log) ),
    ( map { [ "align=clock", "algorithm=$_" ] }
        qw(token_bucket leaky_bucket sliding_window sliding_buckets sliding_log) ),
    ( map { [ $_, 'algorithm=token_bucket' ] } qw(capacity=0 capacity=-1 capacity=abc capacity= capacity=9007199254740992) ),
    ( map { [ $_, 'algorithm=sliding_buckets' ] } qw(buckets=0 buckets=1 buckets=121 buckets=abc buckets=) ),
    ( map { [ $_, 'algorithm=fixed_window' ] } qw(align=x align= align=FIRST) ),
    ( map { [ $_, '' ] } qw(burst=5 capacity=5 buckets=5 align=first count=x count= count=rejected on_error=x
            on_error= min_interval=0 min_interval=abc min_interval= min_interval=-1s min_interval=367d
            rates=2 log=5) ),
);

# Options that are invalid if rate= is a variable.
my @variable_options = (
    ( map { [ $_, '' ] } qw(rates=0 rates=9 rates=abc log=5) ),
    ( map { [ $_, 'algorithm=sliding_log' ] } qw(rates=2 log=0 log=abc log=1048577) ),
);

my $zones = join ' ', map {"$zone zone=$_:1m rate=1r/s algorithm=$_;"}
    qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);
my @many = map {"$zone zone=z$_:64k rate=1r/s;"} 1 .. 17;

my @limits = (
    [ 'no arguments',         'rate_limit' ],
    [ 'zone= is missing',     'rate_limit cost=2',                                  'zone=' ],
    [ 'zone= is empty',       'rate_limit zone=',                                   'zone=' ],
    [ 'an undefined zone',    'rate_limit zone=nowhere',                            'nowhere', qr/must be.*gcra/ ],
    [ 'a zone with a size',   'rate_limit zone=gcra:1m',                            'gcra:1m' ],
    [ 'an unknown word',      'rate_limit zone=gcra fast',                          'fast' ],
    [ 'an unknown option',    'rate_limit zone=gcra rate=1r/s',                     'rate=1r/s' ],
    [ 'a zone twice',         'rate_limit zone=gcra; rate_limit zone=gcra',         'gcra' ],
    [ 'zone= twice',          'rate_limit zone=gcra zone=fixed_window',             'zone=fixed_window' ],
    [ 'cost= twice',          'rate_limit zone=gcra cost=1 cost=2',                 'cost=2' ],
    [ 'off twice',            'rate_limit off; rate_limit off',                     'off' ],
    [ 'off after a zone',     'rate_limit zone=gcra; rate_limit off',               'off' ],
    [ 'a zone after off',     'rate_limit off; rate_limit zone=gcra',               'zone=gcra' ],
    [ 'off with a zone',      'rate_limit off zone=gcra',                           'off' ],
    [ 'a zone with off',      'rate_limit zone=gcra off',                           'off' ],
    [ 'nodelay and delay=',   'rate_limit zone=leaky_bucket burst=5 nodelay delay=2', 'delay=2' ],
    ( map { [ "$_ is not a cost", "rate_limit zone=gcra $_", $_ ] } qw(cost=-1 cost=9007199254740992 cost=abc cost= cost=1.5) ),
    ( map { [ "$_ is not a phase", "rate_limit zone=gcra $_", $_ ] } qw(phase=preaccess phase=content phase=), 'phase=$arg_n' ),
    [ 'phase= twice', 'rate_limit zone=gcra phase=access phase=precontent', 'phase=precontent' ],
    ( map { [ "$_ is out of range", "rate_limit zone=leaky_bucket $_", $_ ] }
        qw(burst=-1 burst=abc burst= burst=9007199254740991 delay=-1 delay=abc delay= delay=9007199254740991) ),
    ( map { [ "burst= for $_", "rate_limit zone=$_ burst=5", 'burst=' ] }
        qw(token_bucket fixed_window sliding_window sliding_buckets sliding_log) ),
    ( map { [ "nodelay for $_", "rate_limit zone=$_ nodelay", 'nodelay' ] }
        qw(token_bucket gcra fixed_window sliding_window sliding_buckets sliding_log) ),
    ( map { [ "delay= for $_", "rate_limit zone=$_ delay=5", 'delay=' ] }
        qw(token_bucket gcra fixed_window sliding_window sliding_buckets sliding_log) ),
    ( map { [ "$_ is not a choice", "rate_limit zone=gcra $_", $_, qr/on or off/ ] } qw(headers=all headers= headers=OFF) ),
    [ 'headers= twice', 'rate_limit zone=gcra headers=on headers=off', 'headers=off' ],
    [ 'an unknown variable as the cost', 'rate_limit zone=gcra cost=$nowhere', '$nowhere' ],
    [ 'more zones than one location can have', (join '; ', map {"rate_limit zone=z$_"} 1 .. 17), 'z17', qr/16/ ],
);

my %simple = (
    rate_limit_status    => [ [qw(399 600 abc -429 +429 429.0 4290)],  qr/400 to 599/ ],
    rate_limit_grpc_status => [ [qw(0 17 -8 8.0 OK RESOURCE_EXHAUSTED OFF on)], qr/a code from 1 to 16 or off/ ],
    rate_limit_headers   => [ [qw(on x3 OFF)],                         qr/off, legacy, ietf or all/ ],
    rate_limit_body      => [ [qw(on json OFF)],                       qr/auto, problem or off/ ],
    rate_limit_dry_run   => [ [qw(yes 1 ON)],                          qr/on or off/ ],
    rate_limit_log_level => [ [qw(debug crit emerg alert loud ERROR)], qr/info, notice, warn or error/ ],
);
my %good = (
    rate_limit_status    => 503,
    rate_limit_grpc_status => 14,
    rate_limit_headers   => 'ietf',
    rate_limit_body      => 'off',
    rate_limit_dry_run   => 'on',
    rate_limit_log_level => 'warn',
);

# Contexts where a directive is not allowed: nginx writes the message.
my @places = (
    [ server   => "$zone zone=a:1m rate=1r/s;" ],
    [ location => "$zone zone=a:1m rate=1r/s;" ],
    [ main     => 'rate_limit zone=gcra;' ],
    [ if       => 'rate_limit_status 429;' ],
    [ if       => 'rate_limit_grpc_status 8;' ],
    [ if       => 'rate_limit_headers all;' ],
    [ if       => 'rate_limit_body off;' ],
    [ if       => 'rate_limit_dry_run on;' ],
    [ if       => 'rate_limit_log_level info;' ],
    [ upstream => 'rate_limit zone=gcra;' ],
);

sub refuses {
    my ($title, $conf, $directive, $word, $accepted) = @_;
    my $check  = check_config(%{$conf});
    my @emerg  = @{ $check->{emerg} };
    my @others = grep { !/\[emerg\]|configuration file .* test failed/ } split /\n/, $check->{stderr};
    my $line   = $emerg[0] // '';
    my @faults;
    push @faults, 'nginx -t passes' if !$check->{exit};
    push @faults, @emerg . ' emerg lines' if @emerg != 1;
    push @faults, 'more than one line' if @others;
    push @faults, 'the directive is not named' if $line !~ /"\Q$directive\E"/;
    push @faults, "\"$word\" is not named" if defined $word && index($line, $word) < 0;
    push @faults, 'the accepted values are missing' if $line !~ ($accepted // qr/must be|requires|is duplicate/);
    push @faults, 'the file and line are missing' if $line !~ m{nginx\.conf:\d+|zone "a"};
    ok !@faults, "$directive: $title" or diag join '; ', @faults, "nginx says: $check->{stderr}";
    return;
}

sub in_location { my ($text) = @_; return { http => "$zones @many", server => "location / { $text; }" } }

# nginx does not free its pools when it exits early. The leak check would find only these, and takes longer than the
# test.
local $ENV{ASAN_OPTIONS} = "$ENV{ASAN_OPTIONS}:detect_leaks=0" if $ENV{RL_SANITIZE};

for my $row (@zones) {
    my ($title, $text, $word, $accepted) = @{$row};
    refuses($title, { http => "$text;" }, 'rate_limit_zone', $word, $accepted);
}
refuses("rate=$_", { http => "$zone zone=a:1m rate=$_;" }, 'rate_limit_zone', $_, qr/it must be a rate such as/)
    for @rates;
for my $row (@options, map { [ @{$_}, '$arg_rate' ] } @variable_options) {
    my ($word, $other, $rate) = @{$row};
    my $text = "$zone zone=a:1m $word rate=" . ($rate // '1r/s') . " $other;";
    refuses(join(' ', $word, 'with', $other || 'no algorithm', $rate ? 'with a variable rate' : ()),
        { http => $text }, 'rate_limit_zone', $word);
}
for my $row (@limits) {
    my ($title, $text, $word, $accepted) = @{$row};
    refuses($title, in_location($text), 'rate_limit', $word, $accepted);
}
for my $directive (sort keys %simple) {
    my ($wrong, $accepted) = @{ $simple{$directive} };
    refuses($_, in_location("$directive $_"), $directive, $_, $accepted) for @{$wrong};
    refuses('no arguments', in_location($directive), $directive, undef, $accepted);
    refuses('two words', in_location("$directive $good{$directive} second"), $directive, 'second', $accepted);
    refuses('given twice', in_location("$directive $good{$directive}; $directive $good{$directive}"),
        $directive, $good{$directive}, qr/is duplicate.*once/);
}
for my $row (@places) {
    my ($place, $text) = @{$row};
    my %conf
        = $place eq 'location' ? (server => "location / { $text }")
        : $place eq 'if'       ? (server => "location / { if (\$arg_a) { $text } }")
        : $place eq 'upstream' ? (servers => "upstream u { server 127.0.0.1; $text }")
        :                        ($place => $text);
    my ($directive) = $text =~ /(\w+)/;
    my $check = check_config(%conf, http => $zones);
    is scalar @{ $check->{emerg} }, 1, "$directive in $place makes nginx -t fail";
    like $check->{emerg}[0], qr/"$directive" directive is not allowed here/, "$directive in $place: the message";
}

done_testing;
