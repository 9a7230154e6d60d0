"""README and the pages of `pml docs`: their code blocks, and their generated parts.

`python -m tests.support.documents` writes the generated parts anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pml_gateway
from benchmarks.markdown_block import markdown_table, put_block
from pml_gateway.config.presets import PRESET_NAMES, Preset, load_preset
from pml_gateway.reports.settings import markdown_reference, reference
from pml_gateway.results.functions import FUNCTIONS
from pml_gateway.storage.kinds import KINDS
from tests.support.command_line import commands

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
PAGES = tuple(sorted((Path(pml_gateway.__file__).parent / "docs").glob("*.md")))
DOCUMENTS = (README, *PAGES)

_BLOCK = re.compile(r"(?:<!-- (?P<mark>[a-z ]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
_EVERYWHERE = ("--help", "--json", "--config")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One fenced block, its language, and the mark in the comment above it."""

    language: str
    text: str
    mark: str

    @property
    def commands(self) -> Iterator[str]:
        """The lines that call `pml`, without their comments."""
        for line in self.text.splitlines():
            if line.startswith("pml "):
                yield re.split(r"\s{2,}#", line)[0].strip()


def code_blocks(file: Path) -> list[CodeBlock]:
    """Every fenced block of a document."""
    text = file.read_text(encoding="utf-8")
    return [CodeBlock(match["language"], match["text"], match["mark"] or "") for match in _BLOCK.finditer(text)]


def generated() -> dict[str, str]:
    """The generated blocks by name."""
    return {
        "commands": _command_table(),
        "configuration": markdown_reference(reference()),
        "functions": _function_table(),
        "kinds": _kind_table(),
        "presets": _preset_table(),
    }


def with_generated(text: str) -> str:
    """A document with its generated blocks as they should be."""
    for name, body in generated().items():
        if f"<!-- {name}: begin -->" in text:
            text = put_block(text, name, body)
    return text


def _kind_table() -> str:
    rows = (
        {
            "what": kind.name,
            "shape": kind.shape.value,
            "where": f"`{kind.location}`",
            "how long": kind.lifetime,
            "how much": kind.limit,
            "stays here, because of": kind.stays,
        }
        for kind in KINDS
    )
    return markdown_table(list(rows))


def _function_table() -> str:
    rows = ({"function": f"`{each.call}`", "what it gives": each.gives} for each in FUNCTIONS.values())
    return markdown_table(list(rows))


def _preset_table() -> str:
    return markdown_table([_preset_row(load_preset(name)) for name in PRESET_NAMES])


def _preset_row(preset: Preset) -> dict[str, str]:
    gateway = preset.values["gateway"]
    hybrid = gateway["hybrid"]
    selects = gateway["tools_exposure"] in ("semantic", "hybrid")
    return {
        "preset": f"`{preset.name}`",
        "what clients see": preset.summary,
        "score": f"{hybrid['semantic_threshold']:g}" if selects else "",
        "no intent": hybrid["fallback"] if gateway["tools_exposure"] == "hybrid" else "",
    }


def _command_table() -> str:
    rows = [
        f"| `{_usage(name, command)}` | {_first_sentence(command.help)} | {_options(command)} |"
        for name, command in commands().items()
        if not hasattr(command, "commands") or command.invoke_without_command
    ]
    return "\n".join(("| command | what it does | options |", "| --- | --- | --- |", *rows))


def _usage(name: str, command: object) -> str:
    parameters = [each for each in getattr(command, "params", ()) if each.param_type_name == "argument"]
    words = [_argument(each.metavar or each.name.upper(), required=each.required) for each in parameters]
    return " ".join([name, *words]).replace("|", "\\|")


def _argument(metavar: str, *, required: bool) -> str:
    return metavar if required or metavar.startswith("[") else f"[{metavar}]"


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[\w)]\.)\s", " ".join(text.split("Example:")[0].strip().split()), maxsplit=1)[0]
    return sentence.rstrip(".")


def _options(command: object) -> str:
    parameters = [each for each in getattr(command, "params", ()) if each.param_type_name == "option"]
    names = [max(each.opts, key=len) for each in parameters if not each.hidden]
    return " ".join(f"`{name}`" for name in names if name not in _EVERYWHERE)


if __name__ == "__main__":
    for file in DOCUMENTS:
        file.write_text(with_generated(file.read_text(encoding="utf-8")), encoding="utf-8")
