# docs/migration.md, docs/troubleshooting.md and docs/lifecycle.md: configurations answer as shown, and an upgrade of
# the running nginx keeps what the page says.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config http_get slurp start_nginx wait_for write_text);
use RateLimit::Page qw(alike configuration page_blocks run_command transcript);
use RateLimit::Redis qw(start_redis);
use Test::More;

my ($port) = split ' ', $ENV{RL_PORTS};
my $redis       = start_redis();
my $application = 'server { listen 127.0.0.1:%PORT1%; return 200 "ok\n"; }';

sub start_block {
    my ($text) = @_;
    my %conf = configuration($text);
    my $url = $redis->url;
    $conf{http} =~ s{redis://127\.0\.0\.1:6379}{$url timeout=60s connect_timeout=60s};
    return start_nginx(%conf, port => $port, clock => 1, servers => $application);
}

sub answers_are {
    my ($nginx, $text) = @_;
    for (transcript($text)) {
        my ($command, $shown) = @{$_};
        is alike(run_command($command, nginx => $nginx)), alike($shown), $command =~ s/\n\z//r;
    }
    return;
}

# Each block of answers belongs to the configuration above it.
my %count = ('docs/migration.md' => 5, 'docs/troubleshooting.md' => 1);
for my $page (sort keys %count) {
    my @blocks = sort { $a->{line} <=> $b->{line} } page_blocks($page, 'nginx'), page_blocks($page, 'console');
    my $above;
    for my $block (@blocks) {
        if ($block->{language} eq 'nginx') {
            $above = $block;
            next;
        }
        $count{$page}--;
        subtest "$page: $block->{title}" => sub {
            my $nginx = start_block($above->{text});
            answers_are($nginx, $block->{text});
            unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'nginx logs no warning';
            $nginx->stop;
        };
    }
    is $count{$page}, 0, "$page: all blocks of answers were found";
}

subtest 'limit_req, which the translation replaces' => sub {
    my ($old)   = grep { $_->{title} eq 'From limit_req' } page_blocks('docs/migration.md', 'nginx');
    my ($shown) = grep { $_->{title} eq 'From limit_req' } page_blocks('docs/migration.md', 'console');
    my $nginx   = start_block($old->{text});
    answers_are($nginx, $shown->{text} =~ s/429/503/r);
    $nginx->stop;
};

subtest 'back to limit_req, and forward again' => sub {
    my ($shown) = page_blocks('docs/lifecycle.md', 'console');
    my @files   = page_blocks('docs/lifecycle.md', 'nginx');
    is @files, 2, 'there are two files';
    for my $file (@files) {
        my $nginx = start_block($file->{text});
        answers_are($nginx, $shown->{text});
        $nginx->stop;
    }
    my $nginx = start_nginx(configuration($files[1]{text}), port => $port, servers => $application);
    for my $file (@files[ 0, 1 ]) {
        $nginx->reload(configuration($file->{text}), servers => $application);
        is $nginx->get('/')->{status}, 200, 'a reload changes to the other module';
    }
    $nginx->stop;
};

# Warnings and messages that troubleshooting.md promises.
subtest 'messages' => sub {
    my @parts = (
        [ 'location /a { rate_limit zone=site; return 200; }', qr/\[warn\].*return/,                'return' ],
        [ 'location /a { rate_limit zone=other; }',            qr/\[emerg\].*"rate_limit".*"other"/, 'an unknown zone' ],
    );
    my $zone = 'rate_limit_zone $remote_addr zone=site:1m rate=1r/m;';
    like check_config(http => $zone, server => $_->[0])->{stderr}, $_->[1], $_->[2] for @parts;
    like check_config(http => 'rate_limit_zone all zone=site:1m rate=1r/m;')->{stderr}, qr/\[warn\]/, 'a constant key';
    like check_config(http => 'rate_limit_zone $remote_addr zone=site:8k rate=1r/m;')->{stderr}, qr/too small/,
        'a small zone';
    SKIP: {
        skip 'the module is compiled into this nginx', 2 if !$ENV{RL_MODULE};
        like check_config(module => 0, http => $zone)->{stderr}, qr/unknown directive "rate_limit_zone"/, 'not loaded';
        like check_config(main => "load_module $ENV{RL_MODULE};")->{stderr},
            qr/module "ngx_http_rate_limit_module" is already loaded/, 'loaded twice';
    }
    like check_config(http => 'rate_limit_key $user jwt:sub;')->{stderr},
        qr/"rate_limit_key": "jwt:sub" .*requires "rate_limit_jwt_key"/, 'no key for tokens';
};

subtest 'a program is replaced while it runs' => sub {
    my ($steps) = grep {/USR2/} map { $_->{text} } page_blocks('docs/lifecycle.md', 'sh');
    my $url   = $redis->url;
    my $nginx = start_nginx(
        port => $port,
        http => "rate_limit_redis one $url timeout=60s connect_timeout=60s;\n"
            . 'rate_limit_zone $arg_k zone=near:1m rate=9r/d; rate_limit_zone $arg_k zone=far:1m rate=9r/d redis=one;',
        server => 'location /near { rate_limit zone=near; empty_gif; } location /far { rate_limit zone=far; empty_gif; }',
    );
    my $left = sub { return http_get($port, "/$_[0]?k=a")->header('X-RateLimit-Remaining') };
    # nginx ignores USR2 as long as the process that has started it lives, so it starts again in the background.
    $nginx->stop;
    my $run = $nginx->dir;
    write_text("$run/nginx.conf", slurp("$run/nginx.conf") =~ s/^daemon off;$//mr);
    system($ENV{TEST_NGINX_BINARY}, '-e', "$run/error.log", '-p', $run, '-c', "$run/nginx.conf") == 0 or die "no nginx\n";
    is join(' ', map { $left->($_) } qw(near near far far)), '8 7 8 7', 'before';
    my $old = slurp("$run/nginx.pid") + 0;
    my ($start, $stop) = $steps =~ /^(kill -USR2.*)\nsleep 1\n(kill -QUIT.*)\n/ or die "other steps\n";
    is run_command($start, '/run/' => "$run/"), '', $start;
    wait_for('a new nginx', sub { -e "$run/nginx.pid.oldbin" && (slurp("$run/nginx.pid") || $old) != $old });
    my $new = slurp("$run/nginx.pid") + 0;
    is run_command($stop, '/run/' => "$run/"), '', $stop;
    wait_for('the end of the old nginx', sub { !-e "$run/nginx.pid.oldbin" });
    is join(' ', map { $left->($_) } qw(near far)), '8 6', 'shared memory starts anew, Redis continues';
    unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'nginx logs no warning';
    kill 'TERM', $new;
    wait_for('the end of the new nginx', sub { !-e "$run/nginx.pid" });
};
done_testing;
