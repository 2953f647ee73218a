// The official TypeScript SDK, second generation: typescript2.mjs URL MODULES

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
const { McpServer, createMcpHandler, isLegacyRequest } = load('@modelcontextprotocol/server');
const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = load('@modelcontextprotocol/node');
const { serveStdio } = load('@modelcontextprotocol/server/stdio');
const z = load('zod');

function build() {
    const server = new McpServer({ name: 'peer', version: '0' });
    const text = (value) => ({ content: [{ type: 'text', text: value }] });
    server.registerTool(
        'add',
        { inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ total: z.number() }) },
        async ({ a, b }) => ({ ...text(JSON.stringify({ total: a + b })), structuredContent: { total: a + b } })
    );
    server.registerTool(
        'add_awaiting',
        { inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ total: z.number() }) },
        async ({ a, b }) => {
            await setImmediate(); // a turn of the loop with its I/O, as a checkpoint is; a resolved promise is none
            return { ...text(JSON.stringify({ total: a + b })), structuredContent: { total: a + b } };
        }
    );
    server.registerTool('echo', { inputSchema: z.object({ text: z.string() }) }, async (given) => text(given.text));
    server.registerTool('hang', { inputSchema: z.object({}) }, async (_, context) => {
        tell('began');
        await until(context.mcpReq.signal);
        tell('cancelled');
        return text('cancelled');
    });
    const steps = z.object({ count: z.number(), size: z.number() });
    server.registerTool('steps', { inputSchema: steps }, async ({ count, size }, context) => {
        const progressToken = context.mcpReq._meta.progressToken;
        for (let progress = 1; progress <= count; progress++) {
            const params = { progressToken, progress, total: count, message: 'x'.repeat(size) };
            await context.mcpReq.notify({ method: 'notifications/progress', params });
        }
        return text('done');
    });
    server.registerResource('item', 'bench://item', {}, sayItem);
    server.registerPrompt('greet', { argsSchema: z.object({ name: z.string() }) }, ({ name }) => ({
        messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}.` } }]
    }));
    return server;
}

if (url === 'stdio:') {
    await serveStdio(build);
} else {
    const streams = process.env.MCP_BENCHMARK_STREAMS === '1';
    const sessions = new Map();
    const modern = toNodeHandler(createMcpHandler(build, { legacy: 'reject', ...(streams ? {} : { responseMode: 'json' }) }));
    const legacy = async (request, response, message) => {
        let transport = sessions.get(request.headers['mcp-session-id']);
        if (transport === undefined) {
            transport = new NodeStreamableHTTPServerTransport({
                sessionIdGenerator: randomUUID,
                enableJsonResponse: !streams,
                onsessioninitialized: (id) => void sessions.set(id, transport),
                onsessionclosed: (id) => void sessions.delete(id)
            });
            await build().connect(transport);
        }
        await transport.handleRequest(request, response, message);
    };
    const serve = async (request, response) => {
        const pieces = [];
        for await (const piece of request) pieces.push(piece);
        const message = pieces.length ? JSON.parse(Buffer.concat(pieces).toString()) : undefined;
        // A server that serves both eras has to look; a version header settles it without a copy of the request.
        const version = request.headers['mcp-protocol-version'];
        const old =
            request.headers['mcp-session-id'] !== undefined ||
            (version === undefined && (await isLegacyRequest(await toWebRequest(request, message), message)));
        await (old ? legacy(request, response, message) : modern(request, response, message));
    };
    const server = createServer((request, response) => void serve(request, response));
    server.keepAliveTimeout = LONGEST;
    server.listen(Number(new URL(url).port), '127.0.0.1', 4096);
}
