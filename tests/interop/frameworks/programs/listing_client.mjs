// The official TypeScript SDK's client does what listing_client.py does: listing_client.mjs MODULES FILE CALLS COMMAND [ARG...]

import { closeSync, openSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { connectionOf } from '../../peers/typescript_connection.mjs';

const [modules, file, calls, command, ...args] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const { client, transports, onNotification, callTool } = connectionOf(load, 'client', 'legacy', {});
const timeout = 240_000; // milliseconds for one request
const report = { logs: [], lists: [], texts: [] };
const list = async () => report.lists.push((await client.listTools({}, { timeout })).tools.map(({ name }) => name));

onNotification('notifications/message', ({ params }) => report.logs.push(params.data));
const changed = new Promise((resolve) => onNotification('notifications/tools/list_changed', resolve));
await client.connect(new transports.StdioClientTransport({ command, args, stderr: 'inherit' }), { timeout });
await list();
if (file) {
    closeSync(openSync(file, 'w'));
    await changed;
    await list();
}
for (const [name, parameters] of JSON.parse(calls)) {
    const { content } = await callTool({ name, arguments: parameters }, { timeout });
    report.texts.push(content.map(({ text }) => text ?? ''));
}
await client.close();
process.stdout.write(JSON.stringify(report));
