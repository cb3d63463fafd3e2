# rate_limit_dashboard with many zones and instances: history, totals, order, look-ups, questions, accessibility.
use strict;
use warnings;
use utf8;

use lib 't/lib';
use RateLimit qw(start_nginx wait_for decode_json);
use RateLimit::Browser qw(open_page);
use RateLimit::Redis qw(start_redis);
use Sys::Hostname qw(hostname);
use Test::More;

binmode Test::More->builder->$_, ':encoding(UTF-8)' for qw(output failure_output);

my @ports = split ' ', $ENV{RL_PORTS};
my $redis = start_redis();
my $http  = <<"HTTP";
rate_limit_redis fleet @{[ $redis->url ]} timeout=20s;
rate_limit_redis alone @{[ $redis->url ]} timeout=20s prefix=alone:;
rate_limit_redis many @{[ $redis->url ]} timeout=20s prefix=many:;
rate_limit_zone \$http_x_client zone=mail:1m rate=4r/d;
rate_limit_zone \$http_x_client zone=free:1m rate=1000000r/h algorithm=gcra;
rate_limit_zone \$binary_remote_addr zone=tiny:32k rate=1r/d algorithm=sliding_log;
rate_limit_zone \$http_x_client zone=plan:1m rate=\$http_x_plan;
rate_limit_zone \$http_x_client zone=asked:1m rate=5r/d redis=fleet deny_cache=off;
rate_limit_zone \$http_x_client zone=alone:1m rate=5r/d redis=alone on_error=local;
rate_limit_zone \$http_x_client zone=counted:1m rate=5r/d redis=many on_error=local;
HTTP
my @names  = $http =~ /zone=(\w+)/g;
my $server = join '', map {"location = /$_ { rate_limit zone=$_; empty_gif; }\n"} @names;
$server .= "location /limits/ { rate_limit_dashboard write=on; }\nlocation /look/ { rate_limit_dashboard; }\n";

