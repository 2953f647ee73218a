// The official TypeScript SDK, first generation: typescript1.mjs URL MODULES

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire, enableCompileCache } from 'node:module';
import { join } from 'node:path';
import { setImmediate } from 'node:timers/promises';
import { sayItem, tell, until, LONGEST } from './typescript_telling.mjs';

const [url, modules] = process.argv.slice(2);
// Python keeps what it has compiled without being asked; Node is asked.
enableCompileCache(join(modules, 'compiled'));
const load = createRequire(join(modules, 'package.json'));
const { McpServer } = load('@modelcontextprotocol/sdk/server/mcp.js');
const { StdioServerTransport } = load('@modelcontextprotocol/sdk/server/stdio.js');
const { StreamableHTTPServerTransport } = load('@modelcontextprotocol/sdk/server/streamableHttp.js');
const z = load('zod');

function build() {
    const server = new McpServer({ name: 'peer', version: '0' });
    const text = (value) => ({ content: [{ type: 'text', text: value }] });
    server.registerTool(
        'add',
        { inputSchema: { a: z.number(), b: z.number() }, outputSchema: { total: z.number() } },
        async ({ a, b }) => ({ ...text(JSON.stringify({ total: a + b })), structuredContent: { total: a + b } })
    );
    server.registerTool(
        'add_awaiting',
        { inputSchema: { a: z.number(), b: z.number() }, outputSchema: { total: z.number() } },
        async ({ a, b }) => {
            await setImmediate(); // a turn of the loop with its I/O, as a checkpoint is; a resolved promise is none
            return { ...text(JSON.stringify({ total: a + b })), structuredContent: { total: a + b } };
        }
    );
    server.registerTool('echo', { inputSchema: { text: z.string() } }, async (given) => text(given.text));
    server.registerTool('hang', { inputSchema: {} }, async (_, extra) => {
        tell('began');
        await until(extra.signal);
        tell('cancelled');
        return text('cancelled');
    });
    server.registerTool('steps', { inputSchema: { count: z.number(), size: z.number() } }, async ({ count, size }, extra) => {
        const progressToken = extra._meta.progressToken;
        for (let progress = 1; progress <= count; progress++) {
            const params = { progressToken, progress, total: count, message: 'x'.repeat(size) };
            await extra.sendNotification({ method: 'notifications/progress', params });
        }
        return text('done');
    });
    server.registerResource('item', 'bench://item', {}, sayItem);
    server.registerPrompt('greet', { argsSchema: { name: z.string() } }, ({ name }) => ({
        messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}.` } }]
    }));
    return server;
}

async function body(request) {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    return pieces.length ? JSON.parse(Buffer.concat(pieces).toString()) : undefined;
}

if (url === 'stdio:') {
    await build().connect(new StdioServerTransport());
} else {
    const sessions = new Map();
    const serve = async (request, response) => {
        const message = await body(request);
        let transport = sessions.get(request.headers['mcp-session-id']);
        if (transport === undefined) {
            transport = new StreamableHTTPServerTransport({
                sessionIdGenerator: randomUUID,
                enableJsonResponse: process.env.MCP_BENCHMARK_STREAMS !== '1',
                onsessioninitialized: (id) => sessions.set(id, transport),
                onsessionclosed: (id) => sessions.delete(id)
            });
            await build().connect(transport);
        }
        await transport.handleRequest(request, response, message);
    };
    const server = createServer((request, response) => void serve(request, response));
    server.keepAliveTimeout = LONGEST;
    server.listen(Number(new URL(url).port), '127.0.0.1', 4096);
}
