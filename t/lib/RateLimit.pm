# nginx with the module, for tests that need more than Test::Nginx, and an HTTP client that returns every byte.
#
#   use lib 't/lib';
#   use RateLimit qw(check_config start_nginx http_get http_request open_connection decode_json slurp);
#
# A configuration consists of parts, each a text of directives. A test gives the parts that it needs:
#
#   main      top level                                     http      inside http {}, before the server
#   server    inside the server {} that listens             servers   inside http {}, after that server
#   listen    more parameters of its listen                 workers   worker_processes (1)
#   name      its server_name (localhost); '' for none
#   port      its port (the next one of RL_PORTS)           log_level of error_log (info)
#   module    0: do not load the module                  connections   of a worker (256)
#   shutdown  worker_shutdown_timeout (10s)
#   clock     1: its clock is frozen until advance(); see RateLimit::Clock. 'day': only the time of day is
#
# In a text, %PORT% stands for the port of the server, %PORT1% … %PORT4% for further free ports, %DIR% for the folder of
# this nginx, which holds nginx.conf, error.log, access.log, nginx.pid and the root, html/.
#
# FUNCTIONS
#   check_config(%conf)         runs `nginx -t`; returns { exit => status, stderr => text, emerg => [lines] }
#   start_nginx(%conf)          starts nginx, with a master, and waits until it listens; returns an object (METHODS).
#                               Dies with nginx's messages if it does not start. Stops when the object is destroyed
#   http_get($port, $path, %headers)
#                               one GET over a new connection; returns a response (RESPONSES)
#   http_request($port, method => 'GET', path => '/', headers => [name => value, …], body => text, version => '1.1')
#                               the same with all options. Adds Host and Connection: close, and Content-Length if
#                               there is a body, unless `headers` has them
#   open_connection($port)      a connection for several requests: ->send($bytes), ->receive (next response; give it the
#                               method if that was HEAD), ->at_end (true if the peer has closed), ->close
#   format_request(%request)    the bytes that http_request would send
#   wait_for($what, $condition) calls the condition until it is true, and returns its value; dies after 60 seconds
#   slurp($file)                the content of a file, '' if there is none
#   decode_json($text)          from JSON::PP
#
# METHODS of the object that start_nginx returns
#   port, dir, pid              pid is the master's
#   get($path, %headers), request(%request), connect
#                               http_get, http_request and open_connection to it
#   error_log, access_log       the text so far
#   wait_for_log($pattern)      waits until error.log matches; returns what the pattern captured, or 1
#   write_file($name, $text)    a file under html/
#   workers                     process ids of the workers
#   reload(%conf)               a new configuration (all of it), and waits until only new workers are left
#   signal($name)               to the master
#   stop                        stops nginx, and waits for its end
#   advance($seconds)           advances the clock of an nginx with `clock`, and wakes a worker
#   now                         the time of that clock, in seconds since 1970
#   pass_delay($seen)           waits until error.log, after $seen bytes, has a delayed request, and advances the clock
#                               by its delay
#   delayed_request(%request)   request, for one that is delayed: advances the clock by its delay
#
# RESPONSES
#   { status => 429, headers => [ [name, value], … ], body => text, seconds => how long it took, raw => all bytes }
#   $response->header('X-Name') its only value; undef if absent; all values, joined by ' | ', if there are several
#   $response->count('X-Name')  how often it occurs
package RateLimit;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use File::Path qw(make_path);
use IO::Socket::INET;
use List::Util qw(min);
use JSON::PP qw(decode_json);
use POSIX qw(:sys_wait_h SIGABRT SIGBUS SIGFPE SIGILL SIGSEGV);
use RateLimit::Client qw(format_request http_get http_request open_connection);
use RateLimit::Clock ();
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(check_config start_nginx http_get http_request open_connection format_request wait_for slurp
    decode_json write_text);

my $patience = 60;    # timeout in seconds; longer than any machine needs
my @ports    = split ' ', $ENV{RL_PORTS} // '';
my $nginxes  = 0;
my %running;          # objects by process id

sub slurp {
    my ($file) = @_;
    open my $in, '<:raw', $file or return '';
    local $/ = undef;
    return <$in> // '';
}

