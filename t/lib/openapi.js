// Validates an OpenAPI document, and calls of the API against it. Reads JSON from its input: a list of calls, each
// { method, path, query, headers, type, status, answerType, answer }. Prints JSON: { operations, problems }, where
// operations are all "METHOD /path" of the document, and problems are texts.
//
//   node openapi.js docs/openapi.yaml <CALLS
const fs = require('fs');
const Ajv = require('ajv');
const SwaggerParser = require('@apidevtools/swagger-parser');

// A member that the document does not have is a problem here, although clients must expect new members.
function close(schema) {
    if (schema === null || typeof schema !== 'object') {
        return;
    }
    if (schema.properties && schema.additionalProperties === undefined) {
        schema.additionalProperties = false;
    }
    Object.values(schema).forEach(close);
}

function check(api, call) {
    const ajv = new Ajv({ strict: false });
    const pattern = path => new RegExp(`^${path.replace(/\{\w+\}/g, '[^/]+')}$`);
    const template = Object.keys(api.paths).find(path => pattern(path).test(call.path));
    const operation = api.paths[template]?.[call.method.toLowerCase()];
    if (!operation) {
        return ['no such operation'];
    }
    const problems = [];
    const answer = operation.responses[call.status];
    if (!answer) {
        return [`status ${call.status} is not documented`];
    }
    const accepted = call.status < 300 || call.status === 429;
    const parameters = [...(api.paths[template].parameters ?? []), ...(operation.parameters ?? [])];
    for (const parameter of accepted ? parameters : []) {
        const given = { query: call.query, header: call.headers }[parameter.in] ?? {};
        const name = parameter.in === 'header' ? parameter.name.toLowerCase() : parameter.name;
        if (parameter.required && parameter.in !== 'path' && !(name in given)) {
            problems.push(`accepted without ${parameter.name}`);
        }
    }
    for (const name of Object.keys(accepted ? call.query : {})) {
        if (!parameters.some(parameter => parameter.in === 'query' && parameter.name === name)) {
            problems.push(`argument ${name} is not documented`);
        }
    }
    if (accepted && call.type && !operation.requestBody?.content[call.type]) {
        problems.push(`a body of type ${call.type} is not documented`);
    }
    if (!answer.content) {
        return call.answer === '' ? problems : [...problems, 'an answer that is not documented'];
    }
    const schema = answer.content[call.answerType]?.schema;
    if (!schema) {
        return [...problems, `the type ${call.answerType} is not documented`];
    }
    if (call.method !== 'HEAD') {
        const validate = ajv.compile(schema);
        if (!validate(JSON.parse(call.answer))) {
            problems.push(ajv.errorsText(validate.errors, { dataVar: 'answer' }));
        }
    }
    return problems;
}

(async () => {
    const calls = JSON.parse(fs.readFileSync(0, 'utf8'));
    const api = await SwaggerParser.validate(process.argv[2]);
    close(api.components.schemas);
    close(api.paths);
    const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
        Object.keys(methods).filter(name => name !== 'parameters').map(name => `${name.toUpperCase()} ${path}`));
    const problems = calls.flatMap(call =>
        check(api, call).map(text => `${call.method} ${call.path} ${call.status}: ${text}`));
    console.log(JSON.stringify({ operations, problems }));
})().catch(error => {
    console.log(JSON.stringify({ operations: [], problems: [error.message] }));
});
