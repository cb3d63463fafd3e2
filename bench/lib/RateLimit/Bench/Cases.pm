# The cases of bench/costs: requests without a limit, with limit_req, and with limits of the module.
#
#   use RateLimit::Bench::Cases qw(@plain @memory @redis @settle @algorithms …);
#
# VARIABLES
#   @plain, @memory, @redis, @settle
#                               the cases, by the nginx that they need: without the module, with it, with a Redis that
#                               has the name fleet, and with settle=, whose handler runs for all requests of its nginx
#   @algorithms                 names of all algorithms
#
# FUNCTIONS
#   choose(@names)              keeps only the cases of these names and their plain cases; dies if a name is unknown
#   plain_of($case)             the name of the plain case that a case is compared with
#   limited_with($algorithm, $count)
#                               the directives of a case that admits $count requests a minute, even in one burst
#   limited_by_limit_req($rate, $words)
#                               the same for limit_req
#   name_of($number)            the name of a client; all names have the same length
#   names_of($case, $count)     names of clients, in an order that is always the same
#
# CASES
#   A case has a name and, unless it is a plain one, the directives `zone` and `apply`, where {Z} is replaced by the
#   zone's name and {SIZE} by its size. `handler` is the function that decides, `status` is the expected status of all
#   responses (200), `keys` is the number of clients (1). `together`: requests are sent concurrently.
package RateLimit::Bench::Cases;
use strict;
use warnings;

use Exporter qw(import);

our @EXPORT_OK =
    qw(@plain @memory @redis @settle @algorithms choose plain_of limited_with limited_by_limit_req name_of names_of);

my $clients = 10_000;    # in cases with many clients

our @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);

my $generous = 'rate=1000000r/s';
my $strict   = 'rate=1r/h';
my $patient  = 'redis=fleet on_error=closed';

our @plain = (
    { name => 'plain' },
    { name => 'plain, 64 at once', together => 1 },
    { name => 'plain, rejected', apply => 'return 429;', status => 429 },
    with_keys('limit_req', limited_by_limit_req('1000000r/s', 'burst=1000000 nodelay')),
    with_keys('limit_req, rejected', { %{ limited_by_limit_req('1r/m', '') }, status => 429 }),
);
our @memory = (
    { name => 'not used' },
    with_keys('memory', limited($generous)),
    with_keys('memory, headers off', { %{ limited($generous) }, headers => 'off' }),
    with_keys('memory, rejected', { %{ limited($strict) }, status => 429 }),
    map { { %{ limited_with($_, 10_000) }, name => "memory, $_" } } @algorithms,
);
our @redis = (
    with_keys('redis', limited("$generous $patient")),
    { %{ limited("$generous $patient") }, name => 'redis, 64 at once', keys => $clients, together => 1 },
    with_keys('sync', limited("$generous redis=fleet sync=1h")),
    with_keys('denied from the cache', { %{ limited("$strict $patient deny_cache=1h") }, status => 429 }),
);
our @settle = (
    with_keys('memory, settle', settled($generous, 2)),
    { %{ settled($generous, 1) }, name => 'memory, settle for more' },
    { %{ settled("$generous $patient", 2) }, name => 'redis, settle, 64 at once', keys => $clients, together => 1 },
);

sub limited {
    my ($options, $words) = @_;
    return {
        zone    => "rate_limit_zone \$arg_k zone={Z}:{SIZE} $options;",
        apply   => 'rate_limit zone={Z} ' . ($words // '') . ';',
        handler => 'handle_access',
    };
}

# A limit whose requests have an estimate of $cost, and turn out to cost 3 - $cost.
sub settled {
    my ($options, $cost) = @_;
    my $case = limited($options, "cost=$cost settle=\$actual_{Z}");
    $case->{zone} .= " map \$status \$actual_{Z} { 200 @{[ 3 - $cost ]}; default 0; }";
    return $case;
}

sub limited_with {
    my ($algorithm, $count) = @_;
    my $burst = $algorithm =~ /leaky|gcra/ ? 'burst=' . ($count - 1) : '';
    return limited("algorithm=$algorithm rate=${count}r/m $burst", $algorithm =~ /leaky/ ? 'nodelay' : '');
}

sub limited_by_limit_req {
    my ($rate, $words) = @_;
    return {
        zone    => "limit_req_zone \$arg_k zone={Z}:{SIZE} rate=$rate;",
        apply   => "limit_req zone={Z} $words;",
        handler => 'ngx_http_limit_req_handler',
    };
}

sub with_keys {
    my ($name, $case) = @_;
    return ({ %{$case}, name => $name, keys => 1 }, { %{$case}, name => "$name, many keys", keys => $clients });
}

sub plain_of {
    my ($case) = @_;
    return 'plain' . ($case->{together} ? ', 64 at once' : $case->{status} ? ', rejected' : '');
}

sub choose {
    my (@names) = @_;
    my %case    = map { $_->{name} => $_ } @plain, @memory, @redis, @settle;
    my @unknown = grep { !$case{$_} } @names;
    die "costs: a case is one of: @{[ join '; ', sort keys %case ]}\n" if @unknown || !@names;
    my %wanted = map { $_ => 1, plain_of($case{$_}) => 1 } @names;
    for my $cases (\@plain, \@memory, \@redis, \@settle) {
        @{$cases} = grep { $wanted{ $_->{name} } } @{$cases};
    }
    return;
}

sub name_of { my ($number) = @_; return 'client-' . (100_000 + $number) }

sub names_of {
    my ($case, $count) = @_;
    my $keys = $case->{keys} // 1;
    my $seed = 1;
    my @names;
    for (1 .. $count) {
        $seed = ($seed * 1_103_515_245 + 12_345) % 2_147_483_648;
        push @names, name_of(int($seed / 65_536) % $keys);
    }
    return @names;
}

1;
