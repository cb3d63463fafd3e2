# headers=off: clients are not told of a limit, neither when it binds nor when it rejects; operators are.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(decode_json slurp start_nginx wait_for);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $redis = start_redis();

# The requests of all clients share the zones whose key has no client.
my $nginx = start_nginx(
    clock => 'day',
    http  => <<"HTTP",
log_format zones '\$http_x_id \$status \$rate_limit_status \$rate_limit_zone \$rate_limit_limit \$rate_limit_remaining \$rate_limit_retry_after';
access_log %DIR%/zones.log zones;
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_zone \$http_x_client zone=client:1m rate=3r/m algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=strict:1m rate=3r/m algorithm=token_bucket count=all;
rate_limit_zone \$http_x_client zone=wide:1m rate=100r/m algorithm=token_bucket;
rate_limit_zone \$http_x_all zone=global:1m rate=2r/h algorithm=token_bucket;
rate_limit_zone \$http_x_all zone=secret:1m rate=2r/h,3r/d algorithm=token_bucket;
rate_limit_zone \$http_x_all zone=far:1m rate=2r/h algorithm=token_bucket redis=fleet;
rate_limit_headers all;
rate_limit_body problem;
HTTP
    server => <<'SERVER',
location /alone/   { rate_limit zone=global headers=off; empty_gif; }
location /redis/   { rate_limit zone=far headers=off; empty_gif; }
location /shown/   { rate_limit zone=global headers=on; empty_gif; }
location /both/    { rate_limit zone=client; rate_limit zone=global headers=off; empty_gif; }
location /strict/  { rate_limit zone=strict; rate_limit zone=global headers=off; empty_gif; }
location /first/   { rate_limit zone=global headers=off; rate_limit zone=client; empty_gif; }
location /three/   { rate_limit zone=global headers=off; rate_limit zone=wide; rate_limit zone=client; empty_gif; }
location /never/   { rate_limit zone=client; rate_limit zone=global cost=5 headers=off; empty_gif; }
location /hidden/  { rate_limit zone=global headers=off; rate_limit zone=secret headers=off; empty_gif; }
location /mixed/   { rate_limit zone=client; rate_limit zone=far headers=off; empty_gif; }
location /page/    { rate_limit zone=global headers=off; error_page 429 /page.html; rate_limit_body off; empty_gif; }
location /dry/     { rate_limit zone=global headers=off; rate_limit_dry_run on; empty_gif; }
location /outer/   { rate_limit zone=global headers=off; location /outer/in/ { empty_gif; } }
location /redirect/ { rate_limit zone=global headers=off; error_page 404 /both/; }
location /again/   { rate_limit zone=client; error_page 404 /alone/; }
location /proxy/   { rate_limit zone=global headers=off; proxy_pass http://127.0.0.1:%PORT1%; }
location /api/     { rate_limit zone=global headers=off; rate_limit_api; }
location = /page.html { }
SERVER
    servers => <<'SERVERS',
server { listen 127.0.0.1:%PORT1%; location / { add_header X-RateLimit-Limit app; return 200 "app\n"; } }
SERVERS
);
$nginx->write_file('page.html', "own page\n");

my $count = 0;

# Returns the answers to some requests of a new client, and of a new group of clients.
sub ask {
    my ($path, $times, @headers) = @_;
    my $id = 'id' . $count++;
    return map { $nginx->get($path, 'X-Id' => "$id-$_", 'X-Client' => $id, 'X-All' => $id, @headers) } 1 .. $times;
}

# The names of all headers about limits of an answer.
sub told {
    my ($answer) = @_;
    return join ' ', grep {/rate|retry|grpc-status-/i} map { $_->[0] } @{ $answer->{headers} };
}

# Tests that an answer does not tell of a limit.
sub is_silent {
    my ($answer, $title) = @_;
    is told($answer), '', "$title: no headers";
    unlike $answer->{raw}, qr/global|secret|far/, "$title: the name is nowhere";
    return;
}

# Waits for the line of the last request in the access log.
sub logged {
    my ($number) = @_;
    my $id = 'id' . ($count - 1) . "-$number";
    my ($line) = wait_for("a line of $id", sub { slurp($nginx->dir . '/zones.log') =~ /^\Q$id\E (.*)$/m && $1 });
    return $line;
}

my %document = (
    type   => 'https://iana.org/assignments/http-problem-types#quota-exceeded',
    title  => 'Too Many Requests',
    status => 429,
);

subtest 'a zone alone' => sub {
    for my $path ('/alone/', '/redis/', '/outer/in/', '/hidden/') {
        my @answers = ask($path, 3);
        is join(' ', map { $_->{status} } @answers), '200 200 429', "$path: the limit holds";
        is_silent($answers[0], "$path: admitted");
        is_silent($answers[2], "$path: rejected");
        is_deeply decode_json($answers[2]{body}), { %document, 'violated-policies' => [] }, "$path: the problem document";
    }
    my @shown = ask('/shown/', 3);
    like told($shown[2]), qr/X-RateLimit-Limit .*Retry-After/, 'headers=on';
};

subtest 'operators see the limit' => sub {
    ask('/alone/', 3);
    is logged(1), '200 PASSED global 2 1 -', 'variables of an admitted request';
    like logged(3), qr/^429 REJECTED global 2 0 1800$/, 'variables of a rejected request';
    $nginx->wait_for_log(qr/limiting requests, excess: [\d.]+ by zone "global", client: /);
    pass 'the error log';
};

subtest 'beside a visible zone' => sub {
    for my $path ('/both/', '/first/', '/mixed/') {
        my @answers = ask($path, 3);
        is join(' ', map { $_->{status} } @answers), '200 200 429', "$path: the hidden zone rejects";
        is join(' ', map { $_->header('X-RateLimit-Limit') } @answers), '3 3 3', "$path: the limit of the visible zone";
        is join(' ', map { $_->header('X-RateLimit-Remaining') } @answers), '2 1 1', "$path: its remaining requests";
        is $answers[2]->header('Retry-After'), undef, "$path: no Retry-After";
        is $_->header('RateLimit-Policy'), '"client";q=3;w=60', "$path: RateLimit-Policy" for @answers;
        like $answers[2]->header('RateLimit'), qr/^"client";r=1;t=\d+$/, "$path: RateLimit";
        is_deeply decode_json($answers[2]{body}), { %document, 'violated-policies' => [] }, "$path: the problem document";
        like logged(1), qr/^200 PASSED (?:global|far) 2 1 -$/, "$path: the hidden zone binds for operators";
    }
    my @three = ask('/three/', 1);
    is $three[0]->header('X-RateLimit-Remaining'), 2, 'of two visible zones, the one that binds';
    is $three[0]->header('RateLimit-Policy'), '"wide";q=100;w=60, "client";q=3;w=60', 'both policies';
};

subtest 'a visible zone that rejects is shown' => sub {
    my $id = 'id' . $count++;
    my @answers = map { $nginx->get('/both/', 'X-Client' => $id, 'X-All' => "$id-$_") } 1 .. 4;
    is $answers[3]{status}, 429, 'rejected';
    is $answers[3]->header('Retry-After'), 20, 'its Retry-After';
    is_deeply decode_json($answers[3]{body})->{'violated-policies'}, ['client'], 'its name';
    $nginx->get('/alone/', 'X-All' => "$id-both") for 1 .. 2;
    my $both = $nginx->get('/both/', 'X-Client' => $id, 'X-All' => "$id-both");
    is "$both->{status} " . $both->header('Retry-After'), '429 20', 'if both reject, the wait of the visible zone';
    is_deeply decode_json($both->{body})->{'violated-policies'}, ['client'], 'and only its name';
};

subtest 'a cost above a hidden limit' => sub {
    my ($answer) = ask('/never/', 1);
    is $answer->{status}, 429, 'rejected';
    is_deeply decode_json($answer->{body}), { %document, 'violated-policies' => [] }, 'the problem document has no detail';
    is $answer->header('X-RateLimit-Remaining'), 3, 'the numbers of the visible zone';
    cmp_ok $answer->header('X-RateLimit-Reset') - $nginx->now, '<=', 1, 'its whole quota is available';
};

subtest 'a visible zone shows what it has charged' => sub {
    is join(' ', map { $_->header('X-RateLimit-Remaining') } ask('/both/',   4)), '2 1 1 1', 'rejected requests cost nothing';
    is join(' ', map { $_->header('X-RateLimit-Remaining') } ask('/strict/', 4)), '2 1 0 0', 'count=all charges them';
};

subtest 'gRPC' => sub {
    my @answers = ask('/alone/', 3, 'Content-Type' => 'application/grpc');
    is $answers[2]->header('grpc-message'), 'Quota exceeded.', 'a hidden limit';
    is_silent($answers[2], 'gRPC');
    @answers = ask('/both/', 3, 'Content-Type' => 'application/grpc');
    is $answers[2]->header('grpc-message'), 'Quota exceeded.', 'beside a visible zone that admits';
    is $answers[2]->header('grpc-status-details-bin'), undef, 'no RetryInfo';
    is $answers[2]->header('X-RateLimit-Limit'), 3, 'the numbers of the visible zone';
};

subtest 'other answers' => sub {
    my @page = ask('/page/', 3);
    is $page[2]{body}, "own page\n", 'error_page';
    is_silent($page[2], 'error_page');
    my @dry = ask('/dry/', 3);
    is $dry[2]{status}, 200, 'a dry run';
    is_silent($dry[2], 'a dry run');
    my ($proxy) = ask('/proxy/', 1);
    is $proxy->header('X-RateLimit-Limit'), 'app', 'headers of the application stay';
};

subtest 'internal redirects' => sub {
    my ($answer) = ask('/redirect/x', 1);
    is $answer->header('X-RateLimit-Limit'), 3, 'a hidden zone, then a visible one';
    is $answer->header('RateLimit-Policy'), '"client";q=3;w=60', 'the hidden zone stays hidden';
    my @again = ask('/again/x', 3);
    is join(' ', map { $_->{status} } @again), '404 404 429', 'a visible zone, then a hidden one';
    is join(' ', map { $_->header('X-RateLimit-Remaining') } @again), '2 1 0', 'the numbers of the visible zone';
    unlike $again[2]{raw}, qr/global/, 'the name of the hidden zone is nowhere';
};

subtest 'the API in a location with a hidden limit' => sub {
    my @all = ('X-All' => 'api');
    my $check = $nginx->request(method => 'POST', path => '/api/check?zone=client&key=x', headers => \@all);
    is $check->header('X-RateLimit-Remaining'), 2, 'the numbers of the zone that was asked for';
    is $check->header('RateLimit-Policy'), '"client";q=3;w=60', 'its policy';
    my $own = $nginx->request(method => 'POST', path => '/api/check?zone=global&key=y', headers => \@all);
    is $own->{status}, 200, 'the hidden zone itself is asked for';
    is told($own), '', 'no headers';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';

done_testing;
