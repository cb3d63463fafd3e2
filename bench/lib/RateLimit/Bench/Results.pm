# What the tables and charts of bench/run have in common: figures of groups, their formats, and files.
#
#   use RateLimit::Bench::Results qw(group figure number spread read_text write_text);
#
# FUNCTIONS
#   group(\%results, $name)     the results of a group; undef if it was not measured
#   figure(\%results, $group, $contestant, $field, $beside)
#                               [ median, first quartile, third quartile ] over the rounds of a group; undef if it was
#                               not measured. $beside is a contestant, by default the usual one
#   number($value, $format)     text, '' for undef
#   spread(\@figure, $format)   a median with its quartiles in brackets; '' for undef
#   read_text($file), write_text($file, $text)
#                               text in UTF-8
package RateLimit::Bench::Results;
use strict;
use warnings;
use utf8;

use Carp qw(croak);
use Exporter qw(import);
use RateLimit::Bench::Contestants qw(contestant);
use RateLimit::Bench::Figures qw(by_round median quartiles);

our @EXPORT_OK = qw(group figure number spread read_text write_text);

sub read_text {
    my ($file) = @_;
    open my $in, '<:encoding(UTF-8)', $file or croak "$file: $!";
    local $/ = undef;
    return <$in>;
}

sub write_text {
    my ($file, $text) = @_;
    open my $out, '>:encoding(UTF-8)', $file or croak "$file: $!";
    print {$out} $text;
    close $out or croak "$file: $!";
    return;
}

sub group {
    my ($results, $name) = @_;
    my ($found) = grep { $_->{name} eq $name } @{ $results->{groups} // [] };
    return $found;
}

sub figure {
    my ($results, $group, $name, $field, $beside) = @_;
    my $is     = group($results, $group) or return;
    my @values = by_round($is->{rounds}, $name, $field, $beside // contestant($name)->{beside} // 'plain') or return;
    return [ median(@values), quartiles(@values) ];
}

sub spread {
    my ($values, $format) = @_;
    return '' unless $values;
    return sprintf("$format ($format–$format)", @{$values}) =~ s/-(?=[0.]+(?![\d.]))//gr;
}

sub number { my ($value, $format) = @_; return defined $value ? sprintf $format // '%.4f', $value : '' }

1;
