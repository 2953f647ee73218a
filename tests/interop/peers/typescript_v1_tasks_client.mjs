// The official TypeScript client of the first generation, with its experimental tasks, at a server over stdio.
//
// `typescript_v1_tasks_client.mjs MODULES PROGRAM ARGUMENT…` prints what it saw as one line of JSON.
import { pathToFileURL } from "node:url";

const [modules, command, ...args] = process.argv.slice(2);
const sdk = (name) =>
  import(pathToFileURL(`${modules}/node_modules/@modelcontextprotocol/sdk/dist/esm/${name}.js`).href);
const { Client } = await sdk("client/index");
const { StdioClientTransport } = await sdk("client/stdio");
const { InMemoryTaskStore } = await sdk("experimental/tasks/stores/in-memory");
const { CallToolResultSchema, ElicitRequestSchema } = await sdk("types");

const person = { action: "accept", content: { name: "Ada" } };
const asked = [];
const client = new Client(
  { name: "typescript", version: "1" },
  {
    capabilities: {
      elicitation: { form: {} },
      tasks: { list: {}, cancel: {}, requests: { elicitation: { create: {} } } },
    },
    taskStore: new InMemoryTaskStore(),
  },
);
client.setRequestHandler(ElicitRequestSchema, async (request, extra) => {
  asked.push(request.params.task ? "task" : "plain");
  if (!request.params.task || !extra.taskStore) return person;
  const task = await extra.taskStore.createTask({ ttl: extra.taskRequestedTtl, pollInterval: 100 });
  setTimeout(() => extra.taskStore.storeTaskResult(task.taskId, "completed", person), 300);
  return { task };
});
await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));
await client.listTools();
const tasks = client.experimental.tasks;

async function stream(name, toolArguments = {}) {
  const seen = [];
  for await (const each of tasks.callToolStream({ name, arguments: toolArguments }, CallToolResultSchema, {
    task: { ttl: 30000 },
  })) {
    if (each.type === "taskCreated" || each.type === "taskStatus") seen.push([each.type, each.task.status]);
    else if (each.type === "result") seen.push(["result", each.result.content[0].text]);
    else seen.push(["error", each.error.message]);
  }
  return seen;
}

const seen = {};
seen.work = (await stream("work", { steps: 3 })).filter(([type]) => type !== "taskStatus");
seen.ask = (await stream("ask")).at(-1);
seen.listed = (await tasks.listTasks()).tasks.map((each) => each.status);
for await (const each of tasks.callToolStream({ name: "forever", arguments: {} }, CallToolResultSchema, {
  task: { ttl: 30000 },
})) {
  if (each.type === "taskCreated") {
    seen.cancelled = (await tasks.cancelTask(each.task.taskId)).status;
    break;
  }
}
seen.later = (await client.callTool({ name: "later" })).content[0].text;
seen.asked = asked;
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
