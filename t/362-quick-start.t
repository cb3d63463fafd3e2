# docs/quick-start.md and the first limit of README.md: each command runs, and each answer is the one that is shown.
use strict;
use warnings;

use lib 't/lib';
use File::Path qw(make_path);
use IO::Socket::INET;
use RateLimit qw(slurp start_nginx wait_for write_text);
use RateLimit::Page qw(alike configuration page_blocks run_command transcript);
use RateLimit::Redis qw(redis_port);
use Test::More;

my $etc        = "$ENV{RL_DIR}/etc";
my $redis_port = redis_port();
make_path("$etc/redis", "$etc/nginx", "$ENV{RL_DIR}/bin");
write_text("$etc/redis/redis.conf", qq(bind 127.0.0.1\nport $redis_port\nsave ""\ndir $ENV{RL_DIR}\n));
write_text("$ENV{RL_DIR}/bin/redis-cli", qq(#!/bin/sh\nexec /usr/bin/redis-cli -p $redis_port "\$@"\n));
chmod 0755, "$ENV{RL_DIR}/bin/redis-cli" or die "redis-cli: $!\n";
local $ENV{PATH} = "$ENV{RL_DIR}/bin:$ENV{PATH}";
# nginx waits longer for Redis than the page says, because the machine may be busy.
my %redis = ('redis://nginx@127\.0\.0\.1:6379' => "redis://nginx\@127.0.0.1:$redis_port timeout=60s connect_timeout=60s");
my %sandbox = ('/etc/(?=nginx|redis)' => "$etc/", '-o redis -g redis ' => '');

# Commands that change the system. The test of the packages runs the first two.
my $of_system = qr/^(?:make deb|apt install \S+|systemctl (?:restart|stop) redis-server|nginx -t && nginx -s reload)$/;

my $redis;

sub start_redis {
    defined($redis = fork) or die "fork: $!\n";
    if (!$redis) {
        open STDOUT, '>', "$ENV{RL_DIR}/redis.log" or die "redis.log: $!\n";
        exec $ENV{RL_REDIS_SERVER}, "$etc/redis/redis.conf" or die "redis-server: $!\n";
    }
    wait_for('Redis', sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $redis_port) });
    return;
}

sub stop_redis {
    kill 'TERM', $redis;
    local $? = 0;
    waitpid $redis, 0;
    $redis = undef;
    return;
}
END { stop_redis() if $redis }

sub check_answers {
    my ($nginx, $text) = @_;
    for (transcript($text)) {
        my ($command, $shown) = @{$_};
        chomp $command;
        is alike(run_command($command, %sandbox, nginx => $nginx)), alike($shown), $command;
    }
    return;
}

sub start_documented {
    my ($text, %changes) = @_;
    $text =~ s/$_/$changes{$_}/g for keys %changes;
    my $nginx = start_nginx(configuration($text));
    $nginx->write_file('index.html', "Welcome\n");
    return $nginx;
}

subtest 'README.md' => sub {
    my ($file) = page_blocks('README.md', 'nginx');
    my $nginx = start_documented($file->{text});
    my @answers = page_blocks('README.md', 'console');
    is scalar(@answers), 1, 'there is one block of answers';
    check_answers($nginx, $_->{text}) for @answers;
    for my $target (slurp('README.md') =~ /^    make ([a-z-]+)/mg, 'run', 'test') {
        like slurp('Makefile'), qr/^$target:/m, "make $target exists" if $target ne 'deb';
    }
};

my $page  = 'docs/quick-start.md';
my @files = page_blocks($page, 'nginx');
my @steps = page_blocks($page, 'sh');
my @shown = page_blocks($page, 'console');
is @files . ' ' . @steps . ' ' . @shown, '2 7 3', 'the page has two files, seven steps and three blocks of answers';
my $ran = 0;
my $nginx;

# In the order of the page.
for my $block (sort { $a->{line} <=> $b->{line} } @files, @steps, @shown) {
    if ($block->{language} eq 'nginx') {
        $nginx = start_documented($block->{text}, %redis, %sandbox);
    } elsif ($block->{language} eq 'console') {
        check_answers($nginx, $block->{text});
    } else {
        my $steps = join "\n", grep { !/$of_system/ } split /\n/, $block->{text};
        if ($steps ne '') {
            is run_command("set -e\n$steps", %sandbox) =~ s/^OK\n//gmr, '', "$block->{line}: the steps succeed";
            $ran++;
        }
        start_redis() if $block->{text} =~ /restart redis-server/;
        if ($block->{text} =~ /stop redis-server/) {
            subtest 'before Redis stops' => \&with_redis;
            stop_redis();
        }
    }
}
is $ran, 2, 'the other steps change the system';

# What the page says beside the answers.
sub with_redis {
    like slurp("$etc/redis/users.acl"), qr/^user nginx on .*~rate_limit:\*/m, 'the user is saved';
    like slurp("$etc/nginx/redis.password"), qr/^[0-9a-f]{48}$/, 'the password too';
    my $second = start_documented($files[1]{text}, %redis, %sandbox);
    is $second->get('/')->header('X-RateLimit-Remaining'), 3, 'a second nginx counts the request of the first';
    my $key = 'zone=site&key=ip:127.0.0.1';
    is $second->request(method => 'DELETE', path => "/limits/reset?$key")->{status}, 204, 'the user may reset clients';
    my $change = $second->request(method => 'PATCH', path => '/limits/zones/site', body => '{"rate":"6r/m"}',
        headers => [ 'Content-Type' => 'application/json' ]);
    is $change->{status}, 200, 'and change rates';
    is $second->request(method => 'DELETE', path => '/limits/zones/site')->{status}, 200, 'and restore them';
    is $second->get('/')->header('X-RateLimit-Limit'), 5, 'the documented rate applies';
    is $nginx->get('/metrics')->{status}, 200, 'metrics are served';
    wait_for('the share of two instances',
        sub { $nginx->get('/metrics')->{body} =~ /^rate_limiter_instances(?:\{[^}]*\})? 2$/m });
    unlike $_->error_log, qr/NOPERM|\[(?:alert|crit|emerg)\]/, 'the user lacks nothing' for $nginx, $second;
    $second->stop;
    return;
}

like $nginx->error_log, qr/redis "fleet" .*refused/, 'the log says that Redis is away';
start_redis();
ok wait_for('Redis', sub { $nginx->get('/limits/health')->{body} =~ /"fleet":"UP"/ }), 'Redis is used again';
like $nginx->error_log, qr/redis "fleet" .*answers again/, 'the log says so';
unlike $nginx->error_log, qr/NOPERM|\[(?:alert|crit|emerg)\]/, 'the user lacks nothing in an outage';
done_testing;
