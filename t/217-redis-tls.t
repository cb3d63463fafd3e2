# Redis over TLS: which certificates are trusted, and that a stalled handshake blocks no request.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for check_config);
use RateLimit::Async qw(exchange await_answers await_reading statuses);
use RateLimit::FakeRedis qw(start_fake bytewise raw);
use RateLimit::Redis qw(start_redis tls_files);
use Test::More;

my ($port) = split ' ', $ENV{RL_PORTS};
my $files  = tls_files();
my $mutual = "cert=$files->{client} key=$files->{client_key}";

# An nginx with a zone for each Redis, given as NAME => what follows it in rate_limit_redis. Redis may take its time: what
# goes wrong is known at once, or never.
sub start {
    my (%redis) = @_;
    my %more = %{ delete $redis{conf} // {} };
    my ($http, $server) = ('', <<'SERVER');
add_header X-Status $rate_limit_status always;
add_header X-Store $rate_limit_store always;
add_header X-Error $rate_limit_error always;
location = /free { empty_gif; }
SERVER
    for my $name (sort keys %redis) {
        my $timeout = $redis{$name} =~ /timeout=/ ? '' : 'timeout=1h connect_timeout=1h';
        $http .= "rate_limit_redis $name $redis{$name} $timeout;\n"
            . "rate_limit_zone \$http_x_client zone=$name:1m rate=2r/d algorithm=sliding_log redis=$name on_error=closed;\n";
        $server .= "location = /$name { rate_limit zone=$name; empty_gif; }\n";
    }
    return start_nginx(port => $port, http => $http, server => $server, %more);
}

sub seen {
    my ($answer) = @_;
    return join ' ', $answer->{status}, map { $answer->header($_) // '-' } qw(X-Store X-Error);
}

my $clients = 0;

sub trusts {
    my ($nginx, $name, $title) = @_;
    my $client = 'client' . ++$clients;
    is join(', ', map { seen($nginx->get("/$name", 'X-Client' => $client)) } 1 .. 3), '200 redis -, 200 redis -, 429 redis -', $title;
    return;
}

sub refuses {
    my ($nginx, $name, $title, $detail) = @_;
    my $answer = $nginx->get("/$name", 'X-Client' => 'refused');
    is seen($answer), '503 fallback tls', $title;
    like $nginx->error_log, qr/\[error\] .*redis "$name" 127\.0\.0\.1:\d+: tls \($detail.*\); zone $name: requests get 503 \(on_error=closed\)\n/, "$title: and the log says why";
    return;
}

for my $kind (qw(redis valkey)) {
    subtest "$kind: a server by the right authority" => sub {
        my $server = start_redis(tls => 1, server => $kind, password => 'sesame');
        my $at     = 'rediss://:sesame@127.0.0.1:' . $server->port;
        my $nginx  = start(
            address  => "$at ca=$files->{ca}",
            name     => 'rediss://:sesame@localhost:' . $server->port . " ca=$files->{ca}",
            sni      => "$at ca=$files->{ca} sni=redis.test",
            database => "$at/3 ca=$files->{ca}",
            off      => "$at verify=off",
            off_name => "$at verify=off sni=whoever.test",
            unknown  => "$at ca=$files->{stranger_ca}",
            system   => $at,
            other    => "$at ca=$files->{ca} sni=other.test",
            plain    => 'redis://:sesame@127.0.0.1:' . $server->port,
        );
        trusts($nginx, 'address',  'by its address');
        trusts($nginx, 'name',     'by its name');
        trusts($nginx, 'sni',      'by the name in sni=');
        trusts($nginx, 'database', 'in a database');
        trusts($nginx, 'off',      'without verification');
        trusts($nginx, 'off_name', 'without verification, with sni=');
        my $before = $server->commandstats('auth');
        refuses($nginx, 'unknown', 'an unknown authority',                   qr/.*certificate/i);
        refuses($nginx, 'system',  'an authority that the system has not',   qr/.*certificate/i);
        refuses($nginx, 'other',   'another name than that in sni=',         qr/.*(?:certificate|name)/i);
        is $server->commandstats('auth'), $before, 'who is not trusted gets no password';
        my $plain = $nginx->get('/plain', 'X-Client' => 'plain');
        is $plain->{status}, 503, 'no TLS where TLS is wanted';
        like $plain->header('X-Error'), qr/^(?:closed|protocol|timeout)$/, 'and it is an error of its own';
        unlike $nginx->error_log, qr/sesame|\[(?:alert|crit|emerg)\]/, 'nothing worse is logged, and no password';
    };
}

subtest 'servers that are not what they say' => sub {
    my %servers = map { $_ => start_redis(tls => $_) } qw(other_name expired stranger);
    my %urls    = map { $_ => $servers{$_}->url } keys %servers;
    my $nginx   = start(
        (map { $_ => "$urls{$_} ca=$files->{ca}" } keys %servers),
        (map { ("${_}_off" => "$urls{$_} verify=off") } keys %servers),
        right_name => "$urls{other_name} ca=$files->{ca} sni=other.test",
    );
    refuses($nginx, 'other_name', 'a certificate for another name',      qr/.*(?:certificate|name|address)/i);
    refuses($nginx, 'expired',    'a certificate that has expired',      qr/.*(?:certificate|expired)/i);
    refuses($nginx, 'stranger',   'a certificate by another authority',  qr/.*certificate/i);
    trusts($nginx, "${_}_off", "$_: goes with verify=off") for sort keys %servers;
    trusts($nginx, 'right_name', 'a certificate for the name in sni=');
};

subtest 'certificates of clients' => sub {
    my $server = start_redis(tls => 1, tls_clients => 1);
    my $at     = $server->url . " ca=$files->{ca}";
    my $nginx  = start(
        mutual   => "$at $mutual",
        none     => $at,
        stranger => "$at cert=$files->{stranger_client} key=$files->{stranger_client_key}",
    );
    trusts($nginx, 'mutual', 'one that the server trusts');
    for my $name (qw(none stranger)) {
        my $answer = $nginx->get("/$name", 'X-Client' => 'c');
        is $answer->{status}, 503, "$name: refused";
        like $answer->header('X-Error'), qr/^(?:tls|closed)$/, "$name: by an error of its own";
    }
};

subtest 'versions' => sub {
    for my $version ('TLSv1.3', 'TLSv1.2') {
        my $server = start_redis(tls => 1, config => "tls-protocols $version");
        my $nginx  = start(main => $server->url . " ca=$files->{ca}");
        trusts($nginx, 'main', $version);
    }
    my $server = start_redis(tls => 1, config => "tls-protocols TLSv1.1\ntls-ciphers ALL:\@SECLEVEL=0");
    my $nginx  = start(main => $server->url . " ca=$files->{ca}");
    is $nginx->get('/main', 'X-Client' => 'old')->{status}, 503, 'TLSv1.1 is not spoken';
};

subtest 'many requests, large scripts and batches over TLS' => sub {
    my $server = start_redis(tls => 1);
    my $nginx  = start(main => $server->url . " ca=$files->{ca}");
    my %count;
    for my $round (1 .. 10) {
        my @answers = exchange($nginx->port, map { [ 'GET', '/main', [ 'X-Client' => "r$round" . 'x' x ($_ % 4 ? 1 : 4000) ] ] } 1 .. 64);
        $count{ seen($_) =~ s/cache/redis/r }++ for @answers;
    }
    is_deeply \%count, { '200 redis -' => 40, '429 redis -' => 600 }, 'two of each client are admitted';
    is $server->clients, 1, 'over one connection';
    $server->command('SCRIPT', 'FLUSH');
    trusts($nginx, 'main', 'after SCRIPT FLUSH');
    $server->pause;
    my $connection = RateLimit::Async->new($nginx->port);
    $connection->request('GET', '/main', [ 'X-Client' => 'paused' ]);
    is await_answers(0.1, $connection), 0, 'a paused server is waited for';
    $server->resume;
    await_answers(5, $connection);
    is seen($connection->answers), '200 redis -', 'and answers';
    $server->restart;
    wait_for('Redis', sub { seen($nginx->get('/main', 'X-Client' => 'restarted')) =~ /redis/ });
    trusts($nginx, 'main', 'after a restart');
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

subtest 'a handshake that does not end blocks nobody' => sub {
    my %fakes = (
        mute    => start_fake(mode => 'mute'),
        full    => start_fake(mode => 'full'),
        # It does not read what a client says, which may look like anything.
        trickle => start_fake(mode => 'mute', greeting => bytewise(100, raw("\x16\x03\x03\x00\x7a" . "\x02" x 200))),
    );
    my $nginx = start(
        (map { $_ => 'rediss://127.0.0.1:' . $fakes{$_}->port . " ca=$files->{ca} timeout=1s connect_timeout=1s" } keys %fakes),
        conf => { clock => 1, shutdown => '1h' },    # its clock stands still unless it is advanced
    );
    for my $name (sort keys %fakes) {
        my $stuck = RateLimit::Async->new($nginx->port);
        $stuck->request('GET', "/$name", [ 'X-Client' => 'stuck' ]);
        is await_answers(0.05, $stuck), 0, "$name: a request waits";
        is statuses(map { $nginx->get('/free') } 1 .. 50), join(' ', (200) x 50), "$name: 50 others do not";
        await_reading($stuck);
        $nginx->advance(1);
        ok await_answers(20, $stuck), "$name: the request is answered after timeout=";
        my ($answer) = $stuck->answers;
        is $answer->{status}, 503, "$name: by on_error";
        like $answer->header('X-Error'), qr/^(?:timeout|tls)$/, "$name: because of that";
    }
    $nginx->signal('QUIT');
    ok wait_for('the end', sub { !-e $nginx->dir . '/nginx.pid' }), 'nor does it hold up the end';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

subtest 'files that are wrong stop nginx -t' => sub {
    my $dir = $ENV{RL_DIR};
    open my $out, '>', "$dir/nonsense.pem" or die "nonsense: $!\n";
    print {$out} "this is no certificate\n";
    close $out or die "nonsense: $!\n";
    my %wrong = (
        "ca=$dir/absent.pem"      => "absent.pem",
        "ca=$dir/nonsense.pem"    => 'nonsense.pem',
        "cert=$dir/absent.pem key=$files->{client_key}"   => 'absent.pem',
        "cert=$files->{client} key=$dir/nonsense.pem"     => 'nonsense.pem',
        "cert=$files->{client} key=$files->{server_key}"  => 'server.key',
        "cert=$files->{client}"   => 'cert=',
        "key=$files->{client_key}" => 'key=',
    );
    for my $words (sort keys %wrong) {
        my $check = check_config(http => "rate_limit_redis main rediss://127.0.0.1:1 $words;\nrate_limit_zone \$uri zone=a:1m rate=1r/s redis=main;");
        my $title = $words =~ s{\S*/}{}gr;
        isnt $check->{exit}, 0, "$title stops it";
        is scalar @{ $check->{emerg} }, 1, "$title: one line" or diag $check->{stderr};
        like $check->{emerg}[0] // '', qr/"rate_limit_redis".*\Q$wrong{$words}\E/, "$title: that names it";
    }
};

done_testing;
