// The official TypeScript SDK's client drives a server and prints one JSON report.
//
// Usage: typescript_client.mjs MODULES sdk|client legacy|auto stdio COMMAND [ARG...]
//        typescript_client.mjs MODULES sdk|client legacy|auto http|sse|ws URL
//
// MODULES is a directory with a node_modules folder. What it calls is what an everything server has; the tests decide
// whether the report is right.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { connectionOf } from './typescript_connection.mjs';

const [modules, kind, mode, binding, address, ...args] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const LIMIT = Number(process.env.PEER_LIMIT ?? 180) * 1000; // milliseconds for the whole run
const PATIENCE = 40_000; // milliseconds until something that was promised must have happened
const WATCHED = 'test://watched-resource';
const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';

const report = { logs: [], asked: [], notified: [] };

const capabilities = { sampling: {}, elicitation: {}, roots: {} };
const { client, transports, onRequest, onNotification, callTool } = connectionOf(load, kind, mode, capabilities);

const connections = {
    stdio: () => new transports.StdioClientTransport({ command: address, args, stderr: 'inherit' }),
    http: () => new transports.StreamableHTTPClientTransport(new URL(address)),
    sse: () => new transports.SSEClientTransport(new URL(address)),
    ws: () => new transports.WebSocketClientTransport(new URL(address))
};

function answer(method, handler) {
    onRequest(method, async (request) => {
        report.asked.push([method, request.params ?? {}]);
        return handler(request.params ?? {});
    });
}

answer('sampling/createMessage', () => ({
    role: 'assistant',
    content: { type: 'text', text: 'I am the model' },
    model: 'fake-1'
}));
answer('elicitation/create', (params) => ({
    action: 'accept',
    content: Object.fromEntries(Object.keys(params.requestedSchema.properties).map((name) => [name, `my ${name}`]))
}));
answer('roots/list', () => ({ roots: [{ uri: 'file:///home/peer', name: 'home' }] }));
onNotification('notifications/message', (notification) => {
    report.logs.push([notification.params.level, notification.params.data]);
});
for (const method of ['notifications/resources/updated', 'notifications/tools/list_changed']) {
    onNotification(method, (notification) => {
        report.notified.push([method, notification.params?.uri ?? null]);
    });
}

async function attempt(name, call) {
    try {
        report[name] = await call;
    } catch (error) {
        report[name] = { error: { code: error.code, message: error.message, data: error.data ?? null } };
    }
}

async function until(condition) {
    const end = Date.now() + PATIENCE;
    while (!(await condition())) {
        if (Date.now() > end) return false;
        await new Promise((resolve) => setTimeout(resolve, 10));
    }
    return true;
}

const byKey = (list, key) => Object.fromEntries(list.map((each) => [each[key], each]));
const isModern = () => report.version >= '2026';
const tool = (name, parameters = {}, options = {}) => {
    const meta = isModern() ? { _meta: { [LOG_LEVEL]: 'info' } } : {};
    return callTool({ name, arguments: parameters, ...meta }, options);
};

async function introduction() {
    report.version ??= client.getNegotiatedProtocolVersion?.();
    report.server = client.getServerVersion();
    report.capabilities = client.getServerCapabilities();
    report.instructions = client.getInstructions();
    if (!isModern()) {
        await attempt('ping', client.ping());
        await attempt('set_level', client.setLoggingLevel('info'));
    }
    report.tools = byKey((await client.listTools()).tools, 'name');
    report.resources = byKey((await client.listResources()).resources, 'uri');
    report.templates = byKey((await client.listResourceTemplates()).resourceTemplates, 'uriTemplate');
    report.prompts = byKey((await client.listPrompts()).prompts, 'name');
}

async function progressing() {
    // What the client has read, and what it has told its callback.
    report.progress_read = [];
    report.progress = [];
    const stepOf = ({ progress, total, message }) => [progress, total, message];
    const handle = client.transport.onmessage;
    client.transport.onmessage = (message, extra) => {
        if (message.method === 'notifications/progress') report.progress_read.push(stepOf(message.params));
        handle(message, extra);
    };
    try {
        const onprogress = (params) => report.progress.push(stepOf(params));
        return await tool('test_tool_with_progress', {}, { onprogress });
    } finally {
        client.transport.onmessage = handle;
    }
}

