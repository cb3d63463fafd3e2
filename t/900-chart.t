# bench/chart: equal input gives an equal, well-formed picture that shows every number, without overlapping texts.
use strict;
use warnings;
use utf8;

use JSON::PP;
use Test::More;

binmode Test::More->builder->$_, ':encoding(UTF-8)' for qw(output failure_output);

sub write_text {
    my ($file, $text) = @_;
    open my $out, '>:encoding(UTF-8)', $file or die "$file: $!\n";
    print {$out} $text;
    close $out or die "$file: $!\n";
    return $file;
}

# Returns the output and the error message of bench/chart.
sub chart {
    my ($spec, $data) = @_;
    my $json = write_text("$ENV{RL_DIR}/spec.json", JSON::PP->new->canonical->encode($spec));
    my $csv  = write_text("$ENV{RL_DIR}/data.csv", $data);
    open my $in, '-|:encoding(UTF-8)', 'sh', '-c', 'exec bench/chart "$@" 2>"$0"', "$ENV{RL_DIR}/errors", $json, $csv
        or die "bench/chart: $!\n";
    local $/ = undef;
    my $svg = <$in> // '';
    close $in;
    open my $errors, '<', "$ENV{RL_DIR}/errors" or die "errors: $!\n";
    return wantarray ? ($svg, <$errors> // '') : $svg;
}

# Returns why a text is not well-formed XML; '' if it is. Comments and CDATA are not expected.
sub malformed {
    my ($xml) = @_;
    my @open;
    my $attribute = qr/\s+[\w:-]+="[^"<]*"/;
    while ($xml =~ /\G(?:<(\/?)([\w:]+)($attribute*)\s*(\/?)>|([^<]+))/gc) {
        my ($closes, $name, $attributes, $empty, $text) = ($1, $2, $3, $4, $5);
        my $content = ($attributes // '') . ($text // '');
        return "a bare & in $content" if $content =~ /&(?!(?:amp|lt|gt|quot);)/;
        next if defined $text;
        if ($closes) {
            my $last = pop @open // 'nothing';
            return "</$name> closes <$last>" if $last ne $name;
        } elsif (!$empty) {
            push @open, $name;
        }
    }
    return 'no markup: ' . substr $xml, pos $xml // 0, 40 if (pos $xml // 0) < length $xml;
    return @open ? "@open remain open" : '';
}

# Returns texts as { x, y, anchor, text }.
sub texts {
    my ($svg) = @_;
    my @texts;
    while ($svg =~ /<text x="([\d.]+)" y="([\d.]+)"[^>]*?(?:text-anchor="(\w+)")?>([^<]*)</g) {
        push @texts, { x => $1, y => $2, anchor => $3 // 'start', text => $4 };
    }
    return @texts;
}

# Returns pairs of texts that overlap if a letter is six pixels wide.
sub overlaps {
    my @boxes = map {
        my $width = 6 * length $_->{text};
        my $left  = $_->{x} - { start => 0, middle => $width / 2, end => $width }->{ $_->{anchor} };
        +{ %{$_}, left => $left, right => $left + $width }
    } @_;
    my @pairs;
    for my $i (1 .. $#boxes) {
        for my $j (0 .. $i - 1) {
            my ($one, $two) = @boxes[ $i, $j ];
            push @pairs, "$two->{text} / $one->{text}"
                if abs($one->{y} - $two->{y}) < 11 && $one->{left} < $two->{right} && $two->{left} < $one->{right};
        }
    }
    return @pairs;
}

# Returns the numbers in the path of a class.
sub drawn {
    my ($svg, $class) = @_;
    return [ $svg =~ /<path class="\Q$class\E" d="([^"]*)"/g ];
}

my %spec = (
    title    => 'Requests & <answers>',
    subtitle => 'some words ' x 30 . '– the end',
    x        => { column => 'seconds', title => 'seconds', span => 1 },
    marks    => [
        { at => 3.9, text => 'everything is as it was' },
        { at => 1.0, text => 'one server was killed' },
        { at => 1.1, text => 'another was promoted' },
        { at => 1.2, text => '"limits" hold again' },
    ],
    panels => [
        {
            title  => 'Answers',
            series => [
                { column => 'good', name => 'admitted', color => 'blue' },
                { column => 'bad',  name => 'errors',   color => 'red' },
                { level  => 60,     name => 'the limit', color => 'plain' },
            ],
        },
        {
            title  => 'Milliseconds',
            kind   => 'lines',
            scale  => 'log',
            series => [ { column => 'p99', color => 'green' } ],
        },
    ],
);
my $data = "seconds,good,bad,p99\n0,80,0,0.5\n1,40,40,20\n2,0,0,\n3,100,0,1\n";

subtest 'a picture' => sub {
    my ($svg, $errors) = chart(\%spec, $data);
    is $errors, '', 'no complaint';
    is malformed($svg), '', 'well-formed';
    is scalar chart(\%spec, $data), $svg, 'the same again';
    like $svg, qr/Requests &amp; &lt;answers&gt;/, 'text is text';
    like $svg, qr/prefers-color-scheme: dark/, 'it has a dark mode';
    my @texts = texts($svg);
    my %seen  = map { $_->{text} => $_ } @texts;
    my @words = ('Answers', 'admitted', 'errors', 'the limit', 'p99', 'seconds', 'one server was killed', '100', '0.1');
    ok $seen{$_}, "text: $_" for @words;
    is_deeply [ overlaps(@texts) ], [], 'no text overlaps another';
    my ($width) = $svg =~ /viewBox="0 0 (\d+)/;
    my @outside = grep { $_->{anchor} eq 'start' && $_->{x} + 6 * length $_->{text} > $width } @texts;
    is_deeply \@outside, [], 'nor outside';
    ok !(grep { length $_->{text} > 150 } @texts), 'a long subtitle is broken into lines';
};

subtest 'numbers are at their positions' => sub {
    my $svg = chart({ %spec, marks => [] }, $data);
    my ($legend, $good, $bad);
    ($good, $legend) = @{ drawn($svg, 'blue') };
    ($bad) = @{ drawn($svg, 'red') };
    my @good = $good =~ /M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)/g;
    is scalar(@good) / 4, 3, 'a bar for each number that is not zero';
    my ($left, $base, $right, $top) = @good;
    my $height = $base - $top;
    is sprintf('%.1f', ($good[5] - $good[7]) / $height), '0.5', 'half as much is half as high';
    is sprintf('%.2f', ($good[9] - $good[11]) / $height), '1.25', 'more is higher';
    my @bad = $bad =~ /M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)/;
    is $bad[1], $good[7], 'a bar stands on the one below';
    is $bad[0], $good[4], 'both bars have the same position';
    my ($level) = grep { !/h10/ } @{ drawn($svg, 'dash plain') };
    my ($y) = $level =~ /M[\d.]+ ([\d.]+)H/;
    is sprintf('%.2f', ($base - $y) / $height), '0.75', 'a level line is at its height';
    my ($line) = grep { !/h10/ } @{ drawn($svg, 'line green') };
    is $line =~ tr/ML//, 3, 'a line has a point for each number';
    like $line, qr/^M[^L]*L[^L]*M[^L]*$/, 'a missing number is a gap';
    like $line, qr/h1$/, 'a single point is visible';
};

