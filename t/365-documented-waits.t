# The times of docs/algorithms.md: what each algorithm tells a client that has used up its quota.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(slurp start_nginx);
use Test::More;

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);
my ($http, $server) = ('', '');
for my $algorithm (@algorithms) {
    my $burst   = $algorithm =~ /gcra|leaky/ ? 'burst=9' : '';
    my $nodelay = $algorithm eq 'leaky_bucket' ? 'nodelay' : '';
    $http   .= "rate_limit_zone \$http_x_client zone=$algorithm:1m rate=10r/m algorithm=$algorithm $burst;\n";
    $server .= "location = /$algorithm { rate_limit zone=$algorithm $nodelay; empty_gif; }\n";
}
for my $count (1, 5) {
    $http   .= "rate_limit_zone \$http_x_client zone=default$count:1m rate=${count}r/m;\n";
    $server .= "location = /default$count { rate_limit zone=default$count; empty_gif; }\n";
}
my $nginx = start_nginx(clock => 1, http => $http, server => "rate_limit_headers all; $server");

sub ask { my ($path) = @_; return $nginx->get("/$path", 'X-Client' => 'a') }
sub seconds_of { my ($response) = @_; return $response->header('RateLimit') =~ /;t=(\d+)/ }

# To second 30 of a minute.
$nginx->advance(90 - ($nginx->now - 60 * int($nginx->now / 60)));
my %told;
for my $algorithm (@algorithms) {
    my @answers = map { ask($algorithm) } 1 .. 10;
    is scalar(grep { $_->{status} == 200 } @answers), 10, "$algorithm: ten requests at once";
    push @{ $told{$algorithm} }, seconds_of($answers[-1]);
}
$nginx->advance(2);
for my $algorithm (@algorithms) {
    my $answer = ask($algorithm);
    is $answer->{status}, 429, "$algorithm: one more, two seconds later";
    push @{ $told{$algorithm} }, $answer->header('Retry-After'), seconds_of($answer),
        $answer->header('X-RateLimit-Reset') - int($nginx->now + 0.5);
}
my ($table) = slurp('docs/algorithms.md') =~ /<!-- table waits -->\n(.*?)<!-- end -->/s;
my %shown = map { /^\| (\w+) \| (.*) \|$/ ? ($1 => [ split / \| /, $2 ]) : () } split /\n/, $table;
delete $shown{Algorithm};
is_deeply \%told, \%shown, 'the table';

# To the beginning of a minute.
$nginx->advance(240 - ($nginx->now - 60 * int($nginx->now / 60)));
ask('default1');
ask('default5') for 1 .. 5;
is ask('default1')->header('Retry-After'), 120, 'the default under 1r/m: two minutes';
is ask('default5')->header('Retry-After'), 72,  'under 5r/m: 72 seconds';
done_testing;
