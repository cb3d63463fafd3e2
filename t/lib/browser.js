// A headless Chromium that does what lines of JSON on standard input say, and answers each with a line; Browser.pm is the
// other side.
'use strict';

const { chromium } = require('playwright-core');
const { createInterface } = require('readline');

const pages = [];
let browser;

async function launch() {
    return chromium.launch({
        executablePath: process.env.RL_CHROMIUM || '/usr/bin/chromium',
        // Nothing but this machine is asked for, whatever Chromium itself would like to know.
        args: ['--disable-gpu', '--disable-dev-shm-usage', '--disable-lcd-text',
            '--host-resolver-rules=MAP *.test 127.0.0.1 , MAP * ~NOTFOUND , EXCLUDE 127.0.0.1'],
        timeout: 120000,
    });
}

// What a page should not do is noted, for whoever asks.
function watch(page, origin, problems) {
    page.on('console', message => {
        if (['error', 'warning'].includes(message.type())) {
            problems.push(`console: ${message.text()}`);
        }
    });
    page.on('pageerror', error => problems.push(`error: ${error.message}`));
    page.on('dialog', dialog => {
        problems.push(`dialog: ${dialog.message()}`);
        dialog.dismiss();
    });
    page.on('request', request => {
        if (new URL(request.url()).origin !== origin) {
            problems.push(`request: ${request.url()}`);
        }
    });
}

// In tests, pages wait a fifth as long as they mean to.
function hurry() {
    const wait = window.setTimeout;
    window.setTimeout = (action, milliseconds, ...values) => wait(action, milliseconds / 5, ...values);
}

const operations = {
    async open({ url, options }) {
        browser ??= await launch();
        const context = await browser.newContext(options);
        context.setDefaultTimeout(60000);
        if (process.env.RL_BUILD) {
            await context.addInitScript(hurry);
        }
        const page = await context.newPage();
        const problems = [];
        watch(page, new URL(url).origin, problems);
        const response = await page.goto(url);
        pages.push({ context, page, problems });
        return { page: pages.length - 1, status: response.status(), url: page.url() };
    },
    page: ({ page, method, values }) => pages[page].page[method](...values),
    keyboard: ({ page, method, values }) => pages[page].page.keyboard[method](...values),
    locator: ({ page, selector, method, values }) => pages[page].page.locator(selector)[method](...values),
    // A function's text and its one argument.
    evaluate: ({ page, code, value }) => pages[page].page.evaluate(`(${code})(${JSON.stringify(value ?? null)})`),
    problems: ({ page }) => pages[page].problems.splice(0),
    close: ({ page }) => pages[page].context.close(),
};

// Of what a method returns, only what JSON has is told.
function plain(result) {
    return result === null || typeof result !== 'object' || Array.isArray(result)
        || Object.getPrototypeOf(result) === Object.prototype ? result : null;
}

async function serve() {
    for await (const line of createInterface({ input: process.stdin })) {
        const request = JSON.parse(line);
        let answer;
        try {
            answer = { result: plain(await operations[request.operation](request)) ?? null };
        } catch (error) {
            answer = { error: error.message };
        }
        process.stdout.write(`${JSON.stringify(answer)}\n`);
    }
    await browser?.close();
}

serve();
