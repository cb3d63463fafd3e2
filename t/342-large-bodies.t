# Bodies of 100 MB pass rate_limit_response in bounded memory, whatever they consist of.
use strict;
use warnings;

use lib 't/lib';
use IO::Socket::INET;
use POSIX ();
use RateLimit qw(start_nginx slurp wait_for);
use Test::More;

my $mb = 1 << 20;

# Each body: the content type, what it begins with, what is repeated, how many MB, what it ends with, and its value.
my %bodies = (
    string     => [ 'application/json', '{"text":"',           'lorem ipsum \n ',     100, '","n":{"a":1}}',      1 ],
    array      => [ 'application/json', '{"list":[1',          ',-0.12345678,"]"',    100, '],"n":{"a":2}}',      2 ],
    objects    => [ 'application/json', '{"list":[{}',         ',{"n":{"a":9}}',      20,  '],"n":{"a":3}}',      3 ],
    'on-path'  => [ 'application/json', '{"n":[0',             ',12345,"x"',          20,  '],"n":{"a":4}}',      4 ],
    members    => [ 'application/json', '{"n":{"b":0',         ',"a":7,"c":"d"',      20,  '}}',                  7 ],
    name       => [ 'application/json', '{"',                  'k',                   20,  '":0,"n":{"a":5}}',    5 ],
    space      => [ 'application/json', '{',                   "\n    ",              20,  '"n":{"a":6}}',        6 ],
    number     => [ 'application/json', '{"n":{"a":1',         '23',                  20,  '}}',                  '-' ],
    depth      => [ 'application/json', '{"n":{"a":8},"b":',   '[',                   20,  '',                    '-' ],
    events     => [ 'text/event-stream', '',                   qq(data: {"b":"c"}\n\n), 100, qq(data: {"n":{"a":9}}\n\n), 9 ],
    'all-read' => [ 'text/event-stream', '',                   qq(data: {"n":{"a":8}}\n\n), 20, qq(data: {"n":{"a":9}}\n\n), 9 ],
    event      => [ 'text/event-stream', 'data: {"b":"',       'x',                   20,  qq("}\n\ndata: {"n":{"a":10}}\n\n), 10 ],
    lines      => [ 'text/event-stream', qq(data: {"n":{"a":11}\n), qq(data:\n),      20,  qq(data: }\n\n),       11 ],
    field      => [ 'text/event-stream', '',                   'data',                20,  qq(\n\ndata: {"n":{"a":12}}\n\n), 12 ],
);

my $app_port = (split ' ', $ENV{RL_PORTS})[-1];
my $listen   = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $app_port, Listen => 16, ReuseAddr => 1)
    or die "listen: $@\n";
my $app = fork // die "fork: $!\n";
if (!$app) {
    $SIG{PIPE} = 'IGNORE';
    while (my $client = $listen->accept) {
        my $request = <$client>;
        my ($type, $begin, $part, $size, $end) = @{ $bodies{ ($request =~ m{^GET /(\S+)})[0] } };
        1 while <$client> =~ /\S/;
        my $block = $part x int($mb / length $part);
        print {$client} "HTTP/1.0 200 OK\r\nContent-Type: $type\r\n\r\n", $begin;
        print {$client} $block for 1 .. $size;
        print {$client} $end;
        close $client;
    }
    POSIX::_exit(0);
}
close $listen;

my $nginx = start_nginx(
    http => "log_format value '\$uri \$value \$bytes_sent';\naccess_log %DIR%/values.log value;",
    server => <<"CONF",
rate_limit_response \$value json:n.a;
proxy_max_temp_file_size 0;
location / { proxy_pass http://127.0.0.1:$app_port; }
CONF
);

sub memory {
    my ($worker) = $nginx->workers;
    my ($kb) = slurp("/proc/$worker/status") =~ /^VmHWM:\s+(\d+) kB/m or die "no VmHWM\n";
    return $kb;
}

# Gets a body, without storing it. Returns its size and its end.
sub drain {
    my ($path) = @_;
    my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nginx->port) or die "connect: $@\n";
    syswrite $client, "GET $path HTTP/1.0\r\n\r\n";
    my ($size, $last) = (0, '');
    while (my $got = sysread $client, my $bytes, $mb) {
        $size += $got;
        $last = substr $last . $bytes, -100;
    }
    return ($size, $last);
}

# A sanitizer keeps freed memory for a while.
my $most = $ENV{RL_SANITIZE} ? 8192 : 1024;
# The first responses fill nginx's pools and caches of memory.
drain('/space');
drain('/number');
my $before = memory();
for my $name (sort keys %bodies) {
    my ($type, $begin, $part, $size, $end, $value) = @{ $bodies{$name} };
    my ($got, $last) = drain("/$name");
    my $line = wait_for("the line of $name", sub { (slurp($nginx->dir . '/values.log') =~ m{^/\Q$name\E (.*)\n}m)[0] });
    is +(split ' ', $line)[0], $value, "$name: the value";
    my $length = length($begin) + length($end) + $size * length($part) * int($mb / length $part);
    cmp_ok $got, '>=', $length, "$name: all $size MB pass";
    is substr($last, -length $end), $end, "$name: to the end" if length $end;
    # The peak of the worker, in KB, since it began.
    cmp_ok memory() - $before, '<', $most, "$name: the worker needs less than $most KB more";
}
kill 'KILL', $app;
waitpid $app, 0;

done_testing;
