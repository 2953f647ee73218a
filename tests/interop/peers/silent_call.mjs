// The official TypeScript SDK's client calls one tool that says nothing, and prints one JSON report.
//
// Usage: silent_call.mjs MODULES legacy|auto URL TOOL SECONDS
//
// Its clock of 60 seconds for a request stays as it is, and is asked to begin anew with each report of progress, which
// it does not do by itself. Without any byte Node's fetch would give up after 300 seconds.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, mode, url, tool, seconds] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const { Client, StreamableHTTPClientTransport } = load('@modelcontextprotocol/client');

const client = new Client({ name: 'silent', version: '1.0.0' }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const progress = [];
const began = performance.now();
const result = await client.callTool(
    { name: tool, arguments: { seconds: Number(seconds) } },
    { resetTimeoutOnProgress: true, onprogress: (each) => progress.push(each.progress) }
);
const took = (performance.now() - began) / 1000;
const version = client.getNegotiatedProtocolVersion?.() ?? null;
await client.close();
console.log(JSON.stringify({ version, text: result.content[0].text, took, progress }));
