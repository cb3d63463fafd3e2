// A headless Chromium and a headless Firefox for commands: one line of JSON each from standard input. Prints a line as
// the result of each. Browser.pm is the other side.
'use strict';

const { readFileSync } = require('fs');
const { chromium, firefox } = require('playwright-core');
const { createInterface } = require('readline');

const pages = [];
const browsers = {};    // by name, once one was used

const launchers = {
    chromium: () => chromium.launch({
        executablePath: process.env.RL_CHROMIUM || '/usr/bin/chromium',
        // Chromium must not connect to other machines.
        args: ['--disable-gpu', '--disable-dev-shm-usage', '--disable-lcd-text',
            '--host-resolver-rules=MAP *.test 127.0.0.1 , MAP * ~NOTFOUND , EXCLUDE 127.0.0.1'],
        timeout: 120000,
    }),
    // Debian's Firefox, by WebDriver BiDi.
    firefox: () => firefox.launch({
        channel: 'moz-firefox',
        executablePath: process.env.RL_FIREFOX || '/usr/bin/firefox-esr',
        // Firefox must not connect to other machines: all but 127.0.0.1 goes to a proxy that does not exist.
        firefoxUserPrefs: { 'network.proxy.type': 1, 'network.proxy.http': '127.0.0.1', 'network.proxy.http_port': 9,
            'network.proxy.ssl': '127.0.0.1', 'network.proxy.ssl_port': 9 },
        timeout: 120000,
    }),
};

// Records unwanted events of a page for `problems`, and failed requests for `failures`.
function watch(page, origin, problems, failures) {
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
    page.on('requestfailed', request => {
        failures.push(`${request.url()}: ${request.failure()?.errorText}`);
    });
}

// In tests, timers of pages take a fifth of their time.
function hurry() {
    const wait = window.setTimeout;
    window.setTimeout = (action, milliseconds, ...values) => wait(action, milliseconds / 5, ...values);
}

const operations = {
    async open({ url, options: { browser = 'chromium', ...options } }) {
        browsers[browser] ??= await launchers[browser]();
        const context = await browsers[browser].newContext(options);
        context.setDefaultTimeout(60000);
        if (process.env.RL_BUILD) {
            await context.addInitScript(hurry);
        }
        const page = await context.newPage();
        const problems = [];
        const failures = [];
        watch(page, new URL(url).origin, problems, failures);
        const response = await page.goto(url);
        pages.push({ context, page, problems, failures });
        return { page: pages.length - 1, status: response.status(), url: page.url() };
    },
    page: ({ page, method, values }) => pages[page].page[method](...values),
    keyboard: ({ page, method, values }) => pages[page].page.keyboard[method](...values),
    locator: ({ page, selector, method, values }) => pages[page].page.locator(selector)[method](...values),
    // The text of a function and its only argument.
    evaluate: ({ page, code, value }) => pages[page].page.evaluate(`(${code})(${JSON.stringify(value ?? null)})`),
    // What axe-core finds against accessibility: each rule, and the elements that break it.
    async barriers({ page }) {
        await pages[page].page.evaluate(readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8'));
        const { violations, passes } = await pages[page].page.evaluate('axe.run()');
        const names = nodes => nodes.map(({ target }) => target.join(' ')).join(', ');
        const found = violations.map(({ id, help, nodes }) => `${id} (${help}): ${names(nodes)}`);
        return passes.length === 0 ? ['axe-core has checked nothing'] : found;
    },
    problems: ({ page }) => pages[page].problems.splice(0),
    failures: ({ page }) => pages[page].failures.splice(0),
    close: ({ page }) => pages[page].context.close(),
};

// Returns the part of a method's result that JSON can express.
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
    await Promise.all(Object.values(browsers).map(browser => browser.close()));
}

serve();
