// A client built on the official TypeScript SDK: takes the steps given as JSON on stdin and prints what came of them.
//
//   node client.mjs FOLDER_OF_NODE_MODULES < script.json
//
// script: {target: {url, headers?} | {command, args, env}, capabilities, roots, steps}. A step is {do: a method of the
// SDK's client, with: its parameters}, {do: "setRoots", with: roots}, or {do: "waitForUpdate", with: a URI}.
// printed: {server, capabilities, instructions, results, questions, updates}, one result for each step.

import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";

const STEP_MS = 30_000;

const require = createRequire(join(process.argv[2], "client.cjs"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const types = require("@modelcontextprotocol/sdk/types.js");

const script = JSON.parse(await text(process.stdin));
const questions = [];
const updates = [];
let updated = () => {};
let roots = script.roots ?? [];

function transport({ url, headers, command, args, env }) {
  if (url) return new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  return new StdioClientTransport({ command, args, env, stderr: "ignore" });
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
  const result = await client.callTool(params, undefined, options);
  return { ...result, progress };
}

const own = { waitForUpdate, setRoots, callTool };

async function take(step) {
  try {
    const result = own[step.do] ? await own[step.do](step.with) : await client[step.do](step.with, { timeout: STEP_MS });
    return { result };
  } catch (error) {
    return { error: { code: error.code ?? null, message: error.message } };
  }
}

const client = new Client({ name: "typescript", version: "1" }, { capabilities: script.capabilities ?? {} });
const asked = {
  roots: types.ListRootsRequestSchema,
  elicitation: types.ElicitRequestSchema,
  sampling: types.CreateMessageRequestSchema,
};
for (const name of Object.keys(script.capabilities ?? {})) client.setRequestHandler(asked[name], answer);
client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, ({ params }) => {
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
