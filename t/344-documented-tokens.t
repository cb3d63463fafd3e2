# The configurations of docs/tokens.md, and the examples of the directives, read what the page says.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config decode_json slurp start_nginx wait_for write_text);
use RateLimit::Page qw(page_block page_part);
use RateLimit::Upstream;
use Test::More;

sub answer {
    my ($type, $body) = @_;
    return join "\r\n", 'HTTP/1.1 200 OK', "Content-Type: $type", 'Content-Length: ' . length $body, '', $body;
}

sub events {
    my (@data) = @_;
    return answer('text/event-stream', join '', map {"event: e\ndata: $_\n\n"} @data);
}

# Responses of the shapes that the APIs document.
my %answers = (
    '/v1/chat' => answer('application/json',
        '{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello!"}}],'
            . '"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0}}}'),
    '/v1/chat-stream' => events(
        '{"object":"chat.completion.chunk","choices":[{"delta":{"content":"Hello"}}],"usage":null}',
        '{"object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":19,"total_tokens":31}}', '[DONE]'),
    '/v1/responses' => answer('application/json', '{"object":"response","output":[],"usage":{"input_tokens":36,"total_tokens":123}}'),
    '/v1/responses-stream' => events(
        '{"type":"response.created","response":{"usage":null}}', '{"type":"response.output_text.delta","delta":"Hi"}',
        '{"type":"response.completed","response":{"usage":{"input_tokens":37,"total_tokens":48}}}'),
    '/v1/messages' => answer('application/json', '{"type":"message","usage":{"input_tokens":2095,"output_tokens":503}}'),
    '/v1/messages-stream' => events(
        '{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}',
        '{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hello"}}',
        '{"type":"message_delta","delta":{},"usage":{"output_tokens":15}}', '{"type":"message_stop"}'),
);
my $app_port = (split ' ', $ENV{RL_PORTS})[-1];
my $app      = RateLimit::Upstream->start($app_port, %answers);

my $page    = 'docs/tokens.md';
my %changes = ('127\.0\.0\.1:8081' => "127.0.0.1:$app_port", 'tokens\.log' => '%DIR%/tokens.log');
my ($http, $server) = page_part($page, qr/zone=tokens/, %changes);
my $nginx = start_nginx(clock => 1, http => $http, server => $server);

