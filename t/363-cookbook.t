# Each recipe of docs/cookbook.md, pasted as it is, answers the commands below it as the page says.
use strict;
use warnings;

use lib 't/lib';
use POSIX ();
use RateLimit qw(start_nginx wait_for);
use RateLimit::Page qw(alike configuration page_blocks run_command transcript);
use RateLimit::Redis qw(start_redis);
use RateLimit::Upstream;
use Test::More;

my $page = 'docs/cookbook.md';
my ($port, @free) = split ' ', $ENV{RL_PORTS};
my ($app_port, $grpc_port, $socket_port) = @free[ -1, -2, -3 ];

my ($function) = map { $_->{text} } page_blocks($page, 'sh');
my ($stand_in, @recipes) = page_blocks($page, 'nginx');
my %answers = map { $_->{title} => $_->{text} } page_blocks($page, 'console');
my $application = $stand_in->{text} =~ s/:8081/:$app_port/r =~ s/:8082/:$grpc_port/r;

# What a recipe needs beside its file.
my %more = (
    'Protect a fragile backend' => { during => \&pass_delays },
    'WebSockets'                => { after  => \&exchange_messages },
    'In Kubernetes'             => { before => \&with_redis, after => \&probe },
);

for my $recipe (@recipes) {
    my $title = $recipe->{title};
    subtest $title => sub {
        my $shown = delete $answers{$title} // die "$page: no answers under $title\n";
        my %conf  = configuration($recipe->{text});
        $more{$title}{before}->(\%conf) if $more{$title}{before};
        s/127\.0\.0\.1:8082/127.0.0.1:$grpc_port/ for values %conf;
        # Each recipe has an nginx of its own, whose clock stands still.
        my $nginx = start_nginx(%conf, port => $port, clock => 1, servers => $application);
        for (transcript($shown)) {
            my ($command, $answer) = @{$_};
            my $run = sub { run_command("$function\n$command", nginx => $nginx) };
            my $got = $more{$title}{during} ? $more{$title}{during}->($nginx, $run) : $run->();
            is alike($got), alike($answer), $command =~ s/\n\z//r;
        }
        $more{$title}{after}->($nginx) if $more{$title}{after};
        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'nginx logs no warning';
        $nginx->stop;
    };
}
is_deeply [ keys %answers ], [], 'no answers are without a recipe';
is @recipes, 17, 'each goal has a recipe';
done_testing;

# Advances the clock when all requests have arrived: six are admitted, five of them later, and two are rejected.
sub pass_delays {
    my ($nginx, $run) = @_;
    defined(my $child = fork) or die "fork: $!\n";
    if (!$child) {
        wait_for('all requests', sub { 7 == (() = $nginx->error_log =~ /(?:delaying request|limiting requests),/g) });
        $nginx->advance(2.5);
        POSIX::_exit(0);
    }
    my $got = $run->();
    local $? = 0;
    waitpid $child, 0;
    return $got;
}

# Messages of an open connection are not limited.
sub exchange_messages {
    my ($nginx) = @_;
    my $app = RateLimit::Upstream->start($socket_port,
        '/ws' => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    my ($recipe) = grep { $_->{title} eq 'WebSockets' } @recipes;
    my %conf   = configuration($recipe->{text});
    my $socket = start_nginx(%conf, port => $free[0], server => $conf{server} =~ s/:%PORT1%/:$socket_port/r);
    my $handshake = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    for my $number (1 .. 5) {
        my $connection = $socket->connect;
        $connection->send($handshake);
        is $connection->take_line, 'HTTP/1.1 101 Switching Protocols', "handshake $number is admitted";
        1 while $connection->take_line ne '';
        $connection->send("message $_") for 1 .. 20;
        my $size = length join '', map {"message $_"} 1 .. 20;
        is length $connection->take($size), $size, 'and its messages are not limited';
        $connection->close;
    }
    my $connection = $socket->connect;
    $connection->send($handshake);
    is $connection->take_line, 'HTTP/1.1 429 Too Many Requests', 'the sixth handshake is rejected';
    return;
}

my $redis;

sub with_redis {
    my ($conf) = @_;
    $redis = start_redis();
    my $url = $redis->url;
    $conf->{http} =~ s{redis://redis\.limits\.\S+ timeout=20ms}{$url timeout=60s connect_timeout=60s} or die "no Redis\n";
    return;
}

sub probe {
    my ($nginx) = @_;
    my ($path) = map { $_->{text} =~ /path: (\S+),/ } page_blocks($page, 'yaml');
    is $nginx->get($path)->{status}, 200, 'the pod is ready';
    $redis->kill;
    is $nginx->get('/')->{status}, 429, 'without Redis, the limit stays';
    is $nginx->get($path)->{status}, 200, 'and the pod stays ready';
    return;
}
