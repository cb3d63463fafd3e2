# Debian's fail2ban filter for limit_req bans clients that rate_limit rejected.
use strict;
use warnings;

use lib 't/lib';
use IPC::Run ();
use RateLimit qw(start_nginx slurp);
use Test::More;

my $fail2ban = "$ENV{RL_BUILD}/fail2ban";
my $filter   = "$fail2ban/etc/fail2ban/filter.d/nginx-limit-req.conf";

# The same limits with limit_req and with rate_limit, each with its own error log. A header sets the client's address.
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

# Runs fail2ban-regex over a log. Returns its exit status and its output.
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

# Returns the addresses that the filter finds in a log, with their counts.
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
is_deeply banned('ours'),   \%expected, 'the filter finds the clients that rate_limit with leaky_bucket rejected';
is_deeply banned('log'),    \%expected, 'the filter finds the clients that rate_limit with sliding_log rejected';

my ($exit, $said) = fail2ban_regex('ours');
my $lines = $requests * @addresses - @addresses;
like $said, qr/^Lines: $lines lines, 0 ignored, $lines matched, 0 missed/m, 'every line matches' or diag slurp($nginx->dir . '/ours.log');

# A dry run must not ban a client.
for my $kind (qw(dry slow)) {
    for my $path (qw(theirs ours)) {
        $nginx->get("/$path/$kind/", 'X-Address' => '192.0.2.8') for 1 .. 3;
        my @dry = grep {/dry run/} split /\n/, slurp($nginx->dir . "/$path-$kind.log");
        cmp_ok scalar @dry, '>=', 2, "$path: a dry run logs each request";
        is_deeply banned("$path-$kind"), {}, "$path: the filter ignores the lines of a dry run";
    }
}

# A client must not be able to ban another client by the content of its request.
$nginx->request(path => '/ours/', headers => [ 'X-Address' => '192.0.2.9', Host => 'x', Referer => 'a", client: 203.0.113.1, ' ]) for 1 .. 2;
$nginx->get('/ours/?a=limiting%20requests,client:203.0.113.1,', 'X-Address' => '192.0.2.9');
is_deeply banned('ours'), { %expected, '192.0.2.9' => 2 }, 'the filter finds the address of the connection only';

done_testing;
