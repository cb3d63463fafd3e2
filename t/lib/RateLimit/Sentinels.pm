# A primary, its replicas and their Sentinels, all of them real, and operations on them.
#
#   use lib 't/lib';
#   use RateLimit::Sentinels qw(start_sentinels);
#
# FUNCTIONS
#   start_sentinels(%options)   starts servers and Sentinels, and waits until every Sentinel knows all others; returns
#                               an object (METHODS). They end with the object. Each uses a port of RL_REDIS_PORTS: by
#                               default five
#
# OPTIONS
#   servers     how many, the primary included (2)          sentinels           how many (3)
#   name        of the primary (limits)                     quorum              Sentinels that must agree (2)
#   down_after  ms of silence after which the primary counts as down (1000)
#   sentinel_password   of the Sentinels' default user      sentinel_config     further lines of their configuration
#   All others are those of start_redis, for the servers; `server` and `tls` are for the Sentinels too.
#
# METHODS, which wait for at most 60 seconds
#   url(%parts)                 redis+sentinel://127.0.0.1:PORT,…/NAME/0 for rate_limit_redis; parts: user, password, db
#   name                        of the primary
#   servers                     all servers in the order of their start, as start_redis returns them
#   sentinels                   all Sentinels; they have the methods of a server, `restart` after `kill` included
#   primary                     the server that most Sentinels name now; it may have ended before they notice
#   replicas                    the other running servers
#   named_by($sentinel)         the server that this Sentinel names
#   kill_primary                SIGKILL; returns the server. See wait_for_primary
#   failover                    asks a Sentinel to make a replica the primary, and waits for it; returns the new primary
#   wait_for_primary($not_this) waits until all running Sentinels name the same server, other than $not_this, and until
#                               the server reports itself as primary; returns it
#   revive($server)             starts it again in its last role, but empty: a primary comes back as a primary,
#                               until a Sentinel makes it a replica two seconds later; see wait_until_settled
#   wait_until_settled          waits until all running Sentinels agree on the primary and reach all running Sentinels
#                               and servers, and the servers replicate the primary
package RateLimit::Sentinels;
use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use List::Util qw(first);
use RateLimit qw(slurp wait_for);
use RateLimit::Redis qw(start_redis control_user);

our @EXPORT_OK = qw(start_sentinels);

sub start_sentinels {
    my (%options) = @_;
    my %is = (servers => 2, sentinels => 3, name => 'limits', quorum => 2, down_after => 1000);
    for my $name (keys %is, qw(sentinel_password sentinel_config)) {
        $is{$name} = delete $options{$name} if exists $options{$name};
    }
    my $self = bless { %is, servers => [], sentinels => [], options => \%options, owner => $$ }, __PACKAGE__;
    for (1 .. $is{servers}) {
        my ($primary) = $self->servers;
        my $config    = $self->server_config($primary);
        push @{ $self->{servers} }, start_redis(%options, config => $config);
    }
    my %watch = (
        %is,
        primary  => $self->{servers}[0]->port,
        tls      => $options{tls},
        server   => $options{server},
        password => $is{sentinel_password},
        config   => $is{sentinel_config},
    );
    push @{ $self->{sentinels} }, RateLimit::Sentinels::Sentinel->new(%watch) for 1 .. $is{sentinels};
    $self->wait_until_settled;
    return $self;
}

# Returns the configuration of a replica, or of a primary. Both have the password, since their roles may change.
sub server_config {
    my ($self, $source) = @_;
    my ($user, $password) = control_user();
    my @lines = ("masteruser $user", qq(masterauth "$password"));
    push @lines, 'tls-replication yes' if $self->{options}{tls};
    push @lines, 'replicaof 127.0.0.1 ' . $source->port if $source;
    return join "\n", @lines, $self->{options}{config} // '';
}

sub name      { my ($self) = @_; return $self->{name} }
sub servers   { my ($self) = @_; return @{ $self->{servers} } }
sub sentinels { my ($self) = @_; return @{ $self->{sentinels} } }

