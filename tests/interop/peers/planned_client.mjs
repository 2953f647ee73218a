// Clients of the official TypeScript SDKs do what a plan says, over HTTP, all at once.
//
// Usage: planned_client.mjs MODULES < connections.json, where MODULES is a directory with a node_modules folder and the
// input is a list of {kind: "sdk"|"client", mode: "legacy"|"auto", url, plan}. A plan is a list of steps as in
// planned_client.py. It prints a list of reports in the order of the connections.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { connectionOf } from './typescript_connection.mjs';

const load = createRequire(join(process.argv[2], 'package.json'));
const LIMIT = 280_000; // milliseconds for everything
const PATIENCE = 40_000; // milliseconds until something that was promised must have happened
const KEY = 'mcp-actors/key';
const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
const ASKED = {
    'sampling/createMessage': () => ({
        role: 'assistant',
        content: { type: 'text', text: 'I am the model' },
        model: 'fake-1'
    }),
    'elicitation/create': ({ requestedSchema }) => ({
        action: 'accept',
        content: Object.fromEntries(requestedSchema.required.map((name) => [name, `my ${name}`]))
    }),
    'roots/list': () => ({ roots: [{ uri: 'file:///home/peer', name: 'home' }] })
};

async function conversation({ kind, mode, url, plan }) {
    const capabilities = { sampling: {}, elicitation: {}, roots: {} };
    const { client, transports, onRequest, onNotification, callTool } = connectionOf(load, kind, mode, capabilities);
    const report = { logs: [], asked: [], updated: [], steps: {} };
    for (const [method, answer] of Object.entries(ASKED)) {
        onRequest(method, async (request) => {
            report.asked.push(method);
            return answer(request.params ?? {});
        });
    }
    onNotification('notifications/message', ({ params }) => report.logs.push(params.data));
    onNotification('notifications/resources/updated', ({ params }) => report.updated.push(params.uri));

    const transport = new transports.StreamableHTTPClientTransport(new URL(url));
    // The v1 client tells its transport which revision was agreed, and nobody else.
    const agreed = transport.setProtocolVersion?.bind(transport);
    transport.setProtocolVersion = (version) => {
        report.version = version;
        agreed?.(version);
    };
    await client.connect(transport);
    report.version ??= client.getNegotiatedProtocolVersion();
    const isModern = report.version >= '2026';
    if (!isModern) await client.setLoggingLevel('info');
    const meta = isModern ? { _meta: { [LOG_LEVEL]: 'info' } } : {};
    const call = (name, parameters, options) => callTool({ name, arguments: parameters, ...meta }, options);

    const methods = {
        async list() {
            const names = (list, key) => list.map((each) => each[key]);
            return {
                tools: names((await client.listTools()).tools, 'name'),
                resources: names((await client.listResources()).resources, 'uri'),
                templates: names((await client.listResourceTemplates()).resourceTemplates, 'uriTemplate'),
                prompts: names((await client.listPrompts()).prompts, 'name')
            };
        },
        async call(name, parameters) {
            const reported = [];
            const onprogress = ({ progress, total }) => reported.push([progress, total]);
            return { ...(await call(name, parameters, { onprogress })), reported };
        },
        keyed: (name, parameters, key) =>
            callTool({ name, arguments: parameters, _meta: { ...meta._meta, [KEY]: key } }, {}),
        async cancel(name, parameters) {
            const giveUp = new AbortController();
            const options = { signal: giveUp.signal, onprogress: () => giveUp.abort('enough') };
            const ended = await call(name, parameters, options).catch(() => 'cancelled');
            return { ended };
        },
        read: (uri) => client.readResource({ uri }),
        prompt: (name, parameters) => client.getPrompt({ name, arguments: parameters }),
        complete: (ref, argument) => client.complete({ ref, argument }),
        async subscribe(uri, name, parameters, isTold = true) {
            const subscription = isModern
                ? await client.listen({ resourceSubscriptions: [uri] })
                : await client.subscribeResource({ uri });
            const honored = !isModern || (subscription.honoredFilter.resourceSubscriptions ?? []).includes(uri);
            await call(name, parameters);
            const end = Date.now() + PATIENCE;
            while (honored && isTold && !report.updated.includes(uri) && Date.now() < end) {
                await new Promise((resolve) => setTimeout(resolve, 10));
            }
            await (isModern ? subscription.close() : client.unsubscribeResource({ uri }));
            return { honored, updated: report.updated.includes(uri) };
        }
    };
    for (const [key, method, ...args] of plan) {
        try {
            report.steps[key] = await methods[method](...args);
        } catch ({ code, message, data }) {
            report.steps[key] = { error: { code: code ?? null, message, data: data ?? null } };
        }
    }
    await transport.terminateSession?.();
    await client.close();
    return report;
}

const timer = setTimeout(() => {
    console.error(`not finished after ${LIMIT} ms`);
    process.exit(3);
}, LIMIT);
const reports = await Promise.all(JSON.parse(await text(process.stdin)).map(conversation));
clearTimeout(timer);
process.stdout.write(JSON.stringify(reports));
