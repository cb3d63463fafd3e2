# docs/openapi.yaml is valid, docs/api.md shows what the API answers, and both describe the same: each call of the page,
# and each call that the dashboard makes, is an operation of the document, with an answer of its schema.
use strict;
use warnings;

use lib 't/lib';
use IPC::Open2 qw(open2);
use JSON::PP ();
use RateLimit qw(decode_json slurp start_nginx wait_for);
use RateLimit::Page qw(alike page_blocks run_command transcript);
use RateLimit::Redis qw(start_redis);
use Test::More;

my $redis = start_redis(clock => 'stopped');
my ($zones) = grep {/zone=login/} map { $_->{text} } page_blocks('docs/api.md', 'nginx');
my $nginx = start_nginx(
    clock => 1,
    http  => "rate_limit_redis fleet @{[ $redis->url ]} timeout=60s connect_timeout=60s;\n$zones"
        . 'map $http_x_plan $plan { default $http_x_plan; } rate_limit_zone $http_x_client zone=tiers:1m rate=$plan;',
    server => <<'SERVER',
location /api/      { rate_limit_api write=on; }
location /reader/   { rate_limit_api; }
location /limits/   { rate_limit_dashboard write=on; }
location = /limited { rate_limit zone=api; empty_gif; }
location = /tier    { rate_limit zone=tiers; empty_gif; }
SERVER
);
my @calls;    # for the validator

sub decoded { my ($text) = @_; return $text =~ s/%([0-9a-fA-F]{2})/chr hex $1/ger }

# Returns the bytes of an answer, without chunks.
sub head_and_body { my ($answer) = @_; return $answer->{raw} =~ s/(\r\n\r\n).*/$1/sr . $answer->{body} }

# Records a call: what was sent, by curl's options or by the arguments of request(), and the bytes of the answer.
sub record {
    my ($method, $path, $headers, $raw) = @_;
    my ($head, $body) = split /\r\n\r\n/, $raw, 2;
    my ($name, $query) = $path =~ /^([^?]*)(?:\?(.*))?$/;
    my ($status) = $head =~ m{^HTTP/1.1 (\d+)};
    my ($type)   = $head =~ /^Content-Type: ([^;\r\n]*)/mi;
    # A method that a call does not take is no operation.
    push @calls, {
        method  => $method,
        path    => "/$name",
        query   => { map { decoded($_) } map { /^([^=]*)=(.*)$/ ? ($1, $2) : ($_, '') } split /&/, $query // '' },
        headers => { map { lc $_ => 1 } @{$headers} },
        type    => (grep {/json/} @{$headers}) ? 'application/json' : undef,
        status  => $status, answerType => $type, answer => $body // '',
    } if $status != 405;
    return ($head, $body);
}

# Runs a command of the page, and compares the answer with the one that is shown.
sub check_answer {
    my ($command, $shown) = @_;
    chomp $command;
    my $place = $command =~ /# without write=on/ ? 'reader' : 'api';
    my $url   = 'http://127.0.0.1:' . $nginx->port . "/$place";
    my $raw   = run_command(qq(API=$url\n$command) =~ s/\bcurl -si? /curl -si /r);
    my ($method)  = $command =~ /-X (\w+)/;
    my ($path)    = $command =~ /"\$API\/([^"]*)"/;
    my @headers   = map {/^([\w-]+): /} $command =~ /-H '([^']*)'/g;
    my ($head, $body) = record($method // 'GET', $path, [ @headers, $command =~ /-H '[^']*json'/ ? 'json' : () ], $raw);
    if ($shown =~ /\AHTTP/) {
        my ($lines, $shown_body) = split /\n\n/, $shown, 2;
        my %sent = map { $_ => 1 } split /\n/, alike($head);
        is_deeply [ grep { !$sent{$_} } split /\n/, alike($lines) ], [], "$command: its head";
        $shown = $shown_body // '';
    }
    is alike($body), alike($shown), $command;
    return;
}

