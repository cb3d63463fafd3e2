# rate_limit_dashboard in a real browser: what it shows, what it changes, and that hostile keys are harmless.
use strict;
use warnings;
use utf8;

use lib 't/lib';
use RateLimit qw(check_config start_nginx wait_for);
use RateLimit::Browser qw(open_page);
use RateLimit::Redis qw(start_redis);
use Test::More;

binmode Test::More->builder->$_, ':encoding(UTF-8)' for qw(output failure_output);

my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis();
my %conf  = (
    port => $ports[0],
    http => <<"HTTP",
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_zone \$http_x_client zone=api:1m rate=3r/d redis=fleet deny_cache=off;
rate_limit_zone \$http_x_client zone=login:1m rate=2r/d algorithm=token_bucket;
rate_limit_zone \$http_x_client zone=slow:1m rate=10r/s algorithm=leaky_bucket burst=5;
rate_limit_zone \$http_x_client zone=free:1m rate=1000000r/h;
rate_limit_zone \$http_x_client "zone=a/<b>%41:1m" rate=1r/d;
HTTP
    server => <<'SERVER',
location = /api   { rate_limit zone=api; empty_gif; }
location = /login { rate_limit zone=login; empty_gif; }
location = /slow  { rate_limit zone=slow; empty_gif; }
location = /free  { rate_limit zone=free; empty_gif; }
location = /odd   { rate_limit "zone=a/<b>%41"; empty_gif; }
location /limits/ { rate_limit_dashboard write=on; }
location /look/   { rate_limit_dashboard; }
location /hidden/ { rate_limit_dashboard keys=off; }
location /denied/ { deny all; rate_limit_dashboard write=on; }
SERVER
);
my $nginx = start_nginx(%conf);
my $site  = 'http://127.0.0.1:' . $nginx->port;

# Returns the status of a request to a zone.
sub ask {
    my ($zone, $client) = @_;
    return $nginx->get("/$zone", 'X-Client' => $client)->{status};
}

sub zone { my ($name) = @_; return qq([data-zone="$name"]) }

# Opens the page, and waits for its first numbers, with a zone open if one is named.
sub look {
    my ($path, $zone, %options) = @_;
    my $page = open_page("$site$path" . ($zone ? "#$zone" : ''), %options);
    wait_for('the first numbers', sub { $page->text(zone('api') . ' [data-value=allowed]') =~ /\d/ });
    wait_for("zone $zone to be open", sub { $page->visible('#panel') }) if $zone;
    return $page;
}

# Returns the row of a client in the table of clients; '' if there is none.
sub rejections {
    my ($page, $client) = @_;
    my %count = map { split /\t/ } grep {/\t/} map { join "\t", (split /\t/)[ 0, 1 ] } $page->texts('#limited tbody tr');
    return $count{$client} // '';
}

# Returns true if an element has the focus.
sub has_focus {
    my ($page, $selector) = @_;
    return $page->evaluate('selector => document.activeElement !== null && document.activeElement.matches(selector)',
        $selector);
}

# Presses Tab until an element has the focus. Returns how often, or 0 after a hundred times.
sub tab_to {
    my ($page, $selector) = @_;
    for my $count (1 .. 100) {
        $page->press('Tab');
        return $count if has_focus($page, $selector);
    }
    return 0;
}

