# Certificates for tests of TLS, created once for a test program.
#
#   use lib 't/lib';
#   use RateLimit::Certificates qw(tls_files);
#
# FUNCTIONS
#   tls_files                   a reference to a hash of file names: ca, client and client_key for clients, and these
#                               for servers, each with NAME_key:
#     server                    for localhost, redis.test, 127.0.0.1 and ::1, by the ca
#     other_name                for other.test, by the ca
#     expired                   like server, but it expired years ago
#     stranger                  like server, but by stranger_ca
#     stranger_client           a client's, by stranger_ca
package RateLimit::Certificates;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Path qw(make_path);

our @EXPORT_OK = qw(tls_files);

my $files;

sub tls_files {
    return $files if $files;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/tls';
    make_path($dir);
    my $names = 'subjectAltName=DNS:localhost,DNS:redis.test,IP:127.0.0.1,IP:::1';
    $files = {};
    certify($dir, 'ca',              'ca',          'basicConstraints=critical,CA:TRUE');
    certify($dir, 'stranger_ca',     'stranger_ca', 'basicConstraints=critical,CA:TRUE');
    certify($dir, 'server',          'ca',          $names);
    certify($dir, 'client',          'ca',          'extendedKeyUsage=clientAuth');
    certify($dir, 'other_name',      'ca',          'subjectAltName=DNS:other.test');
    certify($dir, 'expired',         'ca',          $names);
    certify($dir, 'stranger',        'stranger_ca', $names);
    certify($dir, 'stranger_client', 'stranger_ca', 'extendedKeyUsage=clientAuth');
    expire($dir, 'expired');
    return $files;
}

# Creates a key and a certificate signed by an issuer, or self-signed.
sub certify {
    my ($dir, $name, $issuer, $extension) = @_;
    my ($certificate, $key) = @{$files}{ $name, "${name}_key" } = ("$dir/$name.crt", "$dir/$name.key");
    write_lines("$dir/$name.ext", $extension);
    my @sign = $name eq $issuer ? ('-key', $key) : ('-CA', $files->{$issuer}, '-CAkey', $files->{"${issuer}_key"});
    openssl('genpkey', '-algorithm', 'EC', '-pkeyopt', 'ec_paramgen_curve:P-256', '-out', $key);
    openssl('req', '-new', '-key', $key, '-subj', "/CN=$name", '-out', "$dir/$name.csr");
    openssl('x509', '-req', '-in', "$dir/$name.csr", @sign, '-set_serial', 2 + keys %{$files},
        '-days', 2, '-extfile', "$dir/$name.ext", '-out', $certificate);
    return;
}

# Signs a certificate of the ca again, with a validity in the past. Only the command `ca` sets both dates in all
# versions of openssl.
sub expire {
    my ($dir, $name) = @_;
    write_lines("$dir/ca.conf", '[ca]', 'default_ca = here', '[here]', "database = $dir/ca.index", 'default_md = sha256',
        'policy = any', 'rand_serial = yes', "new_certs_dir = $dir", '[any]', 'commonName = supplied');
    write_lines("$dir/ca.index");
    openssl('ca', '-batch', '-notext', '-config', "$dir/ca.conf", '-in', "$dir/$name.csr", '-cert', $files->{ca},
        '-keyfile', $files->{ca_key}, '-startdate', '20200101000000Z', '-enddate', '20200102000000Z',
        '-extfile', "$dir/$name.ext", '-out', $files->{$name});
    return;
}

sub write_lines {
    my ($file, @lines) = @_;
    open my $out, '>', $file or croak "$file: $!";
    print {$out} map {"$_\n"} @lines;
    close $out or croak "$file: $!";
    return;
}

sub openssl {
    my (@arguments) = @_;
    open my $in, '-|', 'sh', '-c', 'exec openssl "$@" 2>&1', 'sh', @arguments or croak "openssl: $!";
    local $/ = undef;
    my $said = <$in>;
    close $in or croak "openssl @arguments: $said";
    return;
}

1;
