# The contestants of bench/run: limiters in front of the same small response, and the servers that they need.
#
#   use RateLimit::Bench::Contestants qw(contestant available open_stage algorithms);
#
# FUNCTIONS
#   contestant($name)           { name, title, … }; dies if there is none
#   available(@names)           those that this build of the module can run
#   algorithms                  their names; each has the contestants NAME_memory and NAME_redis
#   open_stage(%options)        starts the servers of some contestants; returns an object (METHODS). They end with it
#
# OPTIONS of a stage
#   contestants names                                       workers     of each nginx, threads of HAProxy (1)
#   http2       1: HTTP/2 without TLS                       cluster     an object of RateLimit::Cluster, if one of
#   ports       free ports for all contestants                          them needs a cluster
#   apart       1: an nginx for each contestant, so that background work is measured with the contestant that has it
#   server_cpu  pins nginx and HAProxy to this CPU          redis_cpu   the same for the servers of Redis
#
# METHODS
#   port($name)                 the port of a contestant
#   servers($name)              process ids of nginx's workers, or of HAProxy
#   redis($name)                its Redis servers, objects of RateLimit::Redis
#   nginx($name)                its nginx, an object of RateLimit; undef for HAProxy
#   calls($name)                number of calls that its Redis servers have run
#   lookups($name)              number of keys that its Redis servers have looked up: one for each check
#   news($name)                 the last new line of its nginx's error log since the last call, or undef
#   close
package RateLimit::Bench::Contestants;
use strict;
use warnings;

use Carp qw(croak);
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use IO::Socket::INET;
use List::Util qw(sum0);
use POSIX qw(WNOHANG);
use RateLimit qw(check_config start_nginx wait_for);
use RateLimit::Bench::Figures qw(last_line);
use RateLimit::Redis qw(start_redis);

our @EXPORT_OK = qw(contestant available open_stage algorithms);

my %running;    # HAProxy: 1 by process id
my $here = dirname(abs_path(__FILE__)) . '/../../..';    # bench/

# All requests are admitted, or none; where a limit of zero is not possible, the first request of a client is admitted.
# The period is a minute, because state that expires after a second would be deleted and created all the time. All zones
# have the same size, which fits 100,000 clients of limit_req.
my $zone   = 'zone=%s:16m';
my $ample  = 'rate=1000000000r/m';
my $scarce = 'rate=1r/d';
my $ask    = 'timeout=1s';
my %denied = (rejected => 1, visits => 2, from_cache => 1);

my @algorithms = qw(token_bucket leaky_bucket gcra fixed_window sliding_window sliding_buckets sliding_log);

