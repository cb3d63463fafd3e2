// The page of rate_limit_dashboard: calls the API every second, draws the answers, and sends changes to the API.
//
// An answer may contain text from a hostile client. The page shows it as text of elements, never as markup.
'use strict';

const EVERY = 1000;         // milliseconds between two calls
const PATIENCE = 5000;      // milliseconds to wait for an answer
const RECENT = 10;          // seconds that a percentile or a mean covers
const SERIES = ['allowed', 'rejected', 'delayed'];

const zones = new Map();    // by name: the data and the elements of a zone
const servers = new Map();  // by name: the data and the elements of a Redis
const calm = matchMedia('(prefers-reduced-motion: reduce)');

let last = null;            // the last answer
let open = null;            // the zone whose panel is open
let paused = false;
let asking = false;
let timer = 0;
let answers = 0;

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

function remember(known, time, begunAnew) {
    const counts = counters(known.zone);
    if (known.counts && time > known.time) {
        const sample = rates(known.counts, counts, time - known.time, begunAnew);
        known.samples.push({ from: known.time, to: time, ...sample });
    }
    known.samples = known.samples.filter(sample => sample.to > time - SHOWN - RECENT && sample.from < time);
    known.counts = counts;
    known.time = time;
}

// The samples that a histogram has gained since the oldest of its recent states.
function recent(known, name) {
    const [first, now] = [known.states[0][name], known.states.at(-1)[name]];
    const counts = now.counts.map((count, i) => count - first.counts[i]);
    return { counts, bounds: now.le, sum: now.sum - first.sum, count: now.count - first.count };
}

function rememberServer(known, time, begunAnew) {
    const { roundTripSeconds: trip, batchSize: batch } = known.server;
    if (!trip || !batch) {
        return;
    }
    const before = known.states.at(-1);
    if (begunAnew || before && (trip.count < before.trip.count || batch.count < before.batch.count)) {
        known.states = [];
    }
    known.states.push({ time, trip, batch });
    while (known.states.length > 2 && known.states[0].time < time - RECENT) {
        known.states.shift();
    }
    const { counts, bounds } = recent(known, 'trip');
    known.p99 = quantile(0.99, bounds, counts);
    if (before) {
        const p99 = known.p99 === Infinity ? bounds.at(-1) : known.p99;
        known.samples.push({ from: before.time, to: time, p99 });
    }
    known.samples = known.samples.filter(sample => sample.to > time - SHOWN - RECENT && sample.from < time);
}

// DISPLAY

function storeOf(zone) {
    const words = [zone.redis ? `Redis ${zone.redis}` : zone.store];
    if (zone.syncSeconds) {
        words.push(`synchronised every ${duration(zone.syncSeconds)}`);
    }
    return words.join(', ');
}

function showZone(known, redraw) {
    const { zone, root, samples } = known;
    const sample = samples.at(-1);
    say(place(root, 'zone'), zone.zone);
    say(place(root, 'rate'), zone.rate);
    show(place(root, 'live'), zone.live);
    say(place(root, 'store'), storeOf(zone));
    for (const name of SERIES) {
        say(place(root, name), perSecond(sample?.[name]));
    }
    const undecided = place(root, 'undecided');
    show(undecided, sample?.errors > 0);
    say(undecided, `⚠ Redis did not decide ${perSecond(sample?.errors)} per second`);
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
    if (known.states.length > 0) {
        const [trip, batch] = [recent(known, 'trip'), recent(known, 'batch')];
        const seconds = known.states.at(-1).time - known.states[0].time;
        say(place(root, 'batch'), batch.count === 0 ? '– idle' : tenths.format(batch.sum / batch.count));
        say(place(root, 'calls'), perSecond(seconds > 0 ? trip.count / seconds : null));
    }
    if (redraw) {
        const svg = root.querySelector('.spark');
        chart(svg, samples, ['p99'], last.time, { unit: duration });
        svg.setAttribute('aria-label', `Round trips. ${describe(samples, ['p99'], duration)}`);
    }
}

// Puts an element for each thing into a container, in their order, and removes the elements of other things.
function arrange(folder, known, things, nameOf, begin) {
    const names = new Set(things.map(nameOf));
    for (const [name, { root }] of known) {
        if (!names.has(name)) {
            root.remove();
            known.delete(name);
        }
    }
    things.forEach((thing, i) => {
        const name = nameOf(thing);
        if (!known.has(name)) {
            known.set(name, begin(name));
        }
        const { root } = known.get(name);
        if (folder.children[i] !== root) {
            folder.insertBefore(root, folder.children[i] ?? null);
        }
    });
}

function beginZone(name) {
    const root = copy('zone-template');
    root.dataset.zone = name;
    root.querySelector('h3 button').addEventListener('click', () => openZone(open === name ? null : name));
    return { root, samples: [], counts: null, time: 0 };
}

