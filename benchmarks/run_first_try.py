"""Do calls as models write them do what was meant, and if not, does the answer alone lead to it?

    python -m benchmarks.run_first_try [--set SET] [--only KIND] [--show] [--save]

Calls of meta-tools with wrong keys, synonyms, text for numbers, arguments in the wrong place, names that are nearly
right, templates of other systems, guessed names of arguments: `benchmarks.first_try.calls` says what each means. It
is *done* if the servers got exactly what they get of the call that was meant, and the answer is the same; *refused*
if no server got anything and the answer is an error with a hint. Everything else is *wrong*: it looks right and is
not. What is refused is tried once more by a script that knows the values that were meant, and follows the hint
(`benchmarks.first_try.second_try`).
Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio

from benchmarks.first_try import unseen
from benchmarks.first_try.calls import FURTHER_NAMES, GUESSED, HANDLE, guessed, written
from benchmarks.first_try.office import LOG, office, trades
from benchmarks.first_try.second_try import second_try
from benchmarks.first_try.written import Arguments, Written
from benchmarks.harness import table
from benchmarks.results import save
from tests.support.scripted_server import ScriptedServer
from tests.support.serving import Serving, serving

Outcome = Literal["done", "refused", "wrong"]
Reached = list[tuple[str, str, Any]]
SETS = ("written", "unseen", "further")
"""The servers of each set of calls, and the calls."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one call at the first try, and at the second where there was one."""

    call: Written
    first: Outcome
    second: Outcome | None
    answer: Mapping[str, Any]
    again: Arguments | None = None
    answer_again: Mapping[str, Any] | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether a model was given what it did not mean, or what nobody can know it meant."""
        guessed = self.first == "done" and self.call.must == "be refused"
        return guessed or "wrong" in (self.first, self.second)

    @property
    def is_done(self) -> bool:
        """Whether it was done in the end."""
        return "done" in (self.first, self.second)


@dataclass(slots=True)
class Office:
    """A gateway in front of the servers, and what they were asked."""

    served: Serving
    servers: Mapping[str, ScriptedServer]
    handle: str = ""

    async def open(self) -> None:
        """Have one large result stored."""
        call = {"name": "files__read_text_file", "arguments": {"path": LOG}}
        steps = [{"id": "log", "tool": call["name"], "arguments": call["arguments"]}]
        result = await self.served.call("execute_workflow", {"steps": steps})
        found = json.dumps(result).partition('"ref_')[2].partition('"')[0].rstrip("\\")
        self.handle = f"ref_{found}"

    async def send(self, tool: str, arguments: Arguments) -> tuple[Reached, dict[str, Any]]:
        """What reached the servers, and the answer."""
        for server in self.servers.values():
            server.calls.clear()
        filled = json.loads(json.dumps(arguments).replace(HANDLE, self.handle))
        result = await self.served.call(tool, filled)
        reached = [
            (name, call["name"], call["arguments"]) for name, server in self.servers.items() for call in server.calls
        ]
        return reached, result


def told(result: Mapping[str, Any]) -> Any:
    """What a model reads of an answer, without what differs from call to call."""
    structured = result.get("structuredContent")
    return _without(structured if structured is not None else result.get("content"))


_DIFFERS = frozenset({"seconds", "expires_at", "elapsed", "took_ms"})


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(member) for key, member in value.items() if key not in _DIFFERS}
    return [_without(item) for item in value] if isinstance(value, list) else value


def error_of(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The error of an answer, in whatever slot or step it is; None where nothing failed."""
    structured = result.get("structuredContent")
    if not isinstance(structured, dict):
        return {"code": "", "message": str(result.get("content")), "hint": ""} if result.get("isError") else None
    if isinstance(structured.get("error"), dict):
        error: Mapping[str, Any] = structured["error"]
        slots = [slot["error"].get("details") or {} for slot in structured.get("slots") or () if slot.get("error")]
        problems = [problem for details in slots for problem in details.get("errors") or ()]
        return {**error, "details": {**(error.get("details") or {}), "errors": problems}} if problems else error
    for key in ("results", "steps", "slots"):
        for slot in structured.get(key) or () if isinstance(structured.get(key), list) else ():
            if isinstance(slot, dict) and isinstance(slot.get("error"), dict):
                failed: Mapping[str, Any] = slot["error"]
                return failed
    return None


