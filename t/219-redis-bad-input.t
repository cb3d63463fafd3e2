# Each invalid parameter for Redis makes `nginx -t` fail: the directive, the invalid word, the accepted values.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config);
use RateLimit::Redis qw(tls_files);
use Test::More;

my $dir   = $ENV{RL_DIR};
my $files = tls_files();
my $good  = 'rate_limit_redis main redis://127.0.0.1:6379';
my $tls   = 'rate_limit_redis main rediss://127.0.0.1:6379';
my $zone  = 'rate_limit_zone $binary_remote_addr zone=a:1m rate=1r/s';

sub write_file {
    my ($name, $text) = @_;
    open my $out, '>', "$dir/$name" or die "$name: $!\n";
    print {$out} $text;
    close $out or die "$name: $!\n";
    chmod 0600, "$dir/$name" or die "$name: $!\n";
    return "$dir/$name";
}
my $password = write_file('password', "sesame\n");
my $empty    = write_file('empty',    '');
my $newline  = write_file('newline',  "\n");

# Each row: a title, the directives, and the word that the message must name.
my @redis = (
    [ 'no arguments',          'rate_limit_redis' ],
    [ 'no URL',                'rate_limit_redis main' ],
    [ 'an empty name',         'rate_limit_redis "" redis://127.0.0.1', '""' ],
    [ 'a name with a space',   'rate_limit_redis "a b" redis://127.0.0.1', 'a b' ],
    [ 'a name with a quote',   q(rate_limit_redis 'a"b' redis://127.0.0.1), 'a"b' ],
    [ 'a name with a $',       'rate_limit_redis $uri redis://127.0.0.1', '$uri' ],
    [ 'a URL as a name',       'rate_limit_redis redis://127.0.0.1 timeout=1s', 'redis://127.0.0.1' ],
    [ 'a name twice',          "$good; rate_limit_redis main redis://127.0.0.1:6380", 'main' ],
    [ 'an unknown option',     "$good speed=9",       'speed=' ],
    [ 'an option without =',   "$good timeout",       'timeout' ],
    [ 'an empty option',       qq($good ""),          '""' ],
    [ 'a second URL',          "$good redis://127.0.0.1:6380", 'redis://127.0.0.1:6380' ],
    [ 'a variable in the URL', 'rate_limit_redis main redis://$host:6379', '$host' ],
);

# Invalid URLs, each for its own reason.
my @urls = (
    '127.0.0.1:6379', 'localhost', 'http://127.0.0.1', 'REDIS//127.0.0.1', 'redis:127.0.0.1', 'redis:/127.0.0.1', 'redis://',
    'redis:///', 'redis:///0', 'redis://:6379', 'redis://127.0.0.1:', 'redis://127.0.0.1:0', 'redis://127.0.0.1:65536',
    'redis://127.0.0.1:-1', 'redis://127.0.0.1:abc', 'redis://127.0.0.1:6379x', 'redis://127.0.0.1:6379:1',
    'redis://127.0.0.1/x', 'redis://127.0.0.1/-1', 'redis://127.0.0.1/1/2', 'redis://127.0.0.1/999999', 'redis://127.0.0.1/1.5',
    'redis://127.0.0.1/99999999999999999999', 'redis://127.0.0.1:99999999999999999999',
    'redis://[::1', 'redis://::1', 'redis://[::1]x', 'redis://[]', 'redis://[::g]', 'redis://[::1]:',
    'redis://@127.0.0.1x:', 'redis://u:p@', 'redis://u:p@:6379', 'redis://u:%zz@127.0.0.1', 'redis://u:%4@127.0.0.1',
    'redis://127.0.0.1?db=1', 'redis://127.0.0.1/0?timeout=1', 'redis://127.0.0.1#x',
    'redis://127.0.0.1,127.0.0.2', 'rediss://', 'rediss://:6379', 'rediss:127.0.0.1', 'unix:', 'unix:relative.sock',
    'unix:/' . 'x' x 120, 'redis://' . 'x' x 64 . '.test',
);
my @sentinels = (
    'redis+sentinel://', 'redis+sentinel:///limits', 'redis+sentinel://127.0.0.1', 'redis+sentinel://127.0.0.1/',
    'redis+sentinel://127.0.0.1,/limits', 'redis+sentinel://127.0.0.1//0', 'redis+sentinel://127.0.0.1/limits/x',
    'rediss+sentinel://127.0.0.1',
    map {"redis+sentinel://$_/limits"} 'a..b', '.a', 'a b', 'a,b?c', 'x' x 64,
);
my @clusters = map { ("redis+cluster$_", "rediss+cluster$_") } (
    ':127.0.0.1', '://', ':///', ':///0', '://,', '://:6379', '://127.0.0.1,', '://,127.0.0.1', '://127.0.0.1,,127.0.0.2', '://127.0.0.1,:6380',
    '://127.0.0.1/1', '://127.0.0.1/0', '://127.0.0.1/limits', '://127.0.0.1,127.0.0.2/1', '://127.0.0.1/1,127.0.0.2',
    '://127.0.0.1:', '://127.0.0.1:0', '://127.0.0.1:65536', '://127.0.0.1:abc', '://127.0.0.1,127.0.0.2:x',
    '://[::1', '://[]', '://[::1],', '://::1', '://a..b', '://127.0.0.1,a..b', '://.a,127.0.0.1',
    '://u:p@', '://u:p@,127.0.0.1', '://u:%zz@127.0.0.1', '://127.0.0.1,u:p@127.0.0.2', '://127.0.0.1?x=1', '://127.0.0.1#x',
    '://' . 'x' x 64 . '.test',
);

# Host names that may resolve later.
my @absent = (
    'redis://nowhere.invalid', 'redis://nowhere.invalid.', 'rediss://u:sesame@nowhere.invalid:6380/1', 'redis+sentinel://nowhere.invalid/limits',
    'rediss+sentinel://nowhere.invalid:1,nowhere.invalid:2/limits', 'redis+cluster://nowhere.invalid', 'rediss+cluster://:sesame@nowhere.invalid,nowhere.invalid:7000',
);
my @half_absent = map { ("$_->[0]127.0.0.1,nowhere.invalid$_->[1]", "$_->[0]nowhere.invalid,127.0.0.1$_->[1]") }
    [ 'redis+sentinel://', '/limits' ], [ 'redis+cluster://', '' ];

# Options of rate_limit_redis that are invalid with a URL.
my @options = (
    ( map { [ $_, $good ] } qw(timeout= timeout=0 timeout=0ms timeout=-1ms timeout=abc timeout=1x timeout=1.5s timeout=2h timeout=1d
            connect_timeout= connect_timeout=0 connect_timeout=-1s connect_timeout=abc connect_timeout=2h
            batch= batch=0 batch=-1 batch=abc batch=1.5 batch=1025 batch=99999999999999999999
            db= db=-1 db=abc db=65536 db=1.5 user= password_file= verify=on verify=off sni=x) ),
    ( map { [ $_, $good ] } "ca=$files->{ca}", "cert=$files->{client}", "key=$files->{client_key}" ),
    ( map { [ $_, $tls ] } qw(verify= verify=yes verify=ON verify=1 sni= ca= cert= key=) ),
    ( map { [ qq("prefix=$_"), $good ] } '{app}:', 'a{', 'a}', '{}' ),
    [ "password_file=$dir/absent", $good ],
    [ "password_file=$dir",        $good ],
    [ "password_file=$empty",      $good ],
    [ "password_file=$newline",    $good ],
    [ "password_file=$password",   'rate_limit_redis main redis://:p@127.0.0.1' ],
    [ 'user=app',                  "rate_limit_redis main redis://other:p\@127.0.0.1" ],
    [ 'db=1',                      'rate_limit_redis main redis://127.0.0.1/2' ],
    [ 'db=1',                      'rate_limit_redis main redis+cluster://127.0.0.1' ],
    [ 'db=0',                      'rate_limit_redis main redis+cluster://127.0.0.1,127.0.0.2' ],
    [ 'db=1',                      'rate_limit_redis main rediss+cluster://127.0.0.1' ],
    ( map { [ $_, 'rate_limit_redis main redis+cluster://127.0.0.1' ] } "ca=$files->{ca}", qw(sni=x verify=off) ),
    [ "password_file=$password",   'rate_limit_redis main redis+cluster://:p@127.0.0.1' ],
    [ 'user=app',                  'rate_limit_redis main redis+cluster://other:p@127.0.0.1,127.0.0.2' ],
    [ "ca=$files->{ca}",           "$tls verify=off" ],
    [ "cert=$files->{client}",     $tls ],
    [ "key=$files->{client_key}",  $tls ],
);
my @twice = qw(timeout=1s connect_timeout=1s prefix=a: batch=2 db=1);

my @zones = (
    [ 'an undefined Redis',           "$zone redis=other",                                'other' ],
    [ 'redis= is empty',              "$zone redis=",                                     'redis=' ],
    [ 'redis= twice',                 "$zone redis=main redis=main",                      'redis=main' ],
    [ 'a URL in redis=',              "$zone redis=redis://127.0.0.1",                    'redis://127.0.0.1' ],
    [ 'a variable in redis=',         "$zone redis=\$uri",                                'redis=$uri' ],
    ( map { [ "on_error=$_", "$zone redis=main on_error=$_", "on_error=$_" ] } '', 'x', 'OPEN', 'fail', 'open,closed' ),
    [ 'on_error= twice',               "$zone redis=main on_error=open on_error=closed",   'on_error=closed' ],
    [ 'on_error=local without redis=', "$zone on_error=local",                            'on_error=local' ],
    ( map { [ "deny_cache=$_", "$zone redis=main deny_cache=$_", "deny_cache=$_" ] } '', qw(0 0s -1s abc on OFF 1x 1.5s 367d) ),
    [ 'deny_cache= twice',             "$zone redis=main deny_cache=1s deny_cache=2s",     'deny_cache=2s' ],
    [ 'deny_cache= without redis=',    "$zone deny_cache=1s",                              'deny_cache=1s' ],
    [ 'deny_cache=off without redis=', "$zone deny_cache=off",                            'deny_cache=off' ],
    [ 'deny_cache= and count=all',     "$zone redis=main count=all deny_cache=1s",         'deny_cache=1s' ],
    ( map { [ "sync=$_", "$zone redis=main sync=$_", "sync=$_" ] } '', qw(0 0ms 5ms 9ms -1s 2h 61m 1d abc on off 1x 1.5s 99999999999999999999s) ),
    [ 'sync= is a variable',          "$zone redis=main sync=\$arg_t",                    'sync=$arg_t' ],
    [ 'sync= twice',                  "$zone redis=main sync=1s sync=2s",                 'sync=2s' ],
    [ 'sync= without redis=',         "$zone sync=1s",                                    'sync=1s' ],
    ( map { [ "sync= and on_error=$_", "$zone redis=main sync=1s on_error=$_", "on_error=$_" ] } qw(open closed local) ),
    ( map { [ "on_error=$_ and sync=", "$zone redis=main on_error=$_ sync=1s", "on_error=$_" ] } qw(open local) ),
    ( map { [ "sync= and deny_cache=$_", "$zone redis=main sync=1s deny_cache=$_", "deny_cache=$_" ] } qw(1s off) ),
);

my @passing = (
    [ 'a plain one',                 $good ],
    [ 'without a port',              'rate_limit_redis main redis://127.0.0.1' ],
    [ 'a database',                  'rate_limit_redis main redis://127.0.0.1:6379/15' ],
    [ 'a trailing /',                'rate_limit_redis main redis://127.0.0.1:6379/' ],
    [ 'a name',                      'rate_limit_redis main redis://localhost' ],
    [ 'IPv6',                        'rate_limit_redis main redis://[::1]:6379/0' ],
    [ 'IPv6 without a port',         'rate_limit_redis main redis://[::1]' ],
    [ 'a password',                  'rate_limit_redis main redis://:secret@127.0.0.1' ],
    [ 'a user and a password',       'rate_limit_redis main redis://app:secret@127.0.0.1/3' ],
    [ 'a password with an @',        'rate_limit_redis main redis://app:a%40b@127.0.0.1' ],
    [ 'a Unix socket',               'rate_limit_redis main unix:/tmp/redis.sock' ],
    [ 'every option',                "$good timeout=20ms connect_timeout=1s prefix=p: batch=64 user=app db=2 password_file=$password" ],
    [ 'the minimum of each option',  "$good timeout=1ms connect_timeout=1ms batch=1 db=0 prefix=" ],
    [ 'the maximum of each option',  "$good timeout=1h connect_timeout=1h batch=1024 db=65535" ],
    [ 'TLS',                         $tls ],
    [ 'every option of TLS',         "$tls ca=$files->{ca} cert=$files->{client} key=$files->{client_key} sni=redis.test verify=on" ],
    [ 'TLS without verification',    "$tls verify=off sni=redis.test" ],
    [ 'a cluster',                   'rate_limit_redis main redis+cluster://127.0.0.1' ],
    [ 'a cluster of names',          'rate_limit_redis main redis+cluster://localhost,localhost:7000,127.0.0.1:7001' ],
    [ 'a cluster by IPv6',           'rate_limit_redis main redis+cluster://[::1]:7000,[::1]' ],
    [ 'a cluster with a password',   'rate_limit_redis main redis+cluster://app:a%40b@127.0.0.1:7000,127.0.0.1:7001' ],
    [ 'a cluster, every option',
        "rate_limit_redis main redis+cluster://127.0.0.1 timeout=20ms connect_timeout=1s prefix=p: batch=64 user=app password_file=$password" ],
    [ 'a cluster over TLS',
        "rate_limit_redis main rediss+cluster://127.0.0.1,localhost ca=$files->{ca} cert=$files->{client} key=$files->{client_key} sni=redis.test" ],
    [ 'a zone in a cluster',         "rate_limit_redis main redis+cluster://127.0.0.1; $zone redis=main" ],
    [ 'two zones in a cluster',      "$good; rate_limit_redis second unix:/tmp/redis.sock" ],
    [ 'a zone',                      "$good; $zone redis=main" ],
    [ 'a zone before its Redis',     "$zone redis=main; $good" ],
    ( map { [ "on_error=$_", "$good; $zone redis=main on_error=$_" ] } qw(open closed local) ),
    ( map { [ "deny_cache=$_", "$good; $zone redis=main deny_cache=$_" ] } qw(off 1ms 1s 1h) ),
    ( map { [ "sync=$_", "$good; $zone redis=main sync=$_" ] } qw(10ms 100ms 1s 1m 60m 1h) ),
    ( map { [ "sync= and algorithm=$_", "$good; $zone redis=main sync=1s algorithm=$_" ] }
        qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets) ),
    [ 'sync= before redis=',         "$good; $zone sync=1s redis=main" ],
    [ 'sync= and a variable rate',   "$good; rate_limit_zone \$uri zone=a:1m rate=\$arg_r redis=main sync=1s" ],
    [ 'sync= and min_interval=',     "$good; $zone redis=main sync=1s min_interval=1s algorithm=token_bucket" ],
    [ 'sync= and count=all',         "$good; $zone redis=main sync=1s count=all" ],
    [ 'count=all',                   "$good; $zone redis=main count=all" ],
    [ 'count=all, deny_cache=off',   "$good; $zone redis=main count=all deny_cache=off" ],
    ( map { [ "algorithm=$_", "$good; $zone redis=main algorithm=$_" ] }
        qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log) ),
    [ 'a variable rate',             "$good; rate_limit_zone \$uri zone=a:1m rate=\$arg_r redis=main" ],
    [ 'no zone that uses it',        $good ],
);

