// Executes the commands of a test, one line of JSON each from standard input, and prints a line as the result of each.
'use strict';

const { createInterface } = require('readline');

// Ends the process at the end of standard input. `operations` has a function for each name of a command.
exports.serve = async operations => {
    for await (const line of createInterface({ input: process.stdin })) {
        const command = JSON.parse(line);
        let answer;
        try {
            answer = { result: await operations[command.operation](command) ?? null };
        } catch (error) {
            answer = { error: error.stack };
        }
        process.stdout.write(`${JSON.stringify(answer)}\n`);
    }
    process.exit(0);
};
