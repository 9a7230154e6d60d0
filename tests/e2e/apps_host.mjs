// A host of MCP Apps made of the reference libraries: reads the pages of all listed tools, and has an app call tools.
//
//   node apps_host.mjs FOLDER_OF_NODE_MODULES < script.json
//
// script: {command, args, env, calls: names that the app calls}
// printed: {tools: by name {uri, appOnly}, pages: by URI {mimeType, length}, calls: by name the result or an error}

import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const UI = { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } };

const script = JSON.parse(await text(process.stdin));
const folder = process.argv[2];
const require = createRequire(join(folder, "x.js"));
const load = (name) => import(pathToFileURL(require.resolve(name)));

const { Client } = await load("@modelcontextprotocol/client");
const { StdioClientTransport } = await load("@modelcontextprotocol/client/stdio");
const bridges = await load("@modelcontextprotocol/ext-apps/app-bridge");
const { App } = await load("@modelcontextprotocol/ext-apps");

const { command, args, env } = script;
const client = new Client({ name: "host", version: "1" }, { capabilities: { extensions: UI } });
await client.connect(new StdioClientTransport({ command, args, env, stderr: "inherit" }));

const printed = { tools: {}, pages: {}, calls: {} };
for (const tool of (await client.listTools()).tools) {
  const uri = bridges.getToolUiResourceUri(tool) ?? null;
  printed.tools[tool.name] = { uri, appOnly: bridges.isToolVisibilityAppOnly(tool) };
  if (uri !== null && !(uri in printed.pages)) {
    const [page] = (await client.readResource({ uri })).contents;
    printed.pages[uri] = { mimeType: page.mimeType, length: page.text.length };
  }
}

// As in a browser, but for the window between the two.
const [hostSide, appSide] = [{}, {}].map((end) =>
  Object.assign(end, { start: async () => {}, close: async () => {} }),
);
hostSide.send = async (message) => queueMicrotask(() => appSide.onmessage?.(structuredClone(message)));
appSide.send = async (message) => queueMicrotask(() => hostSide.onmessage?.(structuredClone(message)));
const bridge = new bridges.AppBridge(client, { name: "host", version: "1" }, { serverTools: {}, serverResources: {} });
const app = new App({ name: "app", version: "1" }, {}, { autoResize: false });
await bridge.connect(hostSide);
await app.connect(appSide);
for (const name of script.calls) {
  try {
    printed.calls[name] = await app.callServerTool({ name, arguments: {} });
  } catch (error) {
    printed.calls[name] = { error: String(error) };
  }
}
await client.close();
console.log(JSON.stringify(printed));
process.exit(0);
