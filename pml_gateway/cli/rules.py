"""`pml rules`: which calls are allowed, asked about or denied, and by which rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pml_gateway.cli.completion import tool_names
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import note, note_written, print_diff, print_json, print_table, printable, say
from pml_gateway.cli.stats import seconds_of
from pml_gateway.config.document import parse, read_bytes
from pml_gateway.errors import ConfigurationError, InvalidInputError, UsageError
from pml_gateway.owner.arguments import given_arguments
from pml_gateway.owner.operations import REPLAY_RULES, TRY_RULES
from pml_gateway.text import counted, escaped

rules_app = typer.Typer(
    name="rules",
    help="Allow calls, deny them, or ask before them.\n\nExample: pml rules use careful",
    no_args_is_help=True,
)


@rules_app.command("list")
def list_rules(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the rules in their order; the first that matches a call decides about it.

    Example: pml rules list
    """
    from pml_gateway.policy.call_rules import named_rules

    rows: list[dict[str, Any]] = [
        {
            "rule": name,
            "do": rule.do,
            "answered_by": rule.answered_by if rule.do == "ask" else None,
            "match": rule.match.model_dump(exclude_none=True, mode="json"),
        }
        for name, rule in named_rules(Command(config).load().settings.rules)
    ]
    if as_json:
        print_json(rows)
        return
    if rows:
        print_table(("RULE", "DOES", "CALLS"), [(row["rule"], _action(row), _match(row["match"])) for row in rows])
    note("every other call is allowed; pml rules try TOOL says what decides about a call")


def _action(row: dict[str, Any]) -> str:
    return f"ask the {row['answered_by']}" if row["do"] == "ask" else str(row["do"])


def _match(match: dict[str, Any]) -> str:
    parts = (f"{key} {', '.join(value) if isinstance(value, list) else value}" for key, value in match.items())
    return escaped("; ".join(parts)) or "all"


@rules_app.command("try")
def try_rule(
    tool: Annotated[str, typer.Argument(help="Tool name, also as server:tool.", autocompletion=tool_names)],
    arguments: Annotated[str | None, typer.Option("--args", metavar="JSON", help="Arguments of the call.")] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="Client that calls; default a local one.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what would be decided about a call, and by which rule. Nothing is called.

    Example: pml rules try github:delete_repo --args '{"repo": "mine"}'
    """
    try:
        given = given_arguments(arguments, [])
    except InvalidInputError as error:
        raise typer.BadParameter(printable(str(error)), param_hint="--args") from None
    command = Command(config, as_json=as_json)
    tried = command.ask(TRY_RULES, {"tool": tool, "arguments": given, "client": client})
    if as_json:
        print_json(tried)
        return
    asked = "" if tried["answered_by"] is None else f" the {tried['answered_by']}"
    say(f"{tried['action']}{asked}: {tried['tool']} by {escaped(tried['client'])}")
    note(escaped(tried["rule"]))


@rules_app.command("test")
def test(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A YAML file with `rules:`.")] = None,
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back: 12h, 7d, 2w.")] = "30d",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay recorded calls against the rules of a file, and show which decisions would change.

    Without a file, show what the rules in force would have done to all of them. Nothing is called.

    Example: pml rules test edited.yaml --since 7d
    """
    span = seconds_of(since)
    command = Command(config, as_json=as_json)
    rules = None if file is None else _rules_of(file)
    tested = command.ask(REPLAY_RULES, {"rules": rules, "seconds": span})
    if as_json:
        print_json(tested)
        return
    changed = [row for row in tested["calls"] if row["before"] != row["after"]]
    if changed:
        print_table(
            ("CALLS", "TOOL", "CLIENT", "BEFORE", "AFTER", "RULE"),
            [
                (row["count"], row["tool"], escaped(row["client"]), row["before"], row["after"], row["rule"])
                for row in changed
            ],
        )
    total = sum(row["count"] for row in tested["calls"])
    differ = sum(row["count"] for row in changed)
    gone = f"; {tested['gone']:,} of tools and clients that are gone" if tested["gone"] else ""
    note(f"{counted(total, 'recorded call')} of {since}: {differ:,} would be decided otherwise{gone}")


def _rules_of(file: Path) -> list[dict[str, Any]]:
    values = parse(read_bytes(file), "user", file).values
    rules = values.get("rules")
    if not isinstance(rules, list) or set(values) != {"rules"}:
        raise UsageError(f"{file}: a mapping with `rules:`, a list, is expected, and nothing else")
    return rules


@rules_app.command("use")
def use(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="careful, read_only or trusting.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change and write nothing.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a preset of rules into the configuration.

    careful asks you before every call that may destroy something or reaches the open world. read_only denies all that
    may change something. trusting allows everything.

    Example: pml rules use careful
    """
    from pml_gateway.config.edits.edit import edit_file, set_values
    from pml_gateway.config.load import load_settings
    from pml_gateway.config.settings import RULE_PRESETS

    if preset not in RULE_PRESETS:
        raise typer.BadParameter(f"no preset {preset!r}; choose from {', '.join(RULE_PRESETS)}", param_hint="PRESET")
    path = config or Command().paths.config_file
    existing = load_settings(config_file=path if path.exists() else None).settings.rules
    if any(rule.preset is None for rule in existing):
        raise ConfigurationError(
            f"{path} has rules of your own, whose order matters",
            hint=f"write `- preset: {preset}` at the end of rules, in place of another preset",
        )
    values = {"rules": [{"preset": preset}]}
    edit = edit_file(path, lambda text: set_values(text, values, path), dry_run=dry_run)
    if as_json:
        written = edit.has_changed and not dry_run
        print_json({"preset": preset, "file": str(path), "changed": edit.has_changed, "written": written})
        return
    print_diff(edit.diff)
    if not edit.has_changed:
        note(f"{path} already says so")
    elif dry_run:
        note(f"nothing was written; without --dry-run {path} is changed as shown")
    else:
        note_written(path, edit.backup)
