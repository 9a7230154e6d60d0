"""`pml demo`: three bundled servers, the gateway in front, a real client, and what each mode costs."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from pml_gateway.cli.context import Command, JsonOption
from pml_gateway.cli.output import messages, note, print_json, print_table, say
from pml_gateway.clients.own import pml_command
from pml_gateway.config.settings import LogSettings
from pml_gateway.telemetry import logs
from pml_gateway.text import counted

if TYPE_CHECKING:
    from pml_gateway.demo.walkthrough import DemoReport


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the gateway running until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """See the gateway work: three bundled MCP servers behind it, a real MCP client in front.

    Example: pml demo --keep
    """
    command = Command(as_json=as_json)
    folder = Path(tempfile.mkdtemp(prefix="pml-demo-"))
    try:
        command.run(lambda: _demo(folder, port, keep=keep, as_json=as_json))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _demo(folder: Path, port: int, *, keep: bool, as_json: bool) -> None:
    from pml_gateway.demo.walkthrough import running_demo, walk_through

    logs.configure(LogSettings(level="warning"))
    with messages().status("starting three MCP servers and the gateway") as status:
        async with running_demo(folder, port) as url:
            report = await walk_through(url)
            status.stop()
            if as_json:
                print_json(report.as_json())
            else:
                _show(report, keep=keep)
            if keep:
                note(f"serving on {url} until Ctrl-C; sample files and notes are in {folder}")
                await anyio.sleep_forever()


def _show(report: DemoReport, *, keep: bool) -> None:
    servers = ", ".join(f"{name} ({count})" for name, count in report.servers.items())
    say(f"Three MCP servers behind one endpoint: {servers} — {counted(report.catalog_tools, 'tool')}", style="bold")
    say()
    full = report.modes[-1].tokens
    print_table(
        ("mode", "tools listed", "tokens", "saved"),
        ((row.label, row.tools, f"{row.tokens:,}", f"{1 - row.tokens / full:.0%}") for row in report.modes),
    )
    say(f"{report.tokenizer} tokens of the tools/list JSON, as a client received it", style="dim")
    say(f'* asked for "{report.intent}"', style="dim")
    for step in report.steps:
        say()
        say(step.title, style="bold")
        say(f"  > {step.request}", style="cyan")
        for line in step.answer.splitlines():
            say(f"  {line}")
    say()
    if keep:
        say("Point a client at it", style="bold")
        _show_steps(pointing(report.url))
    else:
        say("Bring your own servers", style="bold")
        _show_steps(next_steps())


def _show_steps(steps: Sequence[tuple[str, str]]) -> None:
    for what, how in steps:
        say(f"  {what}")
        say(f"    {how}", style="cyan")


def pointing(url: str) -> list[tuple[str, str]]:
    """Return the client configuration for a gateway over HTTP."""
    return [
        ("Claude Code", f"claude mcp add --transport http pml {url}"),
        ("VS Code", f"""code --add-mcp '{{"name": "pml", "type": "http", "url": "{url}"}}'"""),
        ("Cursor, in ~/.cursor/mcp.json", f'{{"mcpServers": {{"pml": {{"url": "{url}"}}}}}}'),
    ]


def next_steps() -> list[tuple[str, str]]:
    """From the demo to a gateway in front of one's own servers."""
    pml = shlex.join(typed_command())
    return [
        ("take over the servers of your clients into ~/.pml/config.yaml", f"{pml} init"),
        ("put the gateway into a client, here Claude Code", f"{pml} connect claude-code"),
    ]


def typed_command() -> list[str]:
    """Return the command that starts this installation: its name, if the shell finds it."""
    command = pml_command()
    found = shutil.which("pml")
    return ["pml"] if found is not None and Path(found).resolve() == Path(command[0]).resolve() else command
