"""What gateways write into Redis has the shapes that are listed for its format: other shapes need another format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import anyio
import anyio.to_thread
import pytest

from pml_gateway.activity.recorder import AccessRow, SearchRow
from pml_gateway.activity.sharing import STREAM
from pml_gateway.example_queries.library import ExampleLibrary, ExampleOrigin
from pml_gateway.gateway.approval_requests import ApprovalRequest, ApprovalScope
from pml_gateway.gateway.approval_stores import RedisApprovalStore
from pml_gateway.storage.redis import FORMAT, PREFIX, RedisValues
from pml_gateway.storage.sealing import Sealing
from pml_gateway.workflow.snapshot import RunSnapshot
from tests.gateway.test_shared_runs import answered
from tests.support.golden import WRITES
from tests.support.raw import post_modern
from tests.support.replicas import KEYS, bearer, replicas, replicas_of, shared_sections
from tests.support.scripted_server import ScriptedServer, text_result, tool
from tests.support.task_clients import ABLE, core
from tests.support.waiting import eventually
from tests.workflow.test_questions import ANSWER, QUESTION

pytestmark = pytest.mark.anyio

__all__ = ["shared_sections"]

FILE = Path(__file__).with_name("shared_format.txt")
REMEDY = (
    "other versions of pml cannot read this: raise FORMAT in pml_gateway/storage/redis.py, "
    "then write the list with PML_GOLDEN=write"
)


OF_OTHERS = (
    "params",
    "definition",
    "result",
    "preview",
    "reads_on",
    "arguments",
    "verdict",
    "accesses",
    "searches",
    "lists",
)
"""Fields with values that servers and clients write, and records of activity, which say themselves what they have."""

DECLARED = {RunSnapshot: "runs", ApprovalRequest: "approvals", AccessRow: "accesses", SearchRow: "searches"}
"""Dataclasses that are written field by field, and may hold more than is seen here."""

TYPE_NAME = re.compile(r"[A-Z]\w+")

NAME = re.compile(r"(?!(?:up|ask|wipe|slow|long|broken)$)(?![0-9a-f]{8})[a-z][a-z0-9_]*")
"""A field, and no id or name of a server or tool of this test."""


def shapes(value: Any, path: str = "") -> Iterator[str]:
    """Lines that say which fields of which types a value has; `*` stands for names that are data."""
    match value:
        case dict():
            yield f"{path}: object"
            for key, each in value.items():
                inner = f"{path}.{key if NAME.fullmatch(key) else '*'}"
                yield from [f"{inner}: any"] if key in OF_OTHERS else shapes(each, inner)
        case list() | tuple():
            yield f"{path}: list"
            is_alike = len({type(each) for each in value}) == 1
            for at, each in enumerate(value):
                yield from shapes(each, f"{path}[{'' if is_alike else at}]")
        case str():
            yield f"{path}: string"
        case bool():
            yield f"{path}: boolean"
        case None:
            yield f"{path}: null"
        case _:
            yield f"{path}: number"


def declared(kind: Any, path: str, outer: tuple[Any, ...] = ()) -> Iterator[str]:
    """Lines as `shapes` has them, of a dataclass and of those in it; the names of types are of no matter."""
    for inner in get_args(kind):
        yield from declared(inner, path, outer)
    if is_dataclass(kind) and kind not in outer:
        hints = get_type_hints(kind)
        for field in fields(kind):
            yield f"{path}.{field.name}: {TYPE_NAME.sub('object', str(field.type))}"
            yield from declared(hints[field.name], f"{path}.{field.name}", (*outer, kind))


def has_value(line: str, lines: set[str]) -> bool:
    """Return True if a path that is null in a line has a value in another one."""
    path = line.removesuffix("null")
    return any(each.startswith(path) and each != line for each in lines)


def shapes_of(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    """The shape of a value that was written under a name."""
    collection, _, rest = name.removeprefix(f"{PREFIX}:").partition(":")
    if collection == "documents":
        path = f"{collection} {rest.partition(':')[2]}"
        yield from shapes({**value, "content": json.loads(value["content"])}, path)
    elif collection == "runs":
        yield f"runs: {sorted(value)}"
    else:
        yield from shapes(value, collection)


async def kind_of(name: bytes, redis: Any) -> Any:
    return await redis.type(name)


async def use(folder: Path, sections: dict[str, Any]) -> set[str]:
    """Have gateways write all that they share; return the kinds of keys that Redis has afterwards."""
    go = anyio.Event()

    async def act(ctx: Any, call: dict[str, Any]) -> Any:
        if call["name"] == "slow":
            await go.wait()
        if call["name"] == "ask" and not (ctx.params or {}).get("inputResponses"):
            return {"resultType": "input_required", "inputRequests": {"who": QUESTION}}
        return {**text_result("done " * 2000), "isError": call["name"] == "broken", "resultType": "complete"}

    up = ScriptedServer([*map(tool, ("wipe", "slow", "long", "broken", "ask"))], act, modern=True)
    anna = {**sections["clients"]["anna"], "limits": {"calls_per_minute": 1000}}
    given = {
        **sections,
        "clients": {**sections["clients"], "anna": anna},
        "rules": [{"match": {"tool": "up:wipe"}, "do": "ask"}],
        "approvals": {"hold_seconds": 0, "notify": False},
        "activity": {"sink": "redis"},
        "references": {"threshold_tokens": 500},
    }
    async with replicas(folder, {"up": up}, **given) as (one, other):
        redis, documents, feed = replicas_of(one).server, one.gateway.documents, replicas_of(one).feed
        assert redis is not None
        assert documents is not None
        assert feed is not None
        made = await anyio.to_thread.run_sync(one.runtime.keys.add, "anna")
        await anyio.to_thread.run_sync(lambda: post_modern(one.url, "tools/list", key=made.text))
        library = ExampleLibrary(folder / "examples", documents)
        await anyio.to_thread.run_sync(lambda: library.put("d" * 64, ["ask"], ExampleOrigin.OWNER))
        await one.call("up__long", {}, headers=bearer("anna"))
        run = {"steps": [{"id": "s", "tool": "up__long"}, {"id": "a", "tool": "up__ask"}]}
        first = await one.call("execute_workflow", run, headers=bearer("anna"))
        await answered(other, "execute_workflow", run, first)
        await one.call("up__wipe", {}, headers=bearer("anna"))
        [row] = await other.gateway.approvals.shown()
        await other.gateway.approvals.answer(row["id"], is_approved=True, scope=ApprovalScope.TOOL)
        await one.call("up__wipe", {}, headers=bearer("anna"))
        await RedisApprovalStore(RedisValues(redis), feed).continue_later("key", "approval")
        async with core(one, KEYS["anna"], **ABLE) as here, core(other, KEYS["anna"], **ABLE) as there:
            for name in ("up__long", "up__broken", "nothing"):
                await there.message("tasks/result", taskId=(await here.task(name))["taskId"])
            cancelled = (await here.task("up__slow"))["taskId"]
            await there.result("tasks/get", taskId=cancelled)
            await there.result("tasks/cancel", taskId=cancelled)
            asks = (await here.task("up__ask"))["taskId"]
            await there.until("input_required", asks)
            collect = partial(there.session.asked, "tasks/result", {"taskId": asks}, lambda _: ANSWER)
            await anyio.to_thread.run_sync(collect)

        async def is_passed_on() -> bool:
            return bool(await redis.run(lambda client: client.xlen(STREAM)))

        await eventually(is_passed_on)
        names: Any = await redis.run(lambda client: client.keys())
        kinds: Any = [await redis.run(partial(kind_of, name)) for name in names]
        return {
            f"{name.decode().removeprefix(f'{PREFIX}:').partition(':')[0]} ({kind.decode()})"
            for name, kind in zip(names, kinds, strict=True)
        }


async def test_what_is_written_into_redis_has_the_shapes_that_are_listed_for_its_format(
    tmp_path: Path, shared_sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, seal = set[str](), Sealing.seal

    def noted(self: Sealing, name: str, value: dict[str, Any], **given: Any) -> bytes:
        seen.update(shapes_of(name, value))
        return seal(self, name, value, **given)

    monkeypatch.setattr(Sealing, "seal", noted)
    seen |= await use(tmp_path, shared_sections)
    for kind, path in DECLARED.items():
        seen.update(declared(kind, f"{path} declared"))
    # Whether a value is seen while it is missing is a matter of time.
    seen = {line for line in seen if not (line.endswith(": null") and has_value(line, seen))}
    format_, *known = FILE.read_text(encoding="utf-8").splitlines()
    if WRITES and format_ != f"format {FORMAT}":
        FILE.write_text("\n".join([f"format {FORMAT}", *sorted(seen), ""]), encoding="utf-8")
        return
    assert format_ == f"format {FORMAT}", REMEDY
    assert (sorted(seen.difference(known)), sorted({*known} - seen)) == ([], []), REMEDY