async function calls() {
    for (const name of [
        'test_simple_text',
        'test_image_content',
        'test_embedded_resource',
        'test_tool_with_logging',
        'test_error_handling'
    ]) {
        await attempt(name, tool(name));
    }
    await attempt('test_tool_with_progress', progressing());
    await attempt('test_reconnection', tool('test_reconnection'));
    await attempt('test_custom_header', tool('test_custom_header', { region: ' Zürich ', limit: 3 }));
    await attempt('echo', tool('echo', { message: 'gruß 🐍\n\u2028' }));
    await attempt('add', tool('add', { a: 2, b: 3.5 }));
    await attempt('wrong_arguments', tool('add', { a: 'two', b: 3 }));
    await attempt('unknown_tool', tool('no_such_tool'));
    await attempt('test_sampling', tool('test_sampling', { prompt: 'Who are you?' }));
    await attempt('test_elicitation', tool('test_elicitation', { message: 'Tell me' }));
}

async function reading() {
    for (const uri of [
        'test://static-text',
        'test://static-binary',
        'test://template/123/data',
        'test://nothing'
    ]) {
        await attempt(uri, client.readResource({ uri }));
    }
    const ref = { type: 'ref/resource', uri: 'test://template/{id}/data' };
    await attempt('complete_template', client.complete({ ref, argument: { name: 'id', value: '7' } }));
}

async function prompting() {
    await attempt('test_simple_prompt', client.getPrompt({ name: 'test_simple_prompt' }));
    const name = 'test_prompt_with_arguments';
    await attempt(name, client.getPrompt({ name, arguments: { arg1: 'one', arg2: 'two' } }));
    const ref = { type: 'ref/prompt', name };
    await attempt('complete_prompt', client.complete({ ref, argument: { name: 'arg1', value: 'par' } }));
}

async function activity() {
    return JSON.parse((await tool('activity')).content[0].text);
}

async function cancelling() {
    // Gives a call up in the middle, and waits until the server says that it noticed.
    const giveUp = new AbortController();
    const call = tool(
        'sleep',
        { seconds: 60, steps: 1000 },
        { signal: giveUp.signal, onprogress: () => giveUp.abort('enough') }
    );
    await call.catch((error) => {
        report.aborted = String(error);
    });
    await until(async () => (await activity()).sleeping === 0);
    report.activity = await activity();
}

async function subscribing() {
    const updated = () => report.notified.some(([, uri]) => uri === WATCHED);
    if (isModern()) {
        const subscription = await client.listen({ resourceSubscriptions: [WATCHED] });
        report.honored = subscription.honoredFilter;
        await tool('touch', { text: 'modern touch' });
        await until(updated);
        await subscription.close();
    } else {
        await attempt('subscribe', client.subscribeResource({ uri: WATCHED }));
        await tool('touch', { text: 'legacy touch' });
        if (!report.subscribe.error) await until(updated);
        await attempt('unsubscribe', client.unsubscribeResource({ uri: WATCHED }));
    }
    await attempt('watched', client.readResource({ uri: WATCHED }));
}

async function together() {
    // Fifty calls at once on the one connection: each gets its own answer.
    const numbers = [...Array(50).keys()];
    const answers = await Promise.all(numbers.map((number) => tool('echo', { message: `message ${number}` })));
    report.together = answers.every((result, number) => result.content[0].text === `message ${number}`);
}

async function main() {
    const transport = connections[binding]();
    // The v1 client tells its transport which revision was agreed, and nobody else.
    const agreed = transport.setProtocolVersion?.bind(transport);
    transport.setProtocolVersion = (version) => {
        report.version = version;
        agreed?.(version);
    };
    await client.connect(transport);
    await introduction();
    await calls();
    await reading();
    await prompting();
    await cancelling();
    await subscribing();
    await together();
    report.session = transport.sessionId ?? null;
    await transport.terminateSession?.();
    await client.close();
    report.closed = true;
    process.stdout.write(JSON.stringify(report) + '\n');
}

const timer = setTimeout(() => {
    console.error(`not finished after ${LIMIT} ms; so far: ${JSON.stringify(report)}`);
    process.exit(3);
}, LIMIT);
main().then(
    () => clearTimeout(timer),
    (error) => {
        console.error(error);
        process.exit(1);
    }
);
