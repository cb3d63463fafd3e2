# The error log of rejections and delays: the text, the level, and how the client's key is written.
use strict;
use warnings;

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use RateLimit qw(start_nginx);
use Test::More;

# The clock of nginx is frozen unless the test advances it.
my $nginx = start_nginx(
    clock => 1,
    http => <<'HTTP',
rate_limit_zone $arg_key zone=api:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $raw zone=raw:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $http_x_client zone=client:1m rate=1r/d algorithm=token_bucket;
rate_limit_zone $arg_key zone=queue:1m rate=5r/s algorithm=leaky_bucket burst=3;
rate_limit_zone $arg_key zone=other:1m rate=1r/d algorithm=sliding_log;
rate_limit_zone $arg_key zone=gcra:1m rate=1r/d algorithm=gcra burst=1;
rate_limit_zone $arg_key zone=fixed_window:1m rate=2r/366d algorithm=fixed_window;
rate_limit_zone $arg_key zone=sliding_window:1m rate=2r/366d;
rate_limit_zone $arg_key zone=sliding_buckets:1m rate=2r/366d algorithm=sliding_buckets;
rate_limit_zone $arg_key zone=sliding_log:1m rate=2r/366d algorithm=sliding_log;
map $arg_key $raw {
    newline  "a
b";
    default  "";
}
HTTP
    server => <<'SERVER',
location /api/    { rate_limit zone=api; empty_gif; }
location /cost/   { rate_limit zone=api cost=2; empty_gif; }
location /raw/    { rate_limit zone=raw; empty_gif; }
location /client/ { rate_limit zone=client; empty_gif; }
location /queue/  { rate_limit zone=queue; empty_gif; }
location /gcra/   { rate_limit zone=gcra; empty_gif; }
location /fixed_window/    { rate_limit zone=fixed_window; empty_gif; }
location /sliding_window/  { rate_limit zone=sliding_window; empty_gif; }
location /sliding_buckets/ { rate_limit zone=sliding_buckets; empty_gif; }
location /sliding_log/     { rate_limit zone=sliding_log; empty_gif; }
location /info/   { rate_limit zone=api; rate_limit_log_level info; empty_gif; }
location /notice/ { rate_limit zone=api; rate_limit_log_level notice; empty_gif; }
location /warn/   { rate_limit zone=api; rate_limit_log_level warn; empty_gif; }
location /error/  { rate_limit zone=api; rate_limit_log_level error; empty_gif; }
location /queue/info/   { rate_limit zone=queue; rate_limit_log_level info; empty_gif; }
location /queue/notice/ { rate_limit zone=queue; rate_limit_log_level notice; empty_gif; }
location /queue/warn/   { rate_limit zone=queue; rate_limit_log_level warn; empty_gif; }
location /queue/error/  { rate_limit zone=queue; rate_limit_log_level error; empty_gif; }
location /several/ { rate_limit zone=api; rate_limit zone=other; empty_gif; }
location /absent/ { rate_limit zone=api; rate_limit_dry_run on; }
location /quiet/  { error_log %DIR%/quiet.log crit; rate_limit zone=api; empty_gif; }
SERVER
);

my $seen = 0;

# Returns the log lines of $times requests; all but the last may have any status. In a queue, all but the first are
# delayed.
sub lines {
    my ($path, $times, $status, @headers) = @_;
    my @requests = ($path =~ m{^/queue} ? ('request', ('delayed_request') x ($times - 1)) : ('request') x $times);
    my $last;
    for my $request (@requests) {
        $last = $nginx->$request(path => $path, headers => [@headers]);
    }
    BAIL_OUT("$path: $last->{status}") if $last->{status} != $status;
    my $log = $nginx->error_log;
    my $new = substr $log, $seen;
    $seen = length $log;
    return grep { /limiting requests|delaying request/ } split /\n/, $new;
}

# nginx writes the address plainly, Angie in quotes.
my $client = qr/"?127\.0\.0\.1"?/;

