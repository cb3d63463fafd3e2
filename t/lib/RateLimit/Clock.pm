# A clock for a process that is frozen until a test advances it: all that the process does between two advances happens
# at one time, even on a slow machine.
#
#   my $clock = RateLimit::Clock->new("$dir/clock");    # shows the real time of now
#   %ENV = (%ENV, $clock->environment);                 # before exec; environment(1) freezes the time of day only
#   $clock->advance(1.5);                               # seconds
#
# The time of day and the monotonic clocks are frozen, or the time of day only. Timeouts in the kernel, such as that of
# epoll_wait, still take real time.
package RateLimit::Clock;
use strict;
use warnings;

use Carp qw(croak);
use Time::HiRes qw(time);

sub new {
    my ($class, $file) = @_;
    my $self = bless { file => $file, micros => int(time * 1e6) }, $class;
    $self->write;
    library();
    return $self;
}

sub advance {
    my ($self, $seconds) = @_;
    $self->{micros} += int($seconds * 1e6 + 0.5);
    $self->write;
    return;
}

# Returns the time of the clock, in seconds since 1970.
sub now {
    my ($self) = @_;
    return $self->{micros} / 1e6;
}

sub environment {
    my ($self, $day_only) = @_;
    my @sanitizer = $ENV{ASAN_OPTIONS} ? (ASAN_OPTIONS => "$ENV{ASAN_OPTIONS},verify_asan_link_order=0") : ();
    return (STOPPED_CLOCK => $self->{file}, STOPPED_DAY_ONLY => $day_only ? 1 : '', LD_PRELOAD => library(), @sanitizer);
}

# One write of eight bytes into the file, which the process has mapped.
sub write {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    open my $out, -e $self->{file} ? '+<:raw' : '>:raw', $self->{file} or croak "$self->{file}: $!";
    print {$out} pack 'q', $self->{micros};
    close $out or croak "$self->{file}: $!";
    return;
}

sub library {
    my $library = "$ENV{RL_DIR}/stopped_clock.so";
    return $library if -e $library;
    open my $compiler, '|-', qw(cc -shared -fPIC -O1 -x c -o), $library, '-', '-ldl' or croak "cc: $!";
    print {$compiler} <<'C';
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t* micros;
static int day_only;

__attribute__((constructor)) static void start(void)
{
    int file = open(getenv("STOPPED_CLOCK"), O_RDONLY | O_CLOEXEC);
    void* memory = mmap(NULL, sizeof *micros, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    micros = memory != MAP_FAILED ? memory : NULL;
    day_only = *getenv("STOPPED_DAY_ONLY") != '\0';
}

int clock_gettime(clockid_t id, struct timespec* now)
{
    int day = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    int work = id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID;
    if (micros == NULL || work || (day_only && !day)) {
        static int (*real)(clockid_t, struct timespec*);
        if (real == NULL) {
            real = dlsym(RTLD_NEXT, "clock_gettime");
        }
        return real(id, now);
    }
    int64_t time = *micros;
    now->tv_sec = time / 1000000;
    now->tv_nsec = time % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval* now, void* zone)
{
    struct timespec precise;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL) {
        *now = precise.tv_sec;
    }
    return precise.tv_sec;
}
C
    close $compiler or croak 'the clock cannot be built';
    return $library;
}

1;