sub wait_for {
    my ($what, $condition) = @_;
    my $deadline = time + $patience;
    my $pause    = 0.002;
    while (time < $deadline) {
        my $value = $condition->();
        return $value if $value;
        sleep $pause;
        $pause = min($pause * 1.3, 0.03);    # frequent checks would slow down the servers
    }
    croak "timed out waiting for $what";
}

sub write_text {
    my ($file, $text) = @_;
    open my $out, '>:raw', $file or croak "$file: $!";
    print {$out} $text;
    close $out or croak "$file: $!";
    return;
}

sub new_folder {
    my ($name) = @_;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . "/nginx-$name";
    make_path("$dir/html", "$dir/temp");
    return $dir;
}

sub write_config {
    my ($dir, $port, %conf) = @_;
    my $load   = ($conf{module} // 1) && $ENV{RL_MODULE} ? "load_module $ENV{RL_MODULE};" : '';
    my $user   = $> == 0              ? 'user root;'                   : '';
    my $level  = $conf{log_level} // 'info';
    my $listen = $conf{listen}    // '';
    my $name   = ($conf{name} // 'localhost') =~ s/^(?=.)(.*)/server_name $1;/r;
    my $temp   = join "\n    ", map {"${_}_temp_path temp/$_;"} qw(client_body proxy fastcgi uwsgi scgi);
    my %text   = map { $_ => $conf{$_} // '' } qw(main http server servers);
    my $text   = <<"CONF";
$load
$user
daemon off;
pid nginx.pid;
error_log error.log $level;
worker_processes @{[ $conf{workers} // 1 ]};
worker_shutdown_timeout @{[ $conf{shutdown} // '10s' ]};
$text{main}
events { worker_connections @{[ $conf{connections} // 256 ]}; }
http {
    $temp
    default_type text/plain;
    access_log access.log;
    keepalive_timeout 60s;
    client_header_timeout 60s;
    $text{http}
    server {
        listen 127.0.0.1:$port $listen;
        $name
        root html;
        $text{server}
    }
    $text{servers}
}
CONF
    $text =~ s/%PORT(\d?)%/$1 eq '' ? $port : $ports[$#ports - $1 + 1] \/\/ croak 'RL_PORTS has too few ports'/ge;
    $text =~ s/%DIR%/$dir/g;
    write_text("$dir/nginx.conf", $text);
    return;
}

sub binary { return $ENV{TEST_NGINX_BINARY} // 'nginx' }

sub check_config {
    my (%conf) = @_;
    my $dir = new_folder('t');
    write_config($dir, $conf{port} // $ports[0], %conf);
    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        open STDERR, '>', "$dir/stderr" or die "stderr: $!\n";
        open STDOUT, '>&', \*STDERR or die "stdout: $!\n";
        exec binary(), '-t', '-q', '-e', 'stderr', '-p', $dir, '-c', "$dir/nginx.conf"
            or POSIX::_exit(127);
    }
    waitpid $pid, 0;
    note_crash($?);
    my $exit   = $? >> 8 || $? & 127;
    my $stderr = slurp("$dir/stderr");
    return { exit => $exit, stderr => $stderr, emerg => [ grep {/\[emerg\]/} split /\n/, $stderr ] };
}

sub start_nginx {
    my (%conf) = @_;
    my $port = $conf{port} // shift @ports // croak 'RL_PORTS has too few ports';
    my $self = bless { dir => new_folder(++$nginxes), port => $port, owner => $$ }, __PACKAGE__;
    write_config($self->{dir}, $port, %conf);
    $self->{clock} = RateLimit::Clock->new("$self->{dir}/clock") if $conf{clock};
    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        %ENV = (%ENV, $self->{clock}->environment($conf{clock} eq 'day')) if $conf{clock};
        open STDERR, '>', "$self->{dir}/stderr" or die "stderr: $!\n";
        open STDOUT, '>&', \*STDERR or die "stdout: $!\n";
        exec binary(), '-e', 'stderr', '-p', $self->{dir}, '-c', "$self->{dir}/nginx.conf" or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    $running{$pid} = $self->{dir};
    # nginx forks its workers after it begins to listen.
    my $workers = ($conf{main} // '') =~ /master_process\s+off/ ? 0 : ($conf{workers} // 1) =~ /^(\d+)$/ ? $1 : 1;
    wait_for(
        "nginx on port $port",
        sub {
            if (waitpid($pid, WNOHANG) == $pid) {
                delete $running{ delete $self->{pid} };
                croak 'nginx did not start: ' . slurp("$self->{dir}/stderr") . $self->error_log;
            }
            return -s "$self->{dir}/nginx.pid" && $self->workers >= $workers
                && IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
        }
    );
    return $self;
}

sub port { my ($self) = @_; return $self->{port} }
sub dir  { my ($self) = @_; return $self->{dir} }
sub pid  { my ($self) = @_; return $self->{pid} }

sub error_log  { my ($self) = @_; return slurp("$self->{dir}/error.log") }
sub access_log { my ($self) = @_; return slurp("$self->{dir}/access.log") }

sub get     { my ($self, @more) = @_; return http_get($self->{port}, @more) }
sub request { my ($self, @more) = @_; return http_request($self->{port}, @more) }
sub connect { my ($self) = @_; return open_connection($self->{port}) }    ## no critic (ProhibitBuiltinHomonyms)

sub write_file {
    my ($self, $name, $text) = @_;
    my ($folder) = "$self->{dir}/html/$name" =~ m{(.*)/};
    make_path($folder);
    write_text("$self->{dir}/html/$name", $text);
    return;
}

sub wait_for_log {
    my ($self, $pattern) = @_;
    my @found;
    wait_for("$pattern in $self->{dir}/error.log", sub { @found = $self->error_log =~ $pattern });
    return wantarray ? @found : $found[0];
}

sub workers {
    my ($self) = @_;
    my @pids = sort { $a <=> $b } split ' ', slurp("/proc/$self->{pid}/task/$self->{pid}/children");
    return @pids;
}

sub reload {
    my ($self, %conf) = @_;
    my %old = map { $_ => 1 } $self->workers;
    write_config($self->{dir}, $self->{port}, %conf);
    $self->signal('HUP');
    wait_for(
        'new workers',
        sub {
            my @now = $self->workers;
            return @now == ($conf{workers} // 1) && !grep { $old{$_} } @now;
        }
    );
    return;
}

# A worker reads the clock at an event, such as a new connection. A worker that gets no connection reads the clock when
# its next timer is due by the real clock.
sub advance {
    my ($self, $seconds) = @_;
    $self->{clock}->advance($seconds);
    IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port});
    return;
}

sub now { my ($self) = @_; return $self->{clock}->now }

sub pass_delay {
    my ($self, $seen) = @_;
    my $delay = wait_for('a delay', sub { substr($self->error_log, $seen) =~ /delaying request.* goes on in ([\d.]+)s/ && $1 });
    $self->advance($delay);
    return;
}

sub delayed_request {
    my ($self, %request) = @_;
    my $seen       = length $self->error_log;
    my $connection = $self->connect;
    $connection->send(format_request(%request));
    $self->pass_delay($seen);
    return $connection->receive($request{method});
}

sub signal {
    my ($self, $name) = @_;
    kill $name, $self->{pid};
    return;
}

sub stop {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    delete $running{$pid};
    end_process($pid);
    return;
}

sub end_process {
    my ($pid) = @_;
    local ($?, $!) = (0, 0);
    kill 'TERM', $pid;
    my $deadline = time + $patience;
    while (waitpid($pid, WNOHANG) == 0) {
        kill 'KILL', $pid if time > $deadline;
        sleep 0.005;
    }
    note_crash($?);
    return;
}

# scripts/test fails a program that leaves this file. nginx itself logs crashes of workers only.
sub note_crash {
    my ($status) = @_;
    my $signal = $status & 127;
    return unless grep { $_ == $signal } SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV;
    open my $out, '>>', "$ENV{RL_DIR}/crashes" or croak "$ENV{RL_DIR}/crashes: $!";
    print {$out} "a process of nginx ended by signal $signal\n";
    close $out or croak "$ENV{RL_DIR}/crashes: $!";
    return;
}

sub DESTROY {
    my ($self) = @_;
    $self->stop if $self->{owner} == $$;
    return;
}

# If the test dies, its nginx is stopped.
my $test = $$;

END {
    if ($$ == $test) {
        end_process($_) for keys %running;
    }
}

1;
