# The configurations that a page of docs/ shows, for tests that run them.
#
#   use lib 't/lib';
#   use RateLimit::Page qw(page_part);
#
#   my ($http, $server) = page_part('docs/tokens.md', qr/zone=tokens/, qr/127\.0\.0\.1:8081/ => "127.0.0.1:$port");
#
# FUNCTIONS
#   page_block($file, $pattern)
#                               the first block of nginx's language in a page that matches
#   page_part($file, $pattern, %changes)
#                               the same block in two texts: what it has in http {}, or at its top, and what it has in
#                               server {}. Without `listen`; %changes has patterns, as texts, and their replacements
package RateLimit::Page;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use List::Util qw(first);
use RateLimit qw(slurp);

our @EXPORT_OK = qw(page_block page_part);

sub page_block {
    my ($file, $pattern) = @_;
    my @blocks = slurp($file) =~ /^```nginx\n(.*?)^```$/msg;
    return (first {/$pattern/} @blocks) // croak "$file has no configuration with $pattern";
}

sub page_part {
    my ($file, $pattern, %changes) = @_;
    my $text = page_block($file, $pattern);
    $text = $1 if $text =~ /^http \{\n(.*)^\}\n/ms;
    my ($http, $server) = $text =~ /^(.*?)^ *server \{\n(.*)^ *\}\n/ms or croak "$file: no server in the configuration";
    for my $part ($http, $server) {
        $part =~ s/^ *listen .*\n//gm;
        $part =~ s/$_/$changes{$_}/g for sort keys %changes;
    }
    return ($http, $server);
}

1;
