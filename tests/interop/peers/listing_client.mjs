// The official TypeScript SDK's client does what listing_client.py does: listing_client.mjs MODULES FILE CALLS COMMAND [ARG...]

import { closeSync, openSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { connectionOf } from './typescript_connection.mjs';

const [modules, file, calls, command, ...args] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));
const { client, transports, onNotification, callTool } = connectionOf(load, 'client', 'legacy', {});
const wanted = JSON.parse(calls);
const timeout = 240_000; // milliseconds for one request
const report = { logs: [], lists: [], texts: [] };
const list = async () => report.lists.push((await client.listTools({}, { timeout })).tools.map(({ name }) => name));

onNotification('notifications/message', ({ params }) => report.logs.push(params.data));
let changed = Promise.withResolvers();
onNotification('notifications/tools/list_changed', () => changed.resolve());
await client.connect(new transports.StdioClientTransport({ command, args, stderr: 'inherit' }), { timeout });
await list();
closeSync(openSync(file, 'w'));
while (wanted.some(([name]) => !report.lists.at(-1).includes(name))) {
    await changed.promise;
    changed = Promise.withResolvers();
    await list();
}
for (const [name, parameters] of wanted) {
    const { content } = await callTool({ name, arguments: parameters }, { timeout });
    report.texts.push(content.map(({ text }) => text ?? ''));
}
await client.close();
process.stdout.write(JSON.stringify(report));
