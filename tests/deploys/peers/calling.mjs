// The same as calling.py, by the official TypeScript SDK's clients.
//
// Usage: calling.mjs MODULES URL NAME sdk|legacy|auto LONGEST

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, url, name, mode, longest] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const PATIENCE = 30_000;
const PAUSE_OF_CHANGES = 0.6; // seconds
const info = { name, version: '1' };
const LONGEST = Number(longest);
let over = false;
let number = 0;
let begun = false;
const seen = new Map();
const answered = { short: 0, medium: 0, long: 0 };
const progress = { due: 0, came: 0 };
const changes = { due: 0, came: 0, refetched: 0 };
let tasks = 0;
const failed = [];

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const between = (least, most) => least + Math.random() * (most - least);
const token = () => `${name}-${(number += 1)}`;
const fail = (what, error) =>
    failed.push(
        `${(performance.now() / 1000).toFixed(1)} ${what}: ${error?.constructor?.name} ${error?.message ?? error} ${error?.cause ?? ''}`.slice(0, 600)
    );

async function connected() {
    if (mode === 'sdk') {
        const esm = (file) =>
            import(pathToFileURL(`${modules}/node_modules/@modelcontextprotocol/sdk/dist/esm/${file}.js`).href);
        const { Client } = await esm('client/index');
        const { StreamableHTTPClientTransport } = await esm('client/streamableHttp');
        const { CallToolResultSchema, ResourceUpdatedNotificationSchema } = await esm('types');
        const client = new Client(info);
        client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => seen.get(params.uri)?.());
        await client.connect(new StreamableHTTPClientTransport(new URL(url)));
        const call = (tool, args, options) => client.callTool({ name: tool, arguments: args }, undefined, options);
        return { client, call, stream: (...args) => client.experimental.tasks.callToolStream(...args), CallToolResultSchema };
    }
    const { Client, StreamableHTTPClientTransport } = load('@modelcontextprotocol/client');
    const client = new Client(info, { versionNegotiation: { mode } });
    client.setNotificationHandler('notifications/resources/updated', ({ params }) => seen.get(params.uri)?.());
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    return { client, call: (tool, args, options) => client.callTool({ name: tool, arguments: args }, options) };
}

async function calls({ call }, kind, least, most, steps) {
    while (!over) {
        const seconds = between(least, most);
        const mine = token();
        let came = 0;
        const options = steps > 1 ? { onprogress: () => { came += 1; }, resetTimeoutOnProgress: true } : undefined;
        try {
            const result = await call('work', { token: mine, seconds, steps }, options);
            if (result.content[0].text !== mine) throw new Error(JSON.stringify(result));
            answered[kind] += 1;
            if (steps > 1) {
                progress.due += steps;
                progress.came += Math.min(came, steps);
            }
        } catch (error) {
            fail(`${kind} call of ${seconds.toFixed(2)} s`, error);
            await sleep(1);
        }
        await sleep(0.2);
    }
}

// Has one topic change until that is told: the client opens its stream beside its first calls, and what changes before
// that is told to nobody.
async function untilStreamIsOpen({ client, call }) {
    const topic = token();
    const uri = `news://${topic}`;
    let told = false;
    seen.set(uri, () => { told = true; });
    await client.subscribeResource({ uri });
    while (!told) {
        await call('change', { topic });
        await sleep(PAUSE_OF_CHANGES);
    }
    await client.unsubscribeResource({ uri });
    seen.delete(uri);
}

async function changed({ client, call }) {
    const isModern = client.getNegotiatedProtocolVersion?.() >= '2026';
    if (!isModern) await untilStreamIsOpen({ client, call });
    while (!over) {
        const topic = token();
        const uri = `news://${topic}`;
        const told = new Promise((resolve) => seen.set(uri, () => resolve('came')));
        let timer;
        const patience = new Promise((resolve) => { timer = setTimeout(() => resolve('late'), PATIENCE); });
        try {
            let ended = new Promise(() => {});
            let subscription;
            if (isModern) {
                subscription = await client.listen({ resourceSubscriptions: [uri] });
                ended = subscription.closed.then(() => 'refetched');
            } else {
                await client.subscribeResource({ uri });
            }
            await call('change', { topic });
            changes.due += 1;
            const outcome = await Promise.race([told, ended, patience]);
            if (outcome === 'late') fail('change', 'it was not told');
            else changes[outcome] += 1;
            if (isModern) await subscription.close();
            else await client.unsubscribeResource({ uri });
        } catch (error) {
            fail('change', error);
            await sleep(1);
        }
        clearTimeout(timer);
        seen.delete(uri);
        await sleep(PAUSE_OF_CHANGES);
    }
}

async function jobs({ stream, CallToolResultSchema }) {
    while (!over) {
        const mine = token();
        try {
            let result;
            const args = { token: mine, seconds: between(0.01, LONGEST / 2) };
            for await (const each of stream({ name: 'job', arguments: args }, CallToolResultSchema, { task: { ttl: 60000 } })) {
                if (each.type === 'result') result = each.result;
                if (each.type === 'error') throw each.error;
            }
            if (result?.content[0].text !== mine) throw new Error(JSON.stringify(result));
            tasks += 1;
        } catch (error) {
            fail('task', error);
            await sleep(1);
        }
        await sleep(0.2);
    }
}

process.stdin.resume();
process.stdin.on('end', () => { over = true; });
const one = await connected();
const running = [
    calls(one, 'short', 0.01, 0.3, 1),
    calls(one, 'medium', 0.3, LONGEST / 4, 10),
    calls(one, 'long', LONGEST / 2, LONGEST, 20),
    changed(one)
];
if (mode === 'sdk') running.push(jobs(one));
const watching = setInterval(() => {
    if (!begun && answered.short && changes.came && (tasks || mode !== 'sdk')) {
        begun = true;
        console.log('calling');
    }
}, 100);
await Promise.all(running);
clearInterval(watching);
console.log(JSON.stringify({ answered, progress, changes, tasks, failed }));
process.exit(0);
