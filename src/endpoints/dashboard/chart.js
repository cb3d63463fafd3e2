// Formats numbers and draws lines into an <svg>, for page.js.
'use strict';

const SHOWN = 120;  // seconds that a chart shows

// NUMBERS

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percent = new Intl.NumberFormat('en', { style: 'percent', maximumFractionDigits: 0 });
const three = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });

function perSecond(rate) {
    if (rate === null || rate === undefined) {
        return '–';
    }
    return rate === 0 || rate >= 99.95 ? whole.format(rate) : rate < 0.05 ? '<0.1' : tenths.format(rate);
}

function duration(seconds) {
    if (seconds < 0.001) {
        return `${three.format(seconds * 1e6)} µs`;
    }
    const [unit, length] = [['h', 3600], ['min', 60], ['s', 1], ['ms', 0.001]]
        .find(([, length]) => seconds >= (length > 1 ? 2 : 1) * length);
    return `${three.format(seconds / length)} ${unit}`;
}

// The short name of the browser's time zone, as it is at a time.
function timeZone(time) {
    const parts = new Intl.DateTimeFormat('en-GB', { timeZoneName: 'short' }).formatToParts(new Date(time * 1000));
    return parts.find(part => part.type === 'timeZoneName').value;
}

function clock(time) {
    return new Date(time * 1000).toLocaleTimeString('en-GB');
}

function list(counts) {
    return Object.entries(counts ?? {}).map(([name, count]) => `${name} ${whole.format(count)}`).join(', ');
}

const sum = numbers => numbers.reduce((total, number) => total + number, 0);

// A quantile of a histogram, with linear interpolation within a bucket. Null without samples.
function quantile(share, bounds, counts) {
    let rest = share * sum(counts);
    if (rest === 0) {
        return null;
    }
    for (let i = 0; i < bounds.length; i++) {
        if (counts[i] >= rest) {
            const low = i === 0 ? 0 : bounds[i - 1];
            return low + (bounds[i] - low) * rest / counts[i];
        }
        rest -= counts[i];
    }
    return Infinity;
}

// CHARTS

function draw(name, attributes, text) {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.textContent = text ?? '';
    return made;
}

// The next round number that is not below a number.
function ceiling(number) {
    const power = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
    return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].map(step => step * power).find(step => step >= number);
}

// The points of a line. A sample is a mean over a time span: one point in the middle of the span, or two for a long span.
function points(samples, name) {
    const runs = [[]];
    for (const sample of samples) {
        const value = sample[name];
        if (value === null) {
            runs.push([]);
        } else if (sample.to - sample.from > 2.5) {
            runs.at(-1).push([sample.from, value], [sample.to, value]);
        } else {
            runs.at(-1).push([(sample.from + sample.to) / 2, value]);
        }
    }
    return runs.filter(run => run.length > 0);
}

function mark(name, x, y) {
    if (name === 'rejected') {
        return draw('rect', { class: name, x: x - 3, y: y - 3, width: 6, height: 6 });
    }
    if (name === 'delayed') {
        return draw('polygon', { class: name, points: `${x},${y - 4} ${x + 4},${y + 3} ${x - 4},${y + 3}` });
    }
    return draw('circle', { class: name, cx: x, cy: y, r: 3.5 });
}

// Puts labels at the ends of lines without overlaps.
function labels(ends, bottom) {
    const least = 15;
    ends.sort((a, b) => a.y - b.y);
    for (let i = ends.length - 1, limit = bottom; i >= 0; i--, limit -= least) {
        ends[i].at = Math.min(ends[i].y + 4, limit);
        limit = ends[i].at;
    }
    return ends.map(end => draw('text', { class: `${end.name} end`, x: end.x + 9, y: end.at.toFixed(1) }, end.text));
}

// Draws lines into an <svg>. `full` adds a time axis and, if there is room, the names of the lines; `unit` formats a number.
function chart(svg, samples, names, now, { full = false, unit = perSecond } = {}) {
    const { clientWidth: width, clientHeight: height } = svg;
    if (width === 0) {
        return;
    }
    const seen = samples.filter(sample => sample.to > now - SHOWN);
    const most = Math.max(0, ...seen.flatMap(sample => names.map(name => sample[name] ?? 0)));
    const top = unit === perSecond ? ceiling(most) : most || 1;
    const named = full && width > 480;
    const area = full ? { left: 44, right: width - (named ? 110 : 8), top: 10, bottom: height - 22 }
        : { left: 52, right: width - 6, top: 6, bottom: height - 6 };
    const x = time => area.right - (now - Math.max(time, now - SHOWN)) / SHOWN * (area.right - area.left);
    const y = value => area.bottom - value / top * (area.bottom - area.top);
    const parts = [];
    for (const share of full ? [0, 0.5, 1] : [0, 1]) {
        const at = y(share * top);
        const text = share === 0 ? '0' : unit === perSecond ? three.format(share * top) : unit(share * top);
        parts.push(draw('path', { class: 'grid', d: `M${area.left} ${at}H${area.right}` }));
        parts.push(draw('text', { x: area.left - 6, y: at + 4, 'text-anchor': 'end' }, text));
    }
    if (full) {
        const times = [[SHOWN, '2 min ago', 'start'], [SHOWN / 2, '1 min', 'middle'], [0, 'now', 'end']];
        for (const [ago, text, anchor] of times) {
            parts.push(draw('text', { x: x(now - ago), y: height - 4, 'text-anchor': anchor }, text));
        }
    }
    const ends = [];
    for (const name of [...names].reverse()) {
        const runs = points(seen, name);
        const at = ([time, value]) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
        parts.push(draw('path', { class: name, d: runs.map(run => `M${run.map(at).join('L')}`).join('') }));
        const end = runs.at(-1)?.at(-1);
        if (end && seen.at(-1)[name] !== null) {
            parts.push(mark(name, x(end[0]), y(end[1])));
            ends.push({ name, x: x(end[0]), y: y(end[1]), text: `${name} ${unit(end[1])}` });
        }
    }
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.replaceChildren(...parts, ...named ? labels(ends, area.bottom + 4) : []);
}

// The description of a chart in words, for screen readers.
function describe(samples, names, unit) {
    const words = names.map(name => {
        const values = samples.map(sample => sample[name]).filter(value => value !== null);
        return values.length ? `${name} ${unit(values.at(-1))}, at most ${unit(Math.max(...values))}` : `${name} unknown`;
    });
    return `Last two minutes: ${words.join('; ')}.`;
}
