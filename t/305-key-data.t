# Keys are data: any bytes from a client name only that client, in memory, in Redis and in the logs.
use strict;
use warnings;

use lib 't/lib';
use Digest::SHA qw(sha256_hex);
use RateLimit qw(start_nginx slurp);
use RateLimit::Async qw(statuses);
use RateLimit::Redis qw(start_redis);
use Test::More;
use Token qw(new_secret token key_file);

my $secret = new_secret(32);
my $file   = key_file('secret', $secret->{secret});
my $redis  = start_redis(cluster => 1);
my $nginx  = start_nginx(
    http => <<"HTTP" . <<'HTTP',
rate_limit_jwt_key HS256 $file;
rate_limit_redis main @{[ $redis->url ]} timeout=5s;
HTTP
large_client_header_buffers 8 64k;
rate_limit_key $who arg:k header:x-key cookie:c jwt:sub;
rate_limit_zone $who zone=here:4m  rate=2r/366d algorithm=token_bucket;
rate_limit_zone $who zone=there:4m rate=2r/366d algorithm=token_bucket redis=main;
rate_limit_zone $who zone=other:4m rate=9r/366d algorithm=sliding_log redis=main;
log_format keys '$status $who';
access_log keys.log keys;
HTTP
    server => <<'SERVER',
location = /memory { rate_limit zone=here; empty_gif; }
location = /redis  { rate_limit zone=there; rate_limit zone=other; empty_gif; }
location = /header { add_header X-Who $who; add_header X-Sub $rate_limit_jwt_sub; empty_gif; }
location = /value  { return 200 "$who"; }
SERVER
);

my $clients  = 0;    # clients in Redis
my $rejected = 0;    # rejected requests

sub encoded { my ($bytes) = @_; return $bytes =~ s/(.)/sprintf '%%%02x', ord $1/gers }

# Returns a value as it is written in a client's name.
sub written { my ($bytes) = @_; return $bytes =~ s/([\x00-\x1f\x7f%])/sprintf '%%%02X', ord $1/gers }

# Returns the name of a client in a Redis key.
sub name_of { my ($client) = @_; return length $client > 128 ? 'sha256:' . sha256_hex($client) : $client }

sub redis_key {
    my ($client, $zone) = @_;
    $zone //= 'there';
    return "rate_limit:$zone:" . ($zone eq 'other' ? 'sliding_log' : 'token_bucket') . ':{' . name_of($client) . '}';
}

# Asserts that a new client of this name has its own limit, the same in memory and in Redis, and two keys in Redis.
sub is_itself {
    my ($title, $client, $query, @headers) = @_;
    is $nginx->request(path => "/value$query", headers => \@headers)->{body}, $client, "$title: the name";
    for my $store (qw(memory redis)) {
        my @answers = map { $nginx->request(path => "/$store$query", headers => \@headers) } 1 .. 3;
        is statuses(@answers), '200 200 429', "$title: has its own limit in $store";
        $rejected++;
    }
    $clients++;
    is $redis->command('EXISTS', redis_key($client, $_)), 1, "$title: the key of zone $_" for qw(there other);
    # An instance with slow calls also writes the key of its probe.
    my @keys = grep { $_ ne 'rate_limit:probe' } @{ $redis->command('KEYS', '*') };
    is scalar @keys, 2 * $clients, "$title: no other key";
    return;
}

