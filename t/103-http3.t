# Limits work over HTTP/3: requests that wait for Redis or for a delay get a response, and a client may disconnect.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for);
use RateLimit::HTTP3;
use RateLimit::Redis qw(start_redis tls_files);
use Test::More;
use Time::HiRes qw(time);

if (my $why = RateLimit::HTTP3::missing()) {
    plan skip_all => $why;
}

my $redis = start_redis();
my $files = tls_files();
my $url   = $redis->url;
my %conf  = (
    http => <<"HTTP",
rate_limit_redis main $url timeout=20s;
rate_limit_key \$address ip;
rate_limit_zone \$arg_k zone=counted:1m rate=3r/d algorithm=sliding_log;
rate_limit_zone \$address zone=address:1m rate=2r/d algorithm=token_bucket;
rate_limit_zone \$arg_k zone=remote:1m rate=3r/d algorithm=sliding_log redis=main;
rate_limit_zone \$arg_k zone=shaped:1m rate=4r/s algorithm=leaky_bucket burst=20;
rate_limit_zone \$arg_k zone=shaped_r:1m rate=4r/s algorithm=leaky_bucket burst=20 redis=main;
rate_limit_zone \$arg_k zone=slow:1m rate=1r/d algorithm=leaky_bucket burst=20;
rate_limit_headers all;
log_format client '\$status \$request_uri \$server_protocol';
access_log access.log client;
HTTP
    server => <<"SERVER",
listen 127.0.0.1:%PORT% quic;
ssl_certificate $files->{server};
ssl_certificate_key $files->{server_key};
add_header X-Status \$rate_limit_status always;
add_header X-Store \$rate_limit_store always;
location = /counted  { rate_limit zone=counted; empty_gif; }
location = /address  { rate_limit zone=address; empty_gif; }
location = /remote   { rate_limit zone=remote; empty_gif; }
location = /shaped   { rate_limit zone=shaped; empty_gif; }
location = /shaped_r { rate_limit zone=shaped_r; empty_gif; }
location = /slow     { rate_limit zone=slow; empty_gif; }
location = /free     { empty_gif; }
location /api/       { rate_limit_api; }
SERVER
);
my $nginx = start_nginx(%conf);
my ($worker) = $nginx->workers;
my $trouble = qr/\[(?:alert|crit|emerg)\]|open socket|exited on signal/;

# Requests these paths at once over a new connection. Returns the responses.
sub ask {
    my (@paths) = @_;
    my $client = RateLimit::HTTP3->new($nginx->port, \@paths);
    ok $client->await(30), 'the client ends' or diag $nginx->error_log;
    return $client;
}

# Starts a client whose requests wait. nginx has read all of them when it responds to the last one.
sub start_waiting {
    my ($name, @paths) = @_;
    my $client = RateLimit::HTTP3->new($nginx->port, [ @paths, "/free?$name" ]);
    wait_for('requests to arrive', sub { $nginx->access_log =~ m{^200 /free\?$name HTTP/3}m });
    ok !$client->await(0.3), 'the requests wait while Redis does not respond';
    return $client;
}