function beginServer(name) {
    const root = copy('server-template');
    root.dataset.redis = name;
    root.querySelector('h3').textContent = name;
    return { root, samples: [], states: [], p99: null };
}

function showAll(answer) {
    const begunAnew = last !== null && (last.instance !== answer.instance || answer.time < last.time);
    if (begunAnew) {
        const when = clock(answer.time);
        say(element('news'), `nginx was started anew, or another one answers, since ${when}: its counters began anew.`);
    }
    last = answer;
    const redraw = !calm.matches || answers % 5 === 0;
    answers++;
    arrange(element('server-list'), servers, answer.redis ?? [], server => server.redis, beginServer);
    for (const server of answer.redis ?? []) {
        const known = servers.get(server.redis);
        known.server = server;
        rememberServer(known, answer.time, begunAnew);
        showServer(known, redraw);
    }
    show(element('servers'), servers.size > 0);
    arrange(element('zone-list'), zones, answer.zones, zone => zone.zone, beginZone);
    for (const zone of answer.zones) {
        const known = zones.get(zone.zone);
        known.zone = zone;
        remember(known, answer.time, begunAnew);
        showZone(known, redraw);
    }
    say(element('source'), `instance ${answer.instance}, ${clock(answer.time)}`);
    say(element('empty'), 'The configuration has no rate_limit_zone.');
    show(element('empty'), zones.size === 0);
    if (open !== null && !zones.has(open)) {
        openZone(null);
    }
    showPanel(redraw);
}

// THE OPEN ZONE

function openZone(name) {
    for (const [other, { root }] of zones) {
        root.querySelector('h3 button').setAttribute('aria-expanded', String(other === name));
    }
    element('panel')?.remove();
    open = name;
    history.replaceState(null, '', name === null ? location.pathname : `#${encodeURIComponent(name)}`);
    if (name === null) {
        return;
    }
    const panel = copy('panel-template');
    zones.get(name).root.append(panel);
    zones.get(name).root.querySelector('h3 button').setAttribute('aria-controls', 'panel');
    element('panel-title').textContent = `Zone ${name}`;
    element('table-button').addEventListener('click', toggleTable);
    element('rate-form').addEventListener('submit', event => {
        event.preventDefault();
        changeRate(name, element('rate-input').value.trim());
    });
    element('rate-return').addEventListener('click', () => changeRate(name, null));
    element('reset-form').addEventListener('submit', event => {
        event.preventDefault();
        confirmReset(name, element('reset-input').value);
    });
    showPanel(true);
    ask();
}

function toggleTable() {
    const table = element('history');
    show(table, table.hidden);
    element('table-button').setAttribute('aria-expanded', String(!table.hidden));
    say(element('table-button'), table.hidden ? 'Show as a table' : 'Hide the table');
    showPanel(false);
}

function facts(zone) {
    const words = [['key', zone.key], ['algorithm', zone.algorithm]];
    const add = (name, value, text = value => whole.format(value)) => {
        if (value !== undefined) {
            words.push([name, text(value)]);
        }
    };
    const asIs = value => value;
    add('configured rate', zone.configuredRate, asIs);
    add('burst', zone.burst);
    add('capacity', zone.capacity);
    add('buckets', zone.buckets);
    add('least interval', zone.minIntervalSeconds, duration);
    add('counts requests', zone.count, asIs);
    words.push(['store', storeOf(zone)]);
    add('on error', zone.onError, asIs);
    add('deny cache', zone.denyCacheSeconds, value => value === 0 ? 'off' : duration(value));
    add('clients in memory', zone.keys);
    add('evictions', zone.evictions);
    add('sync overshoot', zone.syncOvershoot);
    add('requests', zone.requests, list);
    add('dry run', zone.dryRun, list);
    add('decided by', zone.stores, list);
    add('errors', zone.errors, errors => list(errors) || 'none');
    add('shadow', zone.shadow, list);
    return words;
}

function showFacts(zone) {
    const parent = element('facts');
    const words = facts(zone);
    if (parent.children.length !== words.length) {
        parent.replaceChildren(...words.map(() => {
            const row = make('div', '');
            row.append(make('dt', ''), make('dd', ''));
            return row;
        }));
    }
    words.forEach(([name, value], i) => {
        say(parent.children[i].firstElementChild, name);
        say(parent.children[i].lastElementChild, value);
    });
}

// Rows of ten seconds each, the latest first.
function showTable(samples) {
    const rows = [];
    for (let until = last.time; until > last.time - SHOWN; until -= RECENT) {
        const some = samples.filter(sample => sample.to > until - RECENT && sample.to <= until && sample.allowed !== null);
        const seconds = sum(some.map(sample => sample.to - sample.from));
        const row = make('tr', '');
        const mean = name => seconds === 0 ? null : sum(some.map(sample => sample[name] * (sample.to - sample.from))) / seconds;
        row.append(make('td', clock(until)), ...SERIES.map(name => make('td', perSecond(mean(name)))));
        rows.push(row);
    }
    element('history').querySelector('tbody').replaceChildren(...rows);
}

