# Log messages about a Redis: its name and address, the event, the affected zones, and never a password.
use strict;
use warnings;

use lib 't/lib';
use POSIX qw(mkfifo);
use RateLimit qw(start_nginx check_config wait_for slurp);
use RateLimit::Cluster qw(start_cluster);
use RateLimit::FakeRedis qw(start_fake);
use RateLimit::Redis qw(start_redis tls_files);
use RateLimit::Sentinels qw(start_sentinels);
use Test::More;

my $dir    = $ENV{RL_DIR};
my ($port) = split ' ', $ENV{RL_PORTS};
my $files  = tls_files();

sub zone {
    my ($name, $words) = @_;
    return "rate_limit_zone \$http_x_client zone=$name:1m rate=2r/d $words;\n";
}

# Starts nginx with one zone, `a`, in a Redis named fleet, given by its URL and options.
sub start {
    my ($redis, $words, %more) = @_;
    return start_nginx(
        port   => $port,
        http   => "rate_limit_redis fleet $redis;\n" . zone('a', "redis=fleet $words"),
        server => "add_header X-Error \$rate_limit_error always;\nlocation = /a { rate_limit zone=a; empty_gif; }\n",
        %more
    );
}

sub write_file {
    my ($name, $text, $mode) = @_;
    open my $out, '>', "$dir/$name" or die "$name: $!\n";
    print {$out} $text;
    close $out or die "$name: $!\n";
    chmod $mode, "$dir/$name" or die "$name: $!\n";
    return "$dir/$name";
}

# Returns the lines of error.log about this Redis, from its name on.
sub lines { my ($nginx) = @_; return $nginx->error_log =~ /(redis "fleet".*)/g }

my $open  = 'requests are not limited (on_error=open)';
my $more = qr/, \d+ more times? since the last line/;

