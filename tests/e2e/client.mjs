// A client built on the official TypeScript SDK: takes the steps given as JSON on stdin and prints what came of them.
//
//   node client.mjs FOLDER_OF_NODE_MODULES < script.json
//
// script: {era, target: {url, headers?} | {command, args, env}, capabilities, roots, steps}. The era 2026-07-28 is that
// of the SDK's second version. A step is {do: a method of the SDK's client, with: its parameters},
// {do: "setRoots", with: roots}, {do: "callToolStream", with: the parameters of a call as a task},
// {do: "waitForUpdate", with: a URI}, {do: "listEveryTool", with: names to wait for}, or
// {do: "together", with: steps} for steps that are in flight at the same time.
// printed: {server, capabilities, instructions, results, questions, updates}, one result for each step.

import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";

const STEP_MS = 30_000;
const POLL_MS = 100;

const MODERN = "2026-07-28";

const script = JSON.parse(await text(process.stdin));
const isModern = script.era === MODERN;
const require = createRequire(join(process.argv[2], "client.cjs"));
const sdk = isModern
  ? { ...require("@modelcontextprotocol/client"), ...require("@modelcontextprotocol/client/stdio") }
  : {
      ...require("@modelcontextprotocol/sdk/client/index.js"),
      ...require("@modelcontextprotocol/sdk/client/stdio.js"),
      ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
      ...require("@modelcontextprotocol/sdk/types.js"),
    };
const questions = [];
const updates = [];
let updated = () => {};
let roots = script.roots ?? [];

function transport({ url, headers, command, args, env }) {
  if (url) return new sdk.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  return new sdk.StdioClientTransport({ command, args, env, stderr: "ignore" });
}

function answer(request) {
  questions.push({ method: request.method, params: request.params ?? {} });
  switch (request.method) {
    case "roots/list":
      return { roots };
    case "elicitation/create":
      return { action: "accept", content: { name: "Ada" } };
    case "sampling/createMessage": {
      const asked = request.params.messages.map((message) => message.content.text).join(" ");
      return { role: "assistant", model: "test", content: { type: "text", text: `sampled: ${asked}` } };
    }
  }
}

async function waitForUpdate(uri) {
  const limit = AbortSignal.timeout(STEP_MS);
  while (!updates.includes(uri)) {
    await new Promise((resolve, reject) => {
      updated = resolve;
      limit.addEventListener("abort", () => reject(new Error(`no update of ${uri} within ${STEP_MS} ms`)));
    });
  }
  return {};
}

async function setRoots(given) {
  roots = given;
  await client.sendRootsListChanged();
  return {};
}

async function callTool(params) {
  const progress = [];
  const options = { timeout: STEP_MS, onprogress: (told) => progress.push(told) };
  const result = await (isModern ? client.callTool(params, options) : client.callTool(params, undefined, options));
  return { ...result, progress };
}

async function callToolStream(params) {
  const messages = [];
  for await (const message of client.experimental.tasks.callToolStream(params)) messages.push(message);
  return { types: messages.map(({ type }) => type), last: messages.at(-1) };
}

async function listEveryTool(expected) {
  const until = Date.now() + STEP_MS;
  for (;;) {
    const tools = [];
    let page = {};
    do {
      page = await client.listTools(page.nextCursor ? { cursor: page.nextCursor } : {}, { timeout: STEP_MS });
      tools.push(...page.tools);
    } while (page.nextCursor);
    const names = tools.map((tool) => tool.name);
    if (expected.every((name) => names.includes(name)) || Date.now() > until) return { tools };
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

async function together(steps) {
  return { results: await Promise.all(steps.map(take)) };
}

const own = { waitForUpdate, setRoots, callTool, callToolStream, listEveryTool, together };

async function take(step) {
  try {
    const result = own[step.do] ? await own[step.do](step.with) : await client[step.do](step.with, { timeout: STEP_MS });
    return { result };
  } catch (error) {
    return { error: { code: error.code ?? null, message: error.message } };
  }
}

const client = new sdk.Client(
  { name: "typescript", version: "1" },
  { capabilities: script.capabilities ?? {}, ...(isModern ? { versionNegotiation: { mode: { pin: MODERN } } } : {}) },
);
const asked = {
  roots: ["roots/list", sdk.ListRootsRequestSchema],
  elicitation: ["elicitation/create", sdk.ElicitRequestSchema],
  sampling: ["sampling/createMessage", sdk.CreateMessageRequestSchema],
};
// The second version names what it handles by the method.
const handled = ([method, schema]) => (isModern ? method : schema);
for (const name of Object.keys(script.capabilities ?? {})) client.setRequestHandler(handled(asked[name]), answer);
const resourceUpdated = ["notifications/resources/updated", sdk.ResourceUpdatedNotificationSchema];
client.setNotificationHandler(handled(resourceUpdated), ({ params }) => {
  updates.push(params.uri);
  updated();
});

const connection = transport(script.target);
await client.connect(connection, { timeout: STEP_MS });
const results = [];
for (const step of script.steps) results.push(await take(step));
const printed = {
  server: client.getServerVersion(),
  capabilities: client.getServerCapabilities(),
  instructions: client.getInstructions() ?? "",
  results,
  questions,
  updates,
};
if (connection.terminateSession) await connection.terminateSession();
await client.close();
process.stdout.write(JSON.stringify(printed));
