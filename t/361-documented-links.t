# All links in the documentation lead somewhere, and each page leads to the next one.
use strict;
use warnings;

use lib 't/lib';
use File::Basename qw(dirname);
use RateLimit qw(slurp);
use RateLimit::Page qw(pages);
use Test::More;

# Returns a page without its blocks of code.
sub prose { my ($file) = @_; return slurp($file) =~ s/^(?:    )?```.*?^(?:    )?```$//gmsr }

# The anchors of a page's headings, as GitHub and others make them.
sub anchors_of {
    my ($file) = @_;
    my %anchors;
    for my $title (prose($file) =~ /^#+ (.*)/mg) {
        $title =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
        my $anchor = lc($title) =~ s/[^\w\- ]//gr =~ s/ /-/gr;
        $anchors{$anchor} = 1;
    }
    return \%anchors;
}

# Returns the path of a link's target from the root of the repository.
sub target_of {
    my ($file, $link) = @_;
    my @parts;
    for my $part (split m{/}, dirname($file) . "/$link") {
        if ($part eq '..') { pop @parts } elsif ($part ne '.') { push @parts, $part }
    }
    return join '/', @parts;
}

my @files = (pages(), 'CONTRIBUTING.md', 'CHANGELOG.md', glob('docs/*/*.md'));
my ($links, @dead) = (0);
for my $file (@files) {
    for my $link (prose($file) =~ /\]\(([^()\s]+(?:\([^)]*\))?)\)/g) {
        next if $link =~ /^https?:/;
        $links++;
        my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
        my $target = $path eq '' ? $file : target_of($file, $path);
        if (!-e $target) {
            push @dead, "$file: $link: there is no $target";
        } elsif (defined $anchor && !anchors_of($target)->{$anchor}) {
            push @dead, "$file: $link: no such heading";
        }
    }
}
is join("\n", @dead), '', "$links links of " . @files . ' files lead somewhere';
cmp_ok $links, '>', 200, 'they were found';

# index.md has a path through all pages. The next page of each page is the one below it.
my @path = slurp('docs/index.md') =~ /^\| \[[^\]]*\]\(([\w\/-]+\.md)\)/mg;
my @all  = map {s{^docs/}{}r} grep { $_ ne 'docs/index.md' && /^docs/ } pages(), 'docs/timelines/README.md';
is_deeply [ grep { slurp('docs/index.md') !~ /\]\(\Q$_\E\)/ } @all ], [], 'index.md has each page';
for my $number (0 .. $#path - 1) {
    my ($next) = slurp("docs/$path[$number]") =~ /^Next: .*?\]\(([^)#]+)\)[^\n]*(?:\n[^\n]+)*\n\z/m;
    is target_of("docs/$path[$number]", $next // 'nothing'), "docs/$path[$number + 1]", "$path[$number]: its last line";
}

# A page opens with its answer: a paragraph below its title.
for my $page (map {"docs/$_"} @path) {
    like slurp($page), qr/\A# .+\n\n(?:<!--.*-->\n\n)?[A-Z`\[*-]/, "$page opens with a sentence";
}

# README.md repeats figures of the last benchmark.
my ($answer) = slurp('docs/benchmarks.md') =~ /<!-- answer:.*?-->(.*?)<!-- end of answer -->/s;
my ($costs)  = slurp('README.md') =~ /^## What it costs\n(.*?)^## /ms;
my @figures  = $costs =~ /(\d+(?:\.\d+)?)\s+µs/g;
cmp_ok scalar(@figures), '>=', 5, 'README.md has figures';
is_deeply [ grep { $answer !~ /(?<![\d.])\Q$_\E\s+µs/ } @figures ], [], 'which are those of docs/benchmarks.md';
done_testing;
