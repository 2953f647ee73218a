// The official TypeScript SDK's client closes a server over stdio while a call is in flight.
//
// Usage: closing_client.mjs MODULES sdk|client TIMES TOGETHER COMMAND [ARG...]
//
// Prints the seconds that the slowest close took.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, kind, times, together, command, ...args] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const { Client } = load(kind === 'client' ? '@modelcontextprotocol/client' : '@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = load(
    kind === 'client' ? '@modelcontextprotocol/client/stdio' : '@modelcontextprotocol/sdk/client/stdio.js'
);

async function once() {
    const client = new Client({ name: `closing-${kind}`, version: '1.0.0' });
    await client.connect(new StdioClientTransport({ command, args, stderr: 'inherit' }));
    await new Promise((begun) => {
        const options = { onprogress: begun };
        const params = { name: 'hang', arguments: {} };
        const call = kind === 'client' ? client.callTool(params, options) : client.callTool(params, undefined, options);
        call.catch(() => {}); // the connection is closed under it
    });
    const began = performance.now();
    await client.close();
    return (performance.now() - began) / 1000;
}

let slowest = 0;
for (let left = Number(times); left > 0; left -= Number(together)) {
    const taken = await Promise.all(Array.from({ length: Math.min(left, Number(together)) }, once));
    slowest = Math.max(slowest, ...taken);
}
console.log(slowest);
