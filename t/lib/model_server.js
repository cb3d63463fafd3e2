// An upstream with the shapes of OpenAI's chat completions and Anthropic's messages. Executes the commands of a test.
// RateLimit::Models is the other side.
//
// The text of a request says what the response uses: "use 19 10" is 19 tokens of input and 10 of output. "fail 500" is
// answered with status 500, and "break" ends a stream before its usage.
'use strict';

const http = require('http');
const { serve } = require('./commands.js');

let holding = false;
let held = [];
const requests = [];

function readText(body) {
    const text = body.messages.at(-1).content;
    const [input, output] = (/^use (\d+) (\d+)$/.exec(text) ?? [0, 0, 0]).slice(1).map(Number);
    return { input, output, fail: Number(/^fail (\d+)$/.exec(text)?.[1] ?? 0), breaks: text === 'break' };
}

function completion({ input, output }) {
    return {
        id: 'chatcmpl-1', object: 'chat.completion', created: 1700000000, model: 'test',
        choices: [{ index: 0, message: { role: 'assistant', content: 'Hello!' }, finish_reason: 'stop' }],
        usage: { prompt_tokens: input, completion_tokens: output, total_tokens: input + output },
    };
}

function completionEvents({ input, output, breaks }, body) {
    const withUsage = body.stream_options?.include_usage === true;
    const chunk = (choices, usage) => ({
        data: {
            id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1700000000, model: 'test', choices,
            ...(withUsage ? { usage } : {}),
        },
    });
    const delta = (content, reason) => [{ index: 0, delta: content ? { content } : {}, finish_reason: reason }];
    const events = [chunk(delta('Hel', null), null), chunk(delta('lo!', null), null)];
    if (breaks) {
        return events;
    }
    events.push(chunk(delta(null, 'stop'), null));
    if (withUsage) {
        const usage = { prompt_tokens: input, completion_tokens: output, total_tokens: input + output };
        events.push(chunk([], usage));
    }
    return [...events, { data: '[DONE]' }];
}

function message({ input, output }) {
    return {
        id: 'msg_1', type: 'message', role: 'assistant', model: 'test', content: [{ type: 'text', text: 'Hello!' }],
        stop_reason: 'end_turn', stop_sequence: null, usage: { input_tokens: input, output_tokens: output },
    };
}

function messageEvents({ input, output, breaks }) {
    const named = (type, members) => ({ name: type, data: { type, ...members } });
    const first = { ...message({ input, output: 1 }), content: [], stop_reason: null };
    const text = part => named('content_block_delta', { index: 0, delta: { type: 'text_delta', text: part } });
    const events = [
        named('message_start', { message: first }),
        named('content_block_start', { index: 0, content_block: { type: 'text', text: '' } }),
        named('ping', {}), text('Hel'), text('lo!'),
    ];
    return breaks ? events : [
        ...events,
        named('content_block_stop', { index: 0 }),
        named('message_delta', { delta: { stop_reason: 'end_turn' }, usage: { output_tokens: output } }),
        named('message_stop', {}),
    ];
}

const shapes = {
    '/v1/chat/completions': { whole: completion, events: completionEvents },
    '/v1/messages': { whole: message, events: messageEvents },
};

// Waits until the bytes are sent, so that each event is a chunk of its own.
function write(response, text) {
    return new Promise(resolve => response.write(text, resolve));
}

async function stream(response, events, breaks) {
    response.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8' });
    for (const { name, data } of events) {
        const text = typeof data === 'string' ? data : JSON.stringify(data);
        await write(response, `${name ? `event: ${name}\n` : ''}data: ${text}\n\n`);
    }
    if (breaks) {
        response.destroy();
    } else {
        response.end();
    }
}

function answer(request, response, body) {
    const shape = shapes[request.url];
    const wanted = readText(body);
    if (wanted.fail) {
        response.writeHead(wanted.fail, { 'Content-Type': 'application/json' });
        response.end('{"error":{"type":"server_error","message":"It failed."}}');
    } else if (body.stream) {
        stream(response, shape.events(wanted, body), wanted.breaks);
    } else {
        response.writeHead(200, { 'Content-Type': 'application/json' });
        response.end(JSON.stringify(shape.whole(wanted)));
    }
}

function receive(request, response) {
    const parts = [];
    request.on('data', part => parts.push(part));
    request.on('end', () => {
        requests.push(request.url);
        const body = JSON.parse(Buffer.concat(parts));
        const reply = () => answer(request, response, body);
        if (holding) {
            held.push(reply);
        } else {
            reply();
        }
    });
}

serve({
    // Returns the port of the upstream.
    listen: () => new Promise(resolve => {
        const server = http.createServer(receive).listen(0, '127.0.0.1', () => resolve(server.address().port));
    }),
    requests: () => requests.length,
    // From now on, responses wait for `release`.
    hold: () => { holding = true; },
    held: () => held.length,
    release: () => {
        const all = held;
        [holding, held] = [false, []];
        all.forEach(reply => reply());
        return all.length;
    },
});
