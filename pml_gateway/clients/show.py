"""Diffs of client files that are safe to show: every credential is masked."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pml_gateway.clients.block import Block, ClientFileError
from pml_gateway.secrets.judgement import MASK, Keys, Secret, mapped, shown
from pml_gateway.secrets.masking import mask_text

CONTEXT_LINES = 3

_HUNK = re.compile(r"(?<=\A@@ )(-)(\d+)((?:,\d+)? \+)(\d+)")
_WITH_ESCAPES = re.compile(r'"(?=[^"\n]*\\)(?:\\.|[^"\\\n])*"')


def masked_diff(
    name: str, before: str, after: str, block: Block, secrets: Iterable[str] = (), plain: Collection[str] = ()
) -> str:
    """Return the change as a unified diff; `secrets` are masked everywhere, `plain` texts are never masked."""
    text = _diff(name, before, after)
    there = _DiffText(text, _escaped(text), plain)
    found: dict[tuple[str, str], str] = {}

    def judge(value: str, find: Callable[[], tuple[Secret, ...]], at: Keys) -> str:
        if there.has(value) and (secrets := find()):
            found[at[-1] if at else "", value] = shown(value, secrets)
        return value

    for whole in (before, after):
        try:
            mapped(block.values(whole), judge)
        except ClientFileError:
            text = "".join(mask_text(line) for line in text.splitlines(keepends=True))
    for (key, original), masked in sorted(found.items(), key=lambda item: len(item[0][1]), reverse=True):
        for written, put in there.written(original, masked).items():
            text = _replaced(text, key, written, put)
    text = _without_lines(text, [line.strip() for _, original in found for line in _lines(original)])
    for secret in secrets:
        text = text.replace(json.dumps(secret)[1:-1], MASK).replace(secret, MASK)
    return text


def _replaced(text: str, key: str, written: str, masked: str) -> str:
    """Return `text` with a value masked under its key; if the key is not visible, mask it everywhere."""
    # An item of a list has a number as its key, which is not written in the file.
    lead = r"^[ +-][ \t]*|[\[,]\s*" if key.isdecimal() else rf"{re.escape(key)}[\"']?[\s+-]*[:=][\s+-]*"
    there = re.compile(rf"({lead}){re.escape(written)}", re.MULTILINE)
    changed, count = there.subn(lambda match: match[1] + masked, text)
    return changed if count else text.replace(written, masked)


def _diff(name: str, before: str, after: str) -> str:
    """Return a unified diff; equal lines at both ends are not compared, since files can have megabytes of them."""
    first, second = before.splitlines(), after.splitlines()
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    tail = 0
    while tail < min(len(first), len(second)) - same and first[-1 - tail] == second[-1 - tail]:
        tail += 1
    skipped, kept = max(0, same - CONTEXT_LINES), max(0, tail - CONTEXT_LINES)
    lines = difflib.unified_diff(
        first[skipped : len(first) - kept],
        second[skipped : len(second) - kept],
        name,
        name,
        lineterm="",
        n=CONTEXT_LINES,
    )
    return "".join(f"{_HUNK.sub(lambda match: _moved(match, skipped), line)}\n" for line in lines)


def _moved(match: re.Match[str], lines: int) -> str:
    return f"{match[1]}{int(match[2]) + lines}{match[3]}{int(match[4]) + lines}"


@dataclass(frozen=True, slots=True)
class _DiffText:
    """Text of a diff, the escaped strings in it, and the texts that are known not to be secret."""

    text: str
    escaped: Mapping[str, set[str]]
    plain: Collection[str] = ()

    def written(self, text: str, masked: str = "") -> dict[str, str]:
        """Return the ways to write a text in quotes, each with its masked form."""
        quoted = json.dumps(masked, ensure_ascii=False)
        unusual = dict.fromkeys(self.escaped.get(text, ()), quoted)
        return unusual | {
            json.dumps(text): json.dumps(masked),
            json.dumps(text, ensure_ascii=False): quoted,
            f"'{text}'": f"'{masked}'",
        }

    def has(self, text: str) -> bool:
        """Return True if the diff contains a text that may be a secret."""
        return text not in self.plain and any(written in self.text for written in [*self.written(text), *_lines(text)])


def _lines(text: str) -> list[str]:
    """Return the lines of a multi-line text, which TOML allows to be written as they are."""
    return [line for line in text.splitlines() if line.strip()] if "\n" in text else []


def _without_lines(text: str, secret: list[str]) -> str:
    if not secret:
        return text
    ends = tuple(secret)
    lines = text.splitlines(keepends=True)
    return "".join(f"{line[0]}{MASK}\n" if line[1:].strip(" \t\r\n\"'").endswith(ends) else line for line in lines)


def _escaped(text: str) -> dict[str, set[str]]:
    """Return the strings with escapes, and the ways each is written: JSON and TOML allow several."""
    found: dict[str, set[str]] = {}
    for written in set(_WITH_ESCAPES.findall(text)):
        for read in (json.loads, _from_toml):
            try:
                found.setdefault(read(written), set()).add(written)
                break
            except ValueError:
                continue
    return found


def _from_toml(written: str) -> str:
    return str(tomllib.loads(f"text = {written}")["text"])
