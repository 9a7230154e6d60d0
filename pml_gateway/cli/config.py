"""`pml config`: apply a preset, show what is in force and where it came from, check it, list presets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pml_gateway.cli.completion import preset_names, setting_names
from pml_gateway.cli.consent import DryRunOption
from pml_gateway.cli.context import Command, ConfigOption, JsonOption
from pml_gateway.cli.output import ExitCode, fail, note, print_json, print_table, say, warn
from pml_gateway.cli.preset import show_edit, write_preset
from pml_gateway.cli.wizard import GivenAnswers, run_wizard
from pml_gateway.config.edits.edit import edit_file, scalar
from pml_gateway.config.findings import Severity, run_checks
from pml_gateway.config.layers import KeyPath, Origin, dotted
from pml_gateway.config.load import LoadedSettings, load_settings, problems_of
from pml_gateway.config.masked import masked_settings
from pml_gateway.config.presets import PRESET_NAMES, load_preset
from pml_gateway.config.problems import Problem, configuration_error
from pml_gateway.config.project import find_project_file
from pml_gateway.config.settings import Settings
from pml_gateway.config.trust import TrustStore
from pml_gateway.errors import ConfigurationError, SecretError
from pml_gateway.paths import Paths
from pml_gateway.reports.settings import markdown_reference, reference
from pml_gateway.text import suggestion
from pml_gateway.working_directory import WorkingDirectory

config_app = typer.Typer(name="config", no_args_is_help=False)


@config_app.callback(invoke_without_command=True)
def config(
    context: typer.Context,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset", metavar="NAME", help=f"Apply a preset: {', '.join(PRESET_NAMES)}.", autocompletion=preset_names
        ),
    ] = None,
    wizard: Annotated[
        bool, typer.Option("--wizard", help="Choose a preset by a short interview and your own tools.")
    ] = False,
    servers: Annotated[
        int | None, typer.Option("--servers", metavar="N", min=1, help="Answer: how many servers there will be.")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="Answer: a client you use; repeatable.")
    ] = None,
    matters: Annotated[
        str | None, typer.Option("--matters", metavar="WHAT", help="Answer: tokens, accuracy or compatibility.")
    ] = None,
    intent: Annotated[
        str | None, typer.Option("--intent", metavar="TEXT", help="Answer: the project's intent; '' for none.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the defaults and apply the choice.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change, write nothing.")] = False,
    config_file: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show, check and change the configuration.

    `pml config --preset NAME` rewrites the exposure keys of your file and nothing else: servers, whitelist,
    blacklist, clients and comments stay. It shows the change and keeps a backup.

    `pml config --wizard` asks how many servers and which clients you use and what matters, counts what each preset
    would cost with your own tools, and applies the one it finds after a question. Each question has a flag.

    Example: pml config --wizard --matters accuracy --dry-run

    Example: pml config --preset hybrid_balanced --dry-run
    """
    if context.invoked_subcommand is not None:
        if preset is not None or wizard:
            raise typer.BadParameter("takes no subcommand", param_hint="--wizard" if wizard else "--preset")
        return
    if wizard:
        if preset is not None:
            raise typer.BadParameter("chooses the preset itself", param_hint="--wizard")
        command = Command(config_file, as_json=as_json)
        run_wizard(command, GivenAnswers(servers, client, matters, intent), yes=yes, dry_run=dry_run)
        return
    for option, value in (("--servers", servers), ("--client", client), ("--matters", matters), ("--intent", intent)):
        if value:
            raise typer.BadParameter("answers a question of --wizard, and needs it", param_hint=option)
    if preset is None:
        say(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    write_preset(load_preset(preset), config_file, dry_run=dry_run, as_json=as_json)


@config_app.command("show")
def show(
    context: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
    config_file: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the configuration in force. Credentials are masked, references stay.

    Example: pml config show --origin
    """
    loaded = load_settings(config_file=_config_file(context, config_file))
    tree = masked_settings(loaded.settings)
    if as_json:
        print_json(
            {
                "settings": tree,
                "origins": {
                    key: {"source": found.source, "location": found.location} for key, found in loaded.origins.items()
                },
                "warnings": list(map(str, loaded.warnings)),
                "files": [str(path) for path in loaded.files],
            }
        )
        return
    for line in _lines(tree, loaded.origins if origin else {}, ()):
        say(line)
    for warning in loaded.warnings:
        warn(str(warning))


@config_app.command("set")
def set_value(
    context: typer.Context,
    key: Annotated[
        str, typer.Argument(metavar="SETTING", help="As gateway.hybrid.max_tokens.", autocompletion=setting_names)
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The entries of a list are separated by commas.")],
    dry_run: DryRunOption = False,
    config_file: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change one setting of your file and nothing else. It shows the change and keeps a backup.

    Example: pml config set gateway.hybrid.semantic_threshold 0.5
    """
    from pml_gateway.config.single_settings import read_setting
    from pml_gateway.setup.settings import setting_edit

    given = _config_file(context, config_file)
    file = given or Paths.from_environ().config_file
    change = setting_edit(file, {key: read_setting(key, value)}, load_settings(config_file=given))
    edit = edit_file(file, change, dry_run=dry_run)
    show_edit(edit, {"setting": key}, "so", (), dry_run=dry_run, as_json=as_json)


@config_app.command("validate")
def validate(context: typer.Context, config_file: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check every source of the configuration; exits with 78 where something has to be corrected.

    Example: pml config validate --json
    """
    try:
        loaded = load_settings(config_file=_config_file(context, config_file))
        unavailable, warnings = _findings(loaded, Command(_config_file(context, config_file)))
        if problems := [*loaded.problems, *_refused(loaded.settings, loaded.origins), *unavailable]:
            raise configuration_error(problems)
    except ConfigurationError as error:
        if not as_json:
            fail(error)
        found = [{"location": item.location, "key": item.key, "message": item.message} for item in problems_of(error)]
        print_json({"valid": False, "files": [], "problems": found, "warnings": []})
        raise typer.Exit(error.exit_code) from None
    unread, why = _unapproved()
    warnings += why
    files = [str(path) for path in loaded.files if path != unread]
    if as_json:
        print_json({"valid": True, "files": files, "problems": [], "warnings": warnings})
        return
    for warning in warnings:
        warn(warning)
    say(f"valid: {', '.join(files) or 'built-in defaults, there is no file yet'}")


@config_app.command("presets")
def presets(as_json: JsonOption = False) -> None:
    """List the presets, from the fewest listed tools to all of them.

    Example: pml config presets
    """
    found = [load_preset(name) for name in PRESET_NAMES]
    if as_json:
        print_json(
            [
                {"name": item.name, "summary": item.summary, "path": str(item.path), "settings": item.values}
                for item in found
            ]
        )
        return
    print_table(("PRESET", "WHAT CLIENTS SEE"), [(item.name, item.summary) for item in found])
    note(f"Each file says what it costs and when to choose it: {found[0].path.parent}")


def _refused(settings: Settings, origins: Mapping[str, Origin]) -> list[Problem]:
    """Return what `pml serve` would refuse. References without a value are not: other variables may be set then."""
    from pml_gateway.policy.refusals import refusals

    return [
        Problem(_place(key, origins), key, f"{error.message.removeprefix(key).strip()}; {error.hint}")
        for key, error in refusals(settings, WorkingDirectory.here().environ)
        if not isinstance(error, SecretError)
    ]


def _unapproved() -> tuple[Path | None, list[str]]:
    """Return the project's file where it is not approved as it is now, and a sentence on what is read of it."""
    file = find_project_file(WorkingDirectory.here().folder)
    standing = "trusted" if file is None else TrustStore(Paths.from_environ().trust_file).standing(file)
    if standing == "trusted":
        return None, []
    if standing not in ("changed", "not trusted"):
        # The warnings of the configuration say already why it is skipped.
        return file, []
    why = "changed since it was approved" if standing == "changed" else "not approved"
    remedy = "`pml trust project` shows what it sets and what is wrong with it, and asks"
    return file, [f"{file}: {why}, and not read but for its intent and a narrower exposure; {remedy}"]


def _place(key: str, origins: Mapping[str, Origin]) -> str:
    """Return the location of a key, or of its closest parent."""
    given = {found: origin.location for found, origin in origins.items() if origin.source != "default"}
    while key:
        if place := next((given[found] for found in given if found == key or found.startswith(f"{key}.")), ""):
            return place
        key = key.rpartition(".")[0]
    return ""


def _findings(loaded: LoadedSettings, command: Command) -> tuple[list[Problem], list[str]]:
    """Return what the checks of the configuration's text find: workflows that are unavailable, and warnings."""
    from pml_gateway.reports.doctor.configuration import VALIDATION_CHECKS, LoadedCase, model_library

    case = LoadedCase(loaded.settings, WorkingDirectory.here().environ, loaded, command.paths, command.identity)
    faults = [finding for finding in run_checks((*VALIDATION_CHECKS, model_library), case) if finding.is_fault]
    # References without a value are warnings: other variables may be set where it is served.
    unavailable = [
        each for each in faults if each.severity is Severity.ERROR and each.subject.startswith(("workflows.", "rules."))
    ]
    problems = [
        Problem(_place(each.subject, loaded.origins), each.subject, "; ".join(filter(None, (each.what, each.fix))))
        for each in unavailable
    ]
    return problems, [str(each) for each in faults if each not in unavailable]


def _config_file(context: typer.Context, given: Path | None) -> Path | None:
    """Return the `--config` of the subcommand, or the one given before it."""
    before = context.parent.params.get("config_file") if context.parent is not None else None
    return given or before


def _lines(tree: Mapping[str, Any], origins: Mapping[str, Origin], at: KeyPath) -> Iterator[str]:
    """Yield the tree as YAML, one value per line, each followed by its origin where origins are wanted."""
    for name, value in tree.items():
        path = (*at, name)
        indent = "  " * len(at)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{scalar(name)}:"
            yield from _lines(value, origins, path)
        else:
            found = origins.get(dotted(path))
            comment = f"  # {_origin_text(found)}" if found else ""
            yield f"{indent}{scalar(name)}: {scalar(value)}{comment}"


def _origin_text(origin: Origin) -> str:
    return origin.source if origin.source == "default" else f"{origin.source}: {origin.location}"


@config_app.command("reference")
def show_reference(
    prefix: Annotated[
        str | None,
        typer.Argument(
            metavar="[SETTING]", help="Only this setting or section: gateway.hybrid.", autocompletion=setting_names
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Every setting with what it takes, its default and what it is for.

    Example: pml config reference gateway.hybrid
    """
    found = reference((prefix or "").strip("."))
    if not found:
        known = dict.fromkeys(key for setting in reference() for key in (setting.key, setting.key.rpartition(".")[0]))
        raise typer.BadParameter(f"no setting {prefix!r}{suggestion(prefix or '', known)}", param_hint="SETTING")
    if as_json:
        print_json(
            {
                "settings": [
                    {
                        "key": each.key,
                        "takes": each.takes,
                        "default": each.default,
                        "required": each.is_required,
                        "description": each.description,
                    }
                    for each in found
                ]
            }
        )
    elif as_markdown:
        say(markdown_reference(found))
    else:
        print_table(
            ("setting", "default", "what it is"),
            ((each.key, each.shown_default, f"{each.description} ({each.takes})") for each in found),
        )
