"""`pml config reference`: every setting, what it takes, its default and its purpose."""

from __future__ import annotations

from typing import Annotated

import typer

from pml_gateway.cli.completion import setting_names
from pml_gateway.cli.output import print_json, print_table, say
from pml_gateway.config.problems import did_you_mean
from pml_gateway.config.reference import markdown_reference, reference


def show_reference(
    prefix: Annotated[
        str | None,
        typer.Argument(
            metavar="[SETTING]", help="Only this setting or section: gateway.hybrid.", autocompletion=setting_names
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Every setting with what it takes, its default and what it is for.

    Example: pml config reference gateway.hybrid
    """
    found = reference((prefix or "").strip("."))
    if not found:
        known = dict.fromkeys(key for setting in reference() for key in (setting.key, setting.key.rpartition(".")[0]))
        raise typer.BadParameter(f"no setting {prefix!r}{did_you_mean(prefix or '', known)}", param_hint="SETTING")
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
