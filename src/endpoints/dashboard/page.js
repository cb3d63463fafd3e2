// The page of rate_limit_dashboard: calls the API every second, draws the answers, and sends changes to the API.
//
// An answer may contain text from a hostile client. The page shows it as text of elements, never as markup.
'use strict';

const EVERY = 1000;         // milliseconds between two calls
const PATIENCE = 5000;      // milliseconds to wait for an answer
const RECENT = 10;          // seconds that a percentile or a row of the table covers
const SMOOTH = 5;           // seconds that a number covers
const SHORTEST = 0.5;       // seconds of a sample; a shorter one would show a single request as a peak
const GAP = 3000;           // milliseconds without an answer after which the page asks for the history
const SERIES = ['allowed', 'rejected', 'delayed'];
const COUNTED = [...SERIES, 'errors'];

const zones = new Map();    // by name: the data and the elements of a zone
const servers = new Map();  // by name: the data and the elements of a Redis
const calm = matchMedia('(prefers-reduced-motion: reduce)');

let last = null;            // the last answer
let open = null;            // the zone whose panel is open
let paused = false;
let asking = false;
let timer = 0;
let answers = 0;
let answered = -Infinity;   // when the last answer came
let order = [];             // the names of the zones, as they are sorted

// ELEMENTS

const element = id => document.getElementById(id);

function copy(template) {
    return element(template).content.firstElementChild.cloneNode(true);
}

// The element in a copy of a template that shows a value.
function place(root, name) {
    return root.querySelector(`[data-value="${name}"]`);
}

// Does not set equal text again: a screen reader would repeat it, and a selection would be lost.
function say(target, text) {
    if (target.textContent !== text) {
        target.textContent = text;
    }
}

function show(target, shown) {
    target.hidden = !shown;
}

function make(name, text, kind) {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) {
        made.className = kind;
    }
    return made;
}

// HISTORY

// The counts per second between two answers; null for all if the counters were reset.
function rates(before, now, seconds, begunAnew) {
    const fell = begunAnew || Object.keys(now).some(name => now[name] < before[name]);
    return Object.fromEntries(Object.keys(now).map(name => [name, fell ? null : (now[name] - before[name]) / seconds]));
}

function counters(zone) {
    const { allowed = 0, rejected = 0, delayed = 0 } = zone.requests ?? {};
    return { allowed, rejected, delayed, errors: sum(Object.values(zone.errors ?? {})) };
}

function remember(known, counts, time, begunAnew) {
    if (known.counts && time < known.time + SHORTEST && !begunAnew) {
        return;
    }
    if (known.counts && time > known.time) {
        const sample = rates(known.counts, counts, time - known.time, begunAnew);
        known.samples.push({ from: known.time, to: time, ...sample });
    }
    known.samples = known.samples.filter(sample => sample.to > time - SHOWN - RECENT && sample.from < time);
    known.counts = counts;
    known.time = time;
}

// Replaces the samples of a zone by what nginx has recorded.
function recall(known, past) {
    known.samples = [];
    known.counts = null;
    past.times.forEach((time, i) => {
        remember(known, Object.fromEntries(COUNTED.map(name => [name, past[name][i]])), time, false);
    });
}

// The mean of the last seconds; null if nothing is known of them.
function mean(samples, name, since, until = Infinity) {
    const some = samples.filter(sample => sample.to > since && sample.to <= until && sample[name] !== null);
    const seconds = sum(some.map(sample => sample.to - sample.from));
    return seconds === 0 ? null : sum(some.map(sample => sample[name] * (sample.to - sample.from))) / seconds;
}

// The values that a histogram has gained in its last states.
function recent(states) {
    const [first, now] = [states[0], states.at(-1)];
    const counts = now.counts.map((count, i) => count - first.counts[i]);
    return { counts, sum: now.sum - first.sum, seconds: now.time - first.time };
}

// Adds a state of a histogram to those of the last seconds.
function push(states, state) {
    if (sum(state.counts) < sum(states.at(-1)?.counts ?? [])) {
        states.length = 0;
    }
    states.push(state);
    while (states.length > 2 && states[0].time < state.time - RECENT) {
        states.shift();
    }
}