# title: without commas. kind: the server that it runs in (see start). http, location: directives, in which %s is the
# zone and %r the name of its Redis. redis: needs a Redis. beside: the contestant to compare with, by default plain.
# rejected: all requests are rejected. visits: requests of each client until its state is stable (1). settle: seconds
# until background work is done. from_cache: the deny cache should decide. lasts: seconds after which each client is
# admitted once more. body: the file of an upstream that is passed on instead of the small response. optional: is left
# out if nginx refuses its directives. url_options: of its rate_limit_redis. loads: a module for its Redis, below the
# folder of the build; without this file, the contestant is left out.
my %contestants = (
    plain     => { title => 'no limit',                      kind => 'ours', http => '', location => '' },
    bare      => { title => 'no limit (module not loaded)',   kind => 'bare', http => '', location => '' },
    limit_req => {
        title    => 'limit_req',
        kind     => 'ours',
        http     => "limit_req_zone \$arg_k $zone rate=1000000r/s;",
        location => 'limit_req zone=%s burst=1000000 nodelay;',
    },
    haproxy_plain => { title => 'HAProxy: no limit',    kind => 'haproxy', rules => '' },
    haproxy       => {
        title  => 'HAProxy: stick-table',
        kind   => 'haproxy',
        beside => 'haproxy_plain',
        rules  => "    stick-table type string len 32 size 200k expire 2m store http_req_rate(60s)\n"
            . "    http-request track-sc0 url_param(k)\n"
            . "    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 1000000000 }\n",
    },
    openresty => { title => 'Lua and Redis', kind => 'lua', redis => 1, limit => 1_000_000_000 },
    memory    => { title => 'ours: memory', ours('memory', $ample) },
    memory_bare => { title => 'ours: memory without headers', ours('memory', $ample, 'rate_limit_headers off;') },
    memory_observed => { title => 'ours: memory with metrics', ours('memory', $ample), kind => 'observed' },
    redis   => { title => 'ours: Redis',             ours('redis', "$ample redis=%r") },
    sync    => { title => 'ours: sync=100ms', ours('redis', "$ample redis=%r sync=100ms"), settle => 0.15 },
    lease   => { title => 'ours: lease=10000', ours('redis', "$ample redis=%r lease=10000"), settle => 0.15 },
    cluster => { title => 'ours: Cluster of 3',      ours('cluster', "$ample redis=%r") },
    native  => {
        title => 'ours: Redis, native', ours('redis', "$ample redis=%r"),
        optional => 1, loads => 'rate_limit.so', url_options => 'native=on',
    },

    memory_estimate => { title => 'ours: memory with cost=2', ours('memory', $ample, '', words => 'cost=2') },
    memory_settle   => { title => 'ours: memory with cost=2 settle=', settled('memory', $ample, 2) },
    memory_owed     => { title => 'ours: memory with cost=1 settle=', settled('memory', $ample, 1) },
    redis_estimate  => { title => 'ours: Redis with cost=2', ours('redis', "$ample redis=%r", '', words => 'cost=2') },
    redis_settle    => { title => 'ours: Redis with cost=2 settle=', settled('redis', "$ample redis=%r", 2) },

    limit_req_denied => {
        title    => 'limit_req',
        kind     => 'ours',
        rejected => 1,
        lasts    => 62,
        http     => "limit_req_zone \$arg_k $zone rate=1r/m;",
        location => 'limit_req zone=%s; limit_req_status 429; limit_req_log_level info;',
    },
    haproxy_denied => {
        title    => 'HAProxy: stick-table',
        kind     => 'haproxy',
        beside   => 'haproxy_plain',
        rejected => 1,
        rules    => "    stick-table type string len 32 size 200k expire 2m store http_req_rate(60s)\n"
            . "    http-request track-sc0 url_param(k)\n"
            . "    http-request deny deny_status 429 if { sc_http_req_rate(0) gt 0 }\n",
    },
    openresty_denied => { title => 'Lua and Redis', kind => 'lua', redis => 1, limit => 0, rejected => 1 },
    memory_denied    => { title => 'ours: memory', ours('memory', $scarce), rejected => 1 },
    redis_denied     => {
        title => 'ours: Redis without deny cache',
        ours('redis', "$scarce redis=%r deny_cache=off"), rejected => 1,
    },
    cache_denied => {
        title => 'ours: deny cache',
        ours('redis', "$scarce redis=%r deny_cache=10m"), %denied,
    },
    cache_denied_bare => {
        title => 'ours: deny cache without headers',
        ours('redis', "$scarce redis=%r deny_cache=10m", 'rate_limit_headers off;'), %denied,
    },
);
for my $algorithm (@algorithms) {
    my $rate  = $algorithm eq 'sliding_log'         ? 'rate=100r/m'   : $ample;
    my $burst = $algorithm =~ /leaky_bucket|gcra/   ? 'burst=1000000' : '';
    my $delay = $algorithm eq 'leaky_bucket'        ? 'nodelay'       : '';
    my $size  = $algorithm eq 'sliding_log'         ? 'zone=%s:64m'   : $zone;
    for my $place (qw(memory redis)) {
        my $redis = $place eq 'redis' ? 'redis=%r' : '';
        $contestants{"${algorithm}_$place"} = {
            title => "$algorithm: $place",
            ours($place, "$rate algorithm=$algorithm $burst $redis", '', size => $size, words => $delay),
        };
    }
}

