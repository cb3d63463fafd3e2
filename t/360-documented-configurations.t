# Each configuration in README.md and docs/ is valid.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config write_text);
use RateLimit::Page qw(completed configuration page_blocks pages);
use Test::More;
use Token qw(jwk jwks key_file new_key new_secret);

my $rsa    = new_key('rsa');
my $secret = new_secret(64);
my %files  = (
    'jwt-public.pem' => key_file('page.pem',    $rsa->{public}),
    'jwks.json'      => key_file('page.json',   jwks(jwk($rsa, kid => '1', alg => 'RS256'))),
    'jwt.secret'     => key_file('page.secret', $secret->{secret}),
);

# Files that a configuration names, as far as nginx reads them when it checks the configuration.
my $password = "$ENV{RL_DIR}/redis.password";
write_text($password, "secret\n");
chmod 0600, $password or die "$password: $!\n";

# Variables that an example takes from elsewhere.
sub with_variables {
    my ($check, %conf) = @_;
    my $result = $check->(%conf);
    for (1 .. 8) {
        my ($name) = $result->{stderr} =~ /unknown (?:variable )?"\$?(\w+)"/ or last;
        $conf{http} = qq(map "" \$$name { default 1; }\n$conf{http});
        $result = $check->(%conf);
    }
    return $result;
}

my ($checked, %warned) = (0);
for my $page (pages()) {
    my @blocks = page_blocks($page, 'nginx');
    for my $number (0 .. $#blocks) {
        my $block = $blocks[$number];
        my $text  = $block->{text};
        $text =~ s{\S*/?(jwt-public\.pem|jwks\.json|jwt\.secret)\b}{$files{$1}}g;
        $text =~ s{(\w*password_file=)[^\s;]+}{$1$password}g;
        $text =~ s{\bca=\S+?(?=[\s;])}{}g;
        $text =~ s{/var/log/nginx/}{}g;
        $text =~ s{redis://\Kredis\.[\w.]+}{127.0.0.1};    # a name that only a cluster of Kubernetes has
        $text =~ s{^load_module modules/ngx_http_rate_limit_module.so;\n}{}m;
        $text =~ s{^( *)(js_\w+ .*\n)}{}mg;
        if ($text =~ /\bjwt:/ && $text !~ /rate_limit_jwt_key/) {
            $text = "rate_limit_jwt_key HS256 $files{'jwt.secret'};\n$text";
        }
        my $result = with_variables(sub { check_config(completed(@_)) }, configuration($text));
        is $result->{exit}, 0, "$page:$block->{line}: $block->{title}" or diag $result->{stderr};
        # The old form works with all versions of nginx; the page names the new one.
        $warned{$page} .= join '', grep { !/"listen ... http2" directive is deprecated/ } split /^/m, $result->{stderr};
        $checked++;
    }
}
cmp_ok $checked, '>=', 50, 'all pages were searched';

# The configurations that a reader pastes cause no warning either.
for my $page (grep { defined $warned{$_} } map {"docs/$_.md"} qw(quick-start cookbook migration)) {
    unlike $warned{$page}, qr/\[warn\]/, "$page: no warning";
}
unlike $warned{'README.md'}, qr/\[warn\]/, 'README.md: no warning';
done_testing;