sub with_status {
    my ($status, $client) = @_;
    return grep { ($_->{status} // '') eq $status } $client->answers;
}

sub headers {
    my ($name, @answers) = @_;
    return join ' ', sort map { $_->{headers}{$name} // '-' } @answers;
}

# Returns how many requests for a path ended without a response.
sub gone {
    my ($path) = @_;
    return scalar(() = $nginx->access_log =~ m{^(?:499|000) \Q$path\E HTTP/3}mg);
}

sub is_unharmed {
    my ($title) = @_;
    unlike $nginx->error_log, $trouble, "$title: the log has no unexpected errors";
    is join(' ', $nginx->workers), $worker, "$title: the worker is still running";
    return;
}

subtest 'limits apply' => sub {
    my $client = ask(('/counted?k=one') x 5);
    is $client->statuses, '200 200 200 429 429', 'three of five streams are admitted';
    is headers('x-ratelimit-remaining', with_status(200, $client)), '0 1 2', 'the remaining count decreases';
    my @rejected = with_status(429, $client);
    is headers('x-ratelimit-limit',     @rejected), '3 3', 'X-RateLimit-Limit';
    is headers('x-ratelimit-remaining', @rejected), '0 0', 'X-RateLimit-Remaining';
    is headers('ratelimit-policy', @rejected), join(' ', ('"counted";q=3;w=86400') x 2), 'RateLimit-Policy';
    for my $answer (@rejected) {
        my $after = $answer->{headers}{'retry-after'} // '';
        cmp_ok $after, '>', 86390, 'Retry-After';
        like $answer->{headers}{ratelimit}, qr/^"counted";r=0;t=\d+$/, 'RateLimit';
        cmp_ok abs($answer->{headers}{'x-ratelimit-reset'} - time - $after), '<', 5, 'X-RateLimit-Reset';
    }
    is ask('/counted?k=one')->statuses, '429',         'a new connection of the same client is rejected';
    is ask('/counted?k=two')->statuses, '200',         'another client is admitted';
    is ask(('/address') x 3)->statuses, '200 200 429', 'the address of the client is a key';
    is $nginx->get('/address')->{status}, 429, 'the address is the same key over HTTP/1.1';
};

subtest 'requests that wait for Redis' => sub {
    my $client = ask(('/remote?k=one') x 5);
    is $client->statuses, '200 200 200 429 429', 'Redis decides';
    is headers('x-store', $client->answers), join(' ', ('redis') x 5), 'Redis decided all requests';

    $redis->pause;
    $client = start_waiting('waits', ('/remote?k=two') x 5);
    my $call = RateLimit::HTTP3->new($nginx->port, ['/api/check?zone=remote&key=three'], method => 'POST');
    ok !$call->await(0.3), 'a call of the API waits too';
    $redis->resume;
    ok $client->await(20) && $call->await(20), 'the requests get responses when Redis responds again';
    is $client->statuses, '200 200 200 200 429 429', 'the statuses follow the decisions of Redis';
    is $call->statuses, '200', 'the call of the API gets a response';
};

subtest 'requests that are delayed' => sub {
    for my $path ('/shaped', '/shaped_r') {
        my $began  = time;
        my $client = ask(("$path?k=one") x 5);
        is $client->statuses, '200 200 200 200 200', "$path: all requests get a response";
        cmp_ok time - $began, '>', 0.95, "$path: the last response comes four intervals later";
        is headers('x-status', $client->answers), 'DELAYED DELAYED DELAYED DELAYED PASSED',
            "$path: four requests were delayed";
    }
};

subtest 'clients that leave' => sub {
    for my $round (1 .. 3) {
        $redis->pause;
        my @paths  = (("/remote?k=left$round") x 10, '/free');
        my $client = RateLimit::HTTP3->new($nginx->port, \@paths, until => 'first');
        ok $client->await(20), "round $round: the client disconnects while Redis does not respond";
        wait_for('requests to end', sub { gone("/remote?k=left$round") >= 10 });
        $redis->resume;
        is ask("/remote?k=came$round")->statuses, '200', "round $round: Redis decides requests of other clients";
    }
    my $client = RateLimit::HTTP3->new($nginx->port, [ ('/slow?k=one') x 5, '/free' ], until => 'first');
    ok $client->await(20), 'a client disconnects during a delay';
    wait_for('requests to end', sub { gone('/slow?k=one') >= 4 });
    is_unharmed('leaving');
};

subtest 'clients that cancel requests and keep the connection' => sub {
    plan skip_all => 'aioquic for Python is not installed' if !RateLimit::HTTP3::has_aioquic();
    $redis->pause;
    for my $path ('/remote?k=cancels', '/slow?k=cancels', '/api/check?zone=remote&key=cancels') {
        my $method = $path =~ /api/ ? 'POST' : 'GET';
        my $client = RateLimit::HTTP3->new($nginx->port, [ ($path) x 5 ], until => 'cancel', method => $method);
        wait_for('requests to be cancelled', sub { $client->output =~ /^cancelled$/m });
        my $waiting = $path =~ /slow/ ? 4 : 5;    # the first request is not delayed
        wait_for("requests for $path to end", sub { gone($path) >= $waiting });
        ok !$client->await(0), "$path: the requests end while the connection stays open";
        ok $client->end, "$path: the client closes the connection";
    }
    $redis->resume;
    is ask('/remote?k=others')->statuses, '200', 'Redis decides requests of other clients';
    is_unharmed('cancelling');
};

subtest 'a worker that exits while requests wait' => sub {
    $redis->pause;
    my $client = start_waiting('last', ('/remote?k=last') x 5);
    $nginx->signal('QUIT');
    $nginx->wait_for_log(qr/$worker#\d+: gracefully shutting down/);
    is_unharmed('ending');
    $redis->resume;
    ok $client->await(20), 'the requests get responses';
    is $client->statuses, '200 200 200 200 429 429', 'the responses follow the decisions of Redis';
    wait_for('the worker to end', sub { !$nginx->workers });
    unlike $nginx->error_log, $trouble, 'no memory is leaked';
};

done_testing;