# Returns the response, and the line of the log. nginx writes the line and settles the request before it reads the next
# request.
sub post {
    my ($nginx, $path, $body, $key) = @_;
    my $before = () = slurp($nginx->dir . '/tokens.log') =~ /\n/g;
    my @json     = map { $_ => 'application/json' } 'Content-Type', 'Accept';
    my $response = $nginx->request(method => 'POST', path => $path, body => $body,
        headers => [ @json, Authorization => "Bearer $key" ]);
    my $line = wait_for('a line', sub { (split /\n/, slurp($nginx->dir . '/tokens.log'))[$before] });
    return ($response, $line =~ s/^\S+ \d+ //r);
}

sub line_of {
    my ($nginx, $path, $body) = @_;
    my ($response, $line) = post($nginx, $path, $body, 'key');
    is $response->{status}, 200, "$path: the status";
    return ($line, $response->header('X-RateLimit-Remaining'));
}

my %asks = (
    '{"max_tokens":300}'                                                  => 300,
    '{"max_completion_tokens":400}'                                       => 400,
    '{"max_tokens":200,"max_completion_tokens":500}'                      => 500,
    '{"stream":true}'                                                     => 1000,
    (map { (qq({"max_tokens":$_}) => 1000) } qw(0 -5 1e5 0.5 "7" 1234567 null), '99999999999999999999'),
);
my $left = 100_000;
for my $body (sort keys %asks) {
    my ($line, $remaining) = line_of($nginx, '/v1/chat', $body);
    is $line, "estimate=$asks{$body} used=29", "$body: the estimate and what was used";
    is $remaining, $left - $asks{$body}, 'the header';
    $left -= 29;
}
is +(line_of($nginx, '/v1/chat-stream', '{"stream":true}'))[0], 'estimate=1000 used=31', 'a stream';
is +(line_of($nginx, '/v1/responses', '{}'))[0], 'estimate=1000 used=123', 'responses';

# The commands of the page and what they print, with a new client.
my @shown = slurp($page) =~ /^\$ curl .*\n    --json '(.*)'\n((?:.+\n)+)/mg;
is @shown, 6, 'the page shows three requests';
while (my ($body, $text) = splice @shown, 0, 2) {
    my ($answer) = post($nginx, '/v1/chat', $body, 'key-1');
    my ($status) = $text =~ m{^HTTP/1.1 (\d+)};
    is $answer->{status}, $status, "$body: the status";
    for ($text =~ /^(\S+: .*)/mg) {
        my ($name, $value) = /^(\S+): (.*)/;
        my $sent = $answer->header($name);
        $name =~ /Reset|Retry/ ? like($sent, qr/^\d+$/, $name) : is($sent, $value, $name);
    }
}

# Each row of the table.
my %paths = (
    '/v1/chat'             => { 'usage.total_tokens'          => 29 },
    '/v1/chat-stream'      => { 'usage.total_tokens'          => 31 },
    '/v1/responses'        => { 'usage.total_tokens'          => 123 },
    '/v1/responses-stream' => { 'response.usage.total_tokens' => 48 },
    '/v1/messages'         => { 'usage.input_tokens'          => 2095, 'usage.output_tokens' => 503 },
    '/v1/messages-stream'  => { 'message.usage.input_tokens'  => 25, 'usage.output_tokens' => 15 },
);
my ($table) = slurp($page) =~ /^\| API \|.*?\n((?:\|.*\n)+)/m;
my $locations = '';
my $variables = 0;
for my $path (sort keys %paths) {
    for my $name (sort keys %{ $paths{$path} }) {
        like $table, qr/`\Q$name\E`/, "the table has $name";
        my $variable = 'v' . ++$variables;
        $locations .= "location = $path/$name { rate_limit_response \$$variable json:$name; add_trailer X-Value \$$variable;"
            . " access_log %DIR%/tokens.log tokens_$variable; proxy_pass http://127.0.0.1:$app_port$path; }\n";
        $http .= "log_format tokens_$variable '- 0 \$$variable';\n";
    }
}
my ($choose, $map) = page_block($page, qr/stream_total/) =~ /^(.*)^(map .*)$/ms;
$map =~ s/\$total_tokens/\$chosen/;
my $rows = start_nginx(
    http => "$http\n$map\nlog_format chosen '- 0 \$chosen';\n",
    server => "$locations location /v1/ { $choose access_log %DIR%/tokens.log chosen; proxy_pass http://127.0.0.1:$app_port; }",
);
for my $path (sort keys %paths) {
    is +(line_of($rows, "$path/$_", '{}'))[0], $paths{$path}{$_}, "$path: $_" for sort keys %{ $paths{$path} };
}
is +(line_of($rows, '/v1/responses',        '{}'))[0], 123, 'one of several paths: the first';
is +(line_of($rows, '/v1/responses-stream', '{}'))[0], 48,  'one of several paths: the second';

# Input and output tokens. The application is nginx here: it shows the keys that it gets.
my @messages = page_part($page, qr/zone=input/, '127\.0\.0\.1:8081' => '127.0.0.1:%PORT2%');
my $keys     = start_nginx(
    clock   => 1,
    http    => $messages[0],
    server  => $messages[1],
    servers => 'server { listen 127.0.0.1:%PORT2%; default_type application/json;'
        . ' return 200 \'{"key":"$http_x_api_key","bearer":"$http_authorization",'
        . '"usage":{"input_tokens":2095,"output_tokens":503}}\'; }',
);

sub ask_with {
    my ($size, @headers) = @_;
    my $body   = '{"max_tokens":600,"messages":"' . 'x' x $size . '"}';
    my $answer = $keys->request(method => 'POST', path => '/v1/messages', body => $body,
        headers => [ 'Content-Type' => 'application/json', @headers ]);
    my $got = decode_json($answer->{body});
    my @numbers = map { $answer->header("X-RateLimit-$_") } 'Limit', 'Remaining';
    return "@numbers $got->{key}|$got->{bearer}";
}
is ask_with(1, 'X-Api-Key' => 'k1'), '20000 19400 k1|', 'a key in X-Api-Key';
is ask_with(1, Authorization => 'Bearer k1'), '20000 18897 |Bearer k1', 'the same key as a bearer token';
is ask_with(1, Authorization => 'Bearer k1', 'X-Api-Key' => 'k2'), '20000 18394 |Bearer k1',
    'the upstream gets only the key that is limited';
is ask_with(1, Authorization => 'bearer k2'), '20000 19400 |bearer k2', 'another key';
is ask_with(90_000, 'X-Api-Key' => 'k3'), '20000 19400 k3|', 'a large request';
is ask_with(100_000, 'X-Api-Key' => 'k3'), '20000 18897 k3|', 'a larger request';
is ask_with(200_000, 'X-Api-Key' => 'k3'), '20000 18394 k3|', 'its estimate of 50000 is given back';

# The sum of both, by njs of Debian, if it fits to this nginx.
my $njs = "load_module $ENV{RL_BUILD}/njs/usr/lib/nginx/modules/ngx_http_js_module.so;";
SKIP: {
    skip 'this nginx does not load njs of Debian', 3 if check_config(main => $njs)->{exit} != 0;
    my ($script) = slurp($page) =~ m{^```js\n(// usage\.js\n.*?)^```$}ms;
    my $read = join "\n", $messages[0] =~ /^(rate_limit_response .*)$/mg;
    write_text("$ENV{RL_DIR}/usage.js", $script);
    my $sum = start_nginx(
        main   => $njs,
        http   => "js_path $ENV{RL_DIR};\n" . page_block($page, qr/js_set/) . $read
            . "\nlog_format sum '- 0 \$total_tokens';",
        server => "location /v1/ { access_log %DIR%/tokens.log sum; proxy_pass http://127.0.0.1:$app_port; }",
    );
    is +(line_of($sum, '/v1/messages',        '{}'))[0], 2598, 'njs adds input and output tokens';
    is +(line_of($sum, '/v1/messages-stream', '{}'))[0], 40,   'also those of a stream';
    is +(line_of($sum, '/v1/chat',            '{}'))[0], '',   'and neither without the other';
}

for my $directive ('rate_limit_request', 'rate_limit_response') {
    my ($example) = slurp('docs/directives.md') =~ /^## $directive\n.*?^```nginx\n(.*?)^```$/ms;
    for my $level ('http', 'server') {
        is check_config($level => $example)->{exit}, 0, "$directive: its example is valid in $level";
    }
    is check_config(server => "location / { $example }")->{exit}, 0, "$directive: its example is valid in a location";
}

done_testing;