// Remembers how long round trips took, up to a time.
function rememberTrips(known, counts, time) {
    const before = known.trips.at(-1)?.time;
    if (time < before + SHORTEST) {
        return;
    }
    push(known.trips, { time, counts });
    known.p99 = quantile(0.99, known.bounds, recent(known.trips).counts);
    if (before !== undefined) {
        const p99 = known.p99 === Infinity ? known.bounds.at(-1) : known.p99;
        known.samples.push({ from: before, to: time, p99 });
    }
    known.samples = known.samples.filter(sample => sample.to > time - SHOWN - RECENT && sample.from < time);
}

function rememberServer(known, time, begunAnew, past) {
    const { roundTripSeconds: trip, batchSize: batch } = known.server;
    known.bounds = trip.le;
    if (begunAnew || past) {
        known.trips = [];
    }
    if (begunAnew) {
        known.batches = [];
    }
    if (past) {
        known.samples = [];
        past.times.forEach((at, i) => rememberTrips(known, past.roundTripCounts[i], at));
    }
    rememberTrips(known, trip.counts, time);
    push(known.batches, { time, counts: batch.counts, sum: batch.sum });
}

// DISPLAY

function storeOf(zone) {
    const words = [zone.redis ? `Redis ${zone.redis}` : zone.store];
    if (zone.syncSeconds) {
        words.push(`synchronised every ${duration(zone.syncSeconds)}`);
    }
    if (zone.lease) {
        words.push(`leased by up to ${zone.lease}`);
    }
    return words.join(', ');
}

// The share of its memory that a zone uses; null for a zone without clients in memory.
function fullness(zone) {
    return zone.slots ? zone.keys / zone.slots : null;
}

function showZone(known, redraw) {
    const { zone, root, samples, now } = known;
    say(place(root, 'zone'), zone.zone);
    say(place(root, 'rate'), zone.rate);
    show(place(root, 'live'), zone.live);
    say(place(root, 'store'), storeOf(zone));
    for (const name of SERIES) {
        say(place(root, name), perSecond(now[name]));
    }
    const undecided = place(root, 'undecided');
    show(undecided, now.errors > 0);
    say(undecided, `⚠ Redis did not decide ${perSecond(now.errors)} per second`);
    const full = fullness(zone);
    const meter = root.querySelector('meter');
    show(meter.parentElement, full !== null);
    meter.value = full ?? 0;
    say(place(root, 'full'), `${full > 0 && full < 0.01 ? '<1%' : percent.format(full ?? 0)} full`);
    if (redraw) {
        const svg = root.querySelector('.spark');
        chart(svg, samples, SERIES, last.time);
        svg.setAttribute('aria-label', describe(samples, SERIES, perSecond));
    }
}

function mood(target, text, good) {
    say(target, text);
    target.classList.toggle('bad', !good);
}

function showServer(known, redraw) {
    const { server, root, samples, p99 } = known;
    mood(place(root, 'up'), server.up ? 'up' : 'down', server.up);
    mood(place(root, 'breaker'), server.breakerOpen ? 'open: not asked' : 'closed', !server.breakerOpen);
    say(place(root, 'native'), server.native ? 'native module' : 'script');
    say(place(root, 'p99'), p99 === null ? '– idle' : p99 === Infinity ? 'over 1 s' : duration(p99));
    const instances = place(root, 'instances');
    show(instances, server.instances !== undefined);
    say(instances.lastElementChild, String(server.instances));
    const errors = place(root, 'errors');
    show(errors, list(server.errors) !== '');
    say(errors.lastElementChild, list(server.errors));
    const [trips, batches] = [recent(known.trips), recent(known.batches)];
    const calls = sum(batches.counts);
    say(place(root, 'batch'), calls === 0 ? '– idle' : tenths.format(batches.sum / calls));
    say(place(root, 'calls'), perSecond(trips.seconds > 0 ? sum(trips.counts) / trips.seconds : null));
    if (redraw) {
        const svg = root.querySelector('.spark');
        chart(svg, samples, ['p99'], last.time, { unit: duration });
        svg.setAttribute('aria-label', `Round trips. ${describe(samples, ['p99'], duration)}`);
    }
}

// Compares two names; numbers in them are compared by their values.
function compare(a, b) {
    return a.localeCompare(b, 'en', { numeric: true });
}

