# A zone whose key is empty for all of its first 1,000 requests gets one warning in the log.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx format_request);
use Test::More;

my %conf = (
    http => <<'HTTP',
rate_limit_zone $arg_k zone=a:1m rate=1r/s;
rate_limit_zone "$arg_k$arg_l" zone=b:1m rate=1r/s;
rate_limit_zone $arg_k zone=mixed:1m rate=100r/s;
rate_limit_zone $arg_k zone=off:1m rate=off;
HTTP
    server => <<'SERVER',
location = /a { rate_limit zone=a; empty_gif; }
location = /b { rate_limit zone=b phase=precontent; empty_gif; }
location = /mixed { rate_limit zone=mixed; empty_gif; }
location = /off { rate_limit zone=off; empty_gif; }
location = /again { rate_limit zone=a; error_page 404 = /a; try_files /absent =404; }
SERVER
    workers => 2,
);
my $nginx = start_nginx(%conf, port => (split ' ', $ENV{RL_PORTS})[0]);

# Sends requests, a hundred on a connection, so that both workers get some.
sub send_requests {
    my ($count, $path) = @_;
    while ($count > 0) {
        my $some       = $count < 100 ? $count : 100;
        my $connection = $nginx->connect;
        $connection->send(format_request(path => $path, headers => [ Connection => 'keep-alive' ]) x $some);
        $connection->receive for 1 .. $some;
        $connection->close;
        $count -= $some;
    }
    return;
}

sub warnings_of {
    my ($zone) = @_;
    return grep {/\[warn\].* of zone "$zone" was empty/} split /\n/, $nginx->error_log;
}

subtest 'a limit before authentication' => sub {
    my $reason = 'which were not limited: limits are checked before authentication unless they have '
        . '"phase=precontent", and a variable that authentication sets is still empty';
    send_requests(999, '/a');
    is scalar(warnings_of('a')), 0, '999 requests: no warning';
    send_requests(1, '/a');
    like join("\n", warnings_of('a')),
        qr/\[warn\] .* the key "\$arg_k" of zone "a" was empty for all of its first 1000 requests, $reason, client:/,
        'the next: one warning, with the phase as the likely reason';
    send_requests(1500, '/a');
    is scalar(warnings_of('a')), 1, 'no second one';
};

subtest 'a limit after authentication' => sub {
    send_requests(1100, '/b');
    my @lines = warnings_of('b');
    is scalar(@lines), 1, 'one warning';
    like $lines[0],
        qr/key "\$arg_k\$arg_l" of zone "b" .*: the key is empty even after authentication, in the precontent phase/,
        'with another reason';
};

subtest 'no warning' => sub {
    send_requests(500, '/mixed');
    send_requests(1, '/mixed?k=x');
    send_requests(2000, '/mixed');
    is scalar(warnings_of('mixed')), 0, 'one of the first requests has a key';
    send_requests(1100, '/off?k=x');
    is scalar(warnings_of('off')), 0, 'a rate that is off, and keys';
};

subtest 'after a reload' => sub {
    $nginx->reload(%conf);
    send_requests(500, '/again');
    is scalar(warnings_of('a')), 1, '500 requests with an internal redirect to the same zone are counted once';
    send_requests(500, '/again');
    is scalar(warnings_of('a')), 2, 'the zone of the new configuration gets its own warning';
    send_requests(1, '/a?k=x');
    send_requests(1100, '/a');
    is scalar(warnings_of('a')), 2, 'once';
};

done_testing;
