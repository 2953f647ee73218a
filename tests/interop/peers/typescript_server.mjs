// A server made with the official TypeScript SDK's second generation, dual-era.
//
// Usage: typescript_server.mjs MODULES stdio|http, where MODULES is a directory with a node_modules folder. Over HTTP
// it has sessions in the legacy era, and says on stdout which port it took. The scheme of its URIs is URI_SCHEME.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, binding] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const { McpServer, ResourceTemplate, acceptedContent, createMcpHandler, inputRequired, isLegacyRequest } = load(
    '@modelcontextprotocol/server'
);
const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = load('@modelcontextprotocol/node');
const { serveStdio } = load('@modelcontextprotocol/server/stdio');
const z = load('zod');

const SCHEME = process.env.URI_SCHEME ?? 'test';
const WATCHED = `${SCHEME}://watched-resource`;
const RETRY = 200; // milliseconds until a client may come back for the rest of a stream
const state = { sleeping: 0, slept: 0, cancelled: 0 };
let watched = 'Watched resource content';
const grown = [];
let tellAboutTools = () => {};
let tellAboutWatched = (server) => server.server.sendResourceUpdated({ uri: WATCHED });
const text = (value) => ({ content: [{ type: 'text', text: value }] });

function pause(milliseconds, signal) {
    return new Promise((resolve, reject) => {
        const timer = setTimeout(resolve, milliseconds);
        signal.addEventListener('abort', () => {
            clearTimeout(timer);
            reject(signal.reason);
        });
    });
}

function build() {
    const server = new McpServer(
        { name: 'official-typescript', version: '2.0.0' },
        { instructions: 'An official server.', capabilities: { logging: {}, resources: { subscribe: true } } }
    );
    server.registerTool(
        'echo',
        { description: 'The same again', inputSchema: z.object({ message: z.string() }) },
        async ({ message }) => text(message)
    );
    server.registerTool(
        'add',
        {
            description: 'A sum',
            inputSchema: z.object({ a: z.number(), b: z.number() }),
            outputSchema: z.object({ total: z.number() })
        },
        async ({ a, b }) => ({ ...text(String(a + b)), structuredContent: { total: a + b } })
    );
    server.registerTool(
        'sleep',
        { description: 'Sleeps', inputSchema: z.object({ seconds: z.number(), steps: z.number() }) },
        async ({ seconds, steps }, ctx) => {
            const { signal, _meta } = ctx.mcpReq;
            state.sleeping += 1;
            try {
                for (let step = 1; step <= steps; step++) {
                    await pause((seconds / steps) * 1000, signal);
                    if (_meta?.progressToken !== undefined) {
                        const params = { progressToken: _meta.progressToken, progress: step, total: steps };
                        await ctx.mcpReq.notify({ method: 'notifications/progress', params });
                    }
                }
                state.slept += 1;
            } catch (error) {
                state.cancelled += 1;
                throw error;
            } finally {
                state.sleeping -= 1;
            }
            return text(`slept ${seconds} s`);
        }
    );
    server.registerTool(
        'test_reconnection',
        { description: 'Closes its stream, where a client can come back to it, and answers a moment later' },
        async (ctx) => {
            const close = ctx.http?.closeSSE;
            close?.();
            await pause(100, ctx.mcpReq.signal);
            return text(close === undefined ? 'kept' : 'closed');
        }
    );
    server.registerTool('activity', { description: 'What the sleeps did' }, async () => text(JSON.stringify(state)));
    server.registerTool(
        'ask',
        { description: 'Asks twice', inputSchema: z.object({}) },
        async (_args, ctx) => {
            const answers = ctx.mcpReq.inputResponses;
            const name = acceptedContent(answers, 'name', z.object({ name: z.string() }));
            if (name === undefined) {
                const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
                const question = inputRequired.elicit({ message: 'Who?', requestedSchema });
                return inputRequired({ inputRequests: { name: question }, requestState: 'first round' });
            }
            return text(`Hello, ${name.name}!`);
        }
    );
    server.registerTool(
        'touch',
        { description: 'Changes the watched resource', inputSchema: z.object({ text: z.string() }) },
        async (args) => {
            watched = args.text;
            await tellAboutWatched(server);
            return text('touched');
        }
    );
    const registerGrown = (name) => server.registerTool(name, { description: 'Grown' }, async () => text(name));
    grown.forEach(registerGrown);
    server.registerTool(
        'grow',
        { description: 'Adds a tool', inputSchema: z.object({ name: z.string() }) },
        async ({ name }) => {
            grown.push(name);
            // A session is told of it by that.
            registerGrown(name);
            tellAboutTools();
            return text('grown');
        }
    );
    server.registerTool('log', { description: 'Logs' }, async (ctx) => {
        await ctx.mcpReq.log('info', 'a message');
        return text('logged');
    });
    server.registerResource('watched', WATCHED, { mimeType: 'text/plain' }, async (uri) => ({
        contents: [{ uri: uri.href, mimeType: 'text/plain', text: watched }]
    }));
    const template = new ResourceTemplate(`${SCHEME}://template/{id}/data`, { list: undefined });
    server.registerResource('template', template, {}, async (uri, { id }) => ({
        contents: [{ uri: uri.href, text: `Data for ID: ${id}` }]
    }));
    server.registerPrompt(
        'greet',
        { description: 'A greeting', argsSchema: z.object({ name: z.string() }) },
        ({ name }) => ({ messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}.` } }] })
    );
    return server;
}

// Every event of every stream, for good: this server does not live long.
const events = [];
const eventStore = {
    storeEvent: async (stream, message) => String(events.push({ stream, message })),
    replayEventsAfter: async (last, { send }) => {
        const { stream } = events[Number(last) - 1];
        for (const [index, event] of events.entries()) {
            if (index >= Number(last) && event.stream === stream) await send(String(index + 1), event.message);
        }
        return stream;
    }
};

function serveHttp() {
    const handler = createMcpHandler(build, { legacy: 'reject' });
    tellAboutWatched = () => handler.notify.resourceUpdated(WATCHED);
    tellAboutTools = () => handler.notify.toolsChanged();
    const modern = toNodeHandler(handler);
    const sessions = new Map();

    async function legacy(request, response, body) {
        let transport = sessions.get(request.headers['mcp-session-id']);
        if (transport === undefined) {
            transport = new NodeStreamableHTTPServerTransport({
                sessionIdGenerator: randomUUID,
                eventStore,
                retryInterval: RETRY,
                onsessioninitialized: (id) => sessions.set(id, transport)
            });
            await build().connect(transport);
        }
        await transport.handleRequest(request, response, body);
    }

    const server = createServer(async (request, response) => {
        const chunks = [];
        for await (const chunk of request) chunks.push(chunk);
        const body = chunks.length > 0 ? JSON.parse(Buffer.concat(chunks).toString()) : undefined;
        const isLegacy = await isLegacyRequest(await toWebRequest(request, body), body);
        await (isLegacy ? legacy : modern)(request, response, body);
    });
    server.listen(0, '127.0.0.1', () => console.log(`listening on ${server.address().port}`));
}

if (binding === 'http') serveHttp();
else serveStdio(build);