sub url {
    my ($self, %parts) = @_;
    my $password = $parts{password} // $self->{options}{password};
    my $url      = $self->{options}{tls} ? 'rediss+sentinel://' : 'redis+sentinel://';
    $url .= ($parts{user} // '') . ":$password@" if defined $password;
    $url .= join ',', map { '127.0.0.1:' . $_->port } $self->sentinels;
    return "$url/$self->{name}/" . ($parts{db} // 0);
}

# Returns the servers that can answer.
sub awake { my (@servers) = @_; return grep { $_->pid && !$_->{paused} } @servers }

sub named_by {
    my ($self, $sentinel) = @_;
    my $address = $sentinel->command('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', $self->{name});
    return first { $_->port == $address->[1] } $self->servers;
}

sub primary {
    my ($self) = @_;
    my %votes;
    $votes{ $_->port }++ for map { $self->named_by($_) } awake($self->sentinels);
    my ($most) = sort { $votes{$b} <=> $votes{$a} } keys %votes;
    croak 'no Sentinel runs' unless $most;
    return first { $_->port == $most } $self->servers;
}

sub replicas {
    my ($self) = @_;
    my $primary = $self->primary;
    return grep { $_->pid && $_ != $primary } $self->servers;
}

sub kill_primary {
    my ($self) = @_;
    my $primary = $self->primary;
    $primary->kill;
    return $primary;
}

# A Sentinel refuses or gives up a failover if it has not heard of a replica for a moment: the command is retried.
sub failover {
    my ($self)     = @_;
    my $old        = $self->primary;
    my ($sentinel) = awake($self->sentinels);
    my $given_up   = () = $sentinel->log =~ /-failover-abort/g;
    my $begun;
    return $self->wait_for_primary(
        $old,
        sub {
            my $times = () = $sentinel->log =~ /-failover-abort/g;
            return if $begun && $times == $given_up;
            $given_up = $times;
            $begun    = eval { $sentinel->command('SENTINEL', 'FAILOVER', $self->{name}) };
            croak $@ if !$begun && $@ !~ /NOGOODSLAVE|INPROG/;
            return;
        }
    );
}

sub wait_for_primary {
    my ($self, $not_this, $meanwhile) = @_;
    return wait_for(
        'another primary',
        sub {
            $meanwhile->() if $meanwhile;
            my $new = eval { $self->agreed };
            return $new && (!$not_this || $new != $not_this) && says_primary($new) && $new;
        }
    );
}

# Returns the server that all Sentinels name, if they agree.
sub agreed {
    my ($self) = @_;
    my ($one, @others) = map { $self->named_by($_) } awake($self->sentinels);
    return $one && !grep({ $_ != $one } @others) && $one;
}

sub says_primary {
    my ($server) = @_;
    return awake($server) && (eval { $server->command('ROLE')->[0] } // '') eq 'master';
}

sub revive {
    my ($self, $server) = @_;
    my ($port)  = slurp($server->dir . '/redis.conf') =~ /^(?:replicaof|slaveof) \S+ (\d+)$/m;
    my $source  = $port && first { $_->port == $port } $self->servers;
    $server->restart(config => $self->server_config($source));
    return;
}

# A Sentinel that changes the role of a server closes the connections to it, so a question may remain unanswered.
sub wait_until_settled {
    my ($self) = @_;
    my $missing;
    my $settled = sub { return ($missing = eval { $self->unsettled } // $@) eq '' };
    eval { wait_for('Sentinels and servers to agree', $settled) } or croak $@ . $missing;
    return;
}

# Returns what wait_until_settled still waits for.
sub unsettled {
    my ($self) = @_;
    my $primary = $self->agreed or return 'the Sentinels do not agree';
    return 'the primary does not report itself as primary' unless says_primary($primary);
    my @replicas = awake(grep { $_ != $primary } $self->servers);
    for my $replica (@replicas) {
        my $role = $replica->command('ROLE');
        return $replica->port . " is not a replica of the primary: @{$role}[0 .. 1]"
            unless $role->[0] eq 'slave' && $role->[2] == $primary->port && $role->[3] eq 'connected';
    }
    for my $sentinel (awake($self->sentinels)) {
        my $who    = 'Sentinel ' . $sentinel->port;
        my $master = fields($sentinel->command('SENTINEL', 'MASTER', $self->{name}));
        return "$who sees the primary as $master->{flags}" if $master->{flags} ne 'master';
        return "$who knows $master->{'num-other-sentinels'} others"
            if $master->{'num-other-sentinels'} != $self->sentinels - 1;
        my @others = map { fields($_) } @{ $sentinel->command('SENTINEL', 'SENTINELS', $self->{name}) };
        my %linked = map { $_->{port} => $_->{flags} eq 'sentinel' && !$_->{'link-pending-commands'} } @others;
        return "$who does not reach all others"
            if grep { $_ != $sentinel && !$linked{ $_->port } } awake($self->sentinels);
        my %seen;
        for my $replica (map { fields($_) } @{ $sentinel->command('SENTINEL', 'REPLICAS', $self->{name}) }) {
            $seen{ $replica->{port} } = 1
                if $replica->{flags} eq 'slave' && $replica->{'master-link-status'} eq 'ok';
        }
        return "$who does not see all replicas" if grep { !$seen{ $_->port } } @replicas;
    }
    return '';
}

# All servers end at once, even if the test has a reference to one: a remaining Sentinel would reconfigure the next
# servers at these ports.
sub DESTROY {
    my ($self) = @_;
    return if $self->{owner} != $$;
    $_->kill for grep {defined} $self->sentinels, $self->servers;
    return;
}

# A list of names and values, as in a Sentinel's reply.
sub fields {
    my ($list) = @_;
    return { @{$list} };
}

# A Sentinel is a Redis server with another configuration file, where the Sentinel stores its state.
package RateLimit::Sentinels::Sentinel;
use strict;
use warnings;

use parent -norequire, 'RateLimit::Redis';

use Carp qw(croak);
use File::Path qw(make_path);
use List::Util qw(first);
use RateLimit qw(slurp);
use RateLimit::Redis qw(redis_port control_user);

my $count = 0;

# Periods in ms. The defaults, of seconds, would only make tests wait. A lost connection is retried after PING-PERIOD,
# which must be well below down_after, since every failover closes some connections. A replica that was silent for five
# periods is not promoted, and a Sentinel asks the replicas of a lost primary only once a second. After a pause, a
# Sentinel is in TILT mode, by default for 30 seconds.
my @periods = (
    'PING-PERIOD'    => 300,
    'INFO-PERIOD'    => 500,
    'ASK-PERIOD'     => 200,
    'PUBLISH-PERIOD' => 400,
    'TILT-PERIOD'    => 1000,
);

sub new {
    my ($class, %options) = @_;
    my $dir = ($ENV{RL_DIR} // croak 'run this test by `make test T=…`') . '/sentinel-' . ++$count;
    make_path($dir);
    my $port = redis_port();
    my $self = bless { dir => $dir, port => $port, taken => [$port], options => \%options, owner => $$ }, $class;
    $self->launch;
    return $self;
}

sub launch {
    my ($self) = @_;
    my @lines = split /\n/, slurp("$self->{dir}/redis.conf");
    $self->{known} = [ grep {/^sentinel (?:myid|monitor|.*-epoch|known-)/} @lines ];
    $self->SUPER::launch;
    $self->command('SENTINEL', 'DEBUG', @periods);
    return;
}

sub uses_native { return 0 }

sub configuration {
    my ($self) = @_;
    my %is     = %{ $self->{options} };
    my ($name, @known)    = ($is{name}, @{ $self->{known} });
    my ($user, $password) = control_user();
    my $watched = first {/^sentinel monitor/} @known;
    my @lines   = (
        $watched // "sentinel monitor $name 127.0.0.1 $is{primary} $is{quorum}",
        "sentinel down-after-milliseconds $name $is{down_after}",
        "sentinel failover-timeout $name 3000",
        "sentinel parallel-syncs $name 1",
        "sentinel auth-user $name $user",
        qq(sentinel auth-pass $name "$password"),
        "sentinel sentinel-user $user",
        qq(sentinel sentinel-pass "$password"),
        grep { $_ ne ($watched // '') } @known,
    );
    unshift @lines, 'tls-replication yes' if $is{tls};
    return join "\n", $self->SUPER::configuration, @lines, '';
}

# The server is a Sentinel if its program has this name.
sub binary {
    my ($self) = @_;
    my $server = $self->SUPER::binary;
    my $file   = $server =~ m{/} ? $server : first {-x} map {"$_/$server"} split /:/, $ENV{PATH};
    my $link   = "$self->{dir}/redis-sentinel";
    -l $link or symlink $file // croak("$server is nowhere in PATH"), $link or croak "$link: $!";
    return $link;
}

1;
