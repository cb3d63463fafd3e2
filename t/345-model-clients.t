# The packages openai and @anthropic-ai/sdk: their tokens are charged exactly, and they retry after Retry-After.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(decode_json format_request slurp start_nginx wait_for);
use RateLimit::Models qw(advance_clients held_responses hold_responses model_call model_outcome model_requests
    model_server release_responses retry_waits start_model_call);
use RateLimit::Page qw(page_block page_part);
use Test::More;

# Both configurations of docs/tokens.md in one server. The clocks of nginx and of the packages stand still.
my $upstream  = model_server();
my %changes   = ('127\.0\.0\.1:8081' => "127.0.0.1:$upstream", 'tokens\.log' => '%DIR%/tokens.log');
my @openai    = page_part('docs/tokens.md', qr/zone=tokens/, %changes);
my @anthropic = page_part('docs/tokens.md', qr/zone=input/,  %changes);
my ($shaped)  = page_block('docs/tokens.md', qr/error_page/) =~ /^location \@rejected (\{.*)/ms;
my $shaped_openai = $openai[1] =~ s{location /v1/}{location /shaped/v1/}r;
$shaped_openai =~ s{proxy_pass}{error_page 429 \@rejected; rewrite ^/shaped(.*) \$1 break; proxy_pass};
my $nginx = start_nginx(
    clock  => 'day',
    http   => "$openai[0] $anthropic[0]",
    server => "keepalive_timeout 0; location /api/ { rate_limit_api; } $openai[1] $anthropic[1]\n"
        . "$shaped_openai location \@rejected $shaped",
);
my $port = $nginx->port;
my $keys = 0;

# The limits of the page.
my %limit = (tokens => 100_000, input => 100_000, output => 20_000);
for my $zone (sort keys %limit) {
    like "@openai @anthropic", qr{zone=$zone:\S+ +rate=$limit{$zone}r/m;}, "the limit of zone $zone";
}

sub new_key { return 'key-' . ++$keys }

sub left {
    my ($zone, $key) = @_;
    return decode_json($nginx->get("/api/remaining?zone=$zone&key=$key")->{body})->{remaining};
}

# A request is settled when nginx logs it, which may be after the client has the response.
sub uses {
    my ($zone, $key, $used, $text) = @_;
    my $left;
    wait_for("$text: $used of zone $zone", sub { $left = left($zone, $key); return $left == $limit{$zone} - $used });
    is $limit{$zone} - $left, $used, $text;
    return;
}

for my $stream (0, 1) {
    my $kind = $stream ? 'streams' : 'responses';
    subtest "openai: $kind" => sub {
        my $key  = new_key();
        my $used = 0;
        for ([ 19, 10, 300 ], [ 2000, 345, 300 ], [ 7, 1, undef ], [ 30_000, 12_345, 16_000 ], [ 0, 0, 500 ]) {
            my ($input, $output, $most) = @{$_};
            my @most = defined $most ? (max_tokens => $most) : ();
            my $call = model_call($port, 'openai', $key, text => "use $input $output", stream => $stream, @most);
            is $call->{text}, 'Hello!', 'the response arrives';
            is $call->{used}, $input + $output, 'and the package reads its usage';
            is $call->{headers}{'x-ratelimit-remaining'}, $limit{tokens} - $used - ($most // 1000),
                'the header shows what was used before, and the estimate';
            $used += $input + $output;
            uses('tokens', $key, $used, "$input and $output tokens are charged exactly");
        }
        is left('tokens', new_key()), $limit{tokens}, 'another key has its own tokens';
    };

    subtest "anthropic: $kind" => sub {
        my $key = new_key();
        my ($input_used, $output_used) = (0, 0);
        for ([ 19, 10, 300 ], [ 2095, 503, 600 ], [ 30_000, 12_345, 4096 ]) {
            my ($input, $output, $most) = @{$_};
            my $call = model_call($port, 'anthropic', $key, text => "use $input $output", stream => $stream,
                max_tokens => $most);
            is $call->{text}, 'Hello!', 'the response arrives';
            is_deeply $call->{used}, [ $input, $output ], 'and the package reads its usage';
            is $call->{headers}{'x-ratelimit-remaining'}, $limit{output} - $output_used - $most,
                'the header shows the limit with fewer tokens left';
            $input_used  += $input;
            $output_used += $output;
            uses('input',  $key, $input_used,  "$input tokens of input");
            uses('output', $key, $output_used, "$output tokens of output");
        }
        my $other = new_key();
        is left($_, $other), $limit{$_}, "another key has its own tokens of $_" for qw(input output);
    };
}

# Waits until the log has so many requests whose usage is not known. The log line is written when a request is settled.
sub wait_for_unknown {
    my ($count) = @_;
    my $log = $nginx->dir . '/tokens.log';
    wait_for("$count log lines", sub { $count == (() = slurp($log) =~ / estimate=300 used=10000$/mg) });
    return;
}

subtest 'responses without usage' => sub {
    my $key  = new_key();
    my @call = ($port, 'openai', $key, max_tokens => 300, retries => 0);
    my $stream = model_call(@call, text => 'use 19 10', stream => 1, usage => 0);
    is $stream->{text}, 'Hello!', 'a stream without include_usage';
    wait_for_unknown(1);
    uses('tokens', $key, 10_000, 'costs the fixed price');
    my $failed = model_call(@call, text => 'fail 500');
    is "$failed->{status} $failed->{error}", '500 InternalServerError', 'a request that the upstream fails';
    uses('tokens', $key, 10_000, 'costs nothing');
    model_call(@call, text => 'break', stream => 1);
    wait_for_unknown(2);
    uses('tokens', $key, 20_000, 'a stream that breaks off costs the fixed price');
};

subtest 'a client that disconnects before the response' => sub {
    my $key = new_key();
    hold_responses();
    my $connection = $nginx->connect;
    $connection->send(format_request(method => 'POST', path => '/v1/chat/completions',
        headers => [ 'Content-Type' => 'application/json', Authorization => "Bearer $key" ],
        body => '{"max_tokens":700,"messages":[{"role":"user","content":"use 19 10"}]}'));
    wait_for('the upstream to get the request', sub { held_responses() });
    $connection->close;
    my $log = $nginx->dir . '/tokens.log';
    wait_for('its log line', sub { slurp($log) =~ / 499 estimate=700 used=10000$/m });
    release_responses();
    uses('tokens', $key, 10_000, 'its request costs the fixed price');
};

# Uses up the tokens of a key: 100 are left.
sub exhausted_key {
    my ($api) = @_;
    my $key = new_key();
    my ($input, $output) = $api eq 'openai' ? (90_000, 9_900) : (10, 19_900);
    model_call($port, $api, $key, text => "use $input $output", max_tokens => 50);
    uses($api eq 'openai' ? ('tokens', $key, 99_900) : ('output', $key, 19_900), '100 are left');
    return $key;
}

for my $api ('openai', 'anthropic') {
    subtest "$api: a rejected call without retries" => sub {
        my $key    = exhausted_key($api);
        my $before = model_requests();
        my $call   = model_call($port, $api, $key, text => 'use 1 1', max_tokens => 101, retries => 0);
        is $call->{error}, 'RateLimitError', 'the error of the package';
        is $call->{status}, 429, 'its status';
        is $call->{headers}{'x-ratelimit-remaining'}, 100, 'its headers';
        like $call->{headers}{'retry-after'}, qr/^[1-9]\d*$/, 'with Retry-After';
        is model_requests(), $before, 'the upstream has not got the request';
        is model_call($port, $api, $key, text => 'use 1 1', max_tokens => 100, retries => 0)->{status}, 200,
            'a call that fits passes';
    };

    subtest "$api: a rejected call is retried after Retry-After" => sub {
        my $key  = exhausted_key($api);
        my @call = ($port, $api, $key, text => 'use 50 60', max_tokens => 101);
        my $told = model_call(@call, retries => 0)->{headers}{'retry-after'};
        cmp_ok $told, '>', 0, "told to wait $told seconds";
        my $before = model_requests();
        my $number = start_model_call(@call);
        wait_for('the package to wait', sub { retry_waits() });
        is_deeply [ retry_waits() ], [ 1000 * $told ], 'the package waits as long as it is told';
        is advance_clients($told - 0.001), 0, 'it does not retry a millisecond earlier';
        $nginx->advance($told - 1);
        is model_call(@call, retries => 0)->{status}, 429, 'a call would be rejected a second earlier';
        $nginx->advance(1);
        is advance_clients(0.001), 1, 'it retries then';
        my $outcome = model_outcome($number);
        is $outcome->{status}, 200, 'and is admitted';
        is $outcome->{text}, 'Hello!', 'with a response';
        is model_requests(), $before + 1, 'the upstream has got one request';
    };
}

subtest 'a call whose estimate is above the limit' => sub {
    my $number = start_model_call($port, 'openai', new_key(), text => 'use 1 1', max_tokens => 200_000);
    for my $retry (1 .. 2) {
        my $wait = wait_for('the package to wait', sub { (retry_waits())[0] });
        cmp_ok $wait, '<=', 8000, "retry $retry: without Retry-After, the package chooses a wait";
        advance_clients(8);
    }
    my $outcome = model_outcome($number);
    is $outcome->{error}, 'RateLimitError', 'then it gives up';
    is $outcome->{headers}{'retry-after'}, undef, 'no Retry-After';
};

subtest 'a rejection in the form of the API' => sub {
    my @call = ($port, 'openai', new_key(), text => 'use 1 1', prefix => '/shaped', retries => 0);
    is model_call(@call)->{text}, 'Hello!', 'a call that fits';
    my $call = model_call(@call, max_tokens => 200_000);
    is $call->{error}, 'RateLimitError', 'the error of the package';
    is $call->{message}, '429 Too many tokens a minute.', 'its message';
    is $call->{headers}{'x-ratelimit-limit'}, $limit{tokens}, 'its headers';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no critical errors';
done_testing;
