# The configurations of docs/tokens.md, and the examples of the directives, read what the page says.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config decode_json slurp start_nginx wait_for);
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

my ($whole, $choice) = slurp('docs/tokens.md') =~ /^```nginx\n(.*?)^```$/msg or die "no configurations\n";
my ($text) = $whole =~ /^http \{\n(.*)^\}\n/ms or die "no http\n";
my ($http, $server) = $text =~ /^(.*)^    server \{\n(.*)^    \}\n/ms or die "no server\n";
for ($http, $server) {
    s{http://127\.0\.0\.1:8081}{http://127.0.0.1:$app_port}g;
    s{tokens\.log}{%DIR%/tokens.log}g;
    s{^ *listen .*\n}{}gm;
}
my $nginx = start_nginx(http => $http, server => $server);

sub line_of {
    my ($nginx, $path, $body) = @_;
    my $before = () = slurp($nginx->dir . '/tokens.log') =~ /\n/g;
    my $response = $nginx->request(method => 'POST', path => $path, body => $body,
        headers => [ 'Content-Type' => 'application/json', Authorization => 'Bearer key' ]);
    is $response->{status}, 200, "$path: the status";
    my $line = wait_for('a line', sub { (split /\n/, slurp($nginx->dir . '/tokens.log'))[$before] });
    return ($line =~ s/^\S+ \d+ //r, $response->header('X-RateLimit-Remaining'));
}

is join('/', line_of($nginx, '/v1/chat', '{"max_tokens":300}')), 'asked=300 used=29/99700', 'chat: what the client asks for';
is join('/', line_of($nginx, '/v1/chat-stream', '{"stream":true}')), 'asked=- used=31/98700', 'a stream, and the default';
is join('/', line_of($nginx, '/v1/responses', '{"max_tokens":200}')), 'asked=200 used=123/98500', 'responses';

# Each row of the table.
my %paths = (
    '/v1/chat'             => { 'usage.total_tokens'          => 29 },
    '/v1/chat-stream'      => { 'usage.total_tokens'          => 31 },
    '/v1/responses'        => { 'usage.total_tokens'          => 123 },
    '/v1/responses-stream' => { 'response.usage.total_tokens' => 48 },
    '/v1/messages'         => { 'usage.input_tokens'          => 2095, 'usage.output_tokens' => 503 },
    '/v1/messages-stream'  => { 'message.usage.input_tokens'  => 25, 'usage.output_tokens' => 15 },
);
my ($table) = slurp('docs/tokens.md') =~ /^\| API \|.*?\n((?:\|.*\n)+)/m;
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
my ($map) = $choice =~ /^(map .*)$/m;
(my $choose = $choice) =~ s/^map .*\n//m;
$choose =~ s/\$used_tokens/\$chosen/g;
$map =~ s/\$used_tokens/\$chosen/;
my $rows = start_nginx(
    http => "$http\n$map\nlog_format chosen '- 0 \$chosen';\n",
    server => "$locations location /v1/ { $choose access_log %DIR%/tokens.log chosen; proxy_pass http://127.0.0.1:$app_port; }",
);
for my $path (sort keys %paths) {
    is +(line_of($rows, "$path/$_", '{}'))[0], $paths{$path}{$_}, "$path: $_" for sort keys %{ $paths{$path} };
}
is +(line_of($rows, '/v1/responses',        '{}'))[0], 123, 'one of several paths: the first';
is +(line_of($rows, '/v1/responses-stream', '{}'))[0], 48,  'one of several paths: the second';

for my $directive ('rate_limit_request', 'rate_limit_response') {
    my ($example) = slurp('docs/directives.md') =~ /^## $directive\n.*?^```nginx\n(.*?)^```$/ms;
    for my $level ('http', 'server') {
        is check_config($level => $example)->{exit}, 0, "$directive: its example is valid in $level";
    }
    is check_config(server => "location / { $example }")->{exit}, 0, "$directive: its example is valid in a location";
}

done_testing;