# The second instance shares two of the servers.
my $nginx = start_nginx(port => $ports[0], http => $http, server => $server);
my $other = start_nginx(port => $ports[1], http => $http =~ s/^.*(?:redis|prefix|zone)=alone.*\n//gmr, server => $server =~ s/^.*alone.*\n//gmr);
my $site  = 'http://127.0.0.1:' . $nginx->port;

sub ask {
    my ($zone, $client, %headers) = @_;
    return $nginx->get("/$zone", 'X-Client' => $client, %headers)->{status};
}

sub zone { my ($name) = @_; return qq([data-zone="$name"]) }

sub history {
    my ($name) = @_;
    my $all = decode_json($nginx->get('/look/history')->{body});
    my ($found) = grep { ($_->{zone} // $_->{redis}) eq $name } @{ $all->{zones} }, @{ $all->{redis} };
    return $found;
}

# Opens the page, and waits for its first numbers, with a zone open if one is named.
sub look {
    my ($path, $zone, %options) = @_;
    my $page = open_page("$site$path" . ($zone ? "#$zone" : ''), %options);
    wait_for('the first numbers', sub { $page->text('#source') ne '' });
    wait_for("zone $zone to be open", sub { $page->visible('#panel') }) if $zone;
    return $page;
}

# Pauses the page, and waits until no call is in flight: then only feed() brings answers.
sub hold {
    my ($page) = @_;
    $page->do('#pause', 'click');
    wait_for('the page to rest', sub { !$page->evaluate('() => asking') });
    return;
}

# Gives a page an answer that is `seconds` later than the last one, with requests that were counted meanwhile:
# { zone => { allowed => 3 } }.
my $feed = <<'JAVASCRIPT';
({ seconds, more, set }) => {
    const answer = { ...structuredClone(last), time: last.time + seconds, ...set };
    for (const zone of answer.zones) {
        for (const [name, count] of Object.entries(more?.[zone.zone] ?? {})) zone.requests[name] += count;
    }
    showAll(answer, null);
}
JAVASCRIPT
sub feed { my ($page, %what) = @_; $page->evaluate($feed, { seconds => 1, %what }); return }

sub shown { my ($page, $zone, $name) = @_; return $page->text(zone($zone) . " [data-value=$name]") }

sub visible_zones { my ($page) = @_; return join ' ', map { s/\s//gr } $page->texts('.zone:visible h3') }

sub total { my ($page, $name) = @_; return $page->text("[data-total=$name]") }

subtest 'the page opens with charts of the time before' => sub {
    wait_for('two seconds without requests', sub {
        my $h = history('mail');
        return @{ $h->{times} } > 2 && $h->{allowed}[-1] == $h->{allowed}[-2];
    });
    ask('mail', 'early') for 1 .. 40;
    wait_for('quiet seconds after them', sub {
        my $rejected = history('mail')->{rejected};
        return $rejected->[-1] == 36 && $rejected->[-3] == 36;
    });
    ask('asked', 'early') for 1 .. 20;
    wait_for('a recorded round trip', sub { my $counts = history('fleet')->{roundTripCounts}; grep {$_} @{ $counts->[-2] } });
    my $page = look('/look/', 'mail');
    hold($page);
    my $trips = '[data-redis="fleet"] .spark';
    like $page->do($trips, 'getAttribute', 'aria-label'), qr/^Round trips\. Last two minutes: p99 [\d.]+ .?s, at most/, 'round trips before';
    cmp_ok scalar(() = $page->do("$trips path.p99", 'getAttribute', 'd') =~ /[ML]/g), '>=', 2, 'and their line';
    for my $chart (zone('mail') . ' .spark', '.chart') {
        like $page->do($chart, 'getAttribute', 'aria-label'), qr/; rejected [\d.]+, at most [\d.]*[1-9]/,
            "the rejections before are in $chart";
        cmp_ok scalar(() = $page->do("$chart path.rejected", 'getAttribute', 'd') =~ /[ML]/g), '>=', 5, 'they are a line of many points';
    }
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'after a pause of the page there is no gap' => sub {
    my $page = look('/look/');
    hold($page);
    my $paused = $page->evaluate('() => { answered -= GAP; zones.get("mail").samples = []; return last.time; }');
    $page->do('#pause', 'click');
    wait_for('samples', sub { $page->evaluate('() => zones.get("mail").samples.length') });
    cmp_ok $page->evaluate('() => zones.get("mail").samples[0].from'), '<', $paused - 3, 'the page has the samples of nginx';
    $page->close;
};

subtest 'numbers are means of five seconds' => sub {
    my $page = look('/look/');
    hold($page);
    feed($page) for 1 .. 6;
    is shown($page, 'free', 'allowed'), '0', 'nothing in five seconds';
    feed($page, more => { free => { allowed => 100 } });
    is shown($page, 'free', 'allowed'), '20.0', 'a hundred requests in one of five seconds';
    feed($page) for 1 .. 4;
    is shown($page, 'free', 'allowed'), '20.0', 'are still there in the fifth';
    feed($page);
    is shown($page, 'free', 'allowed'), '0', 'and gone in the sixth';
    my $count = '() => zones.get("free").samples.length';
    my $before = $page->evaluate($count);
    feed($page, seconds => 0.1, more => { free => { allowed => 1 } });
    is $page->evaluate($count), $before, 'an answer that follows at once is no sample';
    feed($page, seconds => 0.9);
    is shown($page, 'free', 'allowed'), '0.2', 'its requests are in the next one';
    $page->close;
};

subtest 'the page says which instance it shows' => sub {
    my $page = look('/look/', undef, timezoneId => 'Asia/Tokyo');
    my $host = hostname();
    like $page->text('#source'), qr/^\Q$host\E, (?:version \S+, )?instance [0-9a-f]{16}, \d\d:\d\d:\d\d GMT\+9$/, 'host, instance, time and time zone';
    is $page->call('title'), "Rate limits of $host", 'the title has the host';
    hold($page);
    feed($page, set => { version => '1.2.3' });
    like $page->text('#source'), qr/^\Q$host\E, version 1\.2\.3, instance /, 'the version, if the API tells it';
    $page->close;
    my $summer = look('/look/', undef, timezoneId => 'Europe/Berlin');
    is $summer->evaluate('() => [timeZone(1750000000), timeZone(1763300000)].join(" ")'), 'CEST CET', 'the time zone is that of the time';
    $summer->close;
};

subtest 'a line of totals' => sub {
    my $page = look('/look/');
    hold($page);
    feed($page) for 1 .. 6;
    feed($page, more => { free => { allowed => 500 }, mail => { allowed => 10, rejected => 30 }, plan => { rejected => 5, delayed => 15 } });
    is total($page, 'allowed'),   '102', 'allowed';
    is total($page, 'rejected'),  '7.0', 'rejected';
    is total($page, 'delayed'),   '3.0', 'delayed';
    is total($page, 'errors'),    '0',   'errors';
    is total($page, 'rejecting'), '2 of ' . @names, 'zones that reject';
    my $keys = $page->evaluate('() => last.zones.reduce((all, zone) => all + (zone.keys ?? 0), 0)');
    cmp_ok $keys, '>', 0, 'there are clients';
    is total($page, 'keys'), $keys, 'clients in memory';
    $page->close;
};

subtest 'zones are sorted' => sub {
    my $page = look('/look/');
    hold($page);
    feed($page) for 1 .. 6;
    feed($page, more => { free => { allowed => 500 }, plan => { allowed => 9, rejected => 30 }, alone => { allowed => 10, rejected => 5 } });
    is visible_zones($page), "@names", 'as they are configured';
    my $sort = sub { $page->do('#zone-sort', 'selectOption', $_[0]); return visible_zones($page) };
    is $sort->('name'), join(' ', sort @names), 'by name';
    like $sort->('allowed'), qr/^free alone plan mail/, 'by allowed requests, then as configured';
    like $sort->('rejected'), qr/^plan alone mail free/, 'by rejected requests';
    feed($page, more => { alone => { rejected => 500 } });
    like visible_zones($page), qr/^alone plan mail/, 'the order follows the numbers';
    $page->do(zone('plan') . ' h3', 'hover');
    feed($page, more => { plan => { rejected => 5000 } });
    like visible_zones($page), qr/^alone plan mail/, 'but not while the mouse is over the zones';
    $page->do('h1', 'hover');
    feed($page);
    like visible_zones($page), qr/^plan alone mail/, 'only afterwards';
    $page->do(zone('alone') . ' h3 button', 'focus');
    feed($page, more => { alone => { rejected => 50000 } });
    like visible_zones($page), qr/^plan alone mail/, 'nor while one has the focus';
    is $sort->(''), "@names", 'and back';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'zones are filtered' => sub {
    my $page = look('/look/');
    my %found = ('' => "@names", 'MAI' => 'mail', 'sliding_log' => 'tiny', 'redis many' => 'counted', 'remote_addr' => 'tiny',
        'redis' => 'asked alone counted', 'nothing' => '');
    for my $words (sort keys %found) {
        $page->do('#zone-filter', 'fill', $words);
        is visible_zones($page), $found{$words}, "\"$words\"";
        my $count = split ' ', $found{$words};
        is $page->text('#shown'), $count == @names ? '' : $count ? "$count of " . @names . ' zones' : 'No such zone.', 'the page says how many';
    }
    $page->do('#zone-filter', 'press', 'Enter');
    is $page->url, "$site/look/", 'Enter does not leave the page';
    $page->do('#zone-filter', 'fill', '');
    is visible_zones($page), "@names", 'all are back';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

subtest 'how full a zone is' => sub {
    my $page = look('/look/');
    my $slots = $page->evaluate('() => zones.get("free").zone.slots');
    hold($page);
    my $full = sub {
        my ($keys) = @_;
        $page->evaluate('keys => { const answer = structuredClone(last); answer.time += 1;
            answer.zones.find(({ zone }) => zone === "free").keys = keys; showAll(answer, null); }', $keys);
        return shown($page, 'free', 'full');
    };
    is $full->(0), '0% full', 'an empty zone';
    is $full->(1), '<1% full', 'a zone with one client';
    is $full->($slots / 4), '25% full', 'a quarter';
    is sprintf('%.2f', $page->evaluate('() => document.querySelector(`[data-zone="free"] meter`).value')), '0.25', 'the meter';
    is $full->($slots), '100% full', 'a full zone';
    $page->do('#zone-sort', 'selectOption', 'full');
    like visible_zones($page), qr/^free .* asked$/, 'the fullest zone is first, one without clients in memory last';
    is $page->visible(zone('asked') . ' meter'), 0, 'which has no meter';
    $page->do(zone('free') . ' h3 button', 'click');
    like $page->text('#facts'), qr/clients in memory\s+[\d,]+ of [\d,]+/, 'the numbers are in the settings';
    $page->close;
};

subtest 'clients are sorted and filtered' => sub {
    for my $client (1 .. 12) {
        ask('mail', "client$client") for 1 .. 4 + 13 - $client;
    }
    my $page = look('/look/', 'mail');
    my $keys = sub { return grep {/^client/} $page->texts('#limited tbody tr:visible .key') };
    wait_for('the clients', sub { my @all = $keys->(); @all == 12 });
    is_deeply [ $keys->() ], [ map {"client$_"} 1 .. 12 ], 'by rejections';
    is $page->do('#limited th >> nth=1', 'getAttribute', 'aria-sort'), 'descending', 'the column tells';
    ask('mail', 'client12') for 1 .. 30;
    wait_for('a new order', sub { ($keys->())[0] eq 'client12' });
    $page->do('[data-sort=key]', 'click');
    is_deeply [ $keys->() ], [ map {"client$_"} 1 .. 12 ], 'by key, numbers by their value';
    is $page->do('#limited th >> nth=0', 'getAttribute', 'aria-sort'), 'ascending', 'the column tells';
    $page->do('#client-filter', 'fill', 'CLIENT1');
    is_deeply [ $keys->() ], [qw(client1 client10 client11 client12)], 'a filter';
    $page->do('#client-filter', 'fill', 'nobody');
    is $page->text('#limited-none'), 'No such client in this list.', 'which finds none';
    $page->do('#client-filter', 'fill', '');
    is $page->text('#limited-none'), '', 'and is taken back';
    is_deeply [ $page->problems ], [], 'the browser reports no problem';
    $page->close;
};

# Looks a client up on the page. Returns what the page says.
sub look_up {
    my ($page, $key) = @_;
    $page->evaluate('() => { document.getElementById("client-said").textContent = ""; }');
    $page->do('#client-input', 'fill', $key);
    $page->do('#client-input', 'press', 'Enter');
    return wait_for('the result', sub { $page->text('#client-said') });
}

subtest 'a client is looked up' => sub {
    ask($_, 'known') for qw(mail asked free);
    ask('plan', 'known', 'X-Plan' => '7r/d');
    for my $zone (qw(mail asked)) {
        my $limit = $zone eq 'mail' ? 4 : 5;
        my $page  = look('/look/', $zone);
        like look_up($page, 'known'), qr/^known has @{[ $limit - 1 ]} of $limit requests left; the whole quota is back in [\d.]+ h\.$/, "$zone: what is left";
        my $none = look_up($page, '<b>"nobody"</b>');
        like $none, qr/^(?:⚠ )?No such client: nothing is stored of <b>"nobody"<\/b> in zone $zone\./, "$zone: no such client";
        is_deeply [ $page->problems ], [], 'the browser reports no problem';
        $page->close;
    }
    my $page = look('/look/', 'mail');
    ask('mail', 'used up') for 1 .. 4;
    like look_up($page, 'used up'), qr/used up has 0 of 4 requests left/, 'a client with nothing left';
    is $page->visible('#client-said.bad'), 1, 'is marked';
    like look_up($page, ''), qr/Which client\?/, 'an empty name';
    $page->close;
    $page = look('/look/', 'plan');
    like look_up($page, 'known'), qr/^known: the rate of this zone is \$http_x_plan, and that of this client is not known/, 'a rate that is not known';
    $page->close;
    $page = look('/look/', 'tiny');
    like look_up($page, 'nonsense'), qr/No such client/, 'a key that is not an address';
    ask('tiny', '');
    like look_up($page, '127.0.0.1'), qr/^(?:⚠ )?127\.0\.0\.1 has 0 of 1 request left/, 'an address';
    $page->close;
};

subtest 'a rate of a fleet changes after a question' => sub {
    my %question = (
        asked   => [ 'Change the rate of the fleet?', qr/zone asked is 5r\/d\. On every instance that shares Redis fleet it will be 9r\/d, within a second\. How many there are is not counted/ ],
        counted => [ 'Change the rate on 2 instances?', qr/zone counted is 5r\/d\. On all 2 instances that share Redis many it will be 9r\/d, within a second\.$/ ],
    );
    for my $zone (sort keys %question) {
        my $page = look('/limits/', $zone);
        wait_for('both instances', sub { $page->text('[data-redis="many"] [data-value=instances] dd') eq '2' });
        $page->do('#rate-input', 'fill', '9r/d');
        $page->do('#rate-input', 'press', 'Enter');
        is $page->text('#confirm-title'), $question{$zone}[0], "$zone: the question";
        like $page->text('#confirm-text'), $question{$zone}[1], 'how far it reaches';
        $page->press('Escape');
        is $page->visible('#confirm'), 0, 'Escape leaves it';
        is $page->do('#rate-input', 'inputValue'), '9r/d', 'the input is kept';
        unlike $nginx->error_log, qr/rate of zone "$zone" is now/, 'nothing was changed';
        $page->do('#rate-form [type=submit]', 'click');
        $page->do('#confirm-no', 'click');
        unlike $nginx->error_log, qr/rate of zone "$zone" is now/, 'nor with Cancel';
        $page->do('#rate-form [type=submit]', 'click');
        $page->do('#confirm-yes', 'click');
        wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 9r/d.' });
        $other->wait_for_log(qr/rate of zone "$zone" is now 9r\/d/);
        wait_for('a way back', sub { $page->visible('#rate-return') });
        $page->do('#rate-return', 'click');
        like $page->text('#confirm-text'), qr/is 9r\/d\..* it will be the configured one, here 5r\/d, within a second/, 'the way back asks too';
        $page->do('#confirm-yes', 'click');
        wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 5r/d.' });
        is_deeply [ $page->problems ], [], 'the browser reports no problem';
        $page->close;
    }
    for my $zone (qw(mail alone)) {
        my $page = look('/limits/', $zone);
        wait_for('the instance', sub { $page->text('[data-redis="alone"] [data-value=instances] dd') eq '1' });
        $page->do('#rate-input', 'fill', '9r/d');
        $page->do('#rate-input', 'press', 'Enter');
        wait_for('the answer', sub { $page->text('#rate-said') eq 'The rate is now 9r/d.' });
        pass "$zone: a change on one instance needs no question";
        $page->do('#rate-return', 'click');
        wait_for('the answer', sub { $page->text('#rate-said') =~ /^The rate is now [45]r\/d/ });
        $page->close;
    }
};

# Does everything with the keyboard of a page: finds a zone, looks a client up, and refuses a change of its rate.
sub use_keyboard {
    my ($page, $tab_to) = @_;
    $tab_to->('#zone-filter');
    $page->type('counted');
    is visible_zones($page), 'counted', 'the filter';
    $tab_to->('#zone-sort');
    $page->type('name');
    is $page->do('#zone-sort', 'inputValue'), 'name', 'the order';
    $tab_to->(zone('counted') . ' h3 button');
    $page->press('Enter');
    wait_for('the zone to be open', sub { $page->visible('#panel') });
    $tab_to->('#client-input');
    $page->type('nobody');
    $page->press('Enter');
    wait_for('the result', sub { $page->text('#client-said') =~ /No such client/ });
    $tab_to->('#rate-input');
    $page->press('Control+A');
    $page->type('8r/d');
    $page->press('Enter');
    wait_for('the question', sub { $page->visible('#confirm') });
    ok $page->evaluate('() => document.activeElement.id') eq 'confirm-no', 'the focus is on Cancel';
    $page->press('Enter');
    wait_for('the question to go', sub { !$page->visible('#confirm') });
    is $page->evaluate('() => document.activeElement.id'), 'rate-input', 'the focus is back';
    return;
}

# Opens the page in a browser, and does what an operator does.
sub walk {
    my (%options) = @_;
    my $page = look('/limits/', undef, %options);
    my $tab_to = sub {
        my ($selector) = @_;
        for (1 .. 60) {
            $page->press('Tab');
            return if $page->evaluate('selector => document.activeElement?.matches(selector) ?? false', $selector);
        }
        die "Tab does not lead to $selector\n";
    };
    use_keyboard($page, $tab_to);
    like $page->do(zone('mail') . ' .spark path.allowed', 'getAttribute', 'd'), qr/^M[\d. LM]+$/, 'charts are drawn';
    my $wide = $page->evaluate('() => document.documentElement.scrollWidth - document.documentElement.clientWidth');
    is $wide, 0, 'no horizontal scrolling';
    # Firefox asks for an icon by itself, and reports that the policy of the page forbids it.
    is_deeply [ grep { !m{/favicon\.ico because} } $page->problems ], [], 'the browser reports no problem';
    $page->close;
    return;
}

subtest 'the keyboard is enough'            => sub { walk() };
subtest 'all works in Firefox'              => sub { walk(browser => 'firefox') };
subtest 'and on a phone, in Firefox as well' => sub { walk(viewport => [ 390, 844 ], browser => $_) for qw(chromium firefox) };

subtest 'axe-core finds no barrier' => sub {
    ask('mail', 'barrier') for 1 .. 6;
    for my $scheme (qw(light dark)) {
        my $page = look('/limits/', 'mail', colorScheme => $scheme, viewport => $scheme eq 'light' ? [ 390, 844 ] : [ 1920, 1080 ]);
        wait_for('the clients', sub { $page->visible('#limited') });
        $page->do('#table-button', 'click');
        look_up($page, 'nobody');
        is_deeply [ $page->barriers ], [], "$scheme: a zone that is open";
        $page->do('#limited tbody button >> nth=0', 'click');
        is_deeply [ $page->barriers ], [], "$scheme: a question";
        $page->do('#confirm-no', 'click');
        $page->do('#zone-filter', 'fill', 'nothing');
        is_deeply [ $page->barriers ], [], "$scheme: no zone";
        $page->evaluate('() => { document.querySelector("label[for=zone-filter]").remove();
            document.getElementById("zone-filter").placeholder = ""; }');
        like join("\n", $page->barriers), qr/label/, "$scheme: a barrier would be found";
        $page->close;
    }
};

done_testing;
