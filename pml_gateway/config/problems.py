"""What is wrong with a configuration becomes one error that names every file, line, key, value, limit and near miss."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pml_gateway.config.keys import member_keys, nearest_key
from pml_gateway.config.layers import KeyPath, Layer, Origin, dotted
from pml_gateway.errors import ConfigurationError

MAX_VALUE_CHARACTERS = 60
MAX_LISTED_PROBLEMS = 30
"""More than a screen is not read; `details` has them all."""

SECRET_SECTIONS = frozenset({"servers", "clients", "workflows"})
"""Sections whose texts may be credentials; their values never enter a message."""

_QUOTED = re.compile(r"'([^']*)'")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct: where it is, which key, and what is wrong with it."""

    location: str
    key: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.location, self.key, self.message) if part)


def configuration_error(problems: Sequence[Problem]) -> ConfigurationError:
    """One error for all `problems`; `details["problems"]` has them as objects."""
    texts = [str(problem) for problem in problems[:MAX_LISTED_PROBLEMS]]
    if len(problems) > MAX_LISTED_PROBLEMS:
        texts.append(f"and {len(problems) - MAX_LISTED_PROBLEMS} more")
    message = texts[0] if len(texts) == 1 else "\n  ".join((f"{len(problems)} problems in the configuration:", *texts))
    records = [{"location": item.location, "key": item.key, "message": item.message} for item in problems]
    return ConfigurationError(message, details={"problems": records})


def validation_problems(error: ValidationError, layer: Layer) -> list[Problem]:
    """Every complaint of pydantic, in the order of the files, in the words of the configuration."""
    problems = []
    for item in sorted(error.errors(include_url=False), key=lambda item: _line(layer.origin(item["loc"]))):
        path = tuple(part for part in item["loc"] if part != "[key]")
        origin = layer.origin(path)
        problems.append(Problem(origin.location if origin else "", dotted(path), _message(item, path)))
    return problems


def _line(origin: Origin | None) -> tuple[str, int]:
    file, _, line = (origin.location if origin else "").rpartition(":")
    return (file, int(line)) if line.isdecimal() else (file, 0)


def _message(item: Any, path: KeyPath) -> str:
    value = shown(item["input"], path)
    match item["type"]:
        case "extra_forbidden":
            return unknown_key(path)
        case "missing":
            return "is required"
        case "value_error":
            return str(item["msg"]).removeprefix("Value error, ")
        case "literal_error" | "enum":
            expected = str(item["ctx"]["expected"])
            return f"{value} should be {expected}{did_you_mean(item['input'], _QUOTED.findall(expected))}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{value} should be a mapping of keys to values"
        case "tuple_type":
            return f"{value} should be a list"
        case _:
            text = str(item["msg"]).removeprefix("Input ")
            return f"{value} {text[:1].lower()}{text[1:]}"


def unknown_key(path: KeyPath) -> str:
    """`unknown key`, with the nearest known one if any is near."""
    nearest = nearest_key(path)
    if nearest is not None:
        return f"unknown key; did you mean {nearest[-1] if nearest[:-1] == path[:-1] else dotted(nearest)}?"
    known = member_keys(path[:-1])
    return f"unknown key; known here: {', '.join(known)}" if known else "unknown key"


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no choice is near."""
    near = difflib.get_close_matches(str(value).lower().replace("-", "_"), list(choices), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def shown(value: object, path: KeyPath) -> str:
    """`value` as a message may show it: short, and never a text that could be a credential."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str() if path and path[0] not in SECRET_SECTIONS:
            text = repr(value)
            return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}..."
        case str():
            return "this text"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "this value"
