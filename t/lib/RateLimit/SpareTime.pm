# A clock for upper bounds of durations: it advances only while the machine has an idle core, so that a busy machine
# fails no test.
#
#   use lib 't/lib';
#   use RateLimit::SpareTime qw(spare_time);
#
# FUNCTIONS
#   spare_time                  seconds since the first call, without the time in which all cores were busy. A server
#                               that must act within a second of spare time has had the CPU for it. The test itself
#                               makes the first call; processes that it forks later may call it too
#
# A process of the lowest priority counts its turns. The process gets no turn while others use all cores, and each turn
# counts for a fixed time, so a machine that is suspended counts nothing.
package RateLimit::SpareTime;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use POSIX ();
use Time::HiRes qw(sleep);

our @EXPORT_OK = qw(spare_time);

my $turn = 0.005;    # seconds
my $owner = $$;
my ($counter, $in);
my $reader = 0;    # the process that opened `in`

# Each forked process has its own position in the file.
sub spare_time {
    if ($reader != $$) {
        my $name = file_name();
        start($name) if !$counter;
        open $in, '<:raw', $name or croak "$name: $!";
        $reader = $$;
    }
    sysseek $in, 0, 0;
    sysread $in, my $bytes, 8;
    return $turn * unpack 'Q', $bytes;
}

sub file_name { return ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/spare_time' }

# On a busy machine the counter may start late, and the clock with it.
sub start {
    my ($name) = @_;
    open my $out, '>:raw', $name or croak "$name: $!";
    print {$out} pack 'Q', 0;
    close $out or croak "$name: $!";
    defined($counter = fork) or croak "fork: $!";
    if (!$counter) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM);
        eval { count($name) };
        POSIX::_exit(0);
    }
    return;
}

# The process of the counter, until the test has ended. Without chrt it has the lowest ordinary priority.
sub count {
    my ($name) = @_;
    POSIX::close($_) for grep { $_ > 2 } map {m{(\d+)$}} glob '/proc/self/fd/*';
    POSIX::nice(19);
    system "chrt --idle --pid 0 $$ >/dev/null 2>&1";
    open my $out, '+<:raw', $name or return;
    for (my $turns = 1; getppid == $owner; $turns++) {
        sysseek $out, 0, 0;
        syswrite $out, pack 'Q', $turns;
        sleep $turn;
    }
    return;
}

END {
    if ($counter && $$ == $owner) {
        local ($?, $!) = (0, 0);
        kill 'KILL', $counter;
        waitpid $counter, 0;
    }
}

1;
