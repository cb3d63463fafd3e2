package RateLimit::Twins;

# Pairs of locations, one with limit_req and one with rate_limit and the same parameters, and the responses of both to
# simultaneous requests. The clock of nginx is frozen while requests are sent, and then advances in small steps.
use strict;
use warnings;

use Exporter qw(import);
use RateLimit qw(slurp wait_for);
use Test::More;

our @EXPORT_OK = qw(twin_config compare_twins hold_worker pass_time);

my $step      = 0.01;    # seconds
my $tolerance = 0.02;    # seconds between the responses of twins: limit_req rounds 100r/m to 1.666r/s
my $pause     = 0.55;    # seconds from the first wave to the second: not near a boundary of any rate below

# zones: [RATE, PARAMETERS] of each limit; more: a directive of both, without its prefix; first: the expected statuses
# of the first wave.
my @cases = (
    { name => 'no burst',         zones => [ ['10r/s'] ],                first => '200 429 429' },
    { name => 'burst=5',          zones => [ [ '10r/s', 'burst=5' ] ],   first => '200 200 200 200 200 200 429 429' },
    { name => 'nodelay',          zones => [ [ '10r/s', 'burst=5 nodelay' ] ], first => '200 200 200 200 200 200 429' },
    { name => 'delay=2',          zones => [ [ '10r/s', 'burst=5 delay=2' ] ], first => '200 200 200 200 200 200 429' },
    { name => 'delay above burst', zones => [ [ '10r/s', 'burst=2 delay=9' ] ], first => '200 200 200 429' },
    { name => 'delay=8 of 12',    zones => [ [ '5r/s', 'burst=12 delay=8' ] ], first => '200 ' x 13 . '429 429' },
    { name => '600r/m',           zones => [ [ '600r/m', 'burst=3' ] ],  first => '200 200 200 200 429' },
    { name => '120r/m',           zones => [ [ '120r/m', 'burst=1' ] ],  first => '200 200 429' },
    # limit_req rounds this to 1.666 a second.
    { name => '100r/m', zones => [ [ '100r/m', 'burst=1' ] ], first => '200 200 429' },
    {
        name  => 'two zones, the slower delays',
        zones => [ [ '10r/s', 'burst=5' ], [ '5r/s', 'burst=3' ] ],
        first => '200 200 200 200 429 429',
    },
    {
        name  => 'two zones, one rejects',
        zones => [ [ '2r/s', 'burst=9 nodelay' ], ['10r/s'] ],
        first => '200 429 429',
    },
    { name => 'dry run', zones => [ [ '10r/s', 'burst=2' ] ], more => 'dry_run on', first => '200 200 200 200 200' },
    { name => 'status',  zones => [ ['10r/s'] ], more => 'status 503', first => '200 503' },
    map {
        { name => "log level $_", zones => [ [ '5r/s', 'burst=1' ] ], more => "log_level $_", first => '200 200 429' }
    } qw(info notice warn error),
);

# Returns the configuration of both, with locations /limit_req/N and /rate_limit/N for each case.
sub twin_config {
    my ($http, $server) = ("limit_req_status 429;\n", "location = /free { empty_gif; }\n");
    $http .= q(log_format twins '$http_x_run $uri $arg_n $status $limit_req_status$rate_limit_status';)
        . "\naccess_log twins.log twins;\n";
    while (my ($i, $case) = each @cases) {
        for my $side (qw(limit_req rate_limit)) {
            my $location = '';
            while (my ($j, $zone) = each @{ $case->{zones} }) {
                my ($rate, $words) = (@$zone, '');
                my $name = "${side}_${i}_$j";
                my $more = $side eq 'rate_limit' ? 'algorithm=leaky_bucket' : '';
                $http     .= "${side}_zone \$http_x_run zone=$name:128k rate=$rate $more;\n";
                $location .= "$side zone=$name $words; ";
            }
            $location .= "${side}_$case->{more}; " if $case->{more};
            $server .= "location = /$side/$i { $location empty_gif; }\n";
        }
    }
    return (http => $http, server => $server, log_level => 'info', clock => 1);
}

# Stops the only worker until the returned function is called, so that the worker reads all requests in one turn of its
# event loop, at one time.
sub hold_worker {
    my ($nginx) = @_;
    my $worker;
    wait_for('a worker', sub { ($worker) = $nginx->workers });
    kill 'STOP', $worker;
    wait_for('a stopped worker', sub { slurp("/proc/$worker/stat") =~ /\) T / });
    return sub { kill 'CONT', $worker };
}

