# A valid directive that is probably a mistake gets one warning: the directive, the word and its effect. The same
# configuration without the mistake gets none.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(check_config start_nginx);
use Test::More;

my $zone  = 'rate_limit_zone $binary_remote_addr zone=a:1m rate=1r/s;';
my $limit = 'rate_limit zone=a;';

# Runs `nginx -t`. Returns its log lines; none if it accepts the configuration silently.
sub lines_of {
    my (%conf) = @_;
    my $check = check_config(%conf);
    return $check->{exit} ? "exit status $check->{exit}: $check->{stderr}" : split /\n/, $check->{stderr};
}

sub warns {
    my ($title, $pattern, %conf) = @_;
    my @lines = lines_of(%conf);
    ok @lines == 1 && $lines[0] =~ /\[warn\] \d+#\d+: $pattern in \S+:\d+$/, "$title: a warning" or diag map {"$_\n"} @lines;
    return;
}

sub silent {
    my ($title, %conf) = @_;
    my @lines = lines_of(%conf);
    is "@lines", '', "$title: no warning";
    return;
}

# A limit that has no effect because `return` responds first.
my $return = qr/"rate_limit": zone "a" has no effect here: "return" answers each request before limits are checked/;
my %answers = (
    'after the limit'           => "location / { $limit return 200; }",
    'before the limit'          => "location / { return 200; $limit }",
    'a text'                    => "location / { $limit return 200 \"\$uri\"; }",
    'a redirect'                => "location / { $limit return 301 https://example.com\$uri; }",
    'an address alone'          => "location / { $limit return https://example.com; }",
    'closing the connection'    => "location / { $limit return 444; }",
    'a set before'              => "location / { $limit set \$x \"a\$uri\"; set \$y b; return 200 \$x; }",
    'an if before'              => "location / { $limit if (\$arg_a) { set \$x 1; } return 200; }",
    'an if with a return before' => "location / { $limit if (\$arg_a = b) { return 403; } return 200; }",
    'an if with an expression'  => "location / { $limit if (\$arg_a ~ \"^(a|b)\$\") { return 403; } return 200; }",
    'a nested location'         => "location / { location /a { $limit return 200; } }",
    'a named location'          => "location / { try_files \$uri \@a; } location \@a { $limit return 200; }",
    'a whole server'            => "$limit return 301 https://example.com;",
    'inside an if'          => "location / { if (\$arg_a) { $limit return 403; } }",
    'an if before another if'      => "location / { if (\$arg_a) { $limit return 403; } if (\$arg_b) { set \$x 1; } }",
    'several limits'            => "location / { $limit rate_limit zone=b; return 200; }",
);
my $both = "$zone rate_limit_zone \$uri zone=b:1m rate=1r/s;";
warns("return, $_", $return, http => $both, server => $answers{$_}) for sort keys %answers;
warns('return, many codes', $return, http => $zone, server => "location / { $limit " . join(' ', map {"set \$v$_ \"x\${uri}y\";"} 1 .. 60) . ' return 200; }');
warns('return, a candidate', qr/"rate_limit_shadow": zone "a" has no effect here: "return" .*/, http => $zone, server => 'location / { rate_limit_shadow zone=a; return 200; }');
my %goes_on = (
    'only in an if'               => "location / { $limit if (\$arg_a) { return 403; } }",
    'only in an if, with a break' => "location / { $limit if (\$arg_a) { break; } return 403; }",
    'after a break'               => "location / { $limit break; return 403; }",
    'after a rewrite'             => "location / { $limit rewrite ^/a /b break; return 403; }",
    'elsewhere'                   => "location / { $limit } location /b { return 200; }",
    'inherited'                   => "$limit location / { return 200; }",
    'in a nested location'        => "location / { $limit location /b { return 200; } }",
    'rate_limit off'              => 'location / { rate_limit off; return 200; }',
    'an if beside the limit'      => "location / { if (\$arg_a) { $limit } if (\$arg_b) { return 403; } }",
    'an if that always returns first'     => "location / { if (\$arg_a) { $limit break; return 403; } }",
);
silent("return, $_", http => $zone, server => $goes_on{$_}) for sort keys %goes_on;

