// The official requester of tasks of the stateless revision (SEP-2663), at a server over stdio.
//
// Usage: typescript_tasks_client.mjs MODULES PROGRAM [ARG...]
//
// MODULES is a directory with a node_modules folder. The package leaves it to its host to send the messages: here that
// is a pipe. It prints what it saw as one line of JSON.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [modules, program, ...args] = process.argv.slice(2);
const entry = `${modules}/node_modules/@modelcontextprotocol/ext-tasks/dist/client/index.js`;
const { createApplicationInputHandler, resultFromTaskOutcome, toolDeclaration, withTasks } = await import(pathToFileURL(entry).href);

const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
const waiting = new Map();
const notified = new Set();
createInterface({ input: child.stdout }).on('line', (line) => {
    const { id, result, error } = JSON.parse(line);
    waiting.get(id)?.(error ? { kind: 'error', error } : { kind: 'result', result });
    waiting.delete(id);
});
const TASKS = 'io.modelcontextprotocol/tasks';
const meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientInfo': { name: 'official', version: '1' },
    'io.modelcontextprotocol/clientCapabilities': { elicitation: { form: {} }, extensions: { [TASKS]: {} } },
};
let last = 0;
function dispatch({ method, params = {} }) {
    const id = ++last;
    const answer = new Promise((resolve) => waiting.set(id, resolve));
    child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', id, method, params: { ...params, _meta: { ...params._meta, ...meta } } })}\n`);
    return answer;
}

const seen = {};
const { result: discovered } = await dispatch({ method: 'server/discover' });
seen.declared = discovered.capabilities.extensions[TASKS];
const { result: listed } = await dispatch({ method: 'tools/list' });
seen.tools = listed.tools.map(({ name }) => name);
const declarations = new Map(listed.tools.map((tool) => [tool.name, toolDeclaration(tool)]));

const asked = [];
const open = () => withTasks(
    {
        endpointId: 'ours',
        taskCapabilities: { generation: 'v2', capabilities: seen.declared },
        dispatch,
        onServerRequest: () => () => {},
        onNotification: (listener) => (notified.add(listener), () => notified.delete(listener)),
        onInvalidated: () => () => {},
        invalidated: false,
    },
    {
        tools: { currentTool: (name) => declarations.get(name) },
        onInputRequest: createApplicationInputHandler({
            elicitation: ({ params }, { scope }) => {
                asked.push([scope, params.message]);
                return { action: 'accept', content: { name: 'Ada' } };
            },
            sampling: () => ({ role: 'assistant', model: 'none', content: { type: 'text', text: '' } }),
            roots: () => ({ roots: [] }),
        }),
    },
);
const session = open();
seen.capabilities = session.capabilities;

async function run(name, params = {}) {
    const execution = await session.callTool(name, params);
    const { outcome, lastTask } = await execution.settle();
    const text = outcome.status === 'completed' ? resultFromTaskOutcome(outcome).content[0].text : outcome.error?.message;
    return [execution.kind, lastTask?.status, outcome.status, text];
}
seen.work = await run('work', { steps: 3 });
seen.ask = await run('ask');
seen.later = await run('later');
seen.broken = await run('broken');
const forever = await session.callTool('forever');
await forever.cancel();
seen.forever = (await forever.result()).status;
const resumed = await session.callTool('work', { steps: 2 });
let reference;
await resumed.handoff((written) => (reference = written));
const another = open();
const again = await another.resumeTask(reference);
seen.resumed = resultFromTaskOutcome((await again.settle()).outcome).content[0].text;
await another.close();
try {
    await session.task('nothing').snapshot();
} catch (error) {
    seen.unknown = error.code;
}
seen.asked = asked;
console.log(JSON.stringify(seen));
await session.close();
child.stdin.end();
process.exit(0);