my %arguments = (
    'NUL'                       => "\0",
    'NUL inside'                => "a\0b",
    'NUL inside, another'       => "a\0c",
    'NUL at the end'            => "a\0",
    'NUL before'                => "\0a",
    'two NULs'                  => "\0\0",
    'a newline'                 => "\n",
    'a newline inside'          => "a\nb",
    'CR and LF'                 => "a\r\nb",
    'an escape'                 => "\x1b[31mred",
    'all control bytes'         => join('', map {chr} 0 .. 31, 127),
    'all bytes'                 => join('', map {chr} 128 .. 235),
    'a brace'                   => '{',
    'the other brace'           => '}',
    'braces'                    => '{}',
    'braces in reverse order'      => '}{',
    'a tag'                     => '{tag}',
    'a tag inside'              => 'a{tag}b',
    'another tag inside'        => 'a{other}b',
    'the end of a hash tag'         => 'a}b',
    'a quote'                   => '"',
    'single quotes'             => q(''),
    'quotes and backslashes'    => q("a\\"b'),
    'a star'                    => '*',
    'a pattern'                 => '[a-z]*?',
    'invalid UTF-8'             => "\xff\xfe\x80",
    'UTF-8 cut short'           => "\xc3",
    'UTF-8'                     => "\xc3\xa9",
    'UTF-8, overlong'           => "\xc0\x80",
    'a line of RESP'            => "\r\n*1\r\n\$8\r\nFLUSHALL\r\n",
    'Lua'                       => q(']] redis.call("FLUSHALL") --[[),
    'percent signs'             => '%s%n%00',
    'NUL in its escaped form'      => '%00',
    'a newline in its escaped form' => '%0A',
    'a dollar'                  => '$who ${who}',
    'a colon'                   => ':',
    'another source'            => 'header:x-key:a',
    'a digest'                  => 'sha256:' . sha256_hex('a'),
    'a number'                  => '0',
    'a blank'                   => ' ',
    'a log line'                => "\n2026/01/01 00:00:00 [emerg] 1#1: evil",
    '8 KB'                      => 'k' x 8192,
    '8 KB, another last byte'   => 'k' x 8191 . 'l',
    '8 KB, another first byte'  => 'l' . 'k' x 8191,
    '4 KB of NUL'               => "\0" x 4096,
    '4 KB of NUL, one less'     => "\0" x 4095,
    '127 bytes in all'          => 'x' x 121,
    '128 bytes in all'          => 'x' x 122,
    '129 bytes in all'          => 'x' x 123,
    '128 bytes in all, NUL first' => "\0" . 'x' x 119,
    '129 bytes in all, NUL first' => "\0" . 'x' x 120,
);
for my $title (sort keys %arguments) {
    is_itself("argument, $title", 'arg:k:' . written($arguments{$title}), '?k=' . encoded($arguments{$title}));
}

my %headers = (
    'a long one'             => 'x' x 30_000,
    'a long one, longer'     => 'x' x 30_001,
    'invalid UTF-8'          => "\xff\xfe\x80",
    'control bytes'          => join('', map {chr} 1 .. 8, 14 .. 31, 127),
    'braces and quotes'      => '{"}\'\\',
    'a star'                 => '*',
    'a percent sign'         => '%00%0a',
    '128 bytes in all'       => 'x' x 115,
    '129 bytes in all'       => 'x' x 116,
);
is_itself("header, $_", 'header:x-key:' . written($headers{$_}), '', 'X-Key' => $headers{$_}) for sort keys %headers;
is_itself("cookie, $_", 'cookie:c:' . written($headers{$_}), '', Cookie => "c=$headers{$_}") for sort keys %headers;

my %claims = (
    'a newline and quotes' => "a\n\"b\"\\",
    'control characters'   => join('', map {chr} 1 .. 31, 127),
    'braces'               => '}{',
    'a star'               => '*',
    'another source'       => 'ip:127.0.0.1',
    'a long one'           => 's' x 5000,
    '128 bytes in all'     => 's' x 120,
    '129 bytes in all'     => 's' x 121,
);
for my $title (sort keys %claims) {
    my $token = token($secret, 'HS256', { sub => $claims{$title} });
    is_itself("claim, $title", 'jwt:sub:' . written($claims{$title}), '', Authorization => "Bearer $token");
}
{
    my $token = token($secret, 'HS256', { sub => "\x{e9}\x{20ac}\x{2028}\x{1f600}" });
    is_itself('claim, letters outside ASCII', "jwt:sub:\xc3\xa9\xe2\x82\xac\xe2\x80\xa8\xf0\x9f\x98\x80", '', Authorization => "Bearer $token");
}

subtest 'one byte makes another client' => sub {
    my %value = map { $_ => $nginx->get('/value?k=' . encoded(chr $_))->{body} } 0 .. 255;
    my @wrong = grep { $value{$_} ne 'arg:k:' . written(chr $_) } keys %value;
    is_deeply \@wrong, [], 'each of 256';
    my %keys = map { $_ => 1 } @{ $redis->command('KEYS', 'rate_limit:there:*') };
    is scalar keys %keys, $clients, 'all clients of one zone are in Redis';
    is scalar(grep { !/\Arate_limit:there:token_bucket:\{(?:(?:arg:k|header:x-key|cookie:c|jwt:sub):.{1,128}|sha256:[0-9a-f]{64})\}\z/s } keys %keys), 0,
        'each key has the name or its digest';
};

subtest 'no key or claim ends a header' => sub {
    my $evil   = "a\r\nX-Evil: yes";
    my $answer = $nginx->get('/header?k=' . encoded($evil));
    is $answer->header('X-Who'),  'arg:k:a%0D%0AX-Evil: yes', 'a key is one value';
    is $answer->count('X-Evil'), 0, 'a key adds no header';
    $answer = $nginx->get('/header', Authorization => 'Bearer ' . token($secret, 'HS256', { sub => $evil }));
    is $answer->header('X-Who'), 'jwt:sub:a%0D%0AX-Evil: yes', 'a claim as a key is one value';
    is $answer->count('X-Evil') + $answer->count('X-Sub'), 0, 'a claim as a variable has no value';
};

subtest 'redis-cli shows what the documentation says' => sub {
    like $redis->cli('EXISTS', 'rate_limit:there:token_bucket:{arg:k:*}'), qr/^(?:\(integer\) )?1$/, 'a client';
    like $redis->cli('EXISTS', 'rate_limit:there:token_bucket:{sha256:' . sha256_hex('arg:k:' . 'k' x 8192) . '}'),
        qr/^(?:\(integer\) )?1$/, 'a client with a long name';
};

subtest 'in a cluster all zones of a client are in one slot, with any braces' => sub {
    for my $client (map { 'arg:k:' . written($_) } @arguments{ grep {/brace|tag|NUL|RESP|quote|128|129/} sort keys %arguments }) {
        my ($one, $other) = map { $redis->command('CLUSTER', 'KEYSLOT', redis_key($client, $_)) } qw(there other);
        is $one, $other, (substr $client, 0, 20) =~ s/[^ -~]/?/gr;
    }
};

subtest 'what the logs say' => sub {
    my $log   = $nginx->error_log;
    my @lines = split /\n/, $log;
    is scalar(grep { !m{^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d \[\w+\] \d+#\d+: } } @lines), 0,
        'every line has the prefix of nginx';
    is scalar(grep {/limiting requests/} @lines), $rejected, 'one line for each of ' . $rejected . ' rejections';
    is_deeply [ grep {/[^ -~]/} @lines ], [], 'the log is printable ASCII';
    like $log, qr/key "arg:k:a%00b"/, 'NUL';
    like $log, qr/key "arg:k:a%0D%0Ab"/, 'CR and LF';
    like $log, qr/key "arg:k:\\xFF\\xFE\\x80"/, 'invalid UTF-8';
    like $log, qr/key "arg:k:%0A2026/, 'a log line';
    my @keys = $log =~ /limiting requests.*? key "([^"]*)"/g;
    is scalar(grep { length(s/\\x[0-9A-F]{2}/./gr) > 128 + 3 } @keys), 0, 'at most 128 bytes of a key';
    my $access = slurp($nginx->dir . '/keys.log');
    is_deeply [ grep { !/^(?:200|429) (?:arg|header|cookie|jwt):[ -~]+$/ } split /\n/, $access ], [],
        'the access log has one line per request';
    unlike $log, qr{exited on signal|^\S+ \S+ \[(?:alert|crit|emerg)\]}m, 'no worker died';
};

done_testing;
