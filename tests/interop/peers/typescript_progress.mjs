// Counts the calls of one official TypeScript client whose last progress report came before the answer.
//
// Usage: typescript_progress.mjs MODULES sdk|client legacy|auto CALLS stdio COMMAND [ARG...]
//        typescript_progress.mjs MODULES sdk|client legacy|auto CALLS http|sse|ws URL
//
// Half of the calls are made one after another, the other half ten at a time. Prints one line of JSON.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, kind, mode, calls, binding, address, ...args] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const REPORTS = 3; // of each call
const TOGETHER = 10; // calls in flight in the second half

function imported() {
    if (kind === 'client') {
        return { ...load('@modelcontextprotocol/client'), ...load('@modelcontextprotocol/client/stdio') };
    }
    return {
        ...load('@modelcontextprotocol/sdk/client/index.js'),
        ...load('@modelcontextprotocol/sdk/client/stdio.js'),
        ...load('@modelcontextprotocol/sdk/client/streamableHttp.js'),
        ...load('@modelcontextprotocol/sdk/client/sse.js'),
        ...load('@modelcontextprotocol/sdk/client/websocket.js')
    };
}

const sdk = imported();
const client = new sdk.Client({ name: `official-typescript-${kind}`, version: '1.0.0' }, { versionNegotiation: { mode } });
const connections = {
    stdio: () => new sdk.StdioClientTransport({ command: address, args, stderr: 'inherit' }),
    http: () => new sdk.StreamableHTTPClientTransport(new URL(address)),
    sse: () => new sdk.SSEClientTransport(new URL(address)),
    ws: () => new sdk.WebSocketClientTransport(new URL(address))
};

const tally = { calls: 0, last: 0, all: 0 };

async function call() {
    const seen = [];
    const options = { onprogress: ({ progress }) => seen.push(progress) };
    const params = { name: 'report', arguments: { times: REPORTS } };
    await (kind === 'client' ? client.callTool(params, options) : client.callTool(params, undefined, options));
    tally.calls += 1;
    tally.last += seen.at(-1) === REPORTS;
    tally.all += seen.length === REPORTS;
}

await client.connect(connections[binding]());
const half = Math.ceil(Number(calls) / 2);
const began = performance.now();
while (tally.calls < half) await call();
tally.milliseconds = Math.round((performance.now() - began) * 1000 / half) / 1000;
while (tally.calls < Number(calls)) {
    await Promise.all(Array.from({ length: Math.min(TOGETHER, Number(calls) - tally.calls) }, call));
}
await client.close();
process.stdout.write(JSON.stringify(tally) + '\n');