# An API with write access for everybody. A server that listens on the loopback address only needs no rule.
sub api {
    my ($more, %where) = @_;
    my $listen = $where{listen} // '0.0.0.0:%PORT1%';
    my $server = $where{server} // '';
    my $words  = $where{words}  // 'rate_limit_api write=on;';
    return (http => "$zone " . ($where{http} // ''), servers => 'server { ' . join(' ', map {"listen $_;"} split / /, $listen) . " $server location /api/ { $words $more } }");
}
my $open = qr/"write=on" lets any client change rates and reset clients, since the location has no allow, deny, auth_basic or auth_request/;
warns('write=on', qr/"rate_limit_api": $open/, api(''));
warns('write=on of the dashboard', qr/"rate_limit_dashboard": $open/, api('', words => 'rate_limit_dashboard write=on;'));
warns('write=on, satisfy alone',   qr/"rate_limit_api": $open/, api('satisfy any;'));
warns('write=on, auth_basic off',  qr/"rate_limit_api": $open/, api('auth_basic off;', server => 'auth_basic x; auth_basic_user_file users;'));
warns('write=on, auth_request off', qr/"rate_limit_api": $open/, api('auth_request off;', server => 'auth_request /auth;'));
warns('write=on, here and there',  qr/"rate_limit_api": $open/, api('', listen => '127.0.0.1:%PORT2% 0.0.0.0:%PORT1%'));
warns('write=on, a rule elsewhere', qr/"rate_limit_api": $open/, api('', server => 'location /b { deny all; }'));
my %closed = (
    'without write=on'       => [ '', words => 'rate_limit_api;' ],
    'write=off'              => [ '', words => 'rate_limit_api write=off;' ],
    'allow and deny'         => ['allow 127.0.0.1; deny all;'],
    'rules of the server'    => [ '', server => 'deny all;' ],
    'rules of http'          => [ '', http => 'allow 10.0.0.0/8; deny all;' ],
    'auth_basic'             => ['auth_basic x; auth_basic_user_file users;'],
    'auth_basic of http'     => [ '', http => 'auth_basic $host; auth_basic_user_file users;' ],
    'auth_request'           => ['auth_request /auth;'],
    'auth_request of a server' => [ '', server => 'auth_request /auth;' ],
    'satisfy'                => ['satisfy any; allow 10.0.0.0/8; deny all; auth_basic x; auth_basic_user_file users;'],
    'internal'               => ['internal;'],
    'limit_except'           => ['limit_except GET { deny all; }'],
    'client certificates'    => [ '', server => 'ssl_verify_client on;' ],
    'an if that returns'     => ['if ($http_x_secret != x) { return 403; }'],
    'an if of the server'    => [ '', server => 'if ($http_x_secret != x) { return 403; }' ],
    'this machine alone'     => [ '', listen => '127.0.0.1:%PORT1% unix:%DIR%/socket' ],
);
silent("write=on, $_", api(@{ $closed{$_} })) for sort keys %closed;

# Timeouts of Redis.
for my $row ([ 'timeout=20', 20_000 ], [ 'timeout=1s', 1000 ], [ 'timeout=1500ms', 1500 ]) {
    my ($word, $milliseconds) = @{$row};
    warns($word, qr/"rate_limit_redis": "$word" lets each request wait for Redis for up to ${milliseconds}ms; a time without a unit is in seconds/, http => "rate_limit_redis r redis://127.0.0.1 $word;");
}
silent($_, http => "rate_limit_redis r redis://127.0.0.1 $_;") for qw(timeout=20ms timeout=999ms connect_timeout=2s);

# Duplicate rates.
for my $rate (qw(5r/s,5r/s 60r/m,10r/s,60r/60s 1r/d,2r/h,1r/24h,2r/60m)) {
    warns("rate=$rate", qr/"rate_limit_zone": "rate=$rate" has a duplicate rate, which has no effect/, http => "rate_limit_zone \$uri zone=a:1m rate=$rate;");
}
silent("rate=$_", http => "rate_limit_zone \$uri zone=a:1m rate=$_;") for qw(5r/s,6r/s 5r/s,5r/m 60r/m,1r/s off);

# Constant keys.
warns('a key that is text', qr/"rate_limit_zone": key "everybody" of zone "a" has no variable: all clients share one quota/, http => 'rate_limit_zone everybody zone=a:1m rate=1r/s;');
silent("a key of $_", http => "rate_limit_zone \"$_\" zone=a:1m rate=1r/s;") for '$uri', 'all$server_name', '${uri}';

# A live rate that the API has set hides the rate of a new configuration. Only the running nginx can warn.
sub reloaded {
    my ($rate, $other) = @_;
    return (
        http   => "rate_limit_zone \$uri zone=a:1m rate=$rate;\nrate_limit_zone \$uri zone=b:1m rate=$other;",
        server => 'location /api/ { rate_limit_api write=on; } location / { rate_limit zone=a; rate_limit_headers legacy; empty_gif; }',
    );
}
my $nginx = start_nginx(reloaded('5r/h', '5r/h'));

# Reloads. Returns the warnings, and the limit that is in force.
sub reload {
    my @conf = @_;
    my $seen = length $nginx->error_log;
    $nginx->reload(reloaded(@conf));
    my @lines = grep {/has no effect/} split /\n/, substr $nginx->error_log, $seen;
    return (scalar @lines, "@lines", $nginx->get('/' . rand)->header('X-RateLimit-Limit'));
}
sub patch { my ($rate) = @_; return $nginx->request(method => 'PATCH', path => '/api/zones/a', headers => [ 'Content-Type' => 'application/json' ], body => "{\"rate\":\"$rate\"}")->{status} }

is +(reload('6r/h', '6r/h'))[0], 0, 'no live rate: no warning';
is patch('20r/h'), 200, 'the API sets a live rate';
is +(reload('6r/h', '7r/h'))[0], 0, 'a reload with an unchanged rate: no warning';
my ($count, $line, $force) = reload('9r/h', '7r/h');
is "$count $force", '1 20', 'a reload with another rate: a warning, and the live rate stays in force';
like $line, qr{\[error\] \S+ "rate_limit_zone": "rate=9r/h" of zone "a" has no effect: the live rate 20r/h applies until DELETE zones/a of rate_limit_api ends it in \S+:\d+$}, 'in one line';
is +(reload('20r/h', '7r/h'))[0], 0, 'a configured rate that equals the live rate: no warning';
is +(reload('$arg_rate', '7r/h'))[0], 1, 'a variable rate has no effect either';
is $nginx->request(method => 'DELETE', path => '/api/zones/a')->{status}, 200, 'the API returns to the configured rate';
is join(' ', (reload('8r/h', '8r/h'))[ 0, 2 ]), '0 8', 'the configured rate is in force: no warning';

done_testing;