# The text of the line.
{
    my @lines = lines('/api/?key=alice', 2, 429);
    is scalar @lines, 1, 'one line for one rejection';
    like $lines[0], qr{
        ^\d{4}/\d\d/\d\d\ \d\d:\d\d:\d\d\ \[error\]\ \d+[#]\d+:\ [*]\d+\ limiting\ requests,
        \ excess:\ (?:0\.99\d|1\.000)\ by\ zone\ "api",\ client:\ "?127\.0\.0\.1"?,\ key\ "alice",
        \ algorithm\ token_bucket,\ may\ return\ in\ 86\d\d\d\.\d\d\ds,\ server:\ "?localhost"?,
        \ request:\ "GET\ /api/[?]key=alice\ HTTP/1\.1",\ host:\ "localhost"$}x,
        'a rejection: excess, zone, client address (Angie quotes it), key, algorithm, when to retry';
    like +(lines('/cost/?key=dear', 1, 429))[0], qr/zone "api", client: $client, key "dear", .*may return never/,
        'a cost that can never fit';
    is scalar(lines('/several/?key=two', 2, 429)), 1, 'one line if two zones reject';
    is scalar(lines('/quiet/?key=quiet', 2, 429)), 0, 'no line if error_log has a higher level';
}
{
    my @lines = lines('/queue/?key=bob', 3, 200);
    is scalar @lines, 2, 'one line for one delay';
    like $_, qr/\[warn\] .* delaying request, excess: [01]\.\d{3}, by zone "queue", client: $client, key "bob", algorithm leaky_bucket,/,
        'a delay: excess in the form of limit_req, zone, key, algorithm' for @lines;
    like $_, qr/ goes on in 0\.\d{3}s, server: /, 'a delay: its duration' for @lines;
}

# The excess of each algorithm, in thousandths of a request. leaky_bucket counts the burst as excess, like limit_req.
# The other algorithms count only requests beyond the limit.
for my $algorithm (qw(gcra fixed_window sliding_window sliding_buckets sliding_log)) {
    my @lines = lines("/$algorithm/?key=x", 3, 429);
    like $lines[0],
        qr/excess: (?:1\.000|0\.99\d) by zone "$algorithm", client: $client, key "x", algorithm $algorithm, may return in \d/,
        "$algorithm: one request too many";
}

# Levels.
for my $level (qw(info notice warn error)) {
    like +(lines("/$level/?key=$level", 2, 429))[0], qr/\[$level\] .*limiting/,
        "rate_limit_log_level $level: a rejection";
}
my %lower = (info => 'info', notice => 'info', warn => 'notice', error => 'warn');
for my $level (qw(info notice warn error)) {
    like +(lines("/queue/$level/?key=$level", 2, 200))[0], qr/\[$lower{$level}\] .*delaying/,
        "rate_limit_log_level $level: a delay is one level lower";
}

# Keys. $arg_key is a part of the URI, $http_x_client may have any byte that a header may have.
my @keys = (
    [ 'plain',                         'aZ09-_.~!$()*,;:@/?' => 'aZ09-_.~!$()*,;:@/?' ],
    [ 'a space',                       'a b'                 => 'a b' ],
    [ 'a quote',                       'a"b'                 => 'a\x22b' ],
    [ 'an apostrophe',                 q(a'b)                => q(a'b) ],
    [ 'a backslash',                   'a\b'                 => 'a\x5Cb' ],
    [ 'a tab',                         "a\tb"                => 'a\x09b' ],
    [ 'a control character',           "a\x01b"              => 'a\x01b' ],
    [ 'DEL',                           "a\x7fb"              => 'a\x7Fb' ],
    [ 'UTF-8',                         "\xc3\xa9"            => '\xC3\xA9' ],
    [ 'Latin 1',                       "\xe9"                => '\xE9' ],
    [ 'a forged end of line',          'a", client: 1.2.3.4' => 'a\x22, client: 1.2.3.4' ],
    [ '128 bytes',                     'k' x 128             => 'k' x 128 ],
    [ '129 bytes',                     'l' x 129             => 'sha256:' . sha256_hex('l' x 129) ],
    [ '300 bytes that need escapes',   "\xff" x 300          => 'sha256:' . sha256_hex("\xff" x 300) ],
    [ 'text that looks like a digest', 'sha256:' . 'a' x 64 => 'sha256:' . sha256_hex('sha256:' . 'a' x 64) ],
);
for my $row (@keys) {
    my ($title, $key, $logged) = @{$row};
    like +(lines('/client/', 2, 429, 'X-Client' => $key))[0], qr/zone "client", client: $client, key "\Q$logged\E", algorithm/,
        "a key with $title";
}
like +(lines('/raw/?key=newline', 2, 429))[0], qr/zone "raw", client: $client, key "a\\x0Ab", algorithm/, 'a key with a newline';
like +(lines('/api/?key=%00%22', 2, 429))[0], qr/key "%00%22", algorithm/, 'a key with the escapes of the URI';

# nginx truncates a line at 2048 bytes, and a client controls the length of its request line.
like +(lines('/api/?key=long&' . 'x' x 4000, 2, 429))[0],
    qr/client: $client, key "long", algorithm token_bucket, may return in [\d.]+s, server: .*x$/,
    'a long request line does not hide the key';

# nginx may log further lines for the same request.
is scalar(lines('/absent/file?key=alone', 2, 404)), 1, 'a dry run';
my @own = $nginx->error_log =~ m{open\(\) "[^"]*/absent/[^"]*" failed ([^\n]*)}g;
is scalar @own, 2, 'the line of nginx about a missing file';
like $_, qr/\), client: $client, server: "?localhost"?, request: /,
    'the line of nginx about a missing file is unchanged' for @own;

unlike $nginx->error_log, qr/[^\n\x20-\x7e]/, 'the log is plain ASCII';

done_testing;
