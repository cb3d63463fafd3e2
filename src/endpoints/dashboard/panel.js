// The open zone of the page of rate_limit_dashboard: its numbers, its clients, and the changes that people make there.
'use strict';

let action = null;          // what follows when the open question is answered with yes
let byKey = false;          // clients are sorted by their keys, not by their rejections

// THE OPEN ZONE

function openZone(name) {
    for (const [other, { root }] of zones) {
        root.querySelector('h3 button').setAttribute('aria-expanded', String(other === name));
        root.classList.toggle('open', other === name);
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
    element('client-form').addEventListener('submit', event => {
        event.preventDefault();
        lookUp(name, element('client-input').value);
    });
    element('client-reset').addEventListener('click', () => confirmReset(name, element('client-input').value));
    element('client-filter').addEventListener('input', filterLimited);
    for (const button of panel.querySelectorAll('[data-sort]')) {
        button.addEventListener('click', () => {
            byKey = button.dataset.sort === 'key';
            arrangeLimited();
        });
    }
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
    add('clients in memory', zone.keys, keys => `${whole.format(keys)} of ${whole.format(zone.slots)}`);
    add('evictions', zone.evictions);
    add('sync overshoot', zone.syncOvershoot);
    add('leases', zone.leases, list);
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
        const row = make('tr', '');
        const values = SERIES.map(name => mean(samples, name, until - RECENT, until));
        row.append(make('td', clock(until)), ...values.map(value => make('td', perSecond(value))));
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

// Reuses the elements of rows, so that a button keeps the focus.
function showLimited(limited) {
    const body = element('limited').tBodies[0];
    const rows = new Map([...body.rows].map(row => [row.dataset.key, row]));
    for (const { key, rejected, error } of limited ?? []) {
        const row = rows.get(key) ?? body.appendChild(beginLimited(key));
        rows.delete(key);
        row.dataset.rejected = rejected;
        row.dataset.rank = rejected - error;
        const least = error > 0 ? `${whole.format(rejected - error)} to ` : '';
        say(row.cells[1], least + whole.format(rejected));
        show(row.cells[2], last.write);
    }
    rows.forEach(row => row.remove());
    const some = limited?.length > 0;
    show(element('limited'), some);
    show(element('limited-tools'), some);
    const none = limited === undefined ? 'Keys are hidden here (keys=off).' : 'Nobody was rejected.';
    element('limited').dataset.none = some ? '' : none;
    arrangeLimited();
}

// Sorts the rows. A row that moves loses the focus, and it is set again.
function arrangeLimited() {
    const body = element('limited').tBodies[0];
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    arrange(body, [...body.rows].sort(({ dataset: a }, { dataset: b }) => byKey ? compare(a.key, b.key)
        : b.rank - a.rank || b.rejected - a.rejected));
    if (focused !== document.activeElement && focused?.isConnected) {
        focused.focus();
    }
    const [key, rejected] = element('limited').tHead.rows[0].cells;
    key.ariaSort = byKey ? 'ascending' : 'none';
    rejected.ariaSort = byKey ? 'none' : 'descending';
    filterLimited();
}

function filterLimited() {
    const word = element('client-filter').value.toLowerCase();
    const rows = [...element('limited').tBodies[0].rows];
    rows.forEach(row => show(row, row.dataset.key.toLowerCase().includes(word)));
    const none = element('limited').dataset.none;
    say(element('limited-none'), none || (rows.every(row => row.hidden) ? 'No such client in this list.' : ''));
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

// QUESTIONS AND CHANGES

// Asks, and does something if the answer is yes.
function question(title, text, yes, then) {
    say(element('confirm-title'), title);
    say(element('confirm-text'), text);
    say(element('confirm-yes'), yes);
    action = then;
    element('confirm').showModal();
    element('confirm-no').focus();
}

// Shows a message in the panel, if it is still that of the zone.
function tell(zone, id, text, good) {
    if (open === zone) {
        mood(element(id), text, good);
    }
}

const plural = (count, thing) => `${whole.format(count)} ${thing}${count === 1 ? '' : 's'}`;

// What the API tells of a client, as a sentence.
function clientText(zone, key, { known, limit, remaining, resetAfterSeconds: reset, detail }) {
    if (known === false) {
        return `No such client: nothing is stored of ${key} in zone ${zone}. `
            + 'It was not counted, or it has its whole quota again.';
    }
    const unsure = known === null ? ` Whether Redis knows ${key} cannot be told.` : '';
    if (limit === null) {
        return (detail ? `${key}: ${detail}.` : `${key} is not limited.`) + unsure;
    }
    const back = reset > 0 ? `; the whole quota is back in ${duration(reset)}` : '';
    return `${key} has ${whole.format(remaining)} of ${plural(limit, 'request')} left${back}.${unsure}`;
}

async function lookUp(zone, key) {
    if (key === '') {
        tell(zone, 'client-said', 'Which client?', false);
        element('client-input').focus();
        return;
    }
    try {
        const answer = await call('GET', `remaining?zone=${encodeURIComponent(zone)}&key=${encodeURIComponent(key)}`);
        tell(zone, 'client-said', clientText(zone, key, answer), answer.known !== false && answer.remaining !== 0);
    } catch (error) {
        tell(zone, 'client-said', `${key} was not looked up: ${error.message}`, false);
    }
}

// Asks before a rate changes on several instances. `rate` is null for the configured one.
function changeRate(zone, rate) {
    const settings = zones.get(zone).zone;
    const instances = servers.get(settings.redis)?.server.instances;
    if (settings.redis === undefined || instances === 1) {
        sendRate(zone, rate);
        return;
    }
    const all = instances === undefined ? `every instance that shares Redis ${settings.redis}`
        : `all ${plural(instances, 'instance')} that share Redis ${settings.redis}`;
    const where = instances === undefined ? 'of the fleet' : `on ${plural(instances, 'instance')}`;
    const unknown = ' How many there are is not counted, since no zone of this Redis has on_error=local.';
    const target = rate ?? `the configured one, here ${settings.configuredRate}`;
    question(`Change the rate ${where}?`,
        `The rate of zone ${zone} is ${settings.rate}. On ${all} it will be ${target}, within a second.`
            + (instances === undefined ? unknown : ''),
        'Change rate', () => sendRate(zone, rate));
}

async function sendRate(zone, rate) {
    const input = element('rate-input');
    const path = `zones/${encodeURIComponent(zone)}`;
    try {
        const answer = rate === null ? await call('DELETE', path) : await call('PATCH', path, { rate });
        const now = answer?.rate ?? rate ?? zones.get(zone).zone.configuredRate;
        input.removeAttribute('aria-invalid');
        input.value = now;
        input.dataset.shown = now;
        tell(zone, 'rate-said', `The rate is now ${now}.`, true);
    } catch (error) {
        input.setAttribute('aria-invalid', String(rate !== null));
        tell(zone, 'rate-said', `Not changed: ${error.message}`, false);
    }
    ask();
}

function confirmReset(zone, key) {
    if (key === '') {
        tell(zone, 'client-said', 'Not reset: which client?', false);
        element('client-input').focus();
        return;
    }
    question('Reset this client?',
        `In zone ${zone}, all that ${key} has used is forgotten. Its next requests are those of a new client.`,
        'Reset', () => reset(zone, key));
}

async function reset(zone, key) {
    try {
        await call('DELETE', `reset?zone=${encodeURIComponent(zone)}&key=${encodeURIComponent(key)}`);
        tell(zone, 'client-said', `${key} was reset.`, true);
    } catch (error) {
        tell(zone, 'client-said', `${key} was not reset: ${error.message}`, false);
    }
    ask();
}