subtest 'the page has headers that restrict it' => sub {
    my $answer = $nginx->get('/limits/');
    is $answer->{status}, 200, 'status';
    is $answer->header('Content-Type'), 'text/html; charset=utf-8', 'Content-Type';
    like $answer->header('Content-Security-Policy'),
        qr{^default-src[ ]'none';[ ]script-src(?:[ ]'sha256-[\w+/]{43}=')+;[ ]style-src[ ]'sha256-[\w+/]{43}=';
            [ ]connect-src[ ]'self';[ ]img-src[ ]'none';[ ]base-uri[ ]'none';[ ]form-action[ ]'none';
            [ ]frame-ancestors[ ]'none'$}x,
        'Content-Security-Policy';
    is $answer->header('X-Content-Type-Options'), 'nosniff',     'X-Content-Type-Options';
    is $answer->header('Referrer-Policy'),        'no-referrer', 'Referrer-Policy';
    is $answer->header('Cache-Control'),          'no-cache',    'Cache-Control';
    like $answer->{body}, qr{^<!doctype html>.*</html>\n\z}s, 'a whole page';
    unlike $answer->{body}, qr{(?:src|href)="(?!#)|\bon\w+="|style="|://(?!www\.w3\.org/2000/svg)},
        'the page has no external references, and no handlers or styles in attributes';
    my $again = $nginx->get('/limits/', 'If-None-Match' => $answer->header('ETag'));
    is $again->{status}, 304, 'an unchanged page is 304';
    my $head = $nginx->request(method => 'HEAD', path => '/limits/');
    is $head->{status}, 200, 'HEAD';
    is $head->header('Content-Length'), length $answer->{body}, 'its length';
    my $post = $nginx->request(method => 'POST', path => '/limits/', body => 'x');
    is $post->{status}, 405, 'POST is not allowed';
    is $post->header('Allow'), 'GET, HEAD', 'the Allow header';
    is $nginx->get('/limits/?x=1')->{status}, 200, 'arguments are ignored';
    my $short = $nginx->get('/limits');
    is $short->{status}, 301, 'without the last slash';
    like $short->header('Location'), qr{/limits/$}, 'a redirect to the slash';
    is $nginx->get('/denied/')->{status}, 403, 'deny holds';
    is $nginx->get('/denied/zones')->{status}, 403, 'a redirect for the API below';
};

subtest 'invalid directives make nginx -t fail' => sub {
    my %wrong = (
        'location /x { rate_limit_dashboard; }'      => qr{"rate_limit_dashboard": invalid location "/x", it must end in /},
        'location = /x/ { rate_limit_dashboard; }'   => qr{"rate_limit_dashboard": invalid location "/x/", it must .* be neither exact},
        'location ~ /x/ { rate_limit_dashboard; }'   => qr{"rate_limit_dashboard": invalid location "/x/", it must .* be neither exact},
        'location /x/ { rate_limit_dashboard all; }' => qr{"rate_limit_dashboard": unknown parameter "all", it must be write=on\|off or keys=on\|off},
        'location /x/ { rate_limit_dashboard write=maybe; }' => qr{"rate_limit_dashboard": invalid value "write=maybe", it must be on or off},
        'location /x/ { rate_limit_dashboard write=on write=on; }' => qr{"rate_limit_dashboard": "write=on" is duplicate},
        'rate_limit_dashboard;' => qr{"rate_limit_dashboard" directive is not allowed here},
    );
    for my $server (sort keys %wrong) {
        my $check = check_config(server => $server);
        is scalar @{ $check->{emerg} }, 1, "one line for $server";
        like $check->{emerg}[0], $wrong{$server}, 'the line has the reason';
    }
};

subtest 'numbers and lines follow the traffic' => sub {
    my $page = look('/limits/', 'api');
    is_deeply [ map { s/\s//gr } $page->texts('.zone h3') ], [qw(api login slow free a/<b>%41)], 'zones, as they are configured';
    is $page->text(zone('api') . ' [data-value=rate]'), '3r/d', 'a rate';
    for my $number (qw(allowed rejected)) {
        my $client = "mover-$number";
        wait_for("$number to move", sub {
            ask('free', $client) for 1 .. 3;
            ask('login', $client) for 1 .. 3;
            my $zone = $number eq 'allowed' ? 'free' : 'login';
            my ($value) = $page->text(zone($zone) . " [data-value=$number]") =~ /([\d.]+)/;
            return $value && $value > 0;
        });
        pass "$number moves";
    }
    my $line = 'zone => document.querySelector(`[data-zone="${zone}"] .spark path.rejected`).getAttribute("d")';
    my $before = $page->evaluate($line, 'login');
    wait_for('the line to move', sub { ask('login', 'mover'); $page->evaluate($line, 'login') ne $before });
    like $page->evaluate($line, 'login'), qr/^M[\d. L]+$/, 'the line is drawn';
    wait_for('delays to be shown', sub {
        ask('slow', 'mover') for 1 .. 3;
        return $page->text(zone('slow') . ' [data-value=delayed]') =~ /[1-9]/;
    });
    like $page->do(zone('slow') . ' .spark', 'getAttribute', 'aria-label'),
        qr/^Last two minutes: allowed [\d.]+, at most [\d.]+; rejected/, 'the chart as text';
    my $server = '[data-redis="fleet"]';
    wait_for('round trips', sub {
        ask('api', "trip$_") for 1 .. 3;
        return $page->text("$server [data-value=p99]") =~ /^[\d.]+ (?:µs|ms|s)$/;
    });
    is $page->text("$server [data-value=up]"),      'up',     'Redis is up';
    is $page->text("$server [data-value=breaker]"), 'closed', 'the breaker is closed';
    like $page->text("$server [data-value=batch]"), qr/^\d+\.\d$/, 'checks per call';
    $page->do('#table-button', 'click');
    is scalar(my @rows = $page->texts('#history tbody tr')), 12, 'a table of two minutes in steps of ten seconds';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'lines differ without colour' => sub {
    my $page = look('/limits/', 'free');
    wait_for('lines', sub { ask('free', 'lines'); $page->evaluate('() => document.querySelectorAll(".chart path").length > 3') });
    my $dashes = $page->evaluate('() => ["allowed", "rejected", "delayed"].map(name =>
        getComputedStyle(document.querySelector(`.chart path.${name}`)).strokeDasharray)');
    my %different = map { $_ => 1 } @{$dashes};
    is scalar keys %different, 3, "dashes are @{$dashes}";
    is $page->evaluate("() => document.querySelectorAll('.chart $_').length"), 1, "a $_ at an end"
        for qw(circle.allowed rect.rejected polygon.delayed);
    my @names = map { /^(\w+) / } @{ $page->do('.chart text.end', 'allTextContents') };
    is_deeply [ sort @names ], [qw(allowed delayed rejected)], 'names at their ends';
    $page->close;
};

subtest 'a rate that is changed on the page takes effect, and can be undone' => sub {
    for my $zone (qw(login api)) {
        my $page = look('/limits/', $zone);
        ask($zone, 'changer') for 1 .. 3;
        is ask($zone, 'changer'), 429, "$zone: a client is over its limit";
        is $page->visible('#rate-return'), 0, 'there is no live rate to undo';
        $page->do('#rate-input', 'fill', '50r/h');
        $page->do('#rate-form [type=submit]', 'click');
        $page->do('#confirm-yes', 'click') if $zone eq 'api';    # of the fleet
        wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 50r/h.' });
        wait_for('the new rate to hold', sub { ask($zone, 'changer') == 200 });
        pass 'the same client is admitted';
        wait_for('the new rate to be shown', sub { $page->text(zone($zone) . ' [data-value=rate]') eq '50r/h' });
        is $page->visible(zone($zone) . ' [data-value=live]'), 1, 'the rate is shown as a live rate';
        $page->do('#rate-return', 'click');
        $page->do('#confirm-yes', 'click') if $zone eq 'api';
        my $configured = $zone eq 'api' ? '3r/d' : '2r/d';
        wait_for('the old rate to be shown', sub { $page->text(zone($zone) . ' [data-value=rate]') eq $configured });
        wait_for('the old rate to hold', sub { ask($zone, 'changer') == 429 });
        wait_for('the button to go', sub { !$page->visible('#rate-return') });
        is_deeply [ $page->problems ], [], 'the browser reports no problem';
        $page->close;
    }
};

subtest 'an invalid rate shows the reason' => sub {
    my $page = look('/limits/', 'login');
    $page->do('#rate-input', 'fill', '5r/fortnight');
    $page->do('#rate-input', 'press', 'Enter');
    wait_for('the reason', sub { $page->text('#rate-said') =~ /^(?:⚠ )?Not changed: .*5r\/fortnight.* \(400\)$/ });
    is $page->do('#rate-input', 'inputValue'), '5r/fortnight', 'the input is kept for correction';
    is $page->do('#rate-input', 'getAttribute', 'aria-invalid'), 'true', 'the input is marked as invalid';
    is $page->text(zone('login') . ' [data-value=rate]'), '2r/d', 'nothing has changed';
    is_deeply [ grep { !/status of 400/ } $page->problems ], [], 'the browser reports no other problem';
    $page->close;
};

subtest 'a client that moves up in the list keeps the focus' => sub {
    my $page = look('/limits/', 'login');
    my $order = sub { return join ' ', grep {/^(?:upper|lower)$/} $page->texts('#limited tbody .key') };
    ask('login', 'upper') for 1 .. 15;
    ask('login', 'lower') for 1 .. 10;
    wait_for('both clients to be listed', sub { rejections($page, 'upper') eq '13' && rejections($page, 'lower') eq '8' });
    is $order->(), 'upper lower', 'the first client is above the second';
    $page->do('[aria-label="Reset lower"]', 'focus');
    ask('login', 'lower') for 1 .. 10;
    wait_for('the other client to be above', sub { $order->() eq 'lower upper' });
    ok has_focus($page, '[aria-label="Reset lower"]'), 'the focus moves with the row';
    $page->close;
};

subtest 'a client is reset, after a confirmation' => sub {
    my $page = look('/limits/', 'login');
    ask('login', 'greedy') for 1 .. 4;
    is ask('login', 'greedy'), 429, 'a client is over its limit';
    wait_for('the client to be listed', sub { rejections($page, 'greedy') eq '3' });
    pass 'the client is listed with its rejections';
    $page->do('role=button[name="Reset greedy"]', 'click');
    like $page->text('#confirm'), qr/zone login.*greedy/s, 'the page asks';
    ok has_focus($page, '#confirm-no'), 'the focus is on Cancel';
    $page->press('Escape');
    is $page->visible('#confirm'), 0, 'Escape leaves it';
    is ask('login', 'greedy'), 429, 'nothing was done';
    ok has_focus($page, 'td button'), 'the focus is back';
    $page->press('Enter');
    $page->do('#confirm-yes', 'click');
    wait_for('the answer', sub { $page->text('#client-said') eq 'greedy was reset.' });
    is ask('login', 'greedy'), 200, 'the client is admitted';
    ask('login', 'other') for 1 .. 3;
    $page->do('#client-input', 'fill', 'other');
    $page->do('#client-reset', 'click');
    $page->do('#confirm-yes', 'click');
    wait_for('the answer', sub { $page->text('#client-said') eq 'other was reset.' });
    is ask('login', 'other'), 200, 'a client that was typed by hand is reset';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    for my $zone (qw(login api)) {
        my $other = look('/limits/', $zone);
        $other->do('#client-input', 'fill', 'stranger');
        $other->do('#client-reset', 'click');
        $other->do('#confirm-yes', 'click');
        wait_for('the answer', sub { $other->text('#client-said') ne '' });
        like $other->text('#client-said'), qr/stranger was not reset: nothing is stored of client "stranger" in zone "$zone".* \(404\)/,
            "$zone: an unknown client is not reset";
        $other->close;
    }
    $page->close;
};

subtest 'hostile keys are text' => sub {
    my $page    = look('/limits/', 'login');
    my @hostile = ('<img src=x onerror=alert(1)>', '<script>alert(2)</script>', q('-alert(3)-'), '{{7*7}} &lt; %00',
        'javascript:alert(4)');
    for my $key (@hostile) {
        ask('login', $key) for 1 .. 4;
    }
    for my $key (@hostile) {
        wait_for("$key to be listed", sub { rejections($page, $key) ne '' });
        pass "$key is shown as text";
    }
    is $page->evaluate('() => document.querySelectorAll("#limited img, #limited script").length'), 0, 'nothing became markup';
    $page->do(qq(role=button[name="Reset $hostile[0]"]), 'click');
    like $page->text('#confirm'), qr/\Q$hostile[0]\E/, 'the confirmation shows the key as text';
    $page->do('#confirm-yes', 'click');
    wait_for('the answer', sub { $page->text('#client-said') eq "$hostile[0] was reset." });
    is ask('login', $hostile[0]), 200, 'the client of this key was reset';
    is_deeply [ $page->problems ], [], 'the browser reports no problem, and no external request';
    $page->close;
};

subtest 'a zone may have an unusual name' => sub {
    my $page = look('/limits/');
    my $zone = zone('a/<b>%41');
    $page->do("$zone h3 button", 'click');
    is ask('odd', 'curious'), 200, 'its one request';
    is ask('odd', 'curious'), 429, 'a client of the zone is rejected';
    wait_for('a client of it', sub { rejections($page, 'curious') eq '1' });
    $page->do('#rate-input', 'fill', '5r/d');
    $page->do('#rate-input', 'press', 'Enter');
    wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 5r/d.' });
    wait_for('the new rate to hold', sub { ask('odd', 'curious') == 200 });
    $page->call('reload');
    wait_for('the same zone to be open', sub { $page->visible("$zone #panel") });
    is $page->do('#rate-input', 'inputValue'), '5r/d', 'the form has its new rate';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'a keyboard is enough' => sub {
    my $page = look('/limits/');
    ok tab_to($page, zone('login') . ' h3 button'), 'Tab leads to a zone';
    isnt $page->evaluate('() => getComputedStyle(document.activeElement).outlineStyle'), 'none', 'the focus is visible';
    $page->press('Enter');
    wait_for('the zone to be open', sub { $page->visible('#panel') });
    is $page->do(zone('login') . ' h3 button', 'getAttribute', 'aria-expanded'), 'true', 'Enter opens it';
    ok tab_to($page, '#rate-input'), 'Tab moves on to the rate';
    is $page->evaluate('() => document.activeElement.labels[0].textContent'), 'New rate', 'the rate has a label';
    $page->press('Control+A');
    $page->type('7r/h');
    is tab_to($page, '#rate-form [type=submit]'), 1, 'Tab moves on to the button';
    $page->press('Enter');
    wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 7r/h.' });
    wait_for('a way back', sub { $page->visible('#rate-return') });
    is tab_to($page, '#rate-return'), 1, 'Tab moves on to the undo button';
    $page->press('Enter');
    wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 2r/d.' });
    wait_for('the way back to go', sub { !$page->visible('#rate-return') });
    ok has_focus($page, '#rate-input'), 'after the undo button is gone, the focus is on a visible element';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'without write=on there are no controls' => sub {
    my $page = look('/look/', 'login');
    wait_for('the clients', sub { rejections($page, 'changer') });
    is $page->visible('#rate-form, #client-reset, #limited td button'), 0, 'no forms that change anything';
    my $status = $page->evaluate('async () => (await fetch("zones/login", { method: "PATCH", body: "{\"rate\":\"off\"}",
        headers: { "Content-Type": "application/json" } })).status');
    is $status, 403, 'the API below refuses writes';
    $page->close;
};

subtest 'keys=off hides the clients' => sub {
    my $page = look('/hidden/', 'login');
    wait_for('the reason', sub { $page->text('#limited-none') =~ /keys=off/ });
    is $page->visible('#limited'), 0, 'no table';
    $page->close;
};

# Returns the lowest contrast ratio of the visible texts, computed as in WCAG 2, and its text.
my $contrast = <<'JAVASCRIPT';
() => {
    const numbers = color => color.match(/[\d.]+/g).map(Number);
    const luminance = ([red, green, blue]) => {
        const [r, g, b] = [red, green, blue].map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const color = numbers(getComputedStyle(at).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    let least = { ratio: 99, text: '' };
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim() !== '');
        if (!own || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const color = element.namespaceURI.endsWith('svg') ? style.fill : style.color;
        const [a, b] = [luminance(numbers(color)), luminance(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < least.ratio) least = { ratio, text: element.textContent };
    }
    return least;
}
JAVASCRIPT

subtest 'the page fits a phone, and is readable in light and dark mode' => sub {
    my $long = 'long' x 30;
    ask('api', $long) for 1 .. 4;
    # With RL_LONG=1 each mode is tested in both widths.
    my %widths = $ENV{RL_LONG} ? (light => [ 360, 1280 ], dark => [ 360, 1280 ]) : (light => [360], dark => [1280]);
    for my $scheme (qw(light dark)) {
        for my $width (@{ $widths{$scheme} }) {
            my $page = look('/limits/', 'api', colorScheme => $scheme, viewport => [ $width, 740 ]);
            $page->do('#table-button', 'click');
            wait_for('a chart', sub { $page->visible('.chart text') });
            wait_for('a long key', sub { rejections($page, $long) });
            my $wide = $page->evaluate('() => document.documentElement.scrollWidth');
            cmp_ok $wide, '<=', $width, "$scheme, $width wide: no horizontal scrolling";
            my $least = $page->evaluate($contrast);
            cmp_ok $least->{ratio}, '>=', 4.5, "$scheme, $width wide: contrast, least of \"$least->{text}\"";
            my ($light) = $page->evaluate('() => getComputedStyle(document.body).backgroundColor') =~ /(\d+)/;
            ok $scheme eq 'light' ? $light > 200 : $light < 60, "$scheme is $scheme";
            $page->close;
        }
    }
};

# Returns how often pages below a location have asked for numbers.
sub questions {
    my ($path) = @_;
    return scalar(() = $nginx->access_log =~ m{ $path/zones }g);
}

# Returns how often a page asks while another asks three times, under traffic.
sub questions_meanwhile {
    my $before = questions('/limits');
    my $others = questions('/look');
    my $other  = look('/look/');
    wait_for('another page to ask thrice', sub { ask('free', 'meanwhile'); questions('/look') >= $others + 3 });
    $other->close;
    return questions('/limits') - $before;
}

subtest 'the page can be paused' => sub {
    my $page = look('/limits/');
    $page->do('#pause', 'click');
    is $page->do('#pause', 'getAttribute', 'aria-pressed'), 'true', 'the button is pressed';
    like $page->text('#news'), qr/^Paused/, 'the page shows that it is paused';
    cmp_ok questions_meanwhile(), '<=', 1, 'nothing is asked';
    my $before = questions('/limits');
    $page->do('#pause', 'click');
    wait_for('the page to continue', sub { questions('/limits') > $before });
    pass 'the page continues';
    $page->close;
};

subtest 'the page stops in the background, and catches up later' => sub {
    my $page = look('/limits/');
    my $turn = 'hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }';
    $page->evaluate($turn, 1);
    cmp_ok questions_meanwhile(), '<=', 1, 'nothing is asked';
    my $before = questions('/limits');
    my $line   = '() => document.querySelector(`[data-zone="free"] .spark path.allowed`).getAttribute("d")';
    my $drawn  = $page->evaluate($line);
    $page->evaluate($turn, 0);
    wait_for('a request of the page', sub { questions('/limits') > $before });
    wait_for('a new line on the page', sub { $page->evaluate($line) ne $drawn });
    like $page->do(zone('free') . ' .spark', 'getAttribute', 'aria-label'), qr/: allowed .*?, at most [\d.]*[1-9]/,
        'the numbers of the pause are shown';
    $page->close;
};

subtest 'a failed Redis is shown' => sub {
    my $page   = look('/limits/');
    my $server = '[data-redis="fleet"]';
    $redis->stop;
    wait_for('Redis to be shown as down', sub { ask('api', 'away'); $page->text("$server [data-value=up]") eq 'down' });
    wait_for('the breaker', sub { ask('api', 'away'); $page->text("$server [data-value=breaker]") =~ /^open/ });
    wait_for('errors', sub { ask('api', 'away'); $page->text(zone('api') . ' [data-value=undecided]') =~ /did not decide [\d.]/ });
    like $page->text("$server [data-value=errors]"), qr/\w+ \d+/, 'errors are counted by reason';
    $redis->restart;
    wait_for('Redis to be shown as up', sub { ask('api', 'away'); $page->text("$server [data-value=up]") eq 'up' });
    wait_for('the breaker', sub { ask('api', 'away'); $page->text("$server [data-value=breaker]") eq 'closed' });
    wait_for('no errors', sub { ask('api', 'away'); !$page->visible(zone('api') . ' [data-value=undecided]') });
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'the page shows errors, and continues after a restart' => sub {
    my $page = look('/limits/', 'login');
    $nginx->stop;
    wait_for('the page to show the error', sub { $page->text('#trouble') =~ /^nginx does not answer\. What is shown is of \d\d:/ });
    (my $closed = $conf{server}) =~ s/write=on/write=on; deny all/;
    $nginx = start_nginx(%conf, server => $closed);
    wait_for('the page to show the error', sub { $page->text('#trouble') =~ /^access is denied \(403\)/ });
    $nginx->stop;
    $nginx = start_nginx(%conf);
    wait_for('the error to disappear', sub { $page->text('#trouble') eq '' });
    like $page->text('#news'), qr/^nginx was started anew/, 'the restart is shown';
    is scalar(grep {/[-<]/} map { $page->texts(zone($_) . ' .numbers dd') } qw(api login free)), 0, 'no number is below 0';
    wait_for('numbers', sub { ask('login', 'again'); $page->text(zone('login') . ' [data-value=rejected]') =~ /[1-9]/ });
    pass 'numbers follow the traffic again';
    is_deeply [ grep { !/Failed to load resource/ } $page->problems ], [], 'the browser reports no other problem';
    $page->close;
};

done_testing;