// Begins what is new among the things, and ends what is gone.
function keep(known, things, nameOf, begin) {
    const names = new Set(things.map(nameOf));
    for (const [name, { root }] of known) {
        if (!names.has(name)) {
            root.remove();
            known.delete(name);
        }
    }
    for (const name of names) {
        if (!known.has(name)) {
            known.set(name, begin(name));
        }
    }
}

// Puts elements into a container, in this order. An element that is there already does not move.
function arrange(folder, elements) {
    elements.forEach((root, i) => {
        if (folder.children[i] !== root) {
            folder.insertBefore(root, folder.children[i] ?? null);
        }
    });
}

// Sorts the zones, and hides those that the filter excludes. The order stays while somebody is about to use a zone,
// unless `now` demands it.
function arrangeZones(now = false) {
    const folder = element('zone-list');
    const by = element('zone-sort').value;
    const changed = order.length !== zones.size || order.some(name => !zones.has(name));
    if (now || changed || !folder.matches(':hover, :focus-within')) {
        const rank = known => (by === 'full' ? fullness(known.zone) : known.now[by]) ?? -1;
        order = last.zones.map(zone => zone.zone);
        if (by !== '') {
            order.sort((a, b) => by === 'name' ? compare(a, b) : rank(zones.get(b)) - rank(zones.get(a)));
        }
    }
    arrange(folder, order.map(name => zones.get(name).root));
    const words = element('zone-filter').value.toLowerCase().split(' ');
    let shown = 0;
    for (const { zone, root } of zones.values()) {
        const text = `${zone.zone} ${zone.key} ${zone.algorithm} ${storeOf(zone)}`.toLowerCase();
        show(root, words.every(word => text.includes(word)));
        shown += root.hidden ? 0 : 1;
    }
    const some = shown === 0 ? 'No such zone.' : `${shown} of ${zones.size} zones`;
    say(element('shown'), shown === zones.size ? '' : some);
}

function showTotals() {
    const all = [...zones.values()];
    const values = Object.fromEntries(COUNTED.map(name => {
        const known = all.map(({ now }) => now[name]).filter(value => value !== null);
        return [name, perSecond(known.length ? sum(known) : null)];
    }));
    values.keys = whole.format(sum(all.map(({ zone }) => zone.keys ?? 0)));
    values.rejecting = `${all.filter(({ now }) => now.rejected > 0).length} of ${all.length}`;
    for (const [name, value] of Object.entries(values)) {
        say(document.querySelector(`[data-total="${name}"]`), value);
    }
}

function beginZone(name) {
    const root = copy('zone-template');
    root.dataset.zone = name;
    root.querySelector('h3 button').addEventListener('click', () => openZone(open === name ? null : name));
    return { root, samples: [], counts: null, time: 0, now: {} };
}

function beginServer(name) {
    const root = copy('server-template');
    root.dataset.redis = name;
    root.querySelector('h3').textContent = name;
    return { root, samples: [], trips: [], batches: [], p99: null };
}

// The instance that has answered: its host, and the version of the module if it tells.
function sourceOf({ host, instance, version, time }) {
    const words = [host, version && `version ${version}`, `instance ${instance}`, `${clock(time)} ${timeZone(time)}`];
    return words.filter(Boolean).join(', ');
}

