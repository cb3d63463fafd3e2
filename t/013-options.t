# The tables of options in src/ and docs/directives.md agree, in both directions.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(slurp);
use Test::More;

# The directives of each table. The first documents what the options mean.
my %directives = (
    kZoneOptions   => [qw(rate_limit_zone)],
    kLimitOptions  => [qw(rate_limit rate_limit_shadow)],
    kRequestOptions => [qw(rate_limit_request)],
    kRedisOptions  => [qw(rate_limit_redis)],
    kJwtKeyOptions => [qw(rate_limit_jwt_key)],
    kApiOptions    => [qw(rate_limit_api rate_limit_dashboard)],
);

# The sections of the page by title, without marks of Markdown in the text.
my %section = slurp('docs/directives.md') =~ /^## ([^\n]+)\n(.*?)(?=^## |\z)/msg;

sub plain {
    my ($text) = @_;
    $text =~ s/\[([^\]]+)\]\([^)]*\)/$1/g;
    $text =~ s/[`\\]//g;
    $text =~ s/\s+/ /g;
    return $text;
}

# The names of all options that a section documents: in its syntax, in a table of options and in lists.
sub documented {
    my ($text) = @_;
    my ($syntax)  = $text =~ /^\| Syntax \| (.*) \|$/m;
    my ($table)   = $text =~ /^\| Option \|[^\n]*\n((?:\|[^\n]*\n)+)/m;
    my @cells     = ($table // '') =~ /^\| (.*?) \|/mg;
    my @heads     = $text =~ /^- (`[^`]+`(?:, `[^`]+`)*):/mg;
    my %names     = map { $_ => 1 } map {/\b([a-z_]+)=/g} $syntax, @cells, @heads;
    $names{$_} = 1 for map {/`([a-z_]+)`/g} @heads;
    delete $names{option};    # of "[option=value ...]"
    return \%names;
}

my %rows;
for my $file (glob 'src/directives/*.cc src/api/*.cc src/endpoints/*.cc') {
    my $source = slurp($file);
    while ($source =~ /constexpr Option<\w+> (\w+)\[\] = \{\n(.*?)\n\};/sg) {
        my ($table, $text) = ($1, $2);
        my $string = qr/"(?:[^"\\]|\\.)*"/;
        while ($text =~ /\{"(\w+)", "([^"]*)",\s*($string(?:\s*$string)*),/g) {
            my ($name, $form, $meaning) = ($1, $2, $3);
            $meaning =~ s/^"|"\s*"|"$//g;
            push @{ $rows{$table} }, { name => $name, form => $form, meaning => $meaning };
        }
        my $parsers = () = $text =~ /\bread_\w+[,<}]/g;
        is scalar @{ $rows{$table} }, $parsers, "$table: every row is read";
    }
}
is "@{[ sort keys %rows ]}", "@{[ sort keys %directives ]}", 'every table has its directives';

for my $table (sort keys %rows) {
    my @directives = @{ $directives{$table} // [] };
    for my $directive (@directives) {
        my $text  = plain($section{$directive});
        my %known = map { $_->{name} => 1 } @{ $rows{$table} };
        for my $option (@{ $rows{$table} }) {
            my $word = $option->{form} ? "$option->{name}=$option->{form}" : $option->{name};
            like $text, qr/(?<![\w=|])\Q$word\E(?![\w=|])/, "$directive: $word is documented";
        }
        my @unknown = grep { !$known{$_} } sort keys %{ documented($section{$directive}) };
        is "@unknown", '', "$directive: each documented option exists";
    }
    my $text = plain($section{ $directives[0] });
    ok index($text, $_->{meaning}) >= 0, "$directives[0]: $_->{name} means: $_->{meaning}" for @{ $rows{$table} };
}

done_testing;
