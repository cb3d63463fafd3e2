# The configurations of docs/tokens.md, and the examples of the directives, read what the page says.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config decode_json format_request slurp start_nginx wait_for write_text);
use RateLimit::HeldUpstream;
use RateLimit::Page qw(page_block page_part);
use RateLimit::Places qw(becomes left);
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
my ($app_port, $held_port) = (split ' ', $ENV{RL_PORTS})[ -1, -3 ];
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
    (map { (qq({"max_tokens":$_}) => 1000) } qw(0 -5 1e5 0.5 "7" 1234567 null 1 99), '99999999999999999999'),
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

# One API key has one limit, whatever the spelling of the header.
for my $spelling ('Bearer key', 'bearer key', 'BEARER   key', "Bearer\tkey", 'Bearer key x') {
    my $response = $nginx->request(method => 'POST', path => '/v1/chat', body => '{"max_tokens":300}',
        headers => [ 'Content-Type' => 'application/json', Authorization => $spelling ]);
    $left -= $spelling eq 'Bearer key' ? 31 + 123 : 29;
    is $response->header('X-RateLimit-Remaining'), $left - 300, "'$spelling': the limit of the key";
}

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

# Usage that is not seen: the upstream holds its responses, and the client disconnects.
my $unseen_upstream = RateLimit::HeldUpstream->start($held_port);
my %to_held = ('127\.0\.0\.1:8081' => "127.0.0.1:$held_port", 'tokens\.log' => '%DIR%/tokens.log');
my @unseen  = map { [ page_part($page, $_, %to_held) ] } qr/zone=tokens/, qr/zone=input/;
my $unseen  = start_nginx(
    clock  => 1,
    http   => "$unseen[0][0] $unseen[1][0]",
    server => "location /api/ { rate_limit_api; } $unseen[0][1] $unseen[1][1]",
);

# Sends a request, and disconnects before the response, or after the first events of a stream.
sub abandon {
    my ($path, $key, %is) = @_;
    my $body = '{"max_tokens":1,"stream":true}';
    my @headers = ('Content-Type' => $is{type} // 'application/json', Authorization => "Bearer $key");
    if ($is{chunked}) {
        push @headers, 'Transfer-Encoding' => 'chunked';
        $body = sprintf "%x\r\n%s\r\n0\r\n\r\n", length $body, $body;
    }
    my $connection = $unseen->connect;
    $connection->send(format_request(method => 'POST', path => $path, headers => \@headers, body => $body));
    my $held = $unseen_upstream->next_request;
    my %reserved = %{ $is{reserved} // {} };
    is left($unseen, $_, $key), $reserved{$_}, "$key: what is left in zone $_ while it runs" for sort keys %reserved;
    if (defined $is{events}) {
        $held->begin(body => $is{events}, more => ['Content-Type: text/event-stream']);
        1 while $connection->take_line ne '';
        $connection->take(length $is{events});
    }
    $connection->close;
    return;
}

abandon('/v1/chat', 'chat');
becomes($unseen, 'tokens', 'chat', 90_000, 'a client that leaves before the response pays the fixed price');
abandon('/v1/chat', 'chat-stream', events => qq(data: {"choices":[],"usage":null}\n\n));
becomes($unseen, 'tokens', 'chat-stream', 90_000, 'so does one that leaves before the usage');
abandon('/v1/chat', 'chat-usage', events => qq(data: {"choices":[],"usage":{"total_tokens":31}}\n\n));
becomes($unseen, 'tokens', 'chat-usage', 99_969, 'after the usage, the usage counts');

abandon('/v1/messages', 'sized', reserved => { input => 99_500, output => 19_000 });
becomes($unseen, 'input',  'sized', 50_000, 'a client that leaves before the response pays the fixed price of input');
becomes($unseen, 'output', 'sized', 10_000, 'and of output');
abandon('/v1/messages', 'chunked', chunked => 1, reserved => { input => 99_500, output => 19_000 },
    events => qq(data: {"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n));
becomes($unseen, 'input',  'chunked', 99_975, 'after the first event, the usage of input counts');
becomes($unseen, 'output', 'chunked', 10_000, 'but not that of output');

abandon('/v1/messages', 'text', chunked => 1, type => 'text/plain', reserved => { input => 50_000 });
becomes($unseen, 'input', 'text', 50_000, 'a chunked request whose size is not known');

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
