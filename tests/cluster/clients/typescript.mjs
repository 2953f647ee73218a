// Load by the official TypeScript SDK's clients. What it prints for each call is described in record.py.
//
// Usage: typescript.mjs MODULES sdk|client legacy|auto URL SESSIONS FOLDER
//
// "sdk" is @modelcontextprotocol/sdk, which speaks the legacy era only; "client" is its successor
// @modelcontextprotocol/client, which speaks both.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, kind, mode, url, sessions, folder] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const CLOCK = 1000 * (process.env.MCP_NODES_CLOCK ?? 8); // milliseconds that a client gives an answer
const SILENCE = CLOCK + 30_000; // milliseconds; more than any clock of a client
const HEARING = 4_000; // milliseconds for an update to reach its subscriber
const KINDS = [['echo', 11], ['count', 3], ['slow', 3], ['publish', 3]].flatMap(([name, times]) => Array(times).fill(name));
const UPDATED = 'notifications/resources/updated';
const NAME = kind === 'sdk' ? 'typescript-v1-legacy' : `typescript-v2-${mode}`;

const ready = new Map(); // topic -> since when its subscriber is subscribed
const heard = new Map(); // topic -> how often its subscriber was told

const isOver = () => existsSync(join(folder, 'over'));
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const PAUSE = 1000 * (process.env.MCP_NODES_PAUSE ?? 0.8); // milliseconds between two calls, at the mean
const STEP = Number(process.env.MCP_NODES_STEP ?? 0.1); // seconds between two reports of progress
const RAMP = 1000 * (process.env.MCP_NODES_RAMP ?? 1); // milliseconds until all sessions have begun
const pause = (mean = PAUSE) => sleep((0.5 + Math.random()) * mean);
const topicOf = (number) => `news://${NAME}-${number}`;
const random = (least, most) => least + Math.floor(Math.random() * (most - least + 1));

function note(session, what, began, end, error = '', node = '') {
    const row = { client: NAME, session, kind: what, at: began / 1000, end, took: (Date.now() - began) / 1000 };
    if (error) row.error = error.slice(0, 400);
    if (node) row.node = node;
    process.stdout.write(JSON.stringify(row) + '\n');
}

function described(error) {
    return `${error?.constructor?.name}: ${String(error?.message).replace(/\s+/g, ' ').slice(0, 240)}`;
}

function hear(number, uri) {
    const topic = topicOf(number);
    if (uri !== topic) note(number, 'update', Date.now(), 'wrong', `told of ${uri} instead of ${topic}`);
    heard.set(topic, (heard.get(topic) ?? 0) + 1);
}

// The two packages differ in where things are and in how a handler is registered, and in nothing else here.
function newClient() {
    const info = { name: NAME, version: '1.0.0' };
    if (kind === 'client') {
        const { Client, StreamableHTTPClientTransport } = load('@modelcontextprotocol/client');
        const client = new Client(info, { versionNegotiation: { mode } });
        return {
            client,
            transport: new StreamableHTTPClientTransport(new URL(url)),
            onUpdated: (handler) => client.setNotificationHandler(UPDATED, handler),
            callTool: (params, options) => client.callTool(params, options)
        };
    }
    const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const { ResourceUpdatedNotificationSchema } = load('@modelcontextprotocol/sdk/types.js');
    const client = new Client(info);
    return {
        client,
        transport: new StreamableHTTPClientTransport(new URL(url)),
        onUpdated: (handler) => client.setNotificationHandler(ResourceUpdatedNotificationSchema, handler),
        callTool: (params, options) => client.callTool(params, undefined, options)
    };
}

class Session {
    constructor(number) {
        this.number = number;
        this.topic = topicOf(number);
        this.calls = 0;
    }

