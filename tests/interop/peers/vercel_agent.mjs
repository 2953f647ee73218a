// generateText of the Vercel AI SDK whose model follows a script: vercel_agent.mjs MODULES stdio|http ADDRESS… < calls.json,
// where MODULES is a directory with a node_modules folder.
//
// Prints the tools as its model is given them, and the output of each call as the model is sent it.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';

const [modules, binding, ...address] = process.argv.slice(2);
const { resolve } = createRequire(join(modules, 'package.json'));
const load = (name) => import(pathToFileURL(resolve(name)));
const { generateText, isStepCount } = await load('ai');
const { MockLanguageModelV4 } = await load('ai/test');
const { createMCPClient } = await load('@ai-sdk/mcp');
const { Experimental_StdioMCPTransport } = await load('@ai-sdk/mcp/mcp-stdio');

const calls = JSON.parse(await text(process.stdin));
const report = { schemas: { 'as listed': {} }, outputs: [] };
const none = { total: 0 };
let turn = 0;

const model = new MockLanguageModelV4({
    async doGenerate({ tools, prompt }) {
        for (const { name, inputSchema } of tools) report.schemas['as listed'][name] = inputSchema;
        const last = prompt.at(-1);
        if (last.role === 'tool') report.outputs.push(...last.content.map((part) => part.output));
        const call = calls[turn++];
        const content = call
            ? { type: 'tool-call', toolCallId: String(turn), toolName: call[0], input: JSON.stringify(call[1]) }
            : { type: 'text', text: 'done' };
        return {
            content: [content],
            finishReason: { unified: call ? 'tool-calls' : 'stop', raw: undefined },
            usage: { inputTokens: none, outputTokens: none },
            warnings: []
        };
    }
});
const transport =
    binding === 'http'
        ? { type: 'http', url: address[0] }
        : new Experimental_StdioMCPTransport({ command: address[0], args: address.slice(1) });
const client = await createMCPClient({ transport });
try {
    await generateText({ model, tools: await client.tools(), prompt: 'Go.', stopWhen: isStepCount(calls.length + 2) });
} finally {
    await client.close();
}
process.stdout.write(JSON.stringify(report));