sub refuses {
    my ($title, $text, $directive, $word) = @_;
    my $check  = check_config(http => "$text;");
    my @emerg  = @{ $check->{emerg} };
    my @others = grep { !/\[emerg\]|configuration file .* test failed/ } split /\n/, $check->{stderr};
    my $line   = $emerg[0] // '';
    my @faults;
    push @faults, 'nginx -t passes' if !$check->{exit};
    push @faults, @emerg . ' emerg lines' if @emerg != 1;
    push @faults, 'more than one line' if @others;
    push @faults, 'the directive is not named' if $line !~ /"$directive"/;
    push @faults, "\"$word\" is not named" if defined $word && index($line, $word) < 0;
    push @faults, 'the accepted values are missing' if $line !~ /must be|requires|is duplicate|cannot be used with/;
    push @faults, 'the file and line are missing' if $line !~ m{nginx\.conf:\d+|zone "a"};
    ok !@faults, "$directive: $title" or diag join '; ', @faults, "nginx says: $check->{stderr}";
    return;
}

# Asserts that a host without an address gives one warning, and that nginx starts.
sub warns {
    my ($title, $text) = @_;
    my $check = check_config(http => "$text;");
    my @lines = split /\n/, $check->{stderr};
    is $check->{exit}, 0, "$title: passes" or diag $check->{stderr};
    is scalar @lines, 1, "$title: one line" or diag $check->{stderr};
    like $lines[0] // '', qr/\[warn\] .*"rate_limit_redis": host "nowhere\.invalid\.?" of "main" has no address now; .* in .*nginx\.conf:\d+$/,
        "$title: the line names the host, the file and the line";
    unlike $check->{stderr}, qr/sesame/, "$title: the line has no password";
    return;
}