    async run() {
        while (!existsSync(join(folder, 'begin'))) await sleep(100);
        await sleep(Math.random() * RAMP);
        while (!isOver()) {
            let began = Date.now();
            let phase = 'connect';
            this.attempted = this.failures = 0;
            this.counted = new Map(); // session that the tool named -> answered calls
            const connection = newClient();
            this.connection = connection;
            this.closing = false;
            connection.onUpdated((notification) => hear(this.number, notification.params.uri));
            try {
                await connection.client.connect(connection.transport);
                await this.subscribe();
                note(this.number, 'connect', began, 'right');
                phase = 'close';
                while (!isOver() && this.failures < 2) {
                    await this.oneCall();
                    await pause();
                }
            } catch (error) {
                note(this.number, phase, began, 'error', described(error));
            }
            this.closing = true;
            ready.delete(this.topic);
            began = Date.now();
            try {
                await connection.transport.terminateSession?.();
            } catch {
                // It may have ended before.
            }
            await Promise.race([connection.client.close().catch(() => {}), sleep(1000)]);
            await pause(600);
        }
    }

    async subscribe() {
        if (mode === 'legacy') {
            await this.connection.client.subscribeResource({ uri: this.topic });
            ready.set(this.topic, Date.now());
            return;
        }
        this.listening(this.connection);
    }

    // Listens, and listens again when that ended, for as long as this connection is the session's.
    async listening(connection) {
        while (this.connection === connection && !this.closing && !isOver()) {
            try {
                const subscription = await connection.client.listen({ resourceSubscriptions: [this.topic] });
                ready.set(this.topic, Date.now());
                await subscription.closed;
            } catch {
                // Another attempt follows.
            }
            ready.delete(this.topic);
            await sleep(500);
        }
    }

    async oneCall() {
        this.calls += 1;
        const what = KINDS[random(0, KINDS.length - 1)];
        const began = Date.now();
        const token = `${NAME}-${this.number}-${this.calls}`;
        try {
            const silence = sleep(SILENCE).then(() => ['silent']);
            const [end, error, node] = await Promise.race([this.outcome(what, token), silence]);
            note(this.number, what, began, end, error, node);
            this.failures = 0;
        } catch (error) {
            const text = described(error);
            this.failures += /\b404\b|not connected|session/i.test(text) ? 2 : 1;
            note(this.number, what, began, 'error', text);
        }
    }

    async outcome(what, token) {
        const foreign = [];
        const partner = topicOf(this.number ^ 1);
        const since = ready.get(partner);
        const before = heard.get(partner) ?? 0;
        const parameters = { token };
        if (what === 'slow') Object.assign(parameters, { steps: random(3, 12), pause: STEP });
        if (what === 'publish') parameters.uri = partner;
        if (what === 'count') this.attempted += 1;
        const onprogress = ({ message }) => message === token || foreign.push(message);
        const options = { timeout: CLOCK, ...(what === 'slow' ? { onprogress } : {}) };
        const result = await this.connection.callTool({ name: what, arguments: parameters }, options);
        if (result.isError) throw new Error(result.content[0].text);
        const text = result.content[0].text;
        const [answer, node, session, calls] = text.split('|');
        if (answer !== token || foreign.length) return ['wrong', `${text} ${foreign} instead of ${token}`, node];
        if (session) {
            const counted = (this.counted.get(session) ?? 0) + 1;
            this.counted.set(session, counted);
            if (calls < counted || calls > this.attempted) {
                return ['wrong', `${calls} calls of ${counted} to ${this.attempted}`, node];
            }
        }
        if (what === 'publish' && since !== undefined) return [await this.hearing(partner, since, before), '', node];
        return ['right', '', node];
    }

    async hearing(topic, since, before) {
        const end = Date.now() + HEARING;
        while (ready.get(topic) === since && (heard.get(topic) ?? 0) === before) {
            if (Date.now() > end) return 'unheard';
            await sleep(50);
        }
        return 'right';
    }
}

process.on('unhandledRejection', (error) => note(-1, 'unhandled', Date.now(), 'error', described(error)));
const numbers = [...Array(Number(sessions)).keys()];
Promise.all(numbers.map((number) => new Session(number).run())).then(() => process.exit(0));
