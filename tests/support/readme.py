"""The README's code blocks, and its generated parts: `python -m tests.support.readme` writes them anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown_block import put_block
from pml_gateway.reports.settings import markdown_reference, reference
from tests.support.command_line import commands

README = Path(__file__).parents[2] / "README.md"

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


def code_blocks() -> list[CodeBlock]:
    """Every fenced block of the README."""
    text = README.read_text(encoding="utf-8")
    return [CodeBlock(match["language"], match["text"], match["mark"] or "") for match in _BLOCK.finditer(text)]


def generated() -> dict[str, str]:
    """The generated blocks by name."""
    return {"commands": _command_table(), "configuration": markdown_reference(reference())}


def with_generated(text: str) -> str:
    """The README with its generated blocks as they should be."""
    for name, body in generated().items():
        text = put_block(text, name, body)
    return text


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
    README.write_text(with_generated(README.read_text(encoding="utf-8")), encoding="utf-8")
