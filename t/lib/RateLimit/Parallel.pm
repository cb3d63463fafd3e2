# Sends requests from several processes at once, and limits that admit an exact number of requests.
package RateLimit::Parallel;
use strict;
use warnings;

use Exporter qw(import);
use POSIX    ();
use RateLimit qw(slurp);

our @EXPORT_OK = qw(in_parallel exact_rate @algorithms);

# The parameters with which each algorithm admits a number of requests, and practically no more.
my %limited = (
    fixed_window    => sub {"rate=$_[0]r/d align=first"},
    sliding_window  => sub {"rate=$_[0]r/366d"},
    sliding_buckets => sub {"rate=$_[0]r/366d"},
    sliding_log     => sub {"rate=$_[0]r/d"},
    token_bucket    => sub {"rate=1r/d capacity=$_[0]"},
    leaky_bucket    => sub { 'rate=1r/d burst=' . ($_[0] - 1) },
    gcra            => sub { 'rate=1r/d burst=' . ($_[0] - 1) },
);
our @algorithms = sort keys %limited;

# The parameters of rate_limit_zone with which $algorithm admits $count requests during a test.
sub exact_rate {
    my ($algorithm, $count) = @_;
    return $limited{$algorithm}->($count);
}

# Runs `ask` in $count concurrent processes, with their numbers from 1, and `meanwhile`, if given, in this one. `ask`
# returns counts by name. Returns their sums.
sub in_parallel {
    my ($count, $ask, $meanwhile) = @_;
    my @children;
    for my $number (1 .. $count) {
        my $file = "$ENV{RL_DIR}/child-$number";
        unlink $file;
        defined(my $pid = fork) or die "fork: $!\n";
        if ($pid) {
            push @children, { pid => $pid, file => $file };
            next;
        }
        my $counts = eval { $ask->($number) } // { died => 1 };
        warn $@ if $@;
        open my $out, '>', $file or POSIX::_exit(1);
        print {$out} map {"$_ $counts->{$_}\n"} sort keys %$counts;
        close $out;
        POSIX::_exit(0);
    }
    $meanwhile->() if $meanwhile;
    my %sum;
    for my $child (@children) {
        waitpid $child->{pid}, 0;
        for (split /\n/, slurp($child->{file})) {
            my ($name, $number) = /(.*) (\d+)$/;
            $sum{$name} += $number;
        }
    }
    return \%sum;
}

1;