# Advances the clock in steps, and calls `look` after each step with the seconds since the start, until it returns true
# or the time is over. nginx has done all that was due by then: it reads the second of two requests after the turn of
# the first.
sub pass_time {
    my ($nginx, $seconds, $look) = @_;
    for my $number (0 .. $seconds / $step) {
        $nginx->advance($step) if $number;
        $nginx->get('/free') for 1, 2;
        return 1 if $look->($number * $step);
    }
    return 0;
}

# Returns the requests of both waves: [case, side, number, uri].
sub waves {
    my (@first, @second);
    for my $i (0 .. $#cases) {
        my @statuses = split ' ', $cases[$i]{first};
        push @first,  map { [ $i, "/limit_req/$i?n=$_" ], [ $i, "/rate_limit/$i?n=$_" ] } 1 .. @statuses;
        push @second, map { [ $i, "/limit_req/$i?n=later$_" ], [ $i, "/rate_limit/$i?n=later$_" ] } 1 .. 2;
    }
    return (\@first, \@second);
}

# Sends the requests of both sides of every case, and reports differences. `ask` gets a name for this run (the client,
# in X-Run), both lists of URIs and the pause between them. It returns both lists of { status, after }.
sub compare_twins {
    my ($nginx, $ask) = @_;
    my ($first, $second) = waves();
    my $run     = "run-$$";
    my @answers = $ask->($run, [ map { $_->[1] } @$first ], [ map { $_->[1] } @$second ], $pause);
    my @first   = pairs($first, $answers[0]);
    my @second  = pairs($second, $answers[1]);
    my $logged  = logged($nginx, $run, 2 * (map {@$_} @first, @second));
    my $differences = [
        map {
            my $i     = $_;
            my @lines = map { join '; ', excesses($nginx, $_, $i) } qw(limit_req rate_limit);
            differences($i, $first[$i], $second[$i], $logged, @lines)
        } 0 .. $#cases
    ];
    for my $i (0 .. $#cases) {
        is(join("\n", @{ $differences->[$i] }), '', "limit_req and rate_limit agree: $cases[$i]{name}");
    }
    return;
}

# Returns the responses by case, as pairs of twins.
sub pairs {
    my ($requests, $answers) = @_;
    my @pairs;
    for (my $i = 0; $i < @$requests; $i += 2) {
        push @{ $pairs[ $requests->[$i][0] ] }, [ @$answers[ $i, $i + 1 ] ];
    }
    return @pairs;
}

# Returns $limit_req_status and $rate_limit_status from the access log of a run, by URI and number.
sub logged {
    my ($nginx, $run, $count) = @_;
    my %logged;
    wait_for(
        "$count lines in twins.log",
        sub {
            %logged = map { /^\S+ (\S+ \S+) \d+ -?(\w+)-?$/ ? ($1 => $2) : () } grep {/^\Q$run\E /} split /\n/,
                slurp($nginx->dir . '/twins.log');
            return keys %logged == $count;
        }
    );
    return \%logged;
}

sub differences {
    my ($i, $first, $second, $logged, @lines) = @_;
    my @wrong;
    my $statuses = join ' ', map { $_->[1]{status} // '-' } @$first;
    my $expected = join ' ', split ' ', $cases[$i]{first};
    push @wrong, "$statuses instead of $expected" if $statuses ne $expected;
    for my $wave ([ '', $first ], [ 'later', $second ]) {
        while (my ($n, $pair) = each @{ $wave->[1] }) {
            my ($theirs, $ours) = @$pair;
            my $number = $wave->[0] . ($n + 1);
            push @wrong, "request $number: status $theirs->{status}, ours $ours->{status}"
                if $theirs->{status} ne $ours->{status};
            push @wrong, sprintf 'request %s: delay %.3f, ours %.3f', $number, $theirs->{after}, $ours->{after}
                if abs($theirs->{after} - $ours->{after}) > $tolerance;
            my @said = map { $logged->{"/$_/$i $number"} // 'nothing' } qw(limit_req rate_limit);
            push @wrong, "request $number: logged $said[0], ours $said[1]" if $said[0] ne $said[1];
        }
    }
    push @wrong, "error.log: $lines[0] - ours $lines[1]" if $lines[0] ne $lines[1] && !@wrong;
    push @wrong, 'error.log has no line of it' if $lines[0] eq '';
    return \@wrong;
}

# Returns level, text, excess and zone of the error log lines of the first wave.
sub excesses {
    my ($nginx, $side, $i) = @_;
    my $line = qr/(\[\w+\]) \S+ \S+ (\w+ing requests?.*?, excess:) ([\d.]+),? by zone "${side}_(\w+)"/;
    return map { $_ =~ $line ? "$1 $2 $3 $4" : $_ }
        grep {m{"\w+ /$side/$i\?n=\d+ }} split /\n/, $nginx->error_log;
}

1;
