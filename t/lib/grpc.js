// A gRPC server and its clients, of @grpc/grpc-js. Executes commands, one line of JSON each, from standard input, and
// prints a line as the result of each. Grpc.pm is the other side. Messages are texts.
'use strict';

const grpc = require('@grpc/grpc-js');
const protobuf = require('protobufjs');
const { createInterface } = require('readline');

const text = {
    serialize: value => Buffer.from(value),
    deserialize: bytes => bytes.toString(),
};

function method(name, requestStream, responseStream) {
    return {
        path: `/test.Echo/${name}`, requestStream, responseStream,
        requestSerialize: text.serialize, requestDeserialize: text.deserialize,
        responseSerialize: text.serialize, responseDeserialize: text.deserialize,
    };
}

const service = {
    unary: method('unary', false, false),
    collect: method('collect', true, false),
    spread: method('spread', false, true),
    chat: method('chat', true, true),
};

const handlers = {
    unary: (call, reply) => reply(null, call.request),
    collect(call, reply) {
        const all = [];
        call.on('data', message => all.push(message));
        call.on('end', () => reply(null, all.join('')));
    },
    spread(call) {
        for (const letter of call.request) {
            call.write(letter);
        }
        call.end();
    },
    chat(call) {
        call.on('data', message => call.write(message));
        call.on('end', () => call.end());
    },
};

const { root } = protobuf.parse(`
    syntax = "proto3";
    message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
    message Any { string type_url = 1; bytes value = 2; }
    message RetryInfo { Duration retry_delay = 1; }
    message Duration { int64 seconds = 1; int32 nanos = 2; }`, { keepCase: true });

function decode(type, bytes) {
    const kind = root.lookupType(type);
    return kind.toObject(kind.decode(bytes), { longs: Number });
}

// Decodes a google.rpc.Status with its details.
function decodeStatus(bytes) {
    const status = decode('Status', bytes);
    status.details = (status.details ?? []).map(any => (any.type_url === 'type.googleapis.com/google.rpc.RetryInfo'
        ? decode('RetryInfo', any.value) : any.type_url));
    return status;
}

// All metadata of a status, and the decoded details.
function describe(status, messages) {
    const metadata = {};
    for (const name of Object.keys(status.metadata.getMap())) {
        if (!name.endsWith('-bin')) {
            metadata[name] = status.metadata.get(name).join(' | ');
        }
    }
    return {
        code: status.code, status: grpc.status[status.code], details: status.details, metadata, messages,
        info: status.metadata.get('grpc-status-details-bin').map(decodeStatus),
    };
}

const clients = new Map();

function clientOf(port) {
    if (!clients.has(port)) {
        const Client = grpc.makeGenericClientConstructor(service, 'Echo');
        clients.set(port, new Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure()));
    }
    return clients.get(port);
}

// Makes a call. Its outcome is a status, after the messages that came before.
function call({ port, name, messages, headers }) {
    const metadata = new grpc.Metadata();
    Object.entries(headers).forEach(([key, value]) => metadata.set(key, value));
    const client = clientOf(port);
    const { requestStream, responseStream } = service[name];
    return new Promise(resolve => {
        const received = [];
        const values = requestStream ? [metadata] : [messages[0], metadata];
        if (!responseStream) {
            values.push((error, message) => error === null && received.push(message));
        }
        const stream = client[name](...values);
        stream.on('status', status => resolve(describe(status, received)));
        stream.on('error', () => {});
        if (responseStream) {
            stream.on('data', message => received.push(message));
        }
        if (requestStream) {
            messages.forEach(message => stream.write(message));
            stream.end();
        }
    });
}

const operations = {
    // Returns the port of a new server.
    serve: () => new Promise((resolve, reject) => {
        const server = new grpc.Server();
        server.addService(service, handlers);
        server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(),
            (error, port) => (error ? reject(error) : resolve(port)));
    }),
    call,
    decode: ({ bytes }) => decodeStatus(Buffer.from(bytes, 'base64')),
};

async function serve() {
    for await (const line of createInterface({ input: process.stdin })) {
        const request = JSON.parse(line);
        let answer;
        try {
            answer = { result: await operations[request.operation](request) ?? null };
        } catch (error) {
            answer = { error: error.message };
        }
        process.stdout.write(`${JSON.stringify(answer)}\n`);
    }
    process.exit(0);
}

serve();