# Responses of an upstream, each passed on with and without rate_limit_response.
my %bodies = (json_10k => '10 kB of JSON', json_1m => '1 MB of JSON', events => '50 kB of events');
for my $body (keys %bodies) {
    my %same = (kind => 'ours', body => $body, http => '');
    $contestants{$body} = { %same, title => "$bodies{$body}: passed on", location => '' };
    $contestants{"${body}_read"} = {
        %same,
        title    => "$bodies{$body}: with rate_limit_response",
        beside   => $body,
        location => 'rate_limit_response $tokens json:usage.total_tokens;',
    };
}

# A contestant whose requests have an estimate of $cost and turn out to cost 3 - $cost, beside the same limit without
# settle=.
sub settled {
    my ($place, $options, $cost) = @_;
    my %is = ours($place, $options, '', words => "cost=$cost settle=\$actual_%s");
    $is{http} .= " map \$status \$actual_%s { 200 @{[ 3 - $cost ]}; default 0; }";
    return (%is, beside => $cost == 2 ? "${place}_estimate" : $place);
}

# A contestant with the module. `place` is memory, redis or cluster.
sub ours {
    my ($place, $options, $more, %is) = @_;
    my $size  = $is{size}  // $zone;
    my $words = $is{words} // '';
    return (
        kind     => 'ours',
        place    => $place,
        redis    => $place eq 'redis',
        http     => "rate_limit_zone \$arg_k $size $options;",
        location => "rate_limit zone=%s $words; rate_limit_log_level info; " . ($more // ''),
    );
}

sub algorithms { return @algorithms }

sub contestant {
    my ($name) = @_;
    return { %{ $contestants{$name} // croak "there is no contestant $name" }, name => $name };
}

sub available { return grep { !$contestants{$_}{optional} || runs($_) } @_ }

sub module_file { my ($is) = @_; return "$ENV{RL_BUILD}/$is->{loads}" }

my %runs;

sub runs {
    my ($name) = @_;
    my $is = $contestants{$name};
    return $runs{$name} //= !($is->{loads} && !-e module_file($is)) && check_config(
        http => "rate_limit_redis redis_$name redis://127.0.0.1:1 @{[ $is->{url_options} // '' ]};\n"
            . __PACKAGE__->directives($name, $is->{http}),
    )->{exit} == 0;
}

# STAGES

sub open_stage {
    my (%options) = @_;
    my $self = bless { workers => 1, %options, owner => $$ }, __PACKAGE__;
    my @names = @{ $options{contestants} };
    my @ports = @{ $options{ports} };
    croak 'a stage has too few ports' if @ports < @names + ($options{apart} ? @names : 5);
    $self->{is}    = { map { $_ => contestant($_) } @names };
    $self->{port}  = { map { $_ => shift @ports } @names };
    $self->{spare} = \@ports;
    for my $name (grep { $self->{is}{$_}{redis} } @names) {
        my $loads = $self->{is}{$name}{loads};
        my $redis = start_redis(config => $loads ? 'loadmodule ' . module_file($self->{is}{$name}) : '');
        $self->{redis}{$name} = [$redis];
        $self->pin($options{redis_cpu}, $redis->pid);
    }
    for my $name (grep { ($self->{is}{$_}{place} // '') eq 'cluster' } @names) {
        $self->{redis}{$name} = [ $options{cluster}->masters ];
    }
    $self->start_upstream if grep { $self->{is}{$_}{body} } @names;
    my %together;
    push @{ $together{ $options{apart} ? $_ : $self->{is}{$_}{kind} } }, $_ for @names;
    for my $members (map { $together{$_} } sort keys %together) {
        my $kind  = $self->{is}{ $members->[0] }{kind};
        my $nginx = $kind eq 'haproxy' ? undef : $self->start($kind, @{$members});
        $self->start_haproxy(@{$members}) if $kind eq 'haproxy';
        my @pids = $nginx ? $nginx->workers : $self->{haproxy};
        $self->pin($options{server_cpu}, @pids);
        for my $name (@{$members}) {
            $self->{nginx}{$name}   = $nginx;
            $self->{servers}{$name} = \@pids;
        }
    }
    return $self;
}

sub pin {
    my ($self, $cpu, @pids) = @_;
    return unless defined $cpu;
    system("taskset -a -cp $cpu $_ >/dev/null") == 0 or croak "taskset: $?" for @pids;
    return;
}

# Starts an nginx of one kind: with the module; with the module and metrics (without metrics or API the module does not
# count, like limit_req); without the module; or with Lua. Each contestant has its own port, so that all requests are
# alike.
#
# A request that Redis did not decide in time is logged as an error; a rejected request is not logged.
sub start {
    my ($self, $kind, @names) = @_;
    my $words   = 'reuseport' . ($self->{http2} ? ' http2' : '');
    my $http    = "access_log off; keepalive_requests 100000000;\n";
    my $main    = '';
    my $servers = '';
    if ($kind eq 'lua') {
        my ($modules) = qx($ENV{TEST_NGINX_BINARY} -V 2>&1) =~ /--modules-path=(\S+)/ or croak 'nginx has no modules';
        $main = join '', map {"load_module $modules/$_.so;\n"} qw(ndk_http_module ngx_http_lua_module);
        $http .= "lua_package_path '$here/peers/?.lua;;';\n";
    }
    for my $name (@names) {
        my $is = $self->{is}{$name};
        $http .= $self->directives($name, $is->{http}) . "\n" if $is->{http};
        $http .= $self->redis_directive($name) if $kind eq 'ours' && $self->{redis}{$name};
        my $location = $kind eq 'lua' ? $self->lua($name) : $self->directives($name, $is->{location});
        $location .= $is->{body} ? "proxy_pass http://bodies/$is->{body};" : 'empty_gif;';
        $servers .= "server { listen 127.0.0.1:$self->{port}{$name} $words; location / { $location } }\n";
    }
    if ($self->{upstream}) {
        $http .= "upstream bodies { server 127.0.0.1:@{[ $self->{upstream}->port ]}; keepalive 64; }\n"
            . "proxy_http_version 1.1; proxy_set_header Connection ''; proxy_max_temp_file_size 0;\n";
    }
    my $nginx = start_nginx(
        module      => $kind eq 'ours' || $kind eq 'observed',
        port        => shift @{ $self->{spare} },
        workers     => $self->{workers},
        connections => 4096,
        log_level   => 'error',
        main        => $main,
        http        => $http,
        server      => $kind eq 'observed' ? 'location = /metrics { rate_limit_metrics; }' : '',
        servers     => $servers,
    );
    wait_for('workers', sub { $nginx->workers == $self->{workers} });
    return $nginx;
}

# Starts an nginx with the bodies, of which each has the number of its tokens at the end.
sub start_upstream {
    my ($self) = @_;
    my $usage  = '"usage":{"prompt_tokens":19,"completion_tokens":2000,"total_tokens":2019}';
    my $vector = '{"object":"embedding","index":0,"embedding":[' . join(',', ('-0.0023064255') x 1536) . ']}';
    my $event  = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
        . '"choices":[{"index":0,"delta":{"content":"' . 'some words ' x 10 . '"},"finish_reason":null}],"usage":null}' . "\n\n";
    my %text = (
        json_10k => '{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"'
            . 'some words ' x 890 . qq("}}],$usage}),
        json_1m => '{"object":"list","data":[' . join(',', ($vector) x 46) . "],$usage}",
        events  => $event x 200 . qq(data: {"choices":[],$usage}\n\ndata: [DONE]\n\n),
    );
    my $types = "location = /events { default_type text/event-stream; }\ndefault_type application/json;\n";
    $self->{upstream} = start_nginx(
        module => 0, port => shift @{ $self->{spare} }, log_level => 'error', connections => 4096,
        http   => "access_log off; keepalive_requests 100000000;\n", server => $types,
    );
    $self->{upstream}->write_file($_, $text{$_}) for keys %text;
    $self->pin($self->{redis_cpu}, $self->{upstream}->workers);
    return;
}

sub directives {
    my ($self, $name, $text) = @_;
    return $text =~ s/%s/$name/gr =~ s/%r/redis_$name/gr;
}

sub redis_directive {
    my ($self, $name) = @_;
    my $cluster = ($self->{is}{$name}{place} // '') eq 'cluster';
    my $url     = $cluster ? $self->{cluster}->url : $self->{redis}{$name}[0]->url;
    my $more    = $self->{is}{$name}{url_options} // '';
    return "rate_limit_redis redis_$name $url $ask $more;\n";
}

sub lua {
    my ($self, $name) = @_;
    my $port = $self->{redis}{$name}[0]->port;
    return qq(access_by_lua_block { require("redis_limit").check($port, $self->{is}{$name}{limit}) });
}

sub start_haproxy {
    my ($self, @names) = @_;
    my $dir = "$ENV{RL_DIR}/haproxy";
    make_path($dir);
    my $text = "global\n    nbthread $self->{workers}\n    maxconn 4096\n"
        . "defaults\n    mode http\n    timeout client 300s\n    timeout http-keep-alive 300s\n";
    my $protocol = $self->{http2} ? 'proto h2' : '';
    for my $name (@names) {
        $text .= "frontend $name\n    bind 127.0.0.1:$self->{port}{$name} $protocol\n$self->{is}{$name}{rules}"
            . "    http-request return status 200 content-type image/gif file $dir/answer\n";
    }
    write_bytes("$dir/haproxy.cfg", $text);
    write_bytes("$dir/answer",      '.' x 43);    # as many bytes as the body of empty_gif
    my $pid = fork // croak "fork: $!";
    if (!$pid) {
        open STDOUT, '>', "$dir/output" or POSIX::_exit(127);
        open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
        exec 'haproxy', '-db', '-f', "$dir/haproxy.cfg" or POSIX::_exit(127);
    }
    $self->{haproxy} = $pid;
    $running{$pid} = 1;
    wait_for(
        'HAProxy',
        sub {
            croak 'HAProxy did not start: ' . RateLimit::slurp("$dir/output") if waitpid($pid, WNOHANG) == $pid;
            return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}{ $names[-1] });
        }
    );
    return;
}

sub write_bytes {
    my ($file, $bytes) = @_;
    open my $out, '>:raw', $file or croak "$file: $!";
    print {$out} $bytes;
    close $out or croak "$file: $!";
    return;
}

sub port    { my ($self, $name) = @_; return $self->{port}{$name} }
sub nginx   { my ($self, $name) = @_; return $self->{nginx}{$name} }
sub servers { my ($self, $name) = @_; return @{ $self->{servers}{$name} } }
sub redis   { my ($self, $name) = @_; return @{ $self->{redis}{$name} // [] } }

# The commands of a check: the script, and its likes.
my @calls = qw(evalsha fcall ratelimit.check);

sub calls {
    my ($self, $name) = @_;
    return sum0(map { my $redis = $_; map { $redis->commandstats($_) // 0 } @calls } $self->redis($name));
}

sub lookups {
    my ($self, $name) = @_;
    return sum0(map { my $redis = $_; map { $redis->info("keyspace_$_") } qw(hits misses) } $self->redis($name));
}

sub news {
    my ($self, $name) = @_;
    my $nginx = $self->{nginx}{$name} or return undef;    ## no critic (ProhibitExplicitReturnUndef)
    my $text  = $nginx->error_log;
    my $seen  = $self->{seen}{ $nginx->dir } // 0;
    $self->{seen}{ $nginx->dir } = length $text;
    return last_line(substr $text, $seen);
}

sub close {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    delete @{$self}{qw(nginx redis upstream)};
    my $pid = delete $self->{haproxy} or return;
    delete $running{$pid};
    local ($?, $!) = (0, 0);
    kill 'KILL', $pid;
    waitpid $pid, 0;
    return;
}

sub DESTROY {
    my ($self) = @_;
    $self->close if $self->{owner} == $$;
    return;
}

# If the run dies, its HAProxy is stopped.
my $owner = $$;

END {
    if ($$ == $owner) {
        kill 'KILL', keys %running;
    }
}

1;
