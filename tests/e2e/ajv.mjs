// Compiles schemas with Ajv as the clients of the official TypeScript SDKs do with the tools that a server lists.
//
//   node ajv.mjs FOLDER_OF_NODE_MODULES < lists.json
//
// lists: {tools: [...], values: [...]} each, which is what one client is told. printed: one list of faults for each,
// {tool, where, fault}: in what the SDK parses of the list, and in every inputSchema and outputSchema, which has to
// compile and to come to a verdict about every value.

import { createRequire } from "node:module";
import { join } from "node:path";
import { text } from "node:stream/consumers";

const require = createRequire(join(process.argv[2], "client.cjs"));
const { ListToolsResultSchema } = require("@modelcontextprotocol/sdk/types.js");
const first = require("@modelcontextprotocol/sdk/validation/ajv");
const second = require("@modelcontextprotocol/client/validators/ajv");
console.warn = console.error = () => {};

function faultsOf({ tools, values }) {
  const faults = [];
  const tried = (tool, where, action) => {
    try {
      return action();
    } catch (error) {
      faults.push({ tool, where, fault: String(error.message ?? error).slice(0, 300) });
    }
  };
  tried("", "list", () => ListToolsResultSchema.parse({ tools }));
  const providers = { first: new first.AjvJsonSchemaValidator(), second: new second.AjvJsonSchemaValidator() };
  for (const [version, provider] of Object.entries(providers)) {
    for (const tool of tools) {
      for (const where of ["inputSchema", "outputSchema"]) {
        if (!tool[where]) continue;
        const check = tried(tool.name, `${version} ${where}`, () => provider.getValidator(tool[where]));
        for (const value of check ? values ?? [] : []) {
          tried(tool.name, `${version} ${where} of ${JSON.stringify(value)}`, () => check(value));
        }
      }
    }
  }
  return faults;
}

console.log(JSON.stringify(JSON.parse(await text(process.stdin)).map(faultsOf)));
