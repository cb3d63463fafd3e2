# The nginx of bench/costs: one process under a program that counts, and requests to it.
#
#   use RateLimit::Bench::CountedNginx qw(start_nginx end_nginx visit request request_many request_at_once);
#
# FUNCTIONS
#   start_nginx(\@cases, %options)
#                               writes a configuration and starts nginx; the cases are those of RateLimit::Bench::Cases
#   end_nginx                   does nothing if nginx does not run
#   visit($case)                closes all connections and opens one to the server of a case; false if nginx does not
#                               listen
#   request($path, $status)     sends a request, and returns the response; dies if it has another status
#   request_many(@names)        sends pipelined requests, one for each client, and returns the statuses of the responses
#   request_at_once($case, @names)
#                               sends one request on each connection while nginx is suspended
#
# OPTIONS of start_nginx
#   program     the file of nginx                           under       the program that counts, and its arguments
#   module      the file of the module; none by default     size        of each zone (4m)
#   dir         folder for all files                        http        more directives of the http block
#   port        of all servers                              server      more directives of each server block
package RateLimit::Bench::CountedNginx;
use strict;
use warnings;

use Exporter qw(import);
use File::Path qw(make_path);
use IO::Select;
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use RateLimit qw(slurp);
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(start_nginx end_nginx visit request request_many request_at_once);

my $patience = 60;    # seconds to wait for an answer

# Of the nginx that runs.
my ($nginx, $folder, $port, @connections);    # process id, folder, port, sockets

# Each case has a server with an address of its own, so that the search for the location costs the same in all cases.
sub start_nginx {
    my ($cases, %more) = @_;
    ($folder, $port) = @more{qw(dir port)};
    my $number = 0;
    my ($zones, $servers) = ('', '');
    for my $case (@{$cases}) {
        $case->{address} = '127.0.1.' . (100 + ++$number);
        my ($zone, $apply) = map { ($_ // '') =~ s/\{Z\}/zone$number/gr } @{$case}{qw(zone apply)};
        $zone =~ s/\{SIZE\}/$more{size} \/\/ '4m'/e;
        $apply   .= " rate_limit_headers $case->{headers};" if $case->{headers};
        $zones   .= "    $zone\n";
        $servers .= <<"SERVER";
    server {
        listen $case->{address}:$port;
        location = /mark { stub_status; }
        location = /check { $apply empty_gif; }
        @{[ $more{server} // '' ]}
    }
SERVER
    }
    make_path("$folder/temp");
    my $temp = join ' ', map {"${_}_temp_path temp/$_;"} qw(client_body proxy fastcgi uwsgi scgi);
    my $load = $more{module} ? "load_module $more{module};" : '';
    open my $out, '>', "$folder/nginx.conf" or die "costs: $folder/nginx.conf: $!\n";
    print {$out} <<"CONF";
$load
@{[ $> == 0 ? 'user root;' : '' ]}
daemon off;
master_process off;
pid nginx.pid;
error_log error.log crit;
events { worker_connections 256; }
http {
    $temp
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    limit_req_status 429;
    @{[ $more{http} // '' ]}
$zones
$servers
}
CONF
    close $out or die "costs: $folder/nginx.conf: $!\n";
    $nginx = fork // die "costs: fork: $!\n";
    if (!$nginx) {
        %ENV = (PATH => $ENV{PATH});
        open STDOUT, '>', "$folder/output" or POSIX::_exit(127);
        open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
        my @words = ($more{program}, '-e', 'stderr', '-p', "$folder/", '-c', 'nginx.conf');
        exec @{ $more{under} // [] }, @words or POSIX::_exit(127);
    }
    my $deadline = time + $patience;
    until (visit($cases->[0])) {
        my $ended = waitpid($nginx, WNOHANG) == $nginx;
        undef $nginx if $ended;
        die 'costs: nginx did not start: ' . slurp("$folder/output") . slurp("$folder/error.log")
            if $ended || time > $deadline;
        sleep 0.02;
    }
    return;
}

# nginx may be a child of the process that was started: under strace it is.
sub nginx_process { return slurp("$folder/nginx.pid") =~ s/\s+//gr }

sub end_nginx {
    return unless $nginx;
    @connections = ();
    kill 'TERM', nginx_process() || $nginx;
    my $deadline = time + $patience;
    while (waitpid($nginx, WNOHANG) == 0) {
        kill 'KILL', $nginx if time > $deadline;
        sleep 0.01;
    }
    undef $nginx;
    return;
}

sub open_connection {
    my ($case) = @_;
    return IO::Socket::INET->new(PeerAddr => $case->{address}, PeerPort => $port);
}

sub visit {
    my ($case) = @_;
    @connections = ();
    @connections = grep {$_} open_connection($case);
    return scalar @connections;
}

sub send_request {
    my ($socket, $path) = @_;
    my $text = "GET $path HTTP/1.1\r\nHost: localhost\r\n\r\n";
    syswrite($socket, $text) == length $text or die "costs: send: $!\n";
    return;
}

# Reads $count responses, and assumes that no other data follows.
sub receive {
    my ($socket, $count) = @_;
    my ($text, @answers) = ('');
    while (@answers < $count) {
        IO::Select->new($socket)->can_read($patience) or die "costs: no answer\n";
        sysread $socket, $text, 1_048_576, length $text or die "costs: nginx closed the connection\n";
        while ($text =~ m{\AHTTP/1\.1 \d+ .*?\r\nContent-Length: (\d+)\r\n.*?\r\n\r\n}s) {
            my $size = $+[0] + $1;
            last if length $text < $size;
            push @answers, substr $text, 0, $size, '';
        }
    }
    return @answers;
}

sub status_of { my ($answer) = @_; return substr $answer, 9, 3 }

sub request {
    my ($path, $expected) = @_;
    send_request($connections[0], $path);
    my ($answer) = receive($connections[0], 1);
    my $status = status_of($answer);
    die "costs: $path was answered $status and not $expected\n" if $status != $expected;
    return $answer;
}

sub request_many {
    my (@names) = @_;
    my @statuses;
    while (my @some = splice @names, 0, 100) {
        send_request($connections[0], "/check?k=$_") for @some;
        push @statuses, map { status_of($_) } receive($connections[0], scalar @some);
    }
    return @statuses;
}

sub request_at_once {
    my ($case, @names) = @_;
    push @connections, open_connection($case) while @connections < @names;
    my $process = nginx_process();
    kill 'STOP', $process;
    my $deadline = time + $patience;
    until (slurp("/proc/$process/stat") =~ /\) [Tt] /) {
        die "costs: nginx does not stop\n" if time > $deadline;
        sleep 0.001;
    }
    send_request($connections[$_], "/check?k=$names[$_]") for 0 .. $#names;
    kill 'CONT', $process;
    my @statuses = map { status_of(receive($connections[$_], 1)) } 0 .. $#names;
    die "costs: $case->{name} was not answered 200\n" if grep { $_ != 200 } @statuses;
    return;
}

1;
