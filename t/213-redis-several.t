# A request with limits in one Redis, in two, and in memory is charged once to all of them or to none.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::Async qw(exchange await_answers request_text statuses);
use RateLimit::HTTP2;
use RateLimit::Redis qw(start_redis);
use RateLimit::Upstream;
use Test::More;

my ($one, $two) = (start_redis(), start_redis());
my @ports = split ' ', $ENV{RL_PORTS};
my ($h2_port, $app_port) = @ports[ -2, -3 ];
my $app = RateLimit::Upstream->start($app_port);

# Zones by their store: NAME of each is STORE and LIMIT, as in one2 or memory5.
my %places = (one => 'redis=one', two => 'redis=two', memory => '', closed => 'redis=two on_error=closed', open => 'redis=two on_error=open');
my @algorithms = qw(token_bucket sliding_log fixed_window sliding_buckets gcra leaky_bucket sliding_window);
my ($http, $looks) = ('', '');
for my $place (sort keys %places) {
    for my $limit (2, 5, 50) {
        $http .= "rate_limit_zone \$http_x_client zone=$place$limit:1m rate=${limit}r/d algorithm=token_bucket $places{$place}"
            . ($places{$place} ? ' deny_cache=off' : '') . ";\n";
        $looks .= "location = /look/$place$limit { rate_limit zone=$place$limit cost=0; empty_gif; }\n";
    }
}
my $all_seven = '';
for my $algorithm (@algorithms) {
    my $burst = $algorithm =~ /gcra|leaky/ ? 'burst=4 rate=1r/d' : 'rate=5r/d';
    $http .= "rate_limit_zone \$http_x_client zone=$algorithm:1m algorithm=$algorithm $burst redis=one deny_cache=off;\n";
    $all_seven .= "rate_limit zone=$algorithm " . ($algorithm eq 'leaky_bucket' ? 'nodelay' : '') . ';';
    $looks .= "location = /look/$algorithm { rate_limit zone=$algorithm cost=0; empty_gif; }\n";
}
my @pairs = qw(one2:one5 one5:one2 one2:memory5 memory5:one2 one5:memory2 memory2:one5 one2:two5 two5:one2 one5:two2 two2:one5
    one5:memory5:two2 memory5:two2:one5 two5:one5:memory2 memory2:one5:two5 two5:memory5:one2);