# nginx does not free its pools when it exits early. The leak check would find only these, and takes longer than the
# test.
local $ENV{ASAN_OPTIONS} = "$ENV{ASAN_OPTIONS}:detect_leaks=0" if $ENV{RL_SANITIZE};

for my $row (@redis) {
    my ($title, $text, $word) = @{$row};
    refuses($title, $text, 'rate_limit_redis', $word);
}
refuses("the URL $_", "rate_limit_redis main $_", 'rate_limit_redis') for @urls, @sentinels, @clusters;
{
    # A machine without a name server should not wait long.
    local $ENV{RES_OPTIONS} = 'timeout:1 attempts:1';
    for my $url (@absent) {
        my $redis = "rate_limit_redis main $url";
        refuses("$url, and its zone fails closed", "$redis; $zone redis=main on_error=closed", 'rate_limit_redis', 'nowhere.invalid');
        warns("$url, and its zone does not", "$redis; $zone redis=main");
    }
    warns("$_, and its zone fails closed", "rate_limit_redis main $_; $zone redis=main on_error=closed") for @half_absent;
    my $redis  = 'rate_limit_redis main redis://nowhere.invalid';
    my $second = 'rate_limit_zone $uri zone=b:1m rate=1r/s redis=main';
    warns('no zone', $redis);
    warns("a zone with $_", "$redis; $zone redis=main $_") for 'on_error=local', 'sync=1s';
    warns('one zone of two fails closed', "$redis; $zone redis=main on_error=closed; $second");
    refuses('both zones fail closed', "$redis; $zone redis=main on_error=closed; $second on_error=closed", 'rate_limit_redis', 'nowhere.invalid');
    my $check = check_config(
        http   => "$redis; $zone redis=main on_error=closed;",
        server => 'location / { rate_limit_shadow zone=a; empty_gif; }',
    );
    is $check->{exit}, 0, 'a shadow zone with on_error=closed does not matter' or diag $check->{stderr};
}
for my $row (@options) {
    my ($word, $before) = @{$row};
    my ($name) = $word =~ /^"?(\w+=)/;
    refuses("$word after $before", "$before $word", 'rate_limit_redis', $name);
}
refuses("$_ twice", "$good $_ $_", 'rate_limit_redis', $_) for @twice;
for my $row (@zones) {
    my ($title, $text, $word) = @{$row};
    refuses($title, "$good; $text", 'rate_limit_zone', $word);
}
for my $words ('redis+cluster://app:sesame@127.0.0.1/1', 'redis+cluster://app:sesame@', 'redis://app:sesame@127.0.0.1:abc', 'redis://:sesame@', 'redis//app:sesame@127.0.0.1', 'redis://127.0.0.1 password=sesame') {
    my $check = check_config(http => "rate_limit_redis main $words;");
    isnt $check->{exit}, 0, "$words is wrong";
    unlike $check->{stderr}, qr/sesame/, 'the password is not printed';
}
for my $place (qw(server location)) {
    my $check = check_config($place eq 'server' ? (server => "$good;") : (server => "location / { $good; }"));
    is scalar @{ $check->{emerg} }, 1, "rate_limit_redis in $place stops nginx";
    like $check->{emerg}[0], qr/"rate_limit_redis" directive is not allowed here/, "rate_limit_redis in $place says why";
}
for my $row (@passing) {
    my ($title, $text) = @{$row};
    my $check = check_config(http => "$text;");
    is $check->{exit}, 0, "passes: $title" or diag $check->{stderr};
}

done_testing;
