package RateLimit::HTTP3;

# HTTP/3 with an installed program: gtlsclient of ngtcp2, or t/lib/http3.py, which requires aioquic. Debian has the
# former as ngtcp2-client up to Debian 13, the latter as python3-aioquic from Debian 13 on.
#
#   use RateLimit::HTTP3;
#
# FUNCTIONS
#   missing                     why HTTP/3 cannot be tested here; undef if it can
#   has_aioquic                 whether a client can cancel requests
#
# METHODS
#   new($port, \@paths, until => 'all', method => 'GET')
#                               starts the program: it requests all paths from 127.0.0.1 at once, over one connection,
#                               which it closes after all responses; until => 'first': after the first response; until
#                               => 'cancel': it cancels all requests and stays connected (requires aioquic)
#   await($timeout)             waits until the program has ended; true if that took less than `timeout` seconds
#   output                      what the program has printed so far
#   answers                     for each path { status, headers => { name in lower case => value } }, without a status
#                               if there was no response
#   statuses                    their statuses, sorted, as one text; '-' for no response
#   end                         ends the program
use strict;
use warnings;

use Carp qw(croak);
use POSIX qw(WNOHANG);
use RateLimit qw(slurp);
use Time::HiRes qw(sleep time);

my $started = 0;
my %running;    # process ids
my $test = $$;

sub has_gtlsclient { return scalar grep { -x "$_/gtlsclient" } split /:/, $ENV{PATH} }

sub has_aioquic { return system('python3 -c "import aioquic" >/dev/null 2>&1') == 0 }

sub missing {
    my $nginx = $ENV{TEST_NGINX_BINARY} // 'nginx';
    return 'this nginx is built without --with-http_v3_module' if qx($nginx -V 2>&1) !~ /--with-http_v3_module/;
    return has_gtlsclient() || has_aioquic() ? undef : 'there is no client for HTTP/3: neither gtlsclient nor aioquic';
}

sub new {
    my ($class, $port, $paths, %option) = @_;
    my $until = $option{until} // 'all';
    my $method = $option{method} // 'GET';
    my $self = bless { file => "$ENV{RL_DIR}/http3-" . ++$started, paths => $paths }, $class;
    my @command = ('python3', 't/lib/http3.py', $port, $until, $method, @$paths);
    if ($until ne 'cancel' && has_gtlsclient()) {
        my $streams = $until eq 'all' ? 'all-streams' : 'first-stream';
        @command = (
            qw(gtlsclient --no-quic-dump --no-http-dump --timeout=60s), "--exit-on-$streams-close", "--http-method=$method", '127.0.0.1', $port,
            map {"https://localhost$_"} @$paths
        );
    }
    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        open STDOUT, '>', $self->{file} or POSIX::_exit(127);
        open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
        exec @command or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    $running{$pid} = 1;
    return $self;
}

sub await {
    my ($self, $timeout) = @_;
    my $deadline = time + $timeout;
    while (defined $self->{pid}) {
        if (waitpid($self->{pid}, WNOHANG) == $self->{pid}) {
            delete $running{ delete $self->{pid} };
            last;
        }
        return 0 if time > $deadline;
        sleep 0.005;
    }
    return 1;
}

sub end {
    my ($self) = @_;
    kill 'TERM', $self->{pid} if defined $self->{pid};
    return $self->await(10);
}

sub output { my ($self) = @_; return slurp($self->{file}) }

sub answers {
    my ($self) = @_;
    my @answers = map { { headers => {} } } @{ $self->{paths} };
    my $output = $self->output;
    while ($output =~ /^http: stream (0x[0-9a-f]+) \[(:?[^:]+): (.*)\]$/mg) {
        my ($stream, $name, $value) = ($1, $2, $3);
        my $answer = $answers[ hex($stream) / 4 ];    # the streams of a client have the numbers 0, 4, 8 …
        if ($name eq ':status') {
            $answer->{status} = $value;
        } else {
            $answer->{headers}{$name} = $value;
        }
    }
    return @answers;
}

sub statuses {
    my ($self) = @_;
    return join ' ', sort map { $_->{status} // '-' } $self->answers;
}

# If the test dies, its clients are stopped.
END {
    if ($$ == $test) {
        local ($?, $!) = (0, 0);
        for my $pid (keys %running) {
            kill 'KILL', $pid;
            waitpid $pid, 0;
        }
    }
}

1;
