# The configurations, commands and answers that a page of the documentation shows, for tests that run them.
#
#   use lib 't/lib';
#   use RateLimit::Page qw(page_part);
#
#   my ($http, $server) = page_part('docs/tokens.md', qr/zone=tokens/, qr/127\.0\.0\.1:8081/ => "127.0.0.1:$port");
#
# FUNCTIONS
#   pages                       the files of the documentation that users read
#   page_blocks($file, $language)
#                               the blocks of a language in a page: { title, level, line, text }, with the title and the
#                               level of the heading above, and the line of the block's first line
#   page_block($file, $pattern)
#                               the text of the first block of nginx's language that matches
#   page_part($file, $pattern, %changes)
#                               the same block in two texts: what it has in http {}, or at its top, and what it has in
#                               server {}. Without `listen`; %changes has patterns, as texts, and their replacements
#   configuration($text)        a block of nginx's language as arguments of start_nginx: statements that belong to
#                               http {}, the first server {} without `listen` and `root`, and further servers. The
#                               server has no other name than in the block. %PORT1% replaces 127.0.0.1:8081
#   completed(%configuration)   the same with what an example leaves out: zones, upstreams and Redis servers that it
#                               uses, and does not define
#   transcript($text)           the commands of a block of the language console, each with its answer: [command, answer].
#                               A command begins with `$ ` and may continue after a backslash
#   run_command($shell, %changes)
#                               runs text by a shell, after %changes of patterns, and returns what it prints. `localhost`
#                               and its port are those of nginx if %changes has `nginx`
#   alike($text)                a text for comparison: with N for numbers that depend on the time, and without spaces
#                               around lines
package RateLimit::Page;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use List::Util qw(first);
use RateLimit qw(slurp);

our @EXPORT_OK = qw(alike completed configuration page_block page_blocks page_part pages run_command transcript);

sub pages {
    my @pages = ('README.md', sort glob 'docs/*.md');
    return @pages;
}

sub page_blocks {
    my ($file, $language) = @_;
    my ($title, $level, $line, @blocks, $open) = ('', 0, 0);
    for my $text (split /^/m, slurp($file)) {
        $line++;
        if ($open) {
            if ($text =~ /^```$/) {
                push @blocks, $open if $open->{language} eq $language;
                $open = undef;
            } else {
                $open->{text} .= $text;
            }
        } elsif ($text =~ /^```(\w*)/) {
            $open = { title => $title, level => $level, language => $1, line => $line + 1, text => '' };
        } elsif ($text =~ /^(#+) (.*)/) {
            ($level, $title) = (length $1, $2);
        }
    }
    return @blocks;
}

sub page_block {
    my ($file, $pattern) = @_;
    my @blocks = map { $_->{text} } page_blocks($file, 'nginx');
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

# Splits a text into nginx's statements: { name, text, body }; a body is the text between braces.
sub _statements {
    my ($text) = @_;
    my ($depth, $start, $body, @found) = (0, 0);
    while ($text =~ /\G(?:\s+|#[^\n]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:\$\{\w+\}|[^\s;{}])+|([;{}]))/gcs) {
        my $sign = $1 // next;
        $body = pos $text if $sign eq '{' && $depth++ == 0;
        next if $sign eq ';' && $depth > 0;
        next if $sign eq '{' || $sign eq '}' && --$depth > 0;
        my $all  = substr $text, $start, pos($text) - $start;
        my ($name) = $all =~ /\A(?:\s+|#.*\n)*([^\s;{]+)/;
        push @found, { name => $name, text => $all, body => $body && substr $text, $body, pos($text) - 1 - $body };
        ($start, $body) = (pos $text, undef);
    }
    croak 'not a configuration: ' . substr $text, $start if $depth || substr($text, $start) =~ /\A\s*[^\s#]/;
    return @found;
}

my %of_server = map { $_ => 1 } qw(location if set return rewrite break server_name);
my %of_test   = map { $_ => 1 } qw(events user worker_processes pid error_log load_module);

sub configuration {
    my ($text) = @_;
    my %conf = map { $_ => '' } qw(name http server servers);
    for my $part (map { $_->{name} eq 'http' ? _statements($_->{body}) : $_ } _statements($text)) {
        if ($part->{name} eq 'server' && $conf{server} eq '') {
            my @inside = grep { $_->{name} !~ /^(?:listen|root)$/ } _statements($part->{body});
            $conf{server} = join '', map { $_->{text} } @inside;
        } elsif ($part->{name} eq 'server') {
            $conf{servers} .= $part->{text};
        } elsif (!$of_test{ $part->{name} }) {
            $conf{ $of_server{ $part->{name} } ? 'server' : 'http' } .= $part->{text};
        }
    }
    s/127\.0\.0\.1:8081/127.0.0.1:%PORT1%/g for values %conf;
    return %conf;
}

sub completed {
    my (%conf) = @_;
    my $all   = join "\n", values %conf;
    my %added = map { $_ => [] } qw(redis zone upstream);
    my $defined = sub { my ($what, $name) = @_; return $all =~ /^\s*$what\s+(?:.*\bzone=)?\Q$name\E\b/m };
    for my $name ($all =~ /\bredis=([\w-]+)/g) {
        push @{ $added{redis} }, "rate_limit_redis $name redis://127.0.0.1:1;" if !$defined->('rate_limit_redis', $name);
    }
    for my $use ($all =~ /\brate_limit(?:_shadow)?\s+(zone=[^;]+);/g) {
        my ($name) = $use =~ /^zone=(\S+)/;
        my $algorithm = $use =~ /\b(?:burst|delay|nodelay)\b/ ? 'algorithm=leaky_bucket' : '';
        push @{ $added{zone} }, "rate_limit_zone \$remote_addr zone=$name:1m rate=100r/m $algorithm;"
            if !$defined->('rate_limit_zone', $name);
    }
    for my $name ($all =~ m{(?:grpc|https?)://(\w+)\b(?![.:])}g) {
        push @{ $added{upstream} }, "upstream $name { server 127.0.0.1:%PORT1%; }" if !$defined->('upstream', $name);
    }
    my %seen;
    my $more = join '', map {"$_\n"} grep { !$seen{$_}++ } map { @{ $added{$_} } } qw(redis zone upstream);
    return (%conf, http => $more . ($conf{http} // ''));
}

sub transcript {
    my ($text) = @_;
    my @parts = $text =~ /^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)/mg;
    my @pairs;
    while (my ($command, $answer) = splice @parts, 0, 2) {
        push @pairs, [ $command, $answer ];
    }
    return @pairs;
}

sub run_command {
    my ($command, %changes) = @_;
    my $nginx = delete $changes{nginx};
    $command =~ s/$_/$changes{$_}/g for sort keys %changes;
    $command =~ s{\blocalhost(?::8080)?(?=[/\s'"])}{'127.0.0.1:' . $nginx->port}ge if $nginx;
    open my $shell, '-|', 'sh', '-c', "exec 2>&1\n$command" or croak "sh: $!";
    local $/ = undef;
    my $answer = <$shell> // '';
    close $shell or $answer .= $! ? "sh: $!" : '';
    return $answer;
}

sub alike {
    my ($text) = @_;
    $text =~ s/\r//g;
    $text =~ s/((?:X-RateLimit-Reset|Retry-After|Date): ).*/$1N/g;
    $text =~ s/("(?:resetAfterSeconds|retryAfterSeconds|time)":)[\d.]+/$1N/g;
    $text =~ s/(;t=)\d+/$1N/g;
    return join "\n", map {s/^\s+|\s+$//gr} split /\n/, $text;
}

1;
