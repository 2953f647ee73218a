// The same as calling.py, by the official TypeScript SDK's clients.
//
// Usage: calling.mjs MODULES URL CONNECTIONS sdk|legacy|auto

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, url, connections, mode] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const info = { name: 'calling', version: '1' };
let answered = 0;
let over = false;
const failed = [];

function newClient() {
    if (mode === 'sdk') {
        const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
        const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
        return [new Client(info), new StreamableHTTPClientTransport(new URL(url))];
    }
    const { Client, StreamableHTTPClientTransport } = load('@modelcontextprotocol/client');
    return [new Client(info, { versionNegotiation: { mode } }), new StreamableHTTPClientTransport(new URL(url))];
}

async function callAllTheTime() {
    try {
        const [client, transport] = newClient();
        await client.connect(transport);
        while (!over) {
            const result = await client.callTool({ name: 'pid', arguments: {} });
            if (!/^\d+$/.test(result.content[0].text)) throw new Error(JSON.stringify(result));
            answered += 1;
            if (answered === Number(connections)) console.log('calling');
            await new Promise((resolve) => setTimeout(resolve, 10));
        }
        await client.close();
    } catch (error) {
        failed.push(`${error?.constructor?.name}: ${error?.message} ${error?.cause ?? ''}`.slice(0, 500));
    }
}

process.stdin.resume();
process.stdin.on('end', () => { over = true; });
await Promise.all(Array.from({ length: Number(connections) }, callAllTheTime));
console.log(JSON.stringify({ answered, failed }));
