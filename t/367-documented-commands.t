# Commands of docs/redis.md and docs/explain.md: permissions of the Redis user, a value in Redis, and questions to a log.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(slurp start_nginx wait_for);
use RateLimit::Page qw(alike completed configuration page_block page_blocks run_command transcript);
use RateLimit::Redis qw(start_redis);
use Test::More;

my ($port) = split ' ', $ENV{RL_PORTS};
my $redis = start_redis();

sub redis_zone {
    my ($url, $more) = @_;
    return "rate_limit_redis fleet $url timeout=60s connect_timeout=60s;\n"
        . "rate_limit_zone \$http_x_client zone=api:1m rate=5r/d redis=fleet $more;\n";
}

subtest 'permissions of the Redis user' => sub {
    my ($section) = slurp('docs/redis.md') =~ /^## Permissions of the Redis user\n(.*?)^## /ms;
    my ($command) = $section =~ /^    (ACL SETUSER nginx .*)$/m;
    is $redis->command(split ' ', $command), 'OK', $command;
    my $nginx = start_nginx(
        port   => $port,
        http   => redis_zone($redis->url(user => 'nginx', password => 'secret'), ''),
        server => 'location / { rate_limit zone=api; empty_gif; } location /api/ { rate_limit_api; }',
    );
    is join(' ', map { $nginx->get('/', 'X-Client' => 'a')->{status} } 1 .. 6), '200 200 200 200 200 429', 'limits hold';
    is $nginx->get('/api/remaining?zone=api&key=a')->{status}, 200, 'the API answers';
    unlike $nginx->error_log, qr/NOPERM|\[(?:alert|crit|emerg)\]/, 'the user lacks nothing';
    $nginx->stop;

    # What is needed for other features are commands that Redis has.
    my ($more) = $section =~ /^- (.*)/ms;
    my %seen;
    for my $permission (grep { !$seen{$_}++ && !/ratelimit/ } $more =~ /(\+[a-z][a-z|]*)/g) {
        is eval { $redis->command('ACL', 'SETUSER', 'nginx', $permission) } // $@, 'OK', $permission;
    }
    cmp_ok scalar(keys %seen), '>=', 12, 'they were found';
};

subtest 'a value in Redis' => sub {
    my ($command) = slurp('docs/redis.md') =~ /^    (redis-cli EVAL .*\n.*fixed_window:\{alice\}')$/m;
    my $nginx = start_nginx(
        port   => $port,
        http   => redis_zone($redis->url, 'algorithm=fixed_window'),
        server => 'location / { rate_limit zone=api; empty_gif; }',
    );
    $nginx->get('/', 'X-Client' => 'alice') for 1 .. 3;
    my $answer = run_command($command, '^redis-cli' => 'redis-cli -s ' . $redis->socket);
    my ($ends, $count) = $answer =~ /(\d+)\n(\d+)\n/ or diag $answer;
    is $count, 3, 'the number of requests';
    cmp_ok abs($ends / 1e6 - (1 + int(time / 86_400)) * 86_400), '<=', 86_400, 'the end of the window';
    $nginx->stop;
};

subtest 'questions to a log' => sub {
    my ($format) = slurp('docs/explain.md') =~ /^(log_format rate_limit_json .*?;)\n/ms;
    my $log   = "$ENV{RL_DIR}/limits.json";
    my $nginx = start_nginx(
        port => $port,
        http => "$format access_log $log rate_limit_json;\n rate_limit_redis gone redis://127.0.0.1:1;\n"
            . "rate_limit_zone \$http_x_client zone=api:1m rate=2r/d;\n"
            . 'rate_limit_zone $http_x_client zone=far:1m rate=2r/d redis=gone;',
        server => 'location / { rate_limit zone=api; empty_gif; } location /far { rate_limit zone=far; empty_gif; }',
    );
    $nginx->get('/', 'X-Client' => 'a') for 1 .. 4;
    $nginx->get('/far', 'X-Client' => 'a');
    wait_for('five lines', sub { 5 == (() = slurp($log) =~ /\n/g) });
    my %want = (
        'which clients were rejected most'     => qr/^ *2 127\.0\.0\.1\n\z/,
        'which zone rejects requests'          => qr/^ *2 api\n\z/,
        'which clients were close to a limit'  => qr/\A(?:\{.*"remaining":"[01]".*\}\n){4}\z/,
        'when was Redis unavailable'           => qr/\A\S+\trefused\tERROR\n\z/,
    );
    my @rows = slurp('docs/explain.md') =~ /^\| ([^|]*) \| `(jq .*)` \|$/mg;
    while (my ($question, $command) = splice @rows, 0, 2) {
        $command =~ s/\\\|/|/g;
        my ($known) = grep { $question =~ /^\Q$_\E/ } keys %want;
        my $answer = delete $want{ $known // '' } // qr/a known question/;
        like run_command($command, 'limits\.json' => $log), $answer, $question;
    }
    is_deeply [ keys %want ], [], 'all questions were found';
    $nginx->stop;
};

subtest 'a shadow' => sub {
    my %conf = completed(configuration(page_block('docs/explain.md', qr/api-strict/)));
    my ($block) = page_blocks('docs/explain.md', 'console');
    my $nginx = start_nginx(
        %conf,
        port    => $port,
        clock   => 1,
        http    => 'map $http_x_client $client { default $http_x_client; }' . $conf{http},
        servers => 'server { listen 127.0.0.1:%PORT1%; return 200; }',
    );
    $nginx->get('/api/', 'X-Client' => 'alice') for 1 .. 110;
    for (transcript($block->{text})) {
        my ($command, $answer) = @{$_};
        is alike(run_command($command, nginx => $nginx)), alike($answer), $command =~ s/\n\z//r;
    }
    $nginx->stop;
};
done_testing;
