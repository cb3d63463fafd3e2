# A page of another site cannot make a browser charge or change anything through the API, not even over plain HTTP.
use strict;
use warnings;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json);
use RateLimit::Browser qw(open_page);
use Test::More;

my $nginx = start_nginx(
    http   => 'rate_limit_zone $http_x_client zone=z:1m rate=5r/h algorithm=token_bucket;',
    server => <<'SERVER',
location /api/ { rate_limit_api write=on; }
location = /page { default_type text/html; try_files /page.txt =404; }
location = /checked { internal; set $args "zone=z&key=subrequest"; rewrite ^ /checked/check break; rate_limit_api; }
location = /guarded { auth_request /checked; empty_gif; }
SERVER
);
my $other = start_nginx(server => 'location = /page { default_type text/html; try_files /page.txt =404; }');
$_->write_file('page.txt', '<!doctype html><title>page</title><iframe name=frame></iframe>') for $nginx, $other;

sub left {
    my ($key) = @_;
    return decode_json($nginx->get("/api/remaining?zone=z&key=$key")->{body})->{remaining};
}

subtest 'a call that charges must prove that no other site sent it' => sub {
    my @mark  = ('X-Rate-Limit-Api' => 1);
    my @tries = (
        [ 403, GET  => 'a GET without a header' ],
        [ 403, HEAD => 'a HEAD without a header' ],
        [ 403, GET  => 'a GET with Sec-Fetch-Site: none', 'Sec-Fetch-Site' => 'none' ],
        [ 403, GET  => 'a GET of the same origin', 'Sec-Fetch-Site' => 'same-origin', Origin => 'http://localhost' ],
        [ 403, GET  => 'headers that a page may send to any site', Accept => 'application/json', 'Content-Type' => 'text/plain' ],
        [ 200, GET  => 'a header that requires a preflight', @mark ],
        [ 200, HEAD => 'a HEAD with the header', @mark ],
        [ 200, GET  => 'the header with an empty value', 'x-rate-limit-api' => '' ],
        [ 403, GET  => 'the header, but Sec-Fetch-Site of another site', @mark, 'Sec-Fetch-Site' => 'cross-site' ],
        [ 403, GET  => 'the header, but Origin of another site', @mark, Origin => 'http://other.test' ],
        [ 200, POST => 'a POST by a program' ],
        [ 200, POST => 'a POST by a page of the same origin', Origin => 'http://localhost' ],
        [ 403, POST => 'a POST by another site',  Origin => 'http://other.test' ],
        [ 403, POST => 'a POST of an opaque origin', Origin => 'null' ],
        [ 403, POST => 'a POST with Sec-Fetch-Site: cross-site', 'Sec-Fetch-Site' => 'cross-site' ],
        [ 403, POST => 'a POST of an opaque origin with the header', @mark, Origin => 'null' ],
    );
    my $number = 0;
    for my $try (@tries) {
        my ($status, $method, $title, @headers) = @{$try};
        my $key    = 'try' . ++$number;
        my $answer = $nginx->request(method => $method, path => "/api/check?zone=z&key=$key", headers => \@headers);
        is $answer->{status}, $status, "$method: $title";
        is left($key), $status == 200 ? 4 : 5, $status == 200 ? 'is charged' : 'is not charged';
    }
    my $refused = $nginx->get('/api/check?zone=z&key=a');
    is decode_json($refused->{body})->{detail}, "another site's page may have sent this; it must be a POST, or a GET with the header X-Rate-Limit-Api, whatever its value",
        'the refusal tells what to do';
    my $posted = $nginx->request(method => 'POST', path => '/api/check?zone=z&key=posted&permits=2', body => 'key=other&permits=5', headers => [ 'Content-Type' => 'application/x-www-form-urlencoded' ]);
    is decode_json($posted->{body})->{remaining}, 3, 'a POST reads the arguments of its path, not of its body';
    is $nginx->get('/guarded')->{status}, 200, 'a subrequest is the configuration\'s own';
    is left('subrequest'), 4, 'a subrequest is charged';
};

# In a browser. A host name that is not local is not a secure context, where browsers do not send Sec-Fetch-Site.
my %ways = (
    image      => 'url => { document.body.append(Object.assign(new Image(), { src: url })); }',
    script     => 'url => { document.body.append(Object.assign(document.createElement("script"), { src: url })); }',
    style      => 'url => { document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: url })); }',
    frame      => 'url => { document.body.append(Object.assign(document.createElement("iframe"), { src: url })); }',
    form       => 'url => {
        const form = Object.assign(document.createElement("form"), { method: "get", action: url, target: "frame" });
        for (const [name, value] of new URL(url).searchParams) {
            form.append(Object.assign(document.createElement("input"), { name, value }));
        }
        document.body.append(form);
        form.submit();
    }',
    post_form  => 'url => {
        const form = Object.assign(document.createElement("form"), { method: "post", action: url, target: "frame" });
        document.body.append(form);
        form.submit();
    }',
    silent     => 'url => {
        const form = Object.assign(document.createElement("form"), { method: "post", action: url, target: "frame" });
        document.head.append(Object.assign(document.createElement("meta"), { name: "referrer", content: "no-referrer" }));
        document.body.append(form);
        form.submit();
    }',
    fetched    => 'url => { fetch(url, { mode: "no-cors", credentials: "include" }).catch(() => 0); }',
    fetch_cors => 'url => { fetch(url).catch(() => 0); }',
    fetch_post => 'url => { fetch(url, { mode: "no-cors", method: "POST", body: "x" }).catch(() => 0); }',
    fetch_mark => 'url => { fetch(url, { headers: { "X-Rate-Limit-Api": "1" } }).catch(() => 0); }',
    no_cors    => 'url => { fetch(url, { mode: "no-cors", headers: { "X-Rate-Limit-Api": "1" } }).catch(() => 0); }',
    beacon     => 'url => { navigator.sendBeacon(url, "x"); }',
    json       => 'url => { navigator.sendBeacon(url, new Blob(["{}"], { type: "application/json" })); }',
    link       => 'url => { document.body.append(Object.assign(document.createElement("a"), { href: url })); document.querySelector("a").click(); }',
);

subtest 'a page of another site' => sub {
    for my $way (sort keys %ways) {
        my $page = open_page('http://other.test:' . $other->port . '/page');
        my $url  = 'http://limits.test:' . $nginx->port . "/api/check?zone=z&key=$way";
        $page->evaluate($ways{$way}, $url);
        wait_for("the request by $way", sub { $nginx->access_log =~ /key=$way HTTP/ });
        my ($method, $status) = $nginx->access_log =~ m{"(\w+) /api/check\?zone=z&key=$way HTTP/\S+" (\d+)};
        is $status, $method eq 'OPTIONS' ? 405 : 403, "$way: $method is refused";
        is left($way), 5, "$way: no client is charged";
        $page->close;
    }
};

subtest 'a page of the same origin' => sub {
    my $page  = open_page('http://limits.test:' . $nginx->port . '/page');
    my $fetch = 'async options => (await fetch("/api/check?zone=z&key=own", options)).status';
    is $page->evaluate($fetch, {}), 403, 'a page of the same origin needs the header too';
    is $page->evaluate($fetch, { headers => { 'X-Rate-Limit-Api' => '1' } }), 200, 'a GET with the header is accepted';
    is $page->evaluate($fetch, { method => 'POST' }), 200, 'a POST is accepted';
    is left('own'), 3, 'accepted calls are charged';
    $page->close;
};

unlike $nginx->error_log, qr/\[(?:alert|crit|emerg)\]|exited on signal/, 'the log has no critical errors';
done_testing;
