# The cost of a request: a number, a variable, zero, or more than the limit ever allows.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use Test::More;

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);

my ($zones, $locations) = ('', '');
for my $algorithm (@algorithms) {
    my $ten = $algorithm =~ /^(?:leaky_bucket|gcra)/ ? 'burst=9' : '';
    my $nodelay = $algorithm eq 'leaky_bucket' ? 'nodelay' : '';
    $zones .= "rate_limit_zone \$http_x_client zone=$algorithm:1m rate=10r/52w algorithm=$algorithm $ten;\n";
    $locations .= "location /$algorithm/$_ { rate_limit zone=$algorithm cost=$_ $nodelay; empty_gif; }\n"
        for 0, 1, 3, 11, 9_007_199_254_740_991;
    $locations .= "location /$algorithm/n { rate_limit zone=$algorithm cost=\$arg_n $nodelay; empty_gif; }\n";
}
$zones .= "rate_limit_zone \$http_x_client zone=all:1m rate=10r/d algorithm=token_bucket count=all;\n";
$locations .= <<'LOCATIONS';
location /mixed {
    rate_limit zone=token_bucket cost=5;
    rate_limit zone=sliding_log cost=1;
    empty_gif;
}
location /all { rate_limit zone=all cost=$arg_n; empty_gif; }
location /text { rate_limit zone=token_bucket cost=${arg_n}0; empty_gif; }
LOCATIONS
my $nginx = start_nginx(clock => 1, http => $zones, server => $locations);

# Sends a request of the named client. Returns status, remaining, Retry-After.
sub ask {
    my ($path, $client) = @_;
    my $response = $nginx->get($path, 'X-Client' => $client // 'alice');
    return join ' ', $response->{status}, $response->header('X-RateLimit-Remaining') // '-',
        defined $response->header('Retry-After') ? 'later' : ();
}

for my $algorithm (@algorithms) {
    my $path = "/$algorithm";
    is ask("$path/0"),       '200 10',      "$algorithm: cost=0 reads the state and charges nothing";
    is ask("$path/3"),       '200 7',       "$algorithm: cost=3 charges three";
    is ask("$path/1"),       '200 6',       "$algorithm: cost=1 charges one";
    is ask("$path/n?n=4"),   '200 2',       "$algorithm: a variable cost charges its value";
    is ask("$path/3"),       '429 2 later', "$algorithm: a cost of three is rejected and not charged if two remain";
    is ask("$path/n?n=2"),   '200 0',       "$algorithm: a cost of two is admitted";
    is ask("$path/0"),       '200 0',       "$algorithm: cost=0 is admitted at the limit";
    is ask("$path/n?n=0"),   '200 0',       "$algorithm: a variable cost of 0 is admitted at the limit";
    is ask("$path/1"),       '429 0 later', "$algorithm: a cost of one is rejected at the limit";
    is ask("$path/11", 'b'), '429 10',      "$algorithm: a cost above the limit is rejected without Retry-After";
    is ask("$path/9007199254740991", 'b'), '429 10', "$algorithm: the highest cost is rejected without Retry-After";
    is ask("$path/n?n=10", 'b'),  '200 0',  "$algorithm: a cost equal to the limit is admitted";
}

my $number = 0;
for my $wrong ('', '-1', 'abc', '1.5', '9007199254740992', '99999999999999999999', '%20') {
    my $client = 'wrong' . $number++;
    is ask("/token_bucket/n?n=$wrong", $client), '200 9', "a cost of \"$wrong\" counts as 1";
    $nginx->wait_for_log(qr/\[error\].* cost "\Q$wrong\E" for zone "token_bucket" .*n=\Q$wrong\E /);
    $nginx->advance(60);
}
is ask('/token_bucket/n', 'none'), '200 9', 'an empty cost counts as 1';

# A client that controls the cost must not control the size of the log.
sub complaints {
    my ($zone) = @_;
    return scalar(() = $nginx->error_log =~ /cost "often" for zone "$zone"/g);
}
$nginx->advance(60);
ask("/$_/n?n=often", 'often') for (qw(token_bucket gcra)) x 50;
is complaints($_), 1, "$_: fifty invalid costs are logged once" for qw(token_bucket gcra);
$nginx->advance(59);
ask('/gcra/n?n=often', 'often');
is complaints('gcra'), 1, 'no second line within a minute';
$nginx->advance(1);
ask('/gcra/n?n=often', 'often') for 1 .. 3;
is complaints('gcra'),         2, 'a second line after a minute';
is complaints('token_bucket'), 1, 'each zone logs on its own';

is ask('/mixed', 'm'), '200 5', 'each zone has its own cost';
is ask('/sliding_log/0', 'm'), '200 9', 'the other zone was charged its own cost';
is ask('/text?n=1', 't'), '200 0', 'a cost may combine text and variables';

is ask('/all?n=8', 'c'), '200 2',       'count=all: eight of ten';
is ask('/all?n=3', 'c'), '429 0 later', 'count=all: three do not fit, and are counted';
is ask('/all?n=1', 'c'), '429 0 later', 'count=all: so that one does not either';

done_testing;
