# Keys and tokens for tests of rate_limit_jwt_key, made by other software than the module: Node's crypto and the package
# jose. Each test program uses one Node process, which starts at the first call.
#
#   use lib 't/lib';
#   use Token qw(new_key new_secret token);
#
#   my $key   = new_key('rsa');
#   my $file  = key_file('rsa.pem', $key->{public});
#   my $token = token($key, 'RS256', { sub => 'alice' }, kid => '1');
#
# FUNCTIONS
#   new_key($kind, %options)    a pair of keys: { public, private (PEM), pkcs1 (of RSA), der (public, bytes), jwk,
#                               private_jwk }. Kinds: rsa (bits => 2048), rsa-pss, dsa, P-256, P-384, P-521, secp256k1,
#                               ed25519, ed448, x25519, x448
#   new_secret($length)         { secret (letters and digits), jwk }, the same for the same length in each run
#   token($key, $alg, $claims, %header)
#                               a token signed by jose. Claims are a reference to a hash
#   forge($key, $alg, $header, $claims)
#                               a token of any two texts, signed with $alg, which may differ from the header
#   header($alg, %more)         the text of a header with this algorithm
#   signature($key, $alg, $text)
#                               in base64url
#   part($text)                 a text in base64url; decode_part($text) is its inverse
#   json($data)                 a text of JSON, names in their order
#   key_file($name, $text)      writes a file for rate_limit_jwt_key; returns its full name
#   jwks(@jwks)                 the text of a JSON Web Key Set; jwk($key, %more) is a public key for it
package Token;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use IPC::Open2 qw(open2);
use JSON::PP ();
use MIME::Base64 qw(decode_base64url encode_base64url);

our @EXPORT_OK = qw(new_key new_secret token forge header signature part decode_part json key_file jwks jwk);

my $json = JSON::PP->new->canonical->ascii->utf8;
my ($node, $from_node, $to_node);

sub ask {
    my (%request) = @_;
    $node //= open2($from_node, $to_node, 'node', dirname(__FILE__) . '/token.js');
    print {$to_node} $json->encode(\%request), "\n";
    my $answer = $json->decode(<$from_node> // croak 'Node has ended');
    croak "Node: $answer->{error}" if defined $answer->{error};
    return $answer->{result};
}

END {
    if ($node) {
        local $? = 0;
        close $to_node;
        waitpid $node, 0;
    }
}

sub new_key {
    my ($kind, %options) = @_;
    my %node_kind
        = $kind =~ /^(?:P-|secp)/
        ? (kind => 'ec', options => { namedCurve => $kind })
        : (kind => $kind, options => { modulusLength => $options{bits} // 2048 });
    return ask(operation => 'key', %node_kind);
}

sub new_secret {
    my ($length) = @_;
    my $secret = substr join('', 'a' .. 'z', 0 .. 9, 'A' .. 'Z') x (1 + $length / 62), 0, $length;
    return { secret => $secret, jwk => { kty => 'oct', k => part($secret) } };
}

sub private_part {
    my ($key) = @_;
    return map { defined $key->{$_} ? ($_ => $key->{$_}) : () } qw(secret private);
}

sub token {
    my ($key, $alg, $claims, %header) = @_;
    return ask(operation => 'jose', alg => $alg, header => \%header, claims => $claims, private_part($key));
}

sub signature {
    my ($key, $alg, $text) = @_;
    return ask(operation => 'signature', alg => $alg, text => $text, private_part($key));
}

sub forge {
    my ($key, $alg, $header, $claims) = @_;
    my $text = part($header) . '.' . part($claims);
    return "$text." . signature($key, $alg, $text);
}

sub header {
    my ($alg, %more) = @_;
    return json({ alg => $alg, typ => 'JWT', %more });
}

sub json        { my ($data) = @_; return $json->encode($data) }
sub part        { my ($text) = @_; return encode_base64url($text) }
sub decode_part { my ($text) = @_; return decode_base64url($text) }

sub jwk {
    my ($key, %more) = @_;
    return { %{ $key->{jwk} }, %more };
}

sub jwks {
    my (@jwks) = @_;
    return json({ keys => \@jwks });
}

sub key_file {
    my ($name, $text) = @_;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/keys';
    make_path($dir);
    open my $out, '>:raw', "$dir/$name" or croak "$name: $!";
    print {$out} $text;
    close $out or croak "$name: $!";
    return "$dir/$name";
}

1;
