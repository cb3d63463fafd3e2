# The module loads into an unmodified nginx without log messages, and has no effect until a directive uses it.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config start_nginx);
use Test::More;

subtest 'nginx -t accepts the module without a message' => sub {
    my $check = check_config();
    is $check->{exit},   0,  'exit status';
    is $check->{stderr}, '', 'stderr';
};

subtest 'the module exports only the symbols that nginx needs' => sub {
    plan skip_all => 'the module is compiled into nginx' if !$ENV{RL_MODULE};
    my @shown = grep { !/^__odr_asan/ } map { (split)[-1] } qx(nm -D --defined-only "$ENV{RL_MODULE}");
    is_deeply [ sort @shown ], [qw(ngx_module_names ngx_module_order ngx_modules)], 'symbols';
};

subtest 'all symbols that the module needs are resolved at load' => sub {
    local $ENV{LD_BIND_NOW} = 1;
    my $check = check_config();
    is $check->{exit},   0,  'exit status';
    is $check->{stderr}, '', 'stderr';
};

subtest 'without rate_limit a response is the same as without the module' => sub {
    my $server = 'location / { } location /gif { empty_gif; }';
    my $zone = 'rate_limit_zone $binary_remote_addr zone=unused:1m rate=1r/d;';
    my @seen;
    for my $module (0, 1) {
        my $nginx = start_nginx(server => $server, module => $module, http => $module ? $zone : '');
        $nginx->write_file('index.html', "hello\n");
        for my $path (qw(/ /gif /absent / /gif)) {
            my $response = $nginx->get($path);
            my @names    = grep { $_ !~ /^(?:Date|ETag|Last-Modified)$/ } map { $_->[0] } @{ $response->{headers} };
            push @{ $seen[$module] }, [ $response->{status}, "@names", $response->{body} ];
        }
        unlike $nginx->error_log, qr/\[(?:warn|error|crit|alert|emerg)\] (?!.*absent)/, 'the log is empty';
    }
    is $seen[0][0][0], 200, 'a file exists';
    is_deeply $seen[1], $seen[0], 'status, headers and bodies';
};

done_testing;