# As many requests as the counters of the page tell.
$nginx->get('/limited', 'X-Api-Key' => 'K1') for 1 .. 103;
$nginx->get('/tier', 'X-Client' => 'alice', 'X-Plan' => '1000r/m');
my $shown = 0;
for my $pair (map { transcript($_->{text}) } page_blocks('docs/api.md', 'console')) {
    $shown++;
    if ($pair->[0] =~ /# without Redis/) {
        dashboard();
        $redis->kill;
        wait_for('the breaker', sub {
            $nginx->request(method => 'PATCH', path => '/api/zones/api', body => '{"rate":"2r/m"}',
                headers => [ 'Content-Type' => 'application/json' ])->{body} =~ /: unavailable"/ });
    }
    check_answer(@{$pair});
}
cmp_ok $shown, '>=', 30, 'all examples of the page were found';

# What the source of the dashboard calls: METHOD and the beginning of a path.
sub dashboard {
    my $source = join '', map { slurp($_) } glob 'src/endpoints/dashboard/*.js';
    my ($path) = $source =~ /const path = `([^`]*)`/ or die "no path\n";
    my @found;
    while ($source =~ /\bcall\('(\w+)', (?:'([^']*)'|`([^`]*)`|(path))/g) {
        push @found, [ $1, $2 // $3 // ($4 && $path) ];
    }
    cmp_ok scalar(@found), '>=', 5, 'the calls of the dashboard were found';
    # A client that is known, so that it can be reset.
    $nginx->get('/limited', 'X-Api-Key' => 'page');
    my %value = (zone => 'api', open => 'api', key => 'header:x-api-key:page');
    for (@found) {
        my ($method, $call) = @{$_};
        $call =~ s/\$\{encodeURIComponent\((\w+)\)\}/$value{$1} \/\/ die "what is $1?\n"/ge;
        my @body = $method eq 'PATCH' ? (body => '{"rate":"50r/m"}') : ();
        my @headers = @body ? ('Content-Type' => 'application/json') : ();
        my $answer = $nginx->request(method => $method, path => "/limits/$call", headers => \@headers, @body);
        like $answer->{status}, qr/^20[04]$/, "the dashboard: $method $call";
        record($method, $call, [ @body ? 'json' : () ], head_and_body($answer));
    }
    return;
}

# Calls that the page only describes.
my @more = (
    [ POST => 'check?zone=login&key=192.0.2.7' ], [ POST => 'check?zone=tiers&key=a&rate=off' ],
    [ GET => 'remaining?zone=api&key=b' ], [ GET => 'zones' ], [ GET => 'zones/none' ],
    [ POST => 'check?zone=api&key=b' ], [ POST => 'charge?zone=api&key=b&amount=1' ],
    [ DELETE => 'reset?zone=login&key=192.0.2.7' ], [ GET => 'health' ], [ GET => 'history' ],
);
for (@more) {
    my ($method, $path) = @{$_};
    my $answer = $nginx->request(method => $method, path => "/api/$path");
    record($method, $path, [], head_and_body($answer));
}

# The validator.
my $node = open2(my $from, my $to, 'node', 't/lib/openapi.js', 'docs/openapi.yaml');
print {$to} JSON::PP->new->encode(\@calls);
close $to;
my $result = decode_json(do { local $/ = undef; <$from> });
waitpid $node, 0;
is join("\n", @{ $result->{problems} }), '', @calls . ' calls and their answers are as the document says';
cmp_ok scalar @{ $result->{operations} }, '>=', 11, 'the document has operations';

my %called = map { my $path = $_->{path} =~ s{^/zones/.*}{/zones/{zone}}r; ("$_->{method} $path" => 1) } @calls;
is_deeply [ grep { !$called{$_} } @{ $result->{operations} } ], [], 'each operation was called';
my @listed = slurp('docs/api.md') =~ /^\| \[`\w+ (\w+)/mg;
my $operations = join "\n", @{ $result->{operations} };
is_deeply [ grep { $operations !~ m{ /$_\b} } @listed ], [], 'each call of the page is an operation';

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';
done_testing;
