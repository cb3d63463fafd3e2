# Locations that share a zone with different bursts count each other's requests, as with limit_req.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx);
use Test::More;

# The clock of nginx is frozen unless the test advances it.
my $nginx = start_nginx(
    clock => 1,
    http => <<'HTTP',
limit_req_status 429;
limit_req_zone  $http_x_client zone=old:1m rate=5r/s;
rate_limit_zone $http_x_client zone=leaky:1m rate=5r/s algorithm=leaky_bucket;
rate_limit_zone $http_x_client zone=gcra:1m rate=5r/s algorithm=gcra;
HTTP
    server => <<'SERVER',
location /limit_req/big    { limit_req zone=old burst=50 nodelay; empty_gif; }
location /limit_req/small  { limit_req zone=old; empty_gif; }
location /leaky/big        { rate_limit zone=leaky burst=50 nodelay; empty_gif; }
location /leaky/small      { rate_limit zone=leaky; empty_gif; }
location /gcra/big         { rate_limit zone=gcra burst=50; empty_gif; }
location /gcra/small       { rate_limit zone=gcra; empty_gif; }
SERVER
);

# Returns how many of $requests requests are admitted.
sub admitted {
    my ($path, $requests) = @_;
    return scalar grep { $nginx->get($path, 'X-Client' => 'c')->{status} == 200 } 1 .. $requests;
}

for my $side (qw(limit_req leaky gcra)) {
    is(admitted("/$side/big", 55), 51, "$side: burst=50 admits 51 requests");
    # Long enough for one request to drain, and too short for fifty. A level that was cut to the small burst would have
    # room now.
    $nginx->advance(0.3);
    is(admitted("/$side/small", 1), 0, "$side: a location without a burst counts the requests of the other");
    is(admitted("/$side/big", 20), 1, "$side: the location without a burst does not lower the count");
}

done_testing;
