# The groups of measurements of bench/run.
#
#   use RateLimit::Bench::Groups qw(groups);
#
# FUNCTIONS
#   groups($quick)              those of a full or of a quick run, in their order
#
# Each group varies one thing. `rounds` and `seconds` are those of a full and of a quick run; a group without rounds is
# left out. Short rounds are better, because the machine's other load changes within seconds; but they overstate work
# that a client causes only now and then. Contestants in `often`, with which the others are compared, are measured twice
# in a round. Rounds of a group with `goals` are never left out. `cpu` is the CPU of servers, Redis and load.
#
# A group with `paces` is measured in an open loop, at each of these requests/s; `half` is half of the requests/s of
# plain in a closed loop. With `apart`, each contestant has an nginx of its own.
package RateLimit::Bench::Groups;
use strict;
use warnings;

use Exporter qw(import);
use RateLimit::Bench::Contestants qw(algorithms available);

our @EXPORT_OK = qw(groups);

my @peers = qw(limit_req haproxy_plain haproxy openresty);
my @ours  = qw(memory memory_bare memory_observed redis sync cluster);
my %usual = (connections => 64, keys => 100_000, workers => 1, rounds => [ 2, 0 ], seconds => [ 1, 1 ], often => []);
my @groups = map { { %usual, %{$_} } } (
    {
        name        => 'pace',
        goals       => 1,
        title       => 'a steady pace, 64 connections, 100,000 keys',
        contestants => [qw(plain limit_req memory redis native sync openresty)],
        quick       => [qw(plain limit_req memory redis native sync openresty)],
        paces       => [ [ 1_000, 5_000, 20_000, 'half' ], [ 5_000, 20_000 ] ],
        apart       => 1,
        rounds      => [ 6, 1 ],
        seconds     => [ 2, 1 ],
    },
    {
        name        => 'base',
        goals       => 1,
        title       => '64 connections, 100,000 keys, one worker, HTTP/1.1, all admitted',
        contestants => [ 'plain', 'bare', @peers, @ours ],
        quick       => [ qw(plain limit_req openresty), @ours ],
        often       => ['plain'],
        rounds      => [ 6, 1 ],
        seconds     => [ 2, 1 ],
    },
    {
        name        => 'one_key',
        goals       => 1,
        title       => 'One key',
        contestants => [ 'plain', @peers, qw(memory memory_bare redis lease sync) ],
        quick       => [qw(plain limit_req openresty memory memory_bare redis lease sync)],
        often       => ['plain'],
        keys        => 1,
        rounds      => [ 8, 1 ],
    },
    {
        name        => 'connections_8',
        goals       => 1,
        title       => '8 connections',
        contestants => [ 'plain', @peers, qw(memory redis sync) ],
        often       => ['plain'],
        connections => 8,
        rounds      => [ 8, 0 ],
    },
    {
        name        => 'rejected',
        goals       => 1,
        title       => 'All rejected',
        contestants => [
            qw(plain limit_req_denied haproxy_plain haproxy_denied openresty_denied),
            qw(memory_denied cache_denied cache_denied_bare)
        ],
        quick  => [qw(plain limit_req_denied cache_denied cache_denied_bare)],
        often  => ['limit_req_denied'],
        rounds => [ 8, 1 ],
    },
    {
        name        => 'one_cpu',
        goals       => 1,
        title       => 'All on one CPU: servers, Redis and load',
        contestants => [qw(plain limit_req openresty memory redis sync)],
        quick       => [qw(plain redis)],
        often       => ['plain'],
        cpu         => 0,
        rounds      => [ 5, 1 ],
    },
    {
        name        => 'one_cpu_8',
        goals       => 1,
        title       => 'All on one CPU, 8 connections',
        contestants => [qw(plain openresty redis)],
        often       => ['plain'],
        connections => 8,
        cpu         => 0,
        rounds      => [ 5, 0 ],
        seconds     => [ 2, 1 ],
    },
    {
        name        => 'settle',
        goals       => 1,
        title       => 'settle=: each request is corrected, 10,000 keys',
        contestants => [qw(memory memory_owed memory_estimate memory_settle redis_estimate redis_settle)],
        quick       => [qw(memory_estimate memory_settle redis_estimate redis_settle)],
        keys        => 10_000,
        rounds      => [ 6, 1 ],
    },
    {
        name        => 'bodies',
        goals       => 1,
        title       => 'rate_limit_response: bodies of an upstream, 8 connections',
        contestants => [ map { ($_, "${_}_read") } qw(json_10k events json_1m) ],
        quick       => [ map { ($_, "${_}_read") } qw(json_10k json_1m) ],
        keys        => 1,
        connections => 8,
        rounds      => [ 5, 1 ],
    },
    {
        name        => 'rejected_one_key',
        title       => 'All rejected, one key',
        contestants => [
            qw(plain limit_req_denied haproxy_plain haproxy_denied openresty_denied),
            qw(memory_denied redis_denied cache_denied)
        ],
        keys => 1,
    },
    {
        name        => 'workers_2',
        title       => 'Two workers',
        contestants => [ 'plain', @peers, qw(memory redis sync cluster) ],
        workers     => 2,
    },
    {
        name        => 'connections_1',
        title       => 'One connection',
        contestants => [ 'plain', @peers, qw(memory redis sync cluster) ],
        connections => 1,
    },
    {
        name        => 'connections_256',
        title       => '256 connections',
        contestants => [ 'plain', @peers, qw(memory redis sync cluster) ],
        connections => 256,
    },
    {
        name        => 'http2',
        title       => 'HTTP/2 without TLS, 64 connections, one stream each',
        contestants => [ 'plain', @peers, qw(memory redis sync) ],
        http2       => 1,
    },
    {
        name        => 'algorithms',
        title       => 'Each algorithm',
        contestants => [ 'plain', map { ("${_}_memory", "${_}_redis") } algorithms() ],
        often       => ['plain'],
    },
);

sub groups {
    my ($quick) = @_;
    my @chosen;
    for my $group (map { { %{$_} } } @groups) {
        $group->{$_} = $group->{$_}[ $quick ? 1 : 0 ] for grep { $group->{$_} } qw(rounds seconds paces);
        $group->{contestants} = $group->{quick} if $quick && $group->{quick};
        $group->{contestants} = [ available(@{ $group->{contestants} }) ];
        push @chosen, $group if $group->{rounds};
    }
    return @chosen;
}

1;
