// Skills with the official TypeScript SDK's second generation, either side, over stdio.
//
// Usage: typescript_skills.mjs MODULES serve FOLDER
//        typescript_skills.mjs MODULES read legacy|auto COMMAND [ARG...]
//
// MODULES is a directory with a node_modules folder. The reader prints one JSON report: the entries, and the text or the
// bytes (in base64) of each file, each verified by the SDK.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, what, ...rest] = process.argv.slice(2);
const load = createRequire(join(modules, 'package.json'));

if (what === 'serve') {
    const { McpServer } = load('@modelcontextprotocol/server');
    const { loadSkills } = load('@modelcontextprotocol/server/ext/skills/node');
    const { serveStdio } = load('@modelcontextprotocol/server/stdio');
    const catalog = await loadSkills(rest[0]);
    serveStdio(() => {
        const server = new McpServer({ name: 'official-typescript', version: '2.0.0' }, { capabilities: { resources: {} } });
        catalog.attach(server);
        return server;
    });
} else {
    const { Client } = load('@modelcontextprotocol/client');
    const { SkillsClient } = load('@modelcontextprotocol/client/ext/skills');
    const { StdioClientTransport } = load('@modelcontextprotocol/client/stdio');
    const [mode, command, ...args] = rest;
    const client = new Client({ name: 'official', version: '1.0.0' }, { versionNegotiation: { mode } });
    await client.connect(new StdioClientTransport({ command, args, stderr: 'inherit' }));
    const skills = new SkillsClient(client);
    const report = { supported: skills.supported, directoryRead: skills.directoryRead, files: {}, folders: {} };
    const { skills: entries } = await skills.list();
    report.entries = entries;
    for (const entry of entries) {
        const { skill } = await skills.get(entry.uri);
        report.same = (report.same ?? true) && JSON.stringify(skill) === JSON.stringify(entry);
        for (const { uri } of entry.resources) {
            const file = await skills.read(entry, uri);
            report.files[uri] = [file.verified, Buffer.from(file.bytes).toString('base64')];
        }
        const root = entry.uri.slice(0, -'/SKILL.md'.length);
        const children = await skills.readDirectory(root);
        report.folders[root] = children.resources.map(({ uri }) => uri).sort();
    }
    try {
        await skills.get('skill://nothing/SKILL.md');
    } catch (error) {
        report.missing = error.code;
    }
    console.log(JSON.stringify(report));
    await client.close();
}
