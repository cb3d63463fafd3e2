// Calls of language models by the packages openai and @anthropic-ai/sdk. Executes the commands of a test.
// RateLimit::Models is the other side.
//
// Timers that the packages start wait for the command `advance`; their other code is as it is. A test can so tell how
// long a package waits before a retry, and that it does not retry earlier.
'use strict';

const { serve } = require('./commands.js');

const start = globalThis.setTimeout;
const stop = globalThis.clearTimeout;
const timers = new Set();
let now = 0;

globalThis.setTimeout = (callback, delay, ...values) => {
    if (!/node_modules\/(openai|@anthropic-ai)\//.test(new Error().stack)) {
        return start(callback, delay, ...values);
    }
    const timer = { due: now + delay, callback: () => callback(...values), unref: () => timer, ref: () => timer };
    timers.add(timer);
    return timer;
};
globalThis.clearTimeout = timer => (timers.delete(timer) ? undefined : stop(timer));

const OpenAI = require('openai');
const Anthropic = require('@anthropic-ai/sdk');

const timeout = 1e9; // milliseconds of the timeout of a call; other timers are waits before a retry
const clients = new Map();

function clientOf({ port, prefix = '', api, key, maxRetries }) {
    const name = [port, prefix, api, key, maxRetries].join(' ');
    if (!clients.has(name)) {
        const options = { apiKey: key, timeout, ...(maxRetries === undefined ? {} : { maxRetries }) };
        const address = `http://127.0.0.1:${port}${prefix}`;
        clients.set(name, api === 'openai'
            ? new OpenAI({ ...options, baseURL: `${address}/v1` })
            : new Anthropic({ ...options, baseURL: address }));
    }
    return clients.get(name);
}

// Each returns the text, the tokens that the package reports, and the headers of the response.
const calls = {
    async openai(client, body, wantsUsage) {
        if (!body.stream) {
            const { data, response } = await client.chat.completions.create(body).withResponse();
            return { text: data.choices[0].message.content, used: data.usage.total_tokens, response };
        }
        const options = wantsUsage ? { stream_options: { include_usage: true } } : {};
        const { data, response } = await client.chat.completions.create({ ...body, ...options }).withResponse();
        let [text, used] = ['', null];
        for await (const chunk of data) {
            text += chunk.choices[0]?.delta?.content ?? '';
            used = chunk.usage?.total_tokens ?? used;
        }
        return { text, used, response };
    },
    async anthropic(client, body) {
        const { stream, ...rest } = body;
        if (!stream) {
            const { data, response } = await client.messages.create(rest).withResponse();
            return { text: data.content[0].text, used: [data.usage.input_tokens, data.usage.output_tokens], response };
        }
        const { data, response } = await client.messages.stream(rest).withResponse();
        const final = await data.finalMessage();
        return { text: final.content[0].text, used: [final.usage.input_tokens, final.usage.output_tokens], response };
    },
};

async function call(command) {
    const { api, text, stream, max_tokens, usage } = command;
    const body = { model: 'test', messages: [{ role: 'user', content: text }], stream: stream === 1 };
    try {
        const { response, ...rest } = await calls[api](clientOf(command), { ...body, max_tokens }, usage !== 0);
        return { status: response.status, headers: Object.fromEntries(response.headers), ...rest };
    } catch (error) {
        const { status = null, headers, message } = error;
        const kind = error.constructor.name;
        return { status, error: kind, message, headers: Object.fromEntries(headers ?? []) };
    }
}

const outcomes = []; // of all calls, by number; null of one that has not ended

serve({
    // Starts a call; returns its number.
    start(command) {
        const number = outcomes.push(null) - 1;
        call(command).then(outcome => { outcomes[number] = outcome; });
        return number;
    },
    // Returns the status of each call, "error" if it ended without, and null if it has not ended.
    ended: () => outcomes.map(outcome => outcome && (outcome.status ?? 'error')),
    outcome: ({ number }) => outcomes[number],
    // Returns the milliseconds that are left of each wait before a retry.
    waits: () => [...timers].map(timer => timer.due - now).filter(left => left < timeout / 2),
    // Returns the number of timers that have ended.
    advance({ milliseconds }) {
        now += milliseconds;
        const due = [...timers].filter(timer => timer.due <= now);
        due.forEach(timer => timers.delete(timer));
        due.forEach(timer => timer.callback());
        return due.length;
    },
});
