"""The second try of a call: what an error says is done, and nothing else is known but the values that were meant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_INSTEAD = re.compile(
    r"""write (?P<quote>["'])(?P<right>(?:(?!(?P=quote)).)+)(?P=quote)(?P<others>(?: or "[^"]+")*) """
    r"""instead of (?P<mark>["'])(?P<wrong>(?:(?!(?P=mark)).)+)(?P=mark)"""
)
_NEEDED = re.compile(r'(?P<right>"[^"]+"(?: (?:or|and) "[^"]+")*)(?: (?:is|are) needed[^"]*)?, not "(?P<wrong>[^"]+)"')
_SAY = re.compile(r'say it by [^"]*, not by "([^"]+)"')
_LEAVE_OUT = re.compile(r'leave out "([^"]+)"')
_INTO = re.compile(r'put (?P<keys>"[^"]+"(?:, "[^"]+")*) into "(?P<key>\w+)"')
_MISSING = re.compile(r"^'([^']+)' is a required property|^(\w+): .*missing")
_CHOICES = re.compile(r"expected \S+\((.*?)\)(?: ->|$)")


def second_try(arguments: dict[str, Any], error: Mapping[str, Any], meant: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments to send instead; None where the error says nothing that could be done.

    Args:
        arguments: what was sent.
        error: why it was refused.
        meant: where values are looked up that the error says are missing, or of the wrong kind; keys are not.
    """
    details = error.get("details") or {}
    again: dict[str, Any] = json.loads(json.dumps(arguments))
    if details.get("corrected"):
        again = json.loads(json.dumps(details["corrected"]))
    elif error.get("code") == "NOT_FOUND" and details.get("closest"):
        _replace_name(again, str(details["closest"][0]))
    else:
        problems = details.get("errors") or [{"path": "", "message": error["message"], "hint": error["hint"]}]
        inside = "/arguments" if "signature" in details and "arguments" in again else ""
        if inside and isinstance(meant.get("arguments"), dict):
            # The name of the tool is no value of an argument called `name`.
            meant = meant["arguments"]
        signature = _CHOICES.search(str(error.get("hint") or ""))
        named = re.findall(r"(\w+)\??: ", signature[1]) if signature is not None else []
        for problem in problems:
            path = str(problem.get("path") or "")
            place = path if path.startswith(("/steps/", "/calls/")) else f"{inside}{path}"
            hint = str(problem.get("hint") or (error["hint"] if len(problems) == 1 else ""))
            _mend(again, place, str(problem["message"]), hint, named, meant)
    return again if again != arguments else None


def _mend(
    again: dict[str, Any], place: str, message: str, hint: str, named: list[str], meant: Mapping[str, Any]
) -> None:
    """Do what one problem says; `named` are the parameters that the error names."""
    holder, key = _at(again, place)
    if (found := _INSTEAD.search(hint)) is not None:
        if isinstance(holder, dict) and found["wrong"] in holder:
            value = holder.pop(found["wrong"])
            choices = [found["right"], *re.findall(r'"([^"]+)"', found["others"])]
            holder[next((name for name in choices if _meant(meant, name) == value), choices[0])] = value
        elif isinstance(holder, dict | list):
            holder[key] = _replaced(_member(holder, str(key)), found["wrong"], found["right"])
    elif (found := _NEEDED.search(hint)) is not None and isinstance(holder, dict):
        holder.pop(found["wrong"], None)
        wanted = {name: _meant(meant, name) for name in re.findall(r'"([^"]+)"', found["right"])}
        holder.update({name: value for name, value in wanted.items() if value is not None})
    elif (found := _INTO.search(hint)) is not None and isinstance(holder, dict):
        keys = re.findall(r'"([^"]+)"', found["keys"])
        holder[found["key"]] = {each: holder.pop(each) for each in keys if each in holder}
    elif (found := _MISSING.search(message)) is not None:
        name = found[1] or found[2]
        target = _value(again, place)
        if isinstance(target, dict):
            target[name] = _meant(meant, name)
    elif (left := _LEAVE_OUT.findall(hint)) and isinstance(holder, dict):
        for each in left:
            value = holder.pop(each, None)
            holder.update({name: value for name in named if name not in holder and _meant(meant, name) == value})
    elif (said := _SAY.search(hint)) is not None and isinstance(holder, dict):
        same = [name for name in named if name not in holder and _meant(meant, name) == holder.get(said[1])]
        if same:
            holder[same[0]] = holder.pop(said[1])
    elif isinstance(holder, dict) and key in holder:
        # Of the wrong kind: whoever meant it writes it as it is wanted.
        there = _value(meant, place)
        holder[key] = _meant(meant, str(key)) if there is None else there


def _replaced(value: Any, wrong: str, right: str) -> Any:
    """Replace a text in all texts of a value."""
    if isinstance(value, str):
        return value.replace(wrong, right)
    if isinstance(value, dict):
        return {key: _replaced(member, wrong, right) for key, member in value.items()}
    return [_replaced(item, wrong, right) for item in value] if isinstance(value, list) else value


def _replace_name(again: dict[str, Any], name: str) -> None:
    """Call a tool by another name, wherever it is named."""
    for holder in _calls(again):
        for key in ("name", "tool", "operation"):
            if key in holder:
                holder[key] = name


def _calls(again: dict[str, Any]) -> Iterator[dict[str, Any]]:
    listed = [each for key in ("calls", "steps") for each in again.get(key) or ()]
    yield from (each for each in listed or [again] if isinstance(each, dict))


def _at(root: Any, pointer: str) -> tuple[Any, Any]:
    """What holds the value that a pointer leads to, and its key there."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    holder = root
    for part in parts[:-1]:
        holder = _member(holder, part)
    last: Any = parts[-1] if parts else ""
    return (holder, int(last)) if isinstance(holder, list) and last.isdecimal() else (holder, last)


def _value(root: Any, pointer: str) -> Any:
    holder, key = _at(root, pointer)
    return root if key == "" else _member(holder, str(key))


def _member(holder: Any, part: str) -> Any:
    if isinstance(holder, list):
        return holder[int(part)] if part.isdecimal() and int(part) < len(holder) else None
    return holder.get(part) if isinstance(holder, dict) else None


def _meant(meant: Any, name: str) -> Any:
    """The value that was meant for a key, wherever it is."""
    if isinstance(meant, dict):
        if name in meant:
            return meant[name]
        members = list(meant.values())
    else:
        members = meant if isinstance(meant, list) else []
    return next((found for each in members if (found := _meant(each, name)) is not None), None)