subtest 'a line lists zones by the effect on their requests, and so does the line of the recovery' => sub {
    my $redis = start_redis();
    my $at    = '127.0.0.1:' . $redis->port;
    my @rest  = map {"z$_"} 1 .. 15;
    my $nginx = start_nginx(
        port => $port,
        http => "rate_limit_redis fleet @{[ $redis->url ]} timeout=10s;\nrate_limit_redis other redis://127.0.0.1:1;\n"
            . zone('api',   'redis=fleet') . zone('login', 'redis=fleet')
            . zone('pay',   'redis=fleet on_error=closed')
            . zone('home',  'redis=fleet on_error=local')
            . zone('synced', 'redis=fleet sync=1s')
            . zone('plain', '') . zone('elsewhere', 'redis=other')
            . zone('next', 'redis=fleet on_error=closed')
            . join('', map { zone($_, 'redis=fleet') } @rest),
        server => "location = /a { rate_limit zone=api; rate_limit_shadow zone=next; empty_gif; }\n",
    );
    $nginx->get('/a', 'X-Client' => 'x');
    is_deeply [ lines($nginx) ], [], 'nothing is logged while Redis works';
    $redis->kill;
    wait_for('a line', sub { $nginx->get('/a', 'X-Client' => 'x'); $nginx->error_log =~ /redis "fleet" \S+: refused / });
    my ($line) = grep {/ refused /} lines($nginx);
    is $line =~ s/$more//r, qq{redis "fleet" $at: refused (Connection refused); zones api, login, z1, z2, z3 and 12 more: $open; }
        . q{zone pay: requests get 503 (on_error=closed); zone home: requests are limited by this instance's share of the rate (on_error=local); }
        . 'zone synced: requests are limited by what this instance counts (sync=); zone next: requests are not affected (rate_limit_shadow)',
        'refused';
    $redis->restart;
    my $back = qr/redis "fleet" \Q$at\E: answers again; (.*)/;
    wait_for('the recovery in the log', sub { $nginx->get('/a', 'X-Client' => 'x'); $nginx->error_log =~ $back });
    is(($nginx->error_log =~ $back)[0], 'zones api, login, pay, home, synced and 16 more: limits are enforced again',
        'the recovery lists the zones');
    is scalar(grep {/elsewhere|plain/} lines($nginx)), 0, 'zones of another Redis are not listed';
};

subtest 'a long zone name does not fill the line' => sub {
    my $long  = 'x' x 300;
    my $nginx = start_nginx(
        port => $port,
        http   => "rate_limit_redis fleet redis://127.0.0.1:1;\n" . zone($long, 'redis=fleet') . zone("y$long", 'redis=fleet'),
        server => "location = /a { rate_limit zone=$long; empty_gif; }\n",
    );
    $nginx->get('/a', 'X-Client' => 'x');
    ok $nginx->wait_for_log(qr/redis "fleet" 127\.0\.0\.1:1: refused \(Connection refused\); 2 zones: \Q$open\E\n/),
        'zones are counted if their names are too long';
};

subtest 'where it was' => sub {
    my $socket = start("unix:$dir/none.sock", '');
    $socket->get('/a', 'X-Client' => 'x');
    ok $socket->wait_for_log(qr/redis "fleet" unix:\Q$dir\E\/none\.sock: refused \(No such file or directory\); zone a: \Q$open\E\n/), 'a socket';
    $socket->stop;

    my $cluster = start_cluster(replicas => 0, node_timeout => 60_000);
    my ($lost)  = $cluster->masters;
    my $node    = start($cluster->url . ' timeout=10s', '');
    my ($client) = $cluster->clients_of($lost);
    is $node->get('/a', 'X-Client' => $client)->header('X-Error'), undef, 'a cluster answers';
    $cluster->kill($lost);
    wait_for('a line', sub { $node->get('/a', 'X-Client' => $client); $node->error_log =~ /: refused / });
    like $node->error_log, qr/redis "fleet" 127\.0\.0\.1:@{[ $lost->port ]}: refused \(Connection refused\)(?:$more)?; zone a: \Q$open\E\n/,
        'a node of the cluster';
    $node->stop;
    my $alone = start('redis+cluster://127.0.0.1:1', '');
    $alone->get('/a', 'X-Client' => 'x');
    ok $alone->wait_for_log(
        qr/redis "fleet" 127\.0\.0\.1:1: refused \(no node returned the slot map: Connection refused\); zone a: \Q$open\E\n/), 'a seed';
    $alone->stop;

    my $sentinels = start_sentinels(down_after => 60_000);
    my $known     = start($sentinels->url . ' timeout=10s', '');
    my $primary   = '127.0.0.1:' . $sentinels->primary->port;
    is $known->get('/a', 'X-Client' => 'x')->header('X-Error'), undef, 'a primary answers';
    $_->kill for $sentinels->sentinels;
    ok $known->wait_for_log(
        qr/redis "fleet" Sentinel 127\.0\.0\.1:\d+: refused \(Connection refused\)(?:$more)?; requests are still decided at \Q$primary\E\n/),
        'a Sentinel, while the primary is known';
    $known->stop;
    my $lost_all = start($sentinels->url . ' timeout=1s', '');
    $lost_all->get('/a', 'X-Client' => 'x');
    ok $lost_all->wait_for_log(qr/redis "fleet" Sentinel 127\.0\.0\.1:\d+: refused \(Connection refused\)(?:$more)?; zone a: \Q$open\E\n/),
        'a Sentinel, while no primary is known';
};

subtest 'a wrong password is logged when nginx starts, and no other line hides it' => sub {
    my $redis = start_redis(password => 'sesame');
    my $url   = $redis->url(password => 'open-says-me');
    for my $words ('', 'on_error=local', 'sync=1s') {
        my $nginx = start($url, $words, clock => 1);    # frozen: no line is due a second time
        ok $nginx->wait_for_log(qr/\[error\] .*redis "fleet" 127\.0\.0\.1:@{[ $redis->port ]}: auth \(WRONGPASS: the user or the password is wrong\); zone a: /),
            "\"$words\": without any request";
        $nginx->get('/a', 'X-Client' => 'x');
        unlike $nginx->error_log, qr/\[warn\]|changed while nginx runs/, "\"$words\": and there is no warning about rates";
        unlike $nginx->error_log, qr/sesame|open-says-me/, "\"$words\": nor a password";
        is scalar(grep {/ auth /} lines($nginx)), 1, "\"$words\": once" or diag join "\n", lines($nginx);
        $nginx->stop;
    }
};

subtest 'TLS and plain ports' => sub {
    my $plain = start_redis();
    my $tls   = start_redis(tls => 1);
    my $mute  = start('rediss://127.0.0.1:' . $plain->port . ' verify=off timeout=50ms', '');
    $mute->get('/a', 'X-Client' => 'x');
    ok $mute->wait_for_log(
        qr/redis "fleet" 127\.0\.0\.1:\d+: (?:timeout \(the TLS handshake was not answered: does this port require redis:\/\/\?|tls \(the answer is not TLS: this port requires redis:\/\/).*; zone a: \Q$open\E\n/
    ), 'TLS to a port without TLS';
    $mute->stop;
    my $fake  = start_fake(greeting => '-ERR what is it?', mode => 'mute');
    my $wrong = start('rediss://127.0.0.1:' . $fake->port . ' verify=off timeout=10s', '');
    $wrong->get('/a', 'X-Client' => 'x');
    ok $wrong->wait_for_log(qr/redis "fleet" 127\.0\.0\.1:\d+: tls \(the answer is not TLS: this port requires redis:\/\/\)/),
        'a port without TLS that answers';
    $wrong->stop;
    my $bare = start('redis://127.0.0.1:' . $tls->port . ' timeout=10s', '');
    $bare->get('/a', 'X-Client' => 'x');
    ok $bare->wait_for_log(qr/redis "fleet" 127\.0\.0\.1:\d+: (?:closed|protocol) \(the server .*rediss:\/\/\??\)(?:$more)?; zone a: \Q$open\E\n/),
        'a port with TLS';
    $bare->stop;
    my %wrong = (
        "ca=$dir/absent.pem"                         => 'No such file or directory',
        "cert=$dir/absent.pem key=$files->{client}"  => 'No such file or directory',
        "cert=$files->{client} key=$dir/absent.key"  => 'No such file or directory',
        "ca=$dir"                                    => 'it is not a regular file',
    );
    for my $words (sort keys %wrong) {
        my $check = check_config(http => "rate_limit_redis main rediss://127.0.0.1 $words;");
        like $check->{emerg}[0] // '', qr/cannot be used: $wrong{$words}; files must be in PEM/, "$words: why" or diag $check->{stderr};
    }
};

subtest 'a server that repeats the arguments of AUTH' => sub {
    my @words = ('s3same', 's3s' . 'q' x 200);
    for my $password (@words) {
        my $shown = substr $password, 0, 128;
        my $fake  = start_fake(replies => { AUTH => "-ERR unknown command `AUTH`, with args beginning with: `app`, `$shown`, " });
        my $file  = write_file('password', "$password\n", oct 600);
        my $nginx = start("redis://127.0.0.1:" . $fake->port . " user=app password_file=$file timeout=10s", '');
        $nginx->get('/a', 'X-Client' => 'x');
        ok $nginx->wait_for_log(qr/redis "fleet" 127\.0\.0\.1:\d+: other \(ERR unknown command: the server does not know AUTH\); zone a: /),
            'the log has the reason';
        unlike $nginx->error_log, qr/s3s|qqqq/, 'the line has no password';
        $nginx->stop;
        my $sentinel = start("redis+sentinel://127.0.0.1:@{[ $fake->port ]}/limits sentinel_user=app sentinel_password_file=$file timeout=1s", '');
        $sentinel->get('/a', 'X-Client' => 'x');
        ok $sentinel->wait_for_log(qr/redis "fleet" Sentinel 127\.0\.0\.1:\d+: other \(ERR unknown command: the server does not know AUTH\).*; zone a: /), 'a Sentinel, too';
        unlike $sentinel->error_log, qr/s3s|qqqq/, 'the line has no password';
        $sentinel->stop;
        $fake->stop;
    }
};

subtest 'nginx -t shows no word that may be a password' => sub {
    my $hidden = 'unknown parameter that is not shown, since it may be a password, it must be timeout=TIME, ';
    my %shown  = (
        's3same'                => $hidden,
        's3same s3same'         => $hidden,
        'password:s3same'       => $hidden,
        'S3sameBase64=='        => $hidden,
        's3samebase64='         => $hidden,
        '-s3same=x'             => $hidden,
        'password=s3same'       => 'unknown parameter "password="',
        'password=s3same password=s3same' => 'unknown parameter "password="',
        'timeout'               => 'unknown parameter "timeout"',
        'verify'                => 'unknown parameter "verify"',
        'redis://:s3same@127.0.0.1' => 'unknown parameter "redis://***@127.0.0.1"',
    );
    for my $words (sort keys %shown) {
        my $check = check_config(http => "rate_limit_redis main redis://127.0.0.1 $words;");
        like $check->{emerg}[0] // '', qr/\Q$shown{$words}\E/, "$words: the message" or diag $check->{stderr};
        unlike $check->{stderr}, qr/s3same/i, "$words: no password is shown";
    }
    my %urls = (
        'redis://:s3same'               => 'invalid URL "redis://:***": ',
        'redis://app:s3same'            => 'invalid URL "redis://app:***": ',
        'redis://:12/s3same'            => 'invalid URL "redis://:***": ',
        'redis+cluster://:s3same,b:7000' => 'invalid URL "redis+cluster://:***": ',
        'redis://127.0.0.1:port'        => 'invalid URL "redis://127.0.0.1:port": ',
        'redis://app:70000'             => 'invalid URL "redis://app:70000": ',
    );
    for my $url (sort keys %urls) {
        my $check = check_config(http => "rate_limit_redis main $url;");
        like $check->{emerg}[0] // '', qr/\Q$urls{$url}\E/, "$url: the message" or diag $check->{stderr};
        unlike $check->{stderr}, qr/s3same/i, "$url: no password is shown";
    }
};

subtest 'a password file that all users may read' => sub {
    my %urls = (
        password_file          => 'redis://127.0.0.1',
        sentinel_password_file => 'redis+sentinel://127.0.0.1/limits',
    );
    for my $option (sort keys %urls) {
        for my $mode (map { oct } qw(600 640 400 644 604)) {
            my $file  = write_file('password', "s3same\n", $mode);
            my $check = check_config(http => "rate_limit_redis main $urls{$option} $option=$file;");
            my $title = sprintf '%s of mode %04o', $option, $mode;
            is $check->{exit}, 0, "$title: passes" or diag $check->{stderr};
            my $warns = $check->{stderr} =~ /\[warn\] .*"rate_limit_redis": every user may read the password in "$option=\Q$file\E"/ ? 1 : 0;
            is $warns, $mode & 4 ? 1 : 0, "$title: a warning if others may read the file";
        }
    }
};

# Each directive that reads a file, without the file name.
my %readers = (
    password_file          => 'rate_limit_redis main redis://127.0.0.1 password_file=',
    sentinel_password_file => 'rate_limit_redis main redis+sentinel://127.0.0.1/limits sentinel_password_file=',
    ca                     => 'rate_limit_redis main rediss://127.0.0.1 ca=',
    cert                   => "rate_limit_redis main rediss://127.0.0.1 key=$files->{client_key} cert=",
    key                    => "rate_limit_redis main rediss://127.0.0.1 cert=$files->{client} key=",
    jwt_key                => 'rate_limit_jwt_key HS256 ',
    jwks                   => 'rate_limit_jwt_key jwks ',
);

subtest 'only regular files are read, and a pipe does not block' => sub {
    my $pipe = "$dir/pipe";
    mkfifo($pipe, 0600) or die "$pipe: $!\n";
    my %content = (ca => slurp($files->{ca}), cert => slurp($files->{client}), key => slurp($files->{client_key}));
    for my $reader (sort keys %readers) {
        # With a writer, whose content would be used.
        open my $both, '+<', $pipe or die "$pipe: $!\n";
        syswrite $both, $content{$reader} // "s3same\n";
        my $check = check_config(http => "$readers{$reader}$pipe;");
        isnt $check->{exit}, 0, "$reader: a pipe with content is refused";
        is scalar @{ $check->{emerg} }, 1, "$reader: one line" or diag $check->{stderr};
        close $both or die "$pipe: $!\n";
        # Without a writer, for which nginx would wait.
        my $waits = 0;
        local $SIG{ALRM} = sub { $waits = 1; open my $end, '+<', $pipe or die "$pipe: $!\n"; close $end or die "$pipe: $!\n" };
        alarm 60;
        my $alone = check_config(http => "$readers{$reader}$pipe;");
        alarm 0;
        ok !$waits && $alone->{exit}, "$reader: a pipe without a writer is refused";
        my $device = check_config(http => "$readers{$reader}/dev/zero;");
        isnt $device->{exit}, 0, "$reader: an endless device is refused";
    }
    my $large = write_file('large', 's' x 5000, oct 600);
    for my $reader (qw(password_file sentinel_password_file)) {
        my $check = check_config(http => "$readers{$reader}$large;");
        like $check->{emerg}[0] // '', qr/of at most 4096 bytes/, "$reader: a long file is refused";
    }
};

done_testing;
