# The configurations of docs/settle.md do what the page says: tokens are corrected, and only failed log-ins count.
use strict;
use warnings;

use lib 't/lib';
use MIME::Base64 qw(encode_base64);
use RateLimit qw(format_request slurp start_nginx wait_for);
use RateLimit::HeldUpstream;
use RateLimit::Places qw(becomes left);
use RateLimit::Upstream;
use Test::More;

my @ports = split ' ', $ENV{RL_PORTS};
my ($app_port, $models_port) = @ports[ -1, -2 ];
my $app    = RateLimit::Upstream->start($app_port);
my $models = RateLimit::HeldUpstream->start($models_port);

my @examples = slurp('docs/settle.md') =~ /^```nginx\n(.*?)^```$/msg;
is scalar @examples, 2, 'the page has two configurations';
my $http   = "upstream models { server 127.0.0.1:$models_port; }\nupstream app { server 127.0.0.1:$app_port; }\n";
my $server = "location /api/ { rate_limit_api; }\n";
for my $example (@examples) {
    my ($before, $location) = $example =~ /^(.*?)^(location .*)/ms or die "no location\n";
    $http   .= $before;
    $location =~ s{auth_basic_user_file users}{auth_basic_user_file %DIR%/html/users};
    $server .= $location;
    $server .= $location =~ s{= /login}{= /held}r =~ s{http://app}{http://models}r if $location =~ m{/login};
}
my $nginx = start_nginx(port => $ports[0], clock => 1, http => $http, server => $server);
$nginx->write_file('users', "anna:{PLAIN}right\n");

sub credentials { my ($password) = @_; return 'Basic ' . encode_base64("anna:$password", '') }

sub log_in {
    my ($password) = @_;
    return $nginx->get('/login', Authorization => credentials($password))->{status};
}

# The key of the zone of log-ins is the address in binary: its four bytes, as the API reads them.
my $address = '%7f%00%00%01';

subtest 'only failed log-ins' => sub {
    is join(' ', map { log_in('right') } 1 .. 10), join(' ', (200) x 10), 'ten right passwords in a row';
    becomes($nginx, 'logins', $address, 5, 'take nothing');
    for my $number (1 .. 5) {
        is log_in('wrong'), 401, "wrong password $number";
        becomes($nginx, 'logins', $address, 5 - $number, 'is charged');
    }
    is log_in('right'), 429, 'the right password is refused';
    $nginx->advance(59 - int($nginx->now) % 60);
    is log_in('right'), 429, 'until the last second of the minute';
    $nginx->advance(1);
    is log_in('right'), 200, 'and accepted in the next minute';
};

subtest 'clients that leave while the application checks the password' => sub {
    for my $number (1 .. 5) {
        my $connection = $nginx->connect;
        $connection->send(format_request(path => '/held', headers => [ Authorization => credentials('right') ]));
        my $held = $models->next_request;
        is left($nginx, 'logins', $address), 5 - $number, "log-in $number is checked";
        $connection->close;
        wait_for('the end of the request', sub { $number == (() = $nginx->access_log =~ m{"GET /held .*" 499 }g) });
    }
    is log_in('right'), 429, 'all five are charged';
    $nginx->advance(60);
    is log_in('right'), 200, 'until the minute is over';
};

# Sends a request of a client, which has cost some tokens.
sub spend {
    my ($client, $tokens) = @_;
    my $connection = $nginx->connect;
    $connection->send("GET /v1/chat HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: $client\r\n\r\n");
    my $held = $models->next_request;
    is left($nginx, 'tokens', $client), 99_500, "$client: 500 are reserved";
    $held->answer(cost => $tokens);
    return $connection->receive->{status};
}

subtest 'tokens' => sub {
    is spend('less', 120), 200, 'a response of 120 tokens';
    becomes($nginx, 'tokens', 'less', 99_880, 'the rest of the estimate is given back');
    is spend('more', 700), 200, 'a response of 700 tokens';
    becomes($nginx, 'tokens', 'more', 99_300, 'more than the estimate is charged');
    is spend('debt', 150_000), 200, 'a response of 150000 tokens';
    becomes($nginx, 'tokens', 'debt', 0, 'all are charged');
    my $answer = $nginx->get('/v1/chat', 'X-Api-Key' => 'debt');
    is $answer->{status}, 429, 'the client owes 50000';
    $nginx->advance($answer->header('Retry-After') - 2);
    is $nginx->get('/v1/chat', 'X-Api-Key' => 'debt')->{status}, 429, 'and waits for Retry-After';
    $nginx->advance(2);
    my $connection = $nginx->connect;
    $connection->send("GET /v1/chat HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: debt\r\n\r\n");
    $models->next_request->answer(cost => 1);
    is $connection->receive->{status}, 200, 'until the debt is paid, and 500 are left';
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'the log has no alert';
done_testing;
