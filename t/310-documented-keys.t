# The configurations of docs/keys.md, taken from the page, behave as the page says.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(slurp start_nginx);
use Test::More;
use Token qw(jwk jwks key_file new_key new_secret token);

my $rsa    = new_key('rsa');
my $secret = new_secret(32);
my %files  = (
    'jwt-public.pem' => key_file('documented.pem',    $rsa->{public}),
    'jwks.json'      => key_file('documented.json',   jwks(jwk($rsa, kid => '1', alg => 'RS256'))),
    'jwt.secret'     => key_file('documented.secret', $secret->{secret}),
);

# The configurations of each section, by its title, as arguments of start_nginx.
my %documented;
{
    my $title = '';
    for my $part (split /^(?=#|```nginx$)/m, slurp('docs/keys.md')) {
        $title = $1 if $part =~ /^#+ (.*)/;
        my ($text) = $part =~ /^```nginx\nhttp \{\n(.*?)^\}\n```$/ms or next;
        my ($http, $server) = $text =~ /^(.*)^    server \{\n(.*)^    \}\n/ms or die "no server under $title\n";
        for ($http, $server) {
            s{http://127\.0\.0\.1:8081}{http://127.0.0.1:%PORT1%}g;
            s{(rate_limit_jwt_key \w+) ([\w.-]+)}{"$1 " . ($files{$2} // die "no file $2\n")}ge;
            s{^ *listen .*\n}{}gm;
        }
        push @{ $documented{$title} },
            { http => $http, server => $server, servers => 'server { listen 127.0.0.1:%PORT1%; return 200 "here\n"; }' };
    }
}
my $sections = 0;
my ($port) = split ' ', $ENV{RL_PORTS};

sub statuses {
    my ($nginx, $count, %request) = @_;
    return join ' ', map { $nginx->request(%request)->{status} } 1 .. $count;
}

# Runs the next configuration of a section.
sub with_section {
    my ($title, $check, $change) = @_;
    my $conf = shift @{ $documented{$title} // [] } or die "docs/keys.md has no further configuration under $title\n";
    $sections++;
    subtest $title => sub {
        $change->($conf) if $change;
        my $nginx = start_nginx(%{$conf}, port => $port, clock => 'day');
        $check->($nginx);
        unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]/, 'nginx logs no warning';
        $nginx->stop;
    };
    return;
}

with_section 'Choosing a key' => sub {
    my ($nginx) = @_;
    my $token   = token($rsa, 'RS256', { sub => 'alice' });
    my $alice   = $nginx->request(path => '/api/', headers => [ Authorization => "Bearer $token" ]);
    my $key     = $nginx->request(path => '/api/', headers => [ 'X-Api-Key' => 'K' ]);
    my $address = $nginx->get('/api/');
    is $_->header('X-RateLimit-Remaining'), 99, 'each address is a client' for $alice, $key, $address;
};

with_section 'A limit for each user or tenant, after authentication' => sub {
    my ($nginx) = @_;
    my $get = sub { my ($tenant, $plan) = @_; return $nginx->get('/api/', 'X-Tenant' => $tenant, 'X-Plan' => $plan) };
    is $get->('alice', '100r/m')->header('X-RateLimit-Remaining'), 99, 'a tenant is counted';
    is $get->('alice', '100r/m')->header('X-RateLimit-Remaining'), 98, 'the same tenant is counted';
    is $get->('bob',   '20r/m')->header('X-RateLimit-Remaining'),  19, 'another tenant, with another plan, is counted';
    is scalar(grep { $get->('alice', '100r/m')->{status} == 200 } 1 .. 100), 98, 'up to the limit';
    is scalar(grep { $get->("t$_", '100r/m')->{status} == 200 } 1 .. 600), 499, 'the address has not paid for rejected requests';
} => sub { $_[0]{servers} =~ s{return}{add_header X-Tenant \$http_x_tenant; add_header X-Plan \$http_x_plan; return} or die "no server to tell who the tenant is\n" };

with_section 'Login: many passwords for one account' => sub {
    my ($nginx) = @_;
    is statuses($nginx, 8, path => '/login'), join(' ', (200) x 8), 'a GET of the form costs nothing';
    is statuses($nginx, 7, path => '/login', method => 'POST'), '200 200 200 200 200 429 429', 'attempts do';
};

with_section 'A public API with keys' => sub {
    my ($nginx) = @_;
    my $remaining = sub {
        my (@headers) = @_;
        return $nginx->request(path => '/api/', headers => \@headers)->header('X-RateLimit-Remaining');
    };
    is $remaining->('X-Api-Key' => '4f0c2a'), 999, 'a tenant has its plan';
    is $remaining->('X-Api-Key' => 'b81d77'), 998, 'its other key shares the quota';
    is $remaining->('X-Api-Key' => '99e3c0'), 99,  'another tenant has its own quota';
    is $remaining->(), 19, 'a request without a key is limited by address';
    is $remaining->('X-Api-Key' => "invented$_"), 18 - $_,
        'a request with an invented key is limited by address' for 0 .. 2;
};

with_section 'A public API with keys' => sub {
    my ($nginx) = @_;
    my @answers = map { $nginx->request(path => '/api/', headers => [ 'X-Api-Key' => "invented$_" ])->{status} } 1 .. 302;
    is scalar(grep { $_ == 200 } @answers), 300, 'a client that invents keys is stopped by the second limit';
    is $answers[-1], 429, 'for good';
};

with_section 'A service with accounts: tokens and tiers' => sub {
    my ($nginx) = @_;
    my %want = (enterprise => undef, premium => 1000, free => 100);
    for my $plan (sort keys %want) {
        my $token  = token($rsa, 'RS256', { sub => "one with $plan", plan => $plan, exp => time + 100 }, kid => '1');
        my $answer = $nginx->request(path => '/api/', headers => [ Authorization => "Bearer $token" ]);
        is $answer->header('X-RateLimit-Limit'), $want{$plan}, "$plan is a tier";
    }
    is $nginx->get('/api/')->header('X-RateLimit-Limit'), 20, 'no token is a tier too';
};

with_section 'A service with accounts: tokens and tiers' => sub {
    my ($nginx) = @_;
    my %claims  = (sub => 'alice', account => { tier => 'premium' }, 'https://example.com/tenant' => 'acme');
    my $token   = token($secret, 'HS256', \%claims);
    my $other   = token($secret, 'HS256', { %claims, sub => 'bob' });
    my @answers = map { $nginx->request(path => '/api/', headers => [ Authorization => "Bearer $_" ]) } $token, $other;
    is $answers[0]->header('X-RateLimit-Limit'),     1000, 'a claim inside an object is a tier';
    is $answers[1]->header('X-RateLimit-Remaining'), 998,  'a claim with a URL for a name names the client';
};

push @{ $documented{'Behind a CDN'} }, { %{ $documented{'Behind a CDN'}[0] } };    # once more, for another peer

with_section 'Behind a CDN' => sub {
    my ($nginx) = @_;
    my $from = sub { return $nginx->get('/', 'X-Forwarded-For' => $_[0])->header('X-RateLimit-Remaining') };
    is $from->('198.51.100.1'), 19, 'a visitor of the CDN';
    is $from->('198.51.100.2'), 19, 'another visitor of the CDN';
    is $from->('203.0.113.9, 198.51.100.1'), 18, 'a header that the visitor sends changes nothing';
} => sub { $_[0]{http} =~ s{192\.0\.2\.0/24}{127.0.0.1} or die "no network to take the CDN's place\n" };

with_section 'Behind a CDN' => sub {
    my ($nginx) = @_;
    my $from = sub { return $nginx->get('/', 'X-Forwarded-For' => $_[0])->header('X-RateLimit-Remaining') };
    is $from->("198.51.100.$_"), 20 - $_, 'a client outside the CDN cannot choose an address' for 1 .. 3;
};

with_section 'IPv6' => sub {
    my ($nginx) = @_;
    my $answer = $nginx->get('/');
    is $answer->{status}, 200, 'both levels admit';
    is $answer->header('X-RateLimit-Limit'), 10, 'the narrow network is the tightest';
};

is_deeply [ grep { @{ $documented{$_} } } sort keys %documented ], [], 'all configurations of the page were tested';
cmp_ok $sections, '>=', 8, 'all were found';
done_testing;
