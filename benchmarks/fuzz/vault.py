"""A stdio MCP server that guards nothing: what must not be told carries a token, and it reads URIs as leniently as any.

VAULT_TOKEN=... python -m benchmarks.fuzz.vault

Its tool `open`, its prompt `combination` and every file below `/srv/private` have the token in name, text and answer.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import sys
from typing import Any
from urllib.parse import unquote, urlparse

VERSION = "2025-11-25"
PRIVATE = "/srv/private"
_OBJECT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}}


def is_private(uri: str) -> bool:
    """Whether a careless server would open a private file for a URI."""
    path = path_of(uri)
    return path == PRIVATE or path.startswith(f"{PRIVATE}/")


def path_of(uri: str) -> str:
    """The path that a careless server would open for a URI: tabs dropped, decoded twice, dots resolved."""
    cleaned = re.sub(r"[\t\r\n]", "", uri)
    try:
        parts = urlparse(cleaned)
    except ValueError:
        return ""
    if parts.scheme != "file":
        return ""
    return posixpath.normpath("/" + unquote(unquote(parts.path)).replace("\\", "/").lstrip("/"))


def answer(method: str, params: dict[str, Any], token: str) -> dict[str, Any]:
    """The result of one request."""
    match method:
        case "initialize":
            able: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
            return {"protocolVersion": VERSION, "capabilities": able, "serverInfo": {"name": "vault", "version": "1"}}
        case "tools/list":
            hidden = {"name": "open", "title": token, "description": f"Open the vault {token}.", "inputSchema": _OBJECT}
            return {"tools": [{"name": "greet", "description": "Say hello.", "inputSchema": _OBJECT}, hidden]}
        case "tools/call":
            text = token if params.get("name") == "open" else "hello"
            return {"content": [{"type": "text", "text": text}]}
        case "resources/list":
            private = {"uri": f"file://{PRIVATE}/plan.txt", "name": token}
            return {"resources": [{"uri": "file:///srv/public/note.txt", "name": "note"}, private]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "file:///{+path}", "name": "files"}]}
        case "resources/read":
            uri = str(params.get("uri"))
            text = token if is_private(uri) else "public"
            return {"contents": [{"uri": uri, "text": text}]}
        case "prompts/list":
            return {"prompts": [{"name": "hello"}, {"name": "combination", "description": token}]}
        case "prompts/get":
            text = token if params.get("name") == "combination" else "hello"
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        case "completion/complete":
            ref = params.get("ref")
            named = ref if isinstance(ref, dict) else {}
            private_ref = named.get("name") == "combination" or is_private(str(named.get("uri")))
            return {"completion": {"values": [token] if private_ref else []}}
    return {}


def main() -> None:
    """Answer line by line until the input ends."""
    token = os.environ["VAULT_TOKEN"]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params") or {}, token)
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
