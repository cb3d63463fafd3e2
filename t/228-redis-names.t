# A Redis host name that does not resolve yet delays neither start nor reload, and is used once it resolves.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for write_text);
use RateLimit::FakeRedis qw(start_fake raw);
use RateLimit::RESP qw(encode_command);
use RateLimit::Redis qw(start_redis);
use Test::More;

# The names of this test are in its own /etc/hosts, which requires a mount namespace. A user who is not root, or a
# chroot, cannot create one.
plan skip_all => 'needs a mount namespace for an /etc/hosts of its own, which this machine does not allow'
    if system('unshare -m true 2>/dev/null') != 0;

my ($port) = split ' ', $ENV{RL_PORTS};
my $clients = 0;

# Gives redis.test an address, or none. No process listens on port 53 of the name server, so a lookup fails at once.
sub name {
    my ($address) = @_;
    write_text("$ENV{RL_DIR}/hosts", "127.0.0.1 localhost\n" . ($address ? "$address redis.test\n" : ''));
    write_text("$ENV{RL_DIR}/resolv.conf", "nameserver 127.99.0.1\noptions timeout:1 attempts:1\n");
    return;
}

my $wrapper = "$ENV{RL_DIR}/nginx-in-namespace";
write_text($wrapper, <<"SHELL");
#!/bin/sh
exec unshare -m sh -c 'mount --bind $ENV{RL_DIR}/hosts /etc/hosts && mount --bind $ENV{RL_DIR}/resolv.conf /etc/resolv.conf &&
    exec @{[ RateLimit::binary() ]} "\$@"' sh "\$@"
SHELL
chmod 0755, $wrapper;
local $ENV{TEST_NGINX_BINARY} = $wrapper;

sub conf {
    my ($url) = @_;
    return (
        port => $port,
        http => "rate_limit_redis fleet $url timeout=5s;\n" . join('', map {
            "rate_limit_zone \$http_x_client zone=$_:1m rate=2r/d redis=fleet on_error=$_ deny_cache=off;\n"
        } qw(open closed local)),
        server => "add_header X-Store \$rate_limit_store always;\nadd_header X-Error \$rate_limit_error always;\n"
            . join('', map {"location = /$_ { rate_limit zone=$_; empty_gif; }\n"} qw(open closed local)),
    );
}

# Returns "STATUS STORE" of $count requests of one client.
sub ask {
    my ($nginx, $mode, $count) = @_;
    my $client = 'client' . ++$clients;
    return join ', ', map { my $r = $nginx->get("/$mode", 'X-Client' => $client); "$r->{status} " . $r->header('X-Store') } 1 .. $count;
}

my $single  = start_redis();
my $cluster = start_redis(cluster => 1, config => 'cluster-announce-ip 127.0.0.1');
my $words   = encode_command('127.0.0.1', $single->port);
my $sentinel = start_fake(
    replies => { SENTINEL => raw($words), SUBSCRIBE => raw("*3\r\n\$9\r\nsubscribe\r\n\$14\r\n+switch-master\r\n:1\r\n") },
);
my %urls = (
    'a single Redis' => 'redis://redis.test:' . $single->port,
    'a Sentinel'     => 'redis+sentinel://redis.test:' . $sentinel->port . '/limits',
    'a cluster'      => 'redis+cluster://redis.test:' . $cluster->port,
);
for my $title (sort keys %urls) {
    subtest $title => sub {
        name();
        my $nginx = start_nginx(conf($urls{$title}));
        like $nginx->error_log . RateLimit::slurp($nginx->dir . '/stderr'),
            qr/\[warn\] .*host "redis\.test" of "fleet" has no address now/, 'nginx starts with a warning';
        is ask($nginx, 'open',   3), '200 fallback, 200 fallback, 200 fallback', 'on_error=open applies';
        is ask($nginx, 'closed', 1), '503 fallback',                             'on_error=closed applies';
        is ask($nginx, 'local',  3), '200 fallback, 200 fallback, 429 fallback', 'on_error=local applies';
        name('127.0.0.1');
        wait_for('the name', sub { ask($nginx, 'open', 1) eq '200 redis' });
        is ask($nginx, 'closed', 3), '200 redis, 200 redis, 429 redis', 'Redis decides once the name has an address';

        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
        $nginx->stop;
    };
}

subtest 'a reload keeps known addresses' => sub {
    for my $title (sort keys %urls) {
        name('127.0.0.1');
        my $nginx = start_nginx(conf($urls{$title}));
        is ask($nginx, 'closed', 3), '200 redis, 200 redis, 429 redis', "$title: the name is resolved";
        name();
        $nginx->reload(conf($urls{$title}));
        is ask($nginx, 'closed', 3), '200 redis, 200 redis, 429 redis',
            "$title: the address is used although the name no longer resolves";
        like $nginx->error_log, qr/\[warn\] .*host "redis\.test" of "fleet" has no address now/,
            "$title: the failed lookup is logged";
        $nginx->reload(conf($urls{$title}));
        is ask($nginx, 'closed', 1), '200 redis', "$title: the same after the next reload";
        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/,
            "$title: the log has no critical errors";
        $nginx->stop;
    }
};

done_testing;