async def _try(office_: Office, call: Written) -> Tried:
    reached, answer = await office_.send(call.meant_tool, call.meant)
    if answer.get("isError"):
        raise AssertionError(f"what was meant is refused itself: {call.meant} {answer}")
    meant = (reached, told(answer))

    async def attempt(arguments: Arguments) -> tuple[Outcome, dict[str, Any]]:
        reached, answer = await office_.send(call.tool, arguments)
        if error_of(answer) is None:
            return ("done" if (reached, told(answer)) == meant else "wrong"), answer
        error = error_of(answer) or {}
        return ("refused" if error.get("hint") and not reached else "wrong"), answer

    first, answer = await attempt(call.arguments)
    if first != "refused":
        return Tried(call, first, None, answer)
    again = second_try(call.arguments, error_of(answer) or {}, call.meant)
    if again is None:
        return Tried(call, first, None, answer)
    second, answer_again = await attempt(again)
    return Tried(call, first, second, answer, again, answer_again)


async def run(only: str | None, which: str = "written") -> list[Tried]:
    """Every call of a set, in a gateway of its own."""
    sets = {"unseen": unseen.written, "further": lambda: list(guessed(FURTHER_NAMES)), "written": written}
    given = sets[which]()
    calls = [call for call in given if only is None or only in call.kind]
    if which == "unseen":
        return await _run(unseen.servers(), calls, has_log=False)
    of_names = [call for call in calls if call.kind in GUESSED]
    others = [call for call in calls if call.kind not in GUESSED]
    return await _run(office(), others, has_log=True) + await _run(trades(), of_names, has_log=False)


async def _run(servers: Mapping[str, ScriptedServer], calls: Sequence[Written], *, has_log: bool) -> list[Tried]:
    if not calls:
        return []
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder), servers, trust={"new_servers": "accept"}) as served:
            await served.gateway.refresh(30)
            met = Office(served, servers)
            if has_log:
                await met.open()
            return [await _try(met, call) for call in calls]


def rows(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    """A row for each kind, and one for all."""
    kinds = list(dict.fromkeys(each.call.kind for each in tried))
    return [_row(kind, [each for each in tried if each.call.kind == kind]) for kind in kinds] + [_row("all", tried)]


def _row(kind: str, tried: Sequence[Tried]) -> dict[str, Any]:
    first = Counter(each.first for each in tried)
    clear = [each for each in tried if each.call.must == "be done"]
    return {
        "kind": kind,
        "calls": len(tried),
        "one reading": len(clear),
        "of them done": sum(each.first == "done" for each in clear),
        "done": first["done"],
        "refused": first["refused"],
        "done at the second": sum(each.is_done for each in tried),
        "wrong": sum(each.is_wrong for each in tried),
    }


def _shown(each: Tried) -> str:
    lines = [
        f"[{each.call.kind}] {each.call.must}: {each.first}, then {each.second}",
        f"  sent  {each.call.tool} {json.dumps(each.call.arguments)[:300]}",
        f"  meant {json.dumps(each.call.meant)[:300]}",
        f"  got   {json.dumps(error_of(each.answer) or told(each.answer))[:700]}",
    ]
    if each.again is not None and each.answer_again is not None:
        lines.append(f"  again {json.dumps(each.again)[:300]}")
        lines.append(f"  got   {json.dumps(error_of(each.answer_again) or told(each.answer_again))[:500]}")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--set", choices=SETS, default="written")
    parser.add_argument("--only", help="kinds whose name contains this text")
    parser.add_argument("--show", action="store_true", help="show the calls that were not done as they must be")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    is_set = arguments.only in SETS
    which, only = (arguments.only, None) if is_set else (arguments.set, arguments.only)
    tried = anyio.run(run, only, which)
    if arguments.show:
        for each in tried:
            if each.is_wrong or not each.is_done or (each.call.must == "be done" and each.first != "done"):
                print(_shown(each))
    print(table(rows(tried)))
    if arguments.save:
        print(save("first_try", {"calls": len(tried)}, {"kinds": rows(tried)}))
    sys.exit(any(each.is_wrong for each in tried))


if __name__ == "__main__":
    main()
