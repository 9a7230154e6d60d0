"""The MCP clients whose files `pml` reads and writes, according to their documentation (November 2026)."""

from __future__ import annotations

from pml_gateway.clients.model import FileFormat, FileLocation, KnownClient, Scope, Shape, ToolNames, Variables

SERVERS = ("mcpServers",)


def _home_and_project(file: str) -> tuple[FileLocation, ...]:
    """Return the locations of the same file in the user's home and in a project."""
    return FileLocation(Scope.USER, f"{{home}}/{file}", SERVERS), FileLocation(
        Scope.PROJECT, f"{{project}}/{file}", SERVERS
    )


CLIENTS: tuple[KnownClient, ...] = (
    KnownClient(
        "claude-code",
        "Claude Code",
        (
            FileLocation(Scope.USER, "{claude}/.claude.json", SERVERS),
            FileLocation(Scope.LOCAL, "{claude}/.claude.json", ("projects", "{project}", "mcpServers")),
            FileLocation(Scope.PROJECT, "{project}/.mcp.json", SERVERS),
        ),
        # code.claude.com/docs/en/mcp: `type` is required for http and sse; `alwaysLoad` since 2.1.121.
        shape=Shape(stdio_type="stdio", http_type="http"),
        variables=Variables.BRACED,
        defers="loads tools only when it searches for them (tool search), unless a server has `alwaysLoad`",
        pin_key="alwaysLoad",
        # github.com/anthropics/claude-code/issues/46426: a running session keeps the servers it started with.
        restart="start a new session, or `claude --continue` the last one; `/mcp` shows its servers",
        # github.com/anthropics/claude-code/issues/2326: "String should have at most 64 characters"
        names=ToolNames("mcp__{server}__", 64, "it gets an error for every request"),
        # code.claude.com/docs/en/permissions
        allowing='"mcp__{server}__call_tool_read" in permissions.allow of ~/.claude/settings.json',
    ),
    KnownClient(
        "claude-desktop",
        "Claude Desktop",
        (FileLocation(Scope.USER, "{apps}/Claude/claude_desktop_config.json", SERVERS),),
        shape=Shape(speaks_http=False),
        announced="claude-ai",
        restart="quit it (closing its window is not enough) and open it again",
        # github.com/anthropics/claude-code/issues/34960
        names=ToolNames("", 64, "it gets an error for every request"),
    ),
    KnownClient(
        "cursor",
        "Cursor",
        _home_and_project(".cursor/mcp.json"),
        variables=Variables.PREFIXED,
        restart="it reads the file again by itself; if it does not, press refresh in its MCP settings",
        # github.com/idosal/git-mcp/issues/31: "Combined server and tool name length (63) exceeds 60 characters".
        names=ToolNames("{server}", 60, "it leaves them out"),
        # cursor.com/docs/reference/permissions: the list takes the place of the one in its settings.
        allowing='"{server}:call_tool_read" in its allowlist of MCP tools (Auto-Run)',
    ),
    KnownClient(
        "vscode",
        "VS Code",
        (
            FileLocation(Scope.USER, "{apps}/Code/User/mcp.json", ("servers",)),
            FileLocation(Scope.PROJECT, "{project}/.vscode/mcp.json", ("servers",)),
            FileLocation(Scope.USER, "{apps}/Code/User/settings.json", ("mcp", "servers"), read_only=True),
        ),
        shape=Shape(stdio_type="stdio", http_type="http"),
        variables=Variables.PREFIXED,
        announced="visual-studio-code",
        restart="run `MCP: List Servers`, which starts and stops what has changed",
        # `McpToolName` in its src/vs/workbench/contrib/mcp/common/mcpTypes.ts
        names=ToolNames("mcp_{server}_", 64, "it cuts them", longest_prefix=18),
    ),
    KnownClient(
        "windsurf",
        "Windsurf",
        (FileLocation(Scope.USER, "{home}/.codeium/windsurf/mcp_config.json", SERVERS),),
        shape=Shape(http_url="serverUrl"),
        variables=Variables.PREFIXED,
        restart="press refresh in its MCP panel",
    ),
    KnownClient(
        "gemini-cli",
        "Gemini CLI",
        _home_and_project(".gemini/settings.json"),
        # geminicli.com/docs/tools/mcp-server: `url` is SSE, `httpUrl` streamable HTTP.
        shape=Shape(http_url="httpUrl", bare_url="sse"),
        variables=Variables.DOLLAR,
        restart="start it again; `/mcp` shows its servers",
        # "Names longer than 63 characters are truncated with middle replacement", according to the same page.
        names=ToolNames("mcp_{server}_", 63, "it cuts them in the middle"),
        # geminicli.com/docs/reference/policy-engine. It reads GEMINI.md, others only if `context.fileName` names them.
        allowing='[[rule]] mcpName = "{server}", toolName = "call_tool_read", decision = "allow", priority = 100 in a '
        "file of ~/.gemini/policies",
    ),
    KnownClient(
        "codex",
        "Codex",
        (
            FileLocation(Scope.USER, "{codex}/config.toml", ("mcp_servers",)),
            FileLocation(Scope.PROJECT, "{project}/.codex/config.toml", ("mcp_servers",)),
        ),
        file_format=FileFormat.TOML,
        shape=Shape(headers="http_headers"),
        restart="start a new session; `/mcp` shows its servers",
        # `MAX_TOOL_NAME_LENGTH` in its codex-rs/core/src/mcp_connection_manager.rs
        names=ToolNames("mcp__{server}__", 64, "it puts a hash in the place of their end"),
        # github.com/openai/codex/pull/17843: the mode of a tool, of its server, then `auto`, which follows annotations
        allowing='[mcp_servers.{server}.tools.call_tool_read] approval_mode = "approve" in its config.toml',
    ),
    KnownClient(
        "zed",
        "Zed",
        (
            FileLocation(Scope.USER, "{xdg}/zed/settings.json", ("context_servers",)),
            FileLocation(Scope.PROJECT, "{project}/.zed/settings.json", ("context_servers",)),
        ),
        # Versions before 0.206 refuse an entry without `source`; later ones ignore it.
        shape=Shape(extra=(("source", "custom"),)),
        restart="it reads the file again by itself",
        # `MAX_TOOL_NAME_LENGTH` in its crates/agent; duplicate names are prefixed with the entry's name.
        names=ToolNames("", 64, "it cuts them"),
        # zed.dev/docs/ai/tool-permissions
        allowing='"mcp:{server}:call_tool_read": {{"default": "allow"}} in agent.tool_permissions.tools of its '
        "settings.json",
    ),
    KnownClient(
        "mcp-json",
        "a plain .mcp.json",
        (FileLocation(Scope.PROJECT, "{project}/.mcp.json", SERVERS),),
        shape=Shape(stdio_type="stdio", http_type="http"),
        variables=Variables.BRACED,
    ),
)

CLIENT_NAMES = tuple(client.name for client in CLIENTS)