function showPanel(redraw) {
    if (open === null) {
        return;
    }
    const { zone, samples } = zones.get(open);
    const panel = element('panel');
    for (const part of panel.querySelectorAll('.write')) {
        show(part, last.write);
    }
    const input = element('rate-input');
    if (input.value === input.dataset.shown) {  // nobody has written another
        input.value = zone.rate;
        input.dataset.shown = zone.rate;
    }
    const back = element('rate-return');
    if (!zone.live && document.activeElement === back) {
        input.focus();
    }
    show(back, zone.live);
    say(back, `Return to the configured rate, ${zone.configuredRate}`);
    showFacts(zone);
    if (!element('history').hidden) {
        showTable(samples);
    }
    if (redraw) {
        const svg = panel.querySelector('.chart');
        chart(svg, samples, SERIES, last.time, { full: true });
        svg.setAttribute('aria-label', describe(samples, SERIES, perSecond));
    }
}

// Reuses the elements of rows, so that a button keeps the focus. A row that moves loses the focus, and it is set again.
function showLimited(limited) {
    const table = element('limited');
    const body = table.tBodies[0];
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const rows = new Map([...body.rows].map(row => [row.dataset.key, row]));
    const none = limited === undefined ? 'Keys are hidden here (keys=off).' : 'Nobody was rejected.';
    say(element('limited-none'), limited?.length ? '' : none);
    show(table, limited?.length > 0);
    const wanted = (limited ?? []).map(({ key, rejected, error }) => {
        const row = rows.get(key) ?? beginLimited(key);
        say(row.cells[1], error > 0 ? `${whole.format(rejected - error)} to ${whole.format(rejected)}` : whole.format(rejected));
        show(row.cells[2], last.write);
        return row;
    });
    wanted.forEach((row, i) => {
        if (body.rows[i] !== row) {
            body.insertBefore(row, body.rows[i] ?? null);
        }
    });
    while (body.rows.length > wanted.length) {
        body.rows[wanted.length].remove();
    }
    if (focused !== document.activeElement && focused?.isConnected) {
        focused.focus();
    }
}

function beginLimited(key) {
    const row = make('tr', '');
    row.dataset.key = key;
    const button = make('button', 'Reset');
    button.type = 'button';
    button.setAttribute('aria-label', `Reset ${key}`);
    const zone = open;
    button.addEventListener('click', () => confirmReset(zone, key));
    const cell = make('td', '');
    cell.append(button);
    row.append(make('td', key, 'key'), make('td', ''), cell);
    return row;
}

// CHANGES

async function changeRate(zone, rate) {
    const said = element('rate-said');
    const input = element('rate-input');
    const path = `zones/${encodeURIComponent(zone)}`;
    try {
        const answer = rate === null ? await call('DELETE', path) : await call('PATCH', path, { rate });
        const now = answer?.rate ?? rate ?? zones.get(zone).zone.configuredRate;
        input.removeAttribute('aria-invalid');
        input.value = now;
        input.dataset.shown = now;
        mood(said, `The rate is now ${now}.`, true);
    } catch (error) {
        input.setAttribute('aria-invalid', String(rate !== null));
        mood(said, `Not changed: ${error.message}`, false);
    }
    ask();
}

function confirmReset(zone, key) {
    const said = element('reset-said');
    if (key === '') {
        mood(said, 'Not reset: which client?', false);
        element('reset-input').focus();
        return;
    }
    const dialog = element('confirm');
    dialog.dataset.zone = zone;
    dialog.dataset.key = key;
    say(element('confirm-text'),
        `In zone ${zone}, all that ${key} has used is forgotten. Its next requests are those of a new client.`);
    dialog.showModal();
    element('confirm-no').focus();
}

async function reset() {
    const { zone, key } = element('confirm').dataset;
    element('confirm').close();
    let text;
    let good = true;
    try {
        await call('DELETE', `reset?zone=${encodeURIComponent(zone)}&key=${encodeURIComponent(key)}`);
        text = `${key} was reset.`;
    } catch (error) {
        text = `${key} was not reset: ${error.message}`;
        good = false;
    }
    if (open === zone) {
        mood(element('reset-said'), text, good);
    }
    ask();
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
        showAll(await call('GET', 'zones'));
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
element('confirm-yes').addEventListener('click', reset);
element('confirm-no').addEventListener('click', () => element('confirm').close());
document.addEventListener('visibilitychange', askOrRest);
addEventListener('resize', redrawAll);

// The fragment of the URL may name the zone to open.
ask().then(() => {
    const name = [...zones.keys()].find(zone => location.hash === `#${encodeURIComponent(zone)}`);
    if (name !== undefined) {
        openZone(name);
    }
});