function showAll(answer, past) {
    const begunAnew = last !== null && (last.instance !== answer.instance || answer.time < last.time);
    if (begunAnew) {
        const when = clock(answer.time);
        say(element('news'), `nginx was started anew, or another one answers, since ${when}: its counters began anew.`);
    }
    last = answer;
    const redraw = !calm.matches || answers % 5 === 0;
    answers++;
    keep(servers, answer.redis ?? [], server => server.redis, beginServer);
    arrange(element('server-list'), [...servers.values()].map(({ root }) => root));
    const recorded = past?.instance === answer.instance ? past : { zones: [], redis: [] };
    for (const server of answer.redis ?? []) {
        const known = servers.get(server.redis);
        known.server = server;
        rememberServer(known, answer.time, begunAnew, recorded.redis.find(other => other.redis === server.redis));
        showServer(known, redraw);
    }
    show(element('servers'), servers.size > 0);
    keep(zones, answer.zones, zone => zone.zone, beginZone);
    for (const zone of answer.zones) {
        const known = zones.get(zone.zone);
        known.zone = zone;
        const own = recorded.zones.find(other => other.zone === zone.zone);
        if (own !== undefined) {
            recall(known, own);
        }
        remember(known, counters(zone), answer.time, begunAnew);
        const now = COUNTED.map(name => [name, mean(known.samples, name, answer.time - SMOOTH)]);
        known.now = Object.fromEntries(now);
    }
    arrangeZones();
    zones.forEach(known => showZone(known, redraw));
    showTotals();
    say(element('source'), sourceOf(answer));
    document.title = answer.host ? `Rate limits of ${answer.host}` : 'Rate limits';
    say(element('empty'), 'The configuration has no rate_limit_zone.');
    for (const [id, shown] of [['empty', zones.size === 0], ['totals', zones.size > 0], ['tools', zones.size > 1]]) {
        show(element(id), shown);
    }
    if (open !== null && !zones.has(open)) {
        openZone(null);
    }
    showPanel(redraw);
}

// THE API

// Calls the API. A problem document becomes an error with its detail.
async function call(method, path, data) {
    const options = { method, cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) };
    if (data !== undefined) {
        options.headers = { 'Content-Type': 'application/json' };
        options.body = JSON.stringify(data);
    }
    let response;
    let text;
    try {
        response = await fetch(path, options);
        text = await response.text();
    } catch {
        throw new Error('nginx does not answer');
    }
    let body = null;
    try {
        body = JSON.parse(text);
    } catch {
        if (response.ok && text !== '') {
            throw new Error(`${path} answered, but not in JSON`);
        }
    }
    if (!response.ok) {
        const reason = body?.detail ?? body?.title ?? { 401: 'you are not signed in', 403: 'access is denied' }[response.status];
        throw new Error(`${reason ?? 'the API has failed'} (${response.status})`);
    }
    return body;
}

function fail(error) {
    const since = last === null ? '' : ` What is shown is of ${clock(last.time)}.`;
    say(element('trouble'), `${error.message}.${since} Trying again every second.`);
}

// Calls the API now, and again a second later. There is never more than one call in flight.
async function ask() {
    if (asking) {
        return;
    }
    asking = true;
    clearTimeout(timer);
    const began = performance.now();
    try {
        const past = began > answered + GAP ? await call('GET', 'history') : null;
        showAll(await call('GET', 'zones'), past);
        answered = performance.now();
        if (open !== null) {
            const zone = open;
            const detail = await call('GET', `zones/${encodeURIComponent(zone)}`);
            if (zone === open) {
                showLimited(detail.limited);
            }
        }
        say(element('trouble'), '');
    } catch (error) {
        fail(error);
    }
    asking = false;
    if (!paused && !document.hidden) {
        timer = setTimeout(ask, Math.max(EVERY / 10, EVERY - (performance.now() - began)));
    }
}

// No calls while the page is paused or in the background.
function askOrRest() {
    if (paused || document.hidden) {
        clearTimeout(timer);
    } else {
        ask();
    }
}

function pause() {
    paused = !paused;
    element('pause').setAttribute('aria-pressed', String(paused));
    say(element('news'), paused ? 'Paused: nothing is updated.' : '');
    askOrRest();
}

function redrawAll() {
    if (last !== null) {
        zones.forEach(known => showZone(known, true));
        servers.forEach(known => showServer(known, true));
        showPanel(true);
    }
}

element('pause').addEventListener('click', pause);
element('confirm-yes').addEventListener('click', () => {
    element('confirm').close();
    action();
});
element('confirm-no').addEventListener('click', () => element('confirm').close());
element('tools').addEventListener('submit', event => event.preventDefault());
element('zone-filter').addEventListener('input', () => arrangeZones());
element('zone-sort').addEventListener('input', () => arrangeZones(true));
document.addEventListener('visibilitychange', askOrRest);
addEventListener('resize', redrawAll);

// The fragment of the URL may name the zone to open.
ask().then(() => {
    const name = [...zones.keys()].find(zone => location.hash === `#${encodeURIComponent(zone)}`);
    if (name !== undefined) {
        openZone(name);
    }
});