subtest 'names instead of numbers' => sub {
    my $svg = chart(
        { x => { column => 'algorithm' }, panels => [ { title => 'ns', series => [ { column => 'time' } ] } ] },
        "algorithm,time\ngcra,20\ntoken_bucket,40\n"
    );
    is malformed($svg), '', 'well-formed';
    my %seen = map { $_->{text} => $_->{x} } texts($svg);
    cmp_ok $seen{gcra}, '<', $seen{token_bucket}, 'the names are in order';
    my ($bars) = drawn($svg, 'blue')->[0];
    is $bars =~ tr/M//, 2, 'each name has its bar';
};

subtest 'bars beside names' => sub {
    my %rows = (
        x      => { column => 'who' },
        panels => [
            {
                title  => 'µs',
                kind   => 'rows',
                low    => 'low',
                high   => 'high',
                label  => 'text',
                series => [
                    { column => 'one', name => 'first', color => 'blue' },
                    { column => 'two', name => '',      color => 'orange' },
                    { level  => 40,    name => 'goal',  color => 'plain' },
                ],
            }
        ],
    );
    my $svg = chart(\%rows, "who,one,two,low,high,text\nours,20,10,25,35,30.0\na peer,40,,,,40.0\nminus,-1,,,,-1.0\nnobody,,,,,\n");
    is malformed($svg), '', 'well-formed';
    my @texts = texts($svg);
    is_deeply [ overlaps(@texts) ], [], 'no text overlaps another';
    my %seen = map { $_->{text} => $_ } @texts;
    ok $seen{$_}, "text: $_" for 'ours', 'a peer', '30.0', '-1.0', 'first', 'goal';
    ok !$seen{nobody}, 'a row without numbers is left out';
    is $seen{ours}{x}, $seen{'a peer'}{x}, 'names are one below the other';
    my @one = map { [ /^M([\d.]+) ([\d.]+)h([\d.]+)v/ ] } grep { !/h10v10/ } @{ drawn($svg, 'blue') };
    is scalar(@one), 2, 'a negative number has no bar';
    is sprintf('%.1f', $one[1][2] / $one[0][2]), '2.0', 'twice as much is twice as long';
    my ($two) = map { [ /^M([\d.]+) ([\d.]+)h([\d.]+)v/ ] } @{ drawn($svg, 'orange') };
    cmp_ok abs($two->[0] - $one[0][0] - $one[0][2]), '<', 0.2, 'a bar begins where the one before ends';
    my ($level) = map {/^M([\d.]+) /} grep { !/h10/ } @{ drawn($svg, 'dash plain') };
    cmp_ok abs($level - $one[1][0] - $one[1][2]), '<', 0.2, 'a level line is at its position';
    is scalar(@{ drawn($svg, 'spread') }), 1, 'a spread is drawn if there is one';
};

subtest 'invalid input gives a message' => sub {
    my $of    = sub { return { %spec, panels => [ {@_} ] } };
    my %wrong = (
        'there is no column nothing'  => [ { x => { column => 'nothing' } }, $data ],
        'there is no column absent'   => [ $of->(series => [ { column => 'absent' } ]), $data ],
        'there is no color pink'      => [ $of->(series => [ { column => 'good', color => 'pink' } ]), $data ],
        'there is no kind pie'        => [ $of->(kind => 'pie', series => []), $data ],
        'many is not a number'        => [ \%spec, $data =~ s/100/many/r ],
        'a row has 2 fields'          => [ \%spec, "${data}4,5\n" ],
        'has no rows'                 => [ \%spec, "seconds,good,bad,p99\n" ],
    );
    for my $message (sort keys %wrong) {
        my ($svg, $errors) = chart(@{ $wrong{$message} });
        like $errors, qr/^chart: .*\Q$message\E/, $message;
        is $svg, '', 'nothing is drawn';
    }
};

done_testing;
