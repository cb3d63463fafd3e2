# Debian's fail2ban filter for limit_req bans clients that rate_limit rejected.
use strict;
use warnings;

use lib 't/lib';
use IPC::Run ();
use RateLimit qw(start_nginx slurp);
use Test::More;

my $fail2ban = "$ENV{RL_BUILD}/fail2ban";
my $filter   = "$fail2ban/etc/fail2ban/filter.d/nginx-limit-req.conf";

# The same limits twice, each with an error log of its own. A client's address is what it says.
my $nginx = start_nginx(
    clock => 1,
    http  => <<'HTTP',
set_real_ip_from 127.0.0.1;
real_ip_header X-Address;
limit_req_zone  $remote_addr zone=theirs:1m rate=1r/m;
rate_limit_zone $remote_addr zone=ours:1m   rate=1r/m algorithm=leaky_bucket;
rate_limit_zone $remote_addr zone=log:1m    rate=1r/m algorithm=sliding_log;
HTTP
    server => <<'SERVER',
location /theirs/     { error_log %DIR%/theirs.log info; limit_req zone=theirs; empty_gif; }
location /ours/       { error_log %DIR%/ours.log info; rate_limit zone=ours; empty_gif; }
location /log/        { error_log %DIR%/log.log info; rate_limit zone=log; empty_gif; }
location /theirs/dry/ { error_log %DIR%/theirs-dry.log info; limit_req zone=theirs; limit_req_dry_run on; empty_gif; }
location /ours/dry/   { error_log %DIR%/ours-dry.log info; rate_limit zone=ours; rate_limit_dry_run on; empty_gif; }
location /theirs/slow/ { error_log %DIR%/theirs-slow.log info; limit_req zone=theirs burst=5; limit_req_dry_run on; empty_gif; }
location /ours/slow/   { error_log %DIR%/ours-slow.log info; rate_limit zone=ours burst=5; rate_limit_dry_run on; empty_gif; }
SERVER
);

# Runs fail2ban-regex over a log; returns its exit status and all that it says.
sub fail2ban_regex {
    my ($name, @options) = @_;
    local $ENV{PYTHONPATH} = "$fail2ban/usr/lib/python3/dist-packages";
    local $ENV{HOME}       = $nginx->dir;
    my $said = '';
    IPC::Run::run(
        [ '/usr/bin/python3', "$fail2ban/usr/bin/fail2ban-regex", '-c', "$fail2ban/etc/fail2ban", '--usedns', 'no', @options,
            $nginx->dir . "/$name.log", $filter ],
        '<', \'', '>&', \$said
    );
    return ($? >> 8 || $? & 127, $said);
}

# The addresses that the filter finds in a log, with how often.
sub banned {
    my ($name) = @_;
    my ($exit, $said) = fail2ban_regex($name, '-o', 'ip');
    diag $said if $exit > 1;
    my %count;
    $count{$_}++ for split ' ', $said;
    return \%count;
}

my @addresses = qw(192.0.2.7 2001:db8::7 198.51.100.99);
my $requests  = 5;
for my $path (qw(theirs ours log)) {
    for my $address (@addresses) {
        my @statuses = map { $nginx->get("/$path/", 'X-Address' => $address)->{status} } 1 .. $requests;
        is scalar(grep { $_ >= 400 } @statuses), $requests - 1, "$path: $address is rejected after its first request";
    }
}
my %expected = map { $_ => $requests - 1 } @addresses;
is_deeply banned('theirs'), \%expected, 'the filter finds the clients that limit_req rejected';
is_deeply banned('ours'),   \%expected, 'and those that rate_limit rejected, with leaky_bucket';
is_deeply banned('log'),    \%expected, 'and with sliding_log';

my ($exit, $said) = fail2ban_regex('ours');
my $lines = $requests * @addresses - @addresses;
like $said, qr/^Lines: $lines lines, 0 ignored, $lines matched, 0 missed/m, 'every line matches' or diag slurp($nginx->dir . '/ours.log');

# What a dry run would have done is no reason to ban anybody.
for my $kind (qw(dry slow)) {
    for my $path (qw(theirs ours)) {
        $nginx->get("/$path/$kind/", 'X-Address' => '192.0.2.8') for 1 .. 3;
        my @dry = grep {/dry run/} split /\n/, slurp($nginx->dir . "/$path-$kind.log");
        cmp_ok scalar @dry, '>=', 2, "$path: a line for each of a dry run";
        is_deeply banned("$path-$kind"), {}, "$path: that the filter does not match";
    }
}

# A client cannot have another one banned by what it sends.
$nginx->request(path => '/ours/', headers => [ 'X-Address' => '192.0.2.9', Host => 'x', Referer => 'a", client: 203.0.113.1, ' ]) for 1 .. 2;
$nginx->get('/ours/?a=limiting%20requests,client:203.0.113.1,', 'X-Address' => '192.0.2.9');
is_deeply banned('ours'), { %expected, '192.0.2.9' => 2 }, 'the address is the one that nginx knows';

done_testing;