my $several = '';
for my $pair (@pairs) {
    my $limits = join ' ', map {"rate_limit zone=$_;"} split /:/, $pair;
    $several .= "location = /$pair { $limits empty_gif; }\n";
}
my $locations = <<"SERVER";
add_header X-Status \$rate_limit_status always;
add_header X-Store \$rate_limit_store always;
add_header X-Error \$rate_limit_error always;
add_header X-Zone \$rate_limit_zone always;
$looks
$several
location = /seven { $all_seven empty_gif; }
location = /costs { rate_limit zone=one5 cost=3; rate_limit zone=one50 cost=20; empty_gif; }
location = /all { rate_limit zone=every; rate_limit zone=one5; empty_gif; }
location = /look/every { rate_limit zone=every cost=0; empty_gif; }
location = /broken-closed { rate_limit zone=one5; rate_limit zone=closed5; rate_limit zone=memory5; empty_gif; }
location = /broken-open { rate_limit zone=one5; rate_limit zone=open5; rate_limit zone=memory5; empty_gif; }
location = /post { rate_limit zone=one5; rate_limit zone=one50; proxy_pass http://127.0.0.1:$app_port; }
location = /free { empty_gif; }

location /once/ {
    rate_limit zone=one50;
    location /once/plain       { empty_gif; }
    location /once/error-page  { error_page 404 /once/page; }
    location /once/error-named { error_page 404 \@named; }
    location /once/try         { try_files /absent /once/plain; }
    location /once/try-named   { try_files /absent \@named; }
    location /once/rewrite     { rewrite ^ /once/plain last; }
    location /once/auth        { auth_request /once/auth-check; empty_gif; }
    location /once/auth-check  { internal; proxy_pass http://127.0.0.1:$app_port/ok; }
    location /once/ssi.html    { ssi on; }
    location /once/page        { empty_gif; }
    location /once/mirror      { mirror /once/mirrored; empty_gif; }
    location /once/mirrored    { internal; proxy_pass http://127.0.0.1:$app_port/mirrored; }
    location /once/other       { rate_limit zone=one50; rate_limit zone=two50; try_files /absent /once/plain; }
    location /once/more        { try_files /absent /once/other-page; }
    location /once/other-page  { rate_limit zone=one50; rate_limit zone=two50; empty_gif; }
}
location \@named { rate_limit zone=one50; empty_gif; }
location = /rejected { rate_limit zone=one2; error_page 429 /rejected-page; empty_gif; }
location = /rejected-page { rate_limit zone=one2; rate_limit zone=one50; empty_gif; }
location = /satisfy { satisfy any; deny all; auth_request /once-ok; rate_limit zone=one2; empty_gif; }
location = /once-ok { internal; proxy_pass http://127.0.0.1:$app_port/ok; }
location = /denied { deny all; rate_limit zone=one50; empty_gif; }
SERVER

my $nginx = start_nginx(
    http => <<"HTTP",
rate_limit_redis one @{[ $one->url ]} timeout=1h connect_timeout=1h;
rate_limit_redis two @{[ $two->url ]} timeout=1h connect_timeout=1h;
rate_limit_zone \$http_x_client zone=every:1m rate=2r/d algorithm=sliding_log count=all redis=one;
$http
HTTP
    server  => $locations,
    servers => "server { listen 127.0.0.1:$h2_port http2; root html; $locations }",
);
$nginx->write_file('once/ssi.html', '<!--#include virtual="/once/page" --><!--#include virtual="/once/plain" -->' x 2);

my $clients = 0;
sub client { return 'client' . ++$clients }

sub left {
    my ($zone, $client) = @_;
    return $nginx->get("/look/$zone", 'X-Client' => $client)->header('X-RateLimit-Remaining');
}

for my $pair (@pairs) {
    subtest "all or none: $pair" => sub {
        my $client  = client();
        my @answers = map { $nginx->get("/$pair", 'X-Client' => $client) } 1 .. 5;
        is statuses(@answers), '200 200 429 429 429', 'two requests are admitted';
        my ($small) = $pair =~ /(\w+2)\b/;
        is $answers[2]->header('X-Zone'), $small, 'the zone of two rejects';
        is $answers[0]->header('X-RateLimit-Limit'),     2, 'the zone of two is shown from the first request on';
        is $answers[0]->header('X-RateLimit-Remaining'), 1, 'with its numbers';
        is left($small, $client), 0, 'the zone of two is exhausted';
        is left($_, $client), 3, "$_ was charged for admitted requests only" for grep {/5$/} split /:/, $pair;
    };
}

subtest 'limits of one Redis are one call' => sub {
    my $monitor = $one->monitor;
    my $client  = client();
    my @answers = map { $nginx->get('/seven', 'X-Client' => $client) } 1 .. 7;
    is statuses(@answers), '200 200 200 200 200 429 429', 'all seven algorithms admit five requests';
    # Background tasks have their own connection.
    my @commands = $monitor->commands;
    my ($first)  = grep { uc $_->{words}[0] eq 'EVALSHA' } @commands;
    my @calls    = grep { $_->{client} eq $first->{client} } @commands;
    is scalar(grep { uc $_->{words}[0] eq 'EVALSHA' } @calls), 7, 'seven requests, seven calls';
    is scalar @calls, 7, 'there are no other calls';
    my $keys = grep {/\{$client\}/} @{ $calls[0]{words} };
    is $keys, 7, 'each names seven keys';
    is join(' ', map { left($_, $client) } @algorithms), '0 0 0 0 0 0 0', 'each zone is exhausted';

    my $other = client();
    $nginx->get('/one2:one5', 'X-Client' => $other);
    is left('one5', $other), 4, 'a new client of both zones';
};

subtest 'costs' => sub {
    my $client = client();
    is statuses(map { $nginx->get('/costs', 'X-Client' => $client) } 1, 2), '200 429',
        'the second request costs too much';
    is left('one5',  $client), 2,  'three of five are used';
    is left('one50', $client), 30, 'twenty of fifty are used, not forty';
};

subtest 'count=all counts rejected requests, and only where it is written' => sub {
    my $client = client();
    is statuses(map { $nginx->get('/all', 'X-Client' => $client) } 1 .. 4), '200 200 429 429',
        'two requests are admitted';
    is left('one5', $client), 3, 'the other zone was charged for the admitted requests';
};

subtest 'a failed Redis beside working ones' => sub {
    $two->stop;
    for my $mode (qw(closed open)) {
        my $client  = client();
        my @answers = map { $nginx->get("/broken-$mode", 'X-Client' => $client) } 1 .. 3;
        is statuses(@answers), $mode eq 'closed' ? '503 503 503' : '200 200 200', "$mode: the status";
        is left('one5', $client), $mode eq 'closed' ? 5 : 2,
            "$mode: another Redis is charged for admitted requests only";
        is left('memory5', $client), $mode eq 'closed' ? 5 : 2, "$mode: memory is charged for admitted requests only";
        ok $answers[0]->header('X-Error'), "$mode: \$rate_limit_error";
    }
    my $client  = client();
    my @answers = map { $nginx->get('/broken-open', 'X-Client' => $client) } 1 .. 7;
    is statuses(@answers), '200 200 200 200 200 429 429', 'the limits of the working Redis still apply';
    is $answers[5]->header('X-Status'), 'REJECTED', 'the rejection is reported';
    $two->restart;
    wait_for('Redis', sub { ($nginx->get('/look/two5', 'X-Client' => 'x')->header('X-Store') // '') eq 'redis' });
};

my @rows = (
    [ 'a plain request',                             'plain',       '200 49 50' ],
    [ 'an error page',                               'error-page',  '404 49 50' ],
    [ 'an error page in a named location',           'error-named', '404 49 50' ],
    [ 'try_files',                                   'try',         '200 49 50' ],
    [ 'try_files to a named location',               'try-named',   '200 49 50' ],
    [ 'a rewrite',                                   'rewrite',     '200 49 50' ],
    [ 'auth_request',                                'auth',        '200 49 50' ],
    [ 'SSI includes',                                'ssi.html',    '200 49 50' ],
    [ 'mirror',                                      'mirror',      '200 49 50' ],
    [ 'a redirect to a location without limits',     'other',       '200 49 49' ],
    [ 'a redirect to a location with one more zone', 'more',      '200 49 49' ],
);
for my $row (@rows) {
    my ($title, $path, $expected) = @{$row};
    my $client = client();
    my $answer = $nginx->get("/once/$path", 'X-Client' => $client);
    is join(' ', $answer->{status}, left('one50', $client), left('two50', $client)), $expected, "$title is charged once";
}

subtest 'the error page of a rejected request is not limited' => sub {
    my $client = client();
    my @answers = map { $nginx->get('/rejected', 'X-Client' => $client) } 1 .. 4;
    is statuses(@answers), '200 200 429 429', 'statuses';
    like $answers[3]{body}, qr/^GIF/, 'the page';
    is left('one50', $client), 50, 'the zones of the error page are not charged';
};

subtest 'access rules and satisfy' => sub {
    my $client = client();
    is $nginx->get('/denied', 'X-Client' => $client)->{status}, 403, 'a denied client stays denied';
    my @answers = map { $nginx->get('/satisfy', 'X-Client' => $client) } 1 .. 4;
    is statuses(@answers), '200 200 429 429', 'satisfy any does not admit a rejected request';
};

subtest 'HTTP/2: streams of one connection' => sub {
    my $client = client();
    my $http2  = RateLimit::HTTP2->new($h2_port);
    my @streams = map { $http2->request('GET', '/one5:one2', headers => [ 'x-client' => $client ]) } 1 .. 20;
    $http2->send;
    ok $http2->await(20), 'all are answered';
    my %count;
    $count{ $http2->stream($_)->{status} }++ for @streams;
    is_deeply \%count, { 200 => 2, 429 => 18 }, 'two streams are admitted';
    is left('one5', $client), 3, 'the streams are charged to both zones';
};

subtest 'a body arrives complete, and is charged once' => sub {
    my $client = client();
    my @bodies = map { 'x' x $_ } 1, 10_000, 300_000, 0;
    my @answers = map { $nginx->request(method => 'POST', path => '/post', headers => [ 'X-Client' => $client ], body => $_) } @bodies;
    for my $number (0 .. $#bodies) {
        my $size = length $bodies[$number];
        like $answers[$number]{body}, qr{^POST /post $size }, "$size bytes";
    }
    is left('one5', $client), 1, 'each request is charged once';
    my @same = exchange($nginx->port, map { [ 'POST', '/post', [ 'X-Client' => $client ], 'y' x 50_000 ] } 1 .. 8);
    my %count;
    $count{ $_->{status} }++ for @same;
    is_deeply \%count, { 200 => 1, 429 => 7 }, 'one of eight concurrent requests gets the last slot';
};

subtest 'requests in one write are answered in order, and the limit holds' => sub {
    my $client     = client();
    my $connection = RateLimit::Async->new($nginx->port);
    my $text       = join '', map { request_text('GET', $_ % 3 ? '/one5:one2' : '/free', [ 'X-Client' => $client ]) } 1 .. 30;
    $connection->raw($text, ('GET') x 30);
    ok await_answers(20, $connection), 'all are answered';
    my @answers = $connection->answers;
    is statuses(@answers), join(' ', map { $_ % 3 == 0 ? 200 : $_ < 3 ? 200 : 429 } 1 .. 30), 'in order';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
