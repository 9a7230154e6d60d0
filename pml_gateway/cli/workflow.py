"""`pml workflow`: run, check and list the workflows of the configuration, or run one from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pml_gateway.cli.completion import workflow_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, print_json, print_table, printable, say, told, warn
from pml_gateway.config.document import parse, read_bytes
from pml_gateway.errors import InvalidInputError
from pml_gateway.owner.arguments import given_arguments
from pml_gateway.owner.operations import EXECUTE_WORKFLOW, RUN_WORKFLOW, WORKFLOWS

if TYPE_CHECKING:
    from pml_gateway.owner.results import ToolResult
    from pml_gateway.reports.workflows import CheckedWorkflow

workflow_app = typer.Typer(
    name="workflow",
    help="Run, check and list workflows.\n\nExample: pml workflow run triage --arg kind=bug --arg id=7",
    no_args_is_help=True,
)


@workflow_app.command("run")
def run(
    target: Annotated[
        str,
        typer.Argument(help="A workflow of the configuration, or a file with `steps:`.", autocompletion=workflow_names),
    ],
    arguments: Annotated[str | None, typer.Argument(help="Arguments as a JSON object.")] = None,
    argument: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="One argument; the value as JSON or text.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check a file's steps and call nothing.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow and print its result.

    Example: pml workflow run triage --arg issue=42
    """
    command = Command(config, as_json=as_json)
    try:
        given = given_arguments(arguments, argument or [])
    except InvalidInputError as error:
        raise typer.BadParameter(printable(str(error))) from None
    file = Path(target)
    is_file = file.suffix in (".yaml", ".yml", ".json")
    if is_file:
        if given:
            raise typer.BadParameter("a file of steps takes no arguments", param_hint="ARGUMENTS")
        request = command.run(lambda: _from_file(file))
        steps = {**request, "dry_run": True} if dry_run else request
        result = command.ask(EXECUTE_WORKFLOW, {"steps": steps})
    elif dry_run:
        raise typer.BadParameter("checks a file; workflows of the configuration: pml workflow validate")
    else:
        name = target if ":" in target else f"workflows:{target}"
        result = command.ask(RUN_WORKFLOW, {"name": name, "arguments": given})
    _show(result, as_json=as_json)
    data = result.get("structuredContent") or {}
    is_refused = is_file and data.get("dry_run") is True and data.get("valid") is False
    if result.get("isError") or is_refused:
        raise typer.Exit(ExitCode.FAILED)


@workflow_app.command("validate")
def validate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check every workflow of the configuration against the tools there are; exit code 1 if one is unavailable.

    Example: pml workflow validate --json
    """
    command = Command(config, as_json=as_json)
    rows = command.ask(WORKFLOWS)["workflows"]
    problems = [problem for row in rows for problem in row["problems"]]
    if as_json:
        print_json({"valid": not problems, "workflows": rows})
    else:
        for row in rows:
            say(f"{row['name']}: {'unavailable' if row['problems'] else 'ok'}", style="bold")
            _warn_of_problems(row)
            for warning in row["warnings"]:
                warn(f"workflows.{row['name']}: {warning}")
        if not rows:
            say("no workflows are configured")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


@workflow_app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the workflows of the configuration.

    Example: pml workflow list
    """
    command = Command(config, as_json=as_json)
    rows = command.ask(WORKFLOWS)["workflows"]
    if as_json:
        print_json({"workflows": rows})
        return
    print_table(
        ("workflow", "tool", "steps", "state", "description"),
        (
            (
                row["name"],
                row["tool"] or "",
                row["steps"],
                "unavailable" if row["problems"] else "hidden" if row["hidden"] else "ok",
                row["description"],
            )
            for row in rows
        ),
    )
    for row in rows:
        _warn_of_problems(row)


def _warn_of_problems(row: CheckedWorkflow) -> None:
    for problem in row["problems"]:
        hint = f" ({problem['hint']})" if problem["hint"] else ""
        warn(f"workflows.{row['name']}{problem['path'].replace('/', '.')}: {problem['message']}{hint}")


async def _from_file(file: Path) -> dict[str, Any]:
    return parse(read_bytes(file), "user", file).values


def _show(result: ToolResult, *, as_json: bool) -> None:
    error = (result.get("structuredContent") or {}).get("error") if result.get("isError") else None
    if as_json:
        print_json(result)
    elif error is not None:
        raise told(error)
    elif result.get("structuredContent") is not None:
        print_json(result["structuredContent"])
    else:
        for item in result.get("content", ()):
            say(item["text"] if item.get("type") == "text" else f"[{item.get('type')} {item.get('mimeType', '')}]")
