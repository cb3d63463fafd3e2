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

# Starts nginx with a zone for each Redis, given as NAME => the parameters of rate_limit_redis. The timeouts are long,
# because an error shows at once or never.
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
    like $nginx->error_log, qr/\[error\] .*redis "$name" 127\.0\.0\.1:\d+: tls \($detail.*\); zone $name: requests get 503 \(on_error=closed\)\n/,
        "$title: the log has the reason";
    return;
}

for my $kind (qw(redis valkey)) {
    subtest "$kind: a server with a certificate of a trusted CA" => sub {
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
        trusts($nginx, 'address',  'verified by its address');
        trusts($nginx, 'name',     'verified by its name');
        trusts($nginx, 'sni',      'verified by the name in sni=');
        trusts($nginx, 'database', 'in a database');
        trusts($nginx, 'off',      'without verification');
        trusts($nginx, 'off_name', 'without verification, with sni=');
        my $before = $server->commandstats('auth');
        refuses($nginx, 'unknown', 'an unknown authority',                   qr/.*certificate/i);
        refuses($nginx, 'system',  'a CA that the system does not trust',    qr/.*certificate/i);
        refuses($nginx, 'other',   'a certificate for another name than sni=', qr/.*(?:certificate|name)/i);
        is $server->commandstats('auth'), $before, 'an untrusted server receives no password';
        my $plain = $nginx->get('/plain', 'X-Client' => 'plain');
        is $plain->{status}, 503, 'a client without TLS';
        like $plain->header('X-Error'), qr/^(?:closed|protocol|timeout)$/, 'the reason is one of these';
        unlike $nginx->error_log, qr/sesame|\[(?:alert|crit|emerg)\]/,
            'the log has no critical errors, and no password';
    };
}

subtest 'servers with invalid certificates' => sub {
    my %servers = map { $_ => start_redis(tls => $_) } qw(other_name expired stranger);
    my %urls    = map { $_ => $servers{$_}->url } keys %servers;
    my $nginx   = start(
        (map { $_ => "$urls{$_} ca=$files->{ca}" } keys %servers),
        (map { ("${_}_off" => "$urls{$_} verify=off") } keys %servers),
        right_name => "$urls{other_name} ca=$files->{ca} sni=other.test",
    );
    refuses($nginx, 'other_name', 'a certificate for another name',      qr/.*(?:certificate|name|address)/i);
    refuses($nginx, 'expired',    'a certificate that has expired',      qr/.*(?:certificate|expired)/i);
    refuses($nginx, 'stranger',   'a certificate of another CA',         qr/.*certificate/i);
    trusts($nginx, "${_}_off", "$_: accepted with verify=off") for sort keys %servers;
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
    trusts($nginx, 'mutual', 'a client certificate that the server trusts');
    for my $name (qw(none stranger)) {
        my $answer = $nginx->get("/$name", 'X-Client' => 'c');
        is $answer->{status}, 503, "$name: refused";
        like $answer->header('X-Error'), qr/^(?:tls|closed)$/, "$name: the reason is tls or closed";
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
    is $nginx->get('/main', 'X-Client' => 'old')->{status}, 503, 'TLSv1.1 is refused';
};

subtest 'many requests, large scripts and batches over TLS' => sub {
    my $server = start_redis(tls => 1);
    my $nginx  = start(main => $server->url . " ca=$files->{ca}");
    my %count;
    for my $round (1 .. 10) {
        my @answers = exchange($nginx->port, map { [ 'GET', '/main', [ 'X-Client' => "r$round" . 'x' x ($_ % 4 ? 1 : 4000) ] ] } 1 .. 64);
        $count{ seen($_) =~ s/cache/redis/r }++ for @answers;
    }
    is_deeply \%count, { '200 redis -' => 40, '429 redis -' => 600 }, 'two requests of each client are admitted';
    is $server->clients, 1, 'over one connection';
    $server->command('SCRIPT', 'FLUSH');
    trusts($nginx, 'main', 'after SCRIPT FLUSH');
    $server->pause;
    my $connection = RateLimit::Async->new($nginx->port);
    $connection->request('GET', '/main', [ 'X-Client' => 'paused' ]);
    is await_answers(0.1, $connection), 0, 'requests wait for a paused server';
    $server->resume;
    await_answers(5, $connection);
    is seen($connection->answers), '200 redis -', 'the server answers after the pause';
    $server->restart;
    wait_for('Redis', sub { seen($nginx->get('/main', 'X-Client' => 'restarted')) =~ /redis/ });
    trusts($nginx, 'main', 'after a restart');
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

subtest 'an incomplete handshake blocks no request' => sub {
    my %fakes = (
        mute    => start_fake(mode => 'mute'),
        full    => start_fake(mode => 'full'),
        # The server does not read what the client sends, because the bytes are arbitrary.
        trickle => start_fake(mode => 'mute', greeting => bytewise(100, raw("\x16\x03\x03\x00\x7a" . "\x02" x 200))),
    );
    my $nginx = start(
        (map { $_ => 'rediss://127.0.0.1:' . $fakes{$_}->port . " ca=$files->{ca} timeout=1s connect_timeout=1s" } keys %fakes),
        conf => { clock => 1, shutdown => '1h' },    # the clock is frozen unless the test advances it
    );
    for my $name (sort keys %fakes) {
        my $stuck = RateLimit::Async->new($nginx->port);
        $stuck->request('GET', "/$name", [ 'X-Client' => 'stuck' ]);
        is await_answers(0.05, $stuck), 0, "$name: a request waits";
        is statuses(map { $nginx->get('/free') } 1 .. 50), join(' ', (200) x 50),
            "$name: 50 other requests do not wait";
        await_reading($stuck);
        $nginx->advance(1);
        ok await_answers(20, $stuck), "$name: the request gets a response after timeout=";
        my ($answer) = $stuck->answers;
        is $answer->{status}, 503, "$name: on_error applies";
        like $answer->header('X-Error'), qr/^(?:timeout|tls)$/, "$name: the reason is the handshake";
    }
    $nginx->signal('QUIT');
    ok wait_for('the end', sub { !-e $nginx->dir . '/nginx.pid' }), 'an incomplete handshake does not delay the exit';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
};

subtest 'invalid files make nginx -t fail' => sub {
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
        like $check->{emerg}[0] // '', qr/"rate_limit_redis".*\Q$wrong{$words}\E/, "$title: the message names the file";
    }
};

done_testing;
