"""What ten recorded tasks cost a model, in tokens and requests, under four ways of listing tools; and fourteen more.

    python -m benchmarks.run_tasks [--only NAME]

Real servers (npm filesystem and memory, PyPI git and time) behind this gateway, met over stdio. Everything the model
reads and writes counts: the list, the task, searches and their answers, calls and results. Where tools are searched,
only what answers said is used: a tool that no hit named, an argument that is not in its signature, or a field that it
is not said to give ends the run. Every way works on a fresh copy of the same folders; a run is only valid if all of
them leave the same state behind and every answer that the task needs was read. The fourteen tasks that go beyond plain
calls run with workflows and references only, before more servers, one of which is down. Results go to
benchmarks/results/tasks.json, the tables into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from benchmarks.client import AnswerError, Era
from benchmarks.conversation import Conversation, answer_text, compact, data_of
from benchmarks.harness import table
from benchmarks.hits import Signature, objections, signatures_of
from benchmarks.markdown_block import markdown_table, write_block
from benchmarks.more_tasks import MORE_TASKS
from benchmarks.more_workspace import make_larger_workspace
from benchmarks.processes import alone_option
from benchmarks.results import RESULTS, machine, versions
from benchmarks.stdio_client import StdioClient, open_stdio_client
from benchmarks.tasks import TASKS, Round, Step, Task
from benchmarks.workspace import Workspace, make_workspace
from pml_gateway.exposure.token_count import TOKENIZER, count_tokens
from pml_gateway.workflow.templates import compile_template, render
from tests.e2e.install import Installation, install

READY_SECONDS = 120
BLOCK = "tasks"
README = Path(__file__).resolve().parent / "README.md"


@dataclass(frozen=True, slots=True)
class Way:
    """One way of listing and calling tools."""

    name: str
    gateway: Mapping[str, Any]
    searches: bool = False
    workflows: bool = False
    namespaces: bool = False


WITH_WORKFLOWS = Way(
    "meta-only, workflows and references", {"tools_exposure": "meta_only"}, searches=True, workflows=True
)
WAYS = (
    Way("all tools listed", {"tools_exposure": "full_proxy"}),
    Way("meta-only, single calls", {"tools_exposure": "meta_only"}, searches=True),
    WITH_WORKFLOWS,
    Way("namespaces", {"tools_exposure": "meta_only", "style": "namespaces"}, namespaces=True),
)


@dataclass(slots=True)
class Agent:
    """Follows the recorded tasks through one running gateway."""

    way: Way
    client: StdioClient
    workspace: Workspace
    listed: int = 0

    async def open(self) -> None:
        """Wait until every server has listed its tools, but those that are down, then read the list."""
        deadline = time.monotonic() + READY_SECONDS
        while missing := self.workspace.servers.keys() - self.workspace.down - await self._servers():
            if time.monotonic() > deadline:
                raise AnswerError(f"nothing of {', '.join(sorted(missing))} after {READY_SECONDS} s")
            await anyio.sleep(0.5)
        self.listed = count_tokens(compact((await self.client.request("tools/list"))["tools"]))

    async def carry_out(self, task: Task) -> Conversation:
        """One task in a conversation of its own."""
        task = _filled(task, self.workspace)
        talk = Conversation(self.listed, count_tokens(self.workspace.anonymous(task.ask)))
        if self.way.searches:
            await self._find(task, talk)
        values: dict[str, Any] = {}
        for one in task.rounds:
            if one.is_batch:
                await self._batch(one, talk)
            elif self.way.workflows and one.is_workflow:
                await self._run(one, talk, values)
            else:
                for step in one.steps:
                    await self._call(step, talk, values)
        missing = [answer for answer in task.answers if not any(answer in text for text in talk.texts)]
        if missing:
            raise AnswerError(f"{self.way.name}, {task.name}: {missing} was in no answer: {talk.texts[-1][:500]}")
        if any(text in talk.texts[-1] for text in task.absent):
            raise AnswerError(
                f"{self.way.name}, {task.name}: one of {task.absent} was answered: {talk.texts[-1][:500]}"
            )
        return talk

    async def _find(self, task: Task, talk: Conversation) -> None:
        """The recorded searches, whose hits have to name all that the task's steps use."""
        known: dict[str, Signature] = {}
        for query in task.searches:
            answer = await self._exchange("search_tools", {"query": query}, talk)
            known |= signatures_of(answer["structuredContent"])
            talk.searches += 1
        if unfounded := objections(task, known):
            raise AnswerError(f"{task.name}: {'; '.join(unfounded)}; known: {', '.join(known)}")

    async def _call(self, step: Step, talk: Conversation, values: dict[str, Any]) -> None:
        """One step; what it takes from earlier results is written out by the model."""
        arguments = await render(compile_template(step.arguments), values, _no_reference)
        if not step.server:
            result = await self._exchange(step.tool, arguments, talk)
        elif self.way.namespaces:
            result = await self._exchange(step.server, {"action": step.tool, **arguments}, talk)
        elif self.way.searches:
            call = {"name": step.qualified_name, "arguments": arguments}
            result = await self._exchange("call_tool", call, talk)
        else:
            result = await self._exchange(step.qualified_name, arguments, talk)
        values[step.id] = data_of(result)

    async def _run(self, one: Round, talk: Conversation, values: dict[str, Any]) -> None:
        """A round as one workflow, of which only what has to be seen comes back."""
        steps = [_workflow_step(step) for step in one.steps]
        asked = {"steps": steps, "return": list(one.shown)}
        result = await self._exchange("execute_workflow", asked, talk)
        answer = result["structuredContent"]
        if answer["status"] != "completed":
            raise AnswerError(f"{self.way.name}: {talk.texts[-1][:800]}")
        values.update({step["id"]: step["result"] for step in answer["steps"] if "result" in step})

    async def _batch(self, one: Round, talk: Conversation) -> None:
        """Calls that have nothing to do with each other."""
        calls = [{"id": step.id, "name": step.qualified_name, "arguments": step.arguments} for step in one.steps]
        result = await self._exchange("call_batch", {"calls": calls}, talk)
        if result["structuredContent"]["failed"]:
            raise AnswerError(f"{self.way.name}: {talk.texts[-1][:800]}")

    async def _exchange(self, name: str, arguments: dict[str, Any], talk: Conversation) -> dict[str, Any]:
        result = await self.client.request("tools/call", {"name": name, "arguments": arguments})
        text = self.workspace.anonymous(answer_text(result))
        if result.get("isError"):
            raise AnswerError(f"{self.way.name}, {name}: {text[:800]}")
        talk.exchange(name, json.loads(self.workspace.anonymous(json.dumps(arguments))), text)
        return result

    async def _servers(self) -> set[str]:
        """The servers whose tools there are."""
        result = await self.client.request("tools/call", {"name": "search_tools", "arguments": {"query": "*"}})
        answer = result.get("structuredContent") or {}
        return {each["server"] for each in answer.get("servers", ())}


def _workflow_step(step: Step) -> dict[str, Any]:
    """A recorded step as `execute_workflow` takes it."""
    written: dict[str, Any] = {"id": step.id}
    if step.tool:
        written |= {"tool": step.qualified_name, "arguments": step.arguments}
    return written | step.more | ({"depends_on": list(step.after)} if step.after else {})


async def run_way(
    way: Way, tasks: Sequence[Task], make: Callable[[Installation, Path], Workspace] = make_workspace
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """The figures of every task, and the state that the tasks left behind."""
    with tempfile.TemporaryDirectory(prefix="pml-tasks-") as folder:
        workspace = make(install(), Path(folder) / "work")
        home = Path(folder) / "home"
        home.mkdir()
        config = home / "config.yaml"
        # Where a model writes out what it read, it has read it whole.
        references = {"mode": "meta" if way.workflows else "workflow"}
        settings = {"gateway": way.gateway, "references": references, "servers": workspace.servers}
        config.write_text(json.dumps(settings), encoding="utf-8")
        program = (sys.executable, "-m", "pml_gateway")
        command = [*program, "serve", *alone_option(*program), "--config", str(config)]
        async with open_stdio_client(command, Era.HANDSHAKE, {"PML_HOME": str(home)}) as client:
            agent = Agent(way, client, workspace)
            await agent.open()
            figures = {task.name: (await agent.carry_out(task)).figures() for task in tasks}
        return figures, workspace.state()


TOOLS = 14 + 9 + 12 + 2
"""Of filesystem, memory, git and time."""

MAX_TOKENS = 18_500
"""What the ten tasks may cost with workflows and references."""


async def run(tasks: Sequence[Task], more: Sequence[Task], *, save: bool) -> None:
    """Measure every way, compare what they left behind, print and save."""
    figures: dict[str, dict[str, dict[str, int]]] = {}
    states: dict[str, dict[str, str]] = {}
    for way in WAYS if tasks else ():
        print(f"{way.name} ...", file=sys.stderr)
        figures[way.name], states[way.name] = await run_way(way, tasks)
    first = WAYS[0].name
    for name, state in states.items():
        different = sorted(
            key for key in state.keys() | states[first].keys() if state.get(key) != states[first].get(key)
        )
        if different:
            raise AnswerError(f"{name!r} left other {', '.join(different)} behind than {first!r}")
    print("more tasks ...", file=sys.stderr)
    beyond = {WITH_WORKFLOWS.name: (await run_way(WITH_WORKFLOWS, more, make_larger_workspace))[0]} if more else {}
    rows = summary_rows(figures) if tasks else []
    for shown in (rows, task_rows(figures), task_rows(beyond), summary_rows(beyond) if more else []):
        if shown:
            print(table(shown))
    if save:
        report = {"question": "tasks", "tokenizer": TOKENIZER, "machine": machine(), "versions": versions()}
        text = json.dumps({**report, "ways": figures, "totals": rows, "more": beyond}, indent=2)
        (RESULTS / "tasks.json").write_text(text + "\n", encoding="utf-8")
        write_block(README, BLOCK, _block(figures, beyond))
    cost = sum(task["tokens"] for task in figures.get(WITH_WORKFLOWS.name, {}).values())
    if cost > MAX_TOKENS:
        raise AnswerError(f"{cost} tokens with workflows and references; at most {MAX_TOKENS}")


def summary_rows(figures: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    """One row per way: sums over all tasks, and the ratio to the first way."""
    totals = {
        way: {key: sum(task[key] for task in tasks.values()) for key in next(iter(tasks.values()))}
        for way, tasks in figures.items()
    }
    base = next(iter(totals.values()))
    return [
        {
            "way": way,
            "requests": total["requests"],
            "of them searches": total["searches"],
            "tokens of one list": total["listed"] // len(figures[way]),
            "tokens": total["tokens"],
            "%": 100 * total["tokens"] / base["tokens"],
            "tokens sent over all turns": total["tokens_sent"],
            "% sent": 100 * total["tokens_sent"] / base["tokens_sent"],
        }
        for way, total in totals.items()
    ]


def task_rows(figures: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    """One row per task: requests and tokens under every way."""
    names = list(next(iter(figures.values()), ()))
    return [
        {
            "task": name,
            **{way: f"{tasks[name]['requests']} / {tasks[name]['tokens']:,}" for way, tasks in figures.items()},
        }
        for name in names
    ]


def _block(
    figures: Mapping[str, Mapping[str, Mapping[str, int]]], beyond: Mapping[str, Mapping[str, Mapping[str, int]]]
) -> str:
    note = (
        f"Ten recorded tasks, {TOOLS} tools of four real servers, {TOKENIZER}. *Tokens*: all that the model reads and "
        "writes, each once: list, task, searches, calls, results. *Sent over all turns*: the same when the whole "
        "context is sent again at every turn, as without a prompt cache. All ways leave the same state behind; where "
        "tools are searched, only names, arguments and fields that a hit named are used. "
        "Made by `python -m benchmarks.run_tasks`."
    )
    per_task = f"Requests / tokens per task:\n\n{markdown_table(task_rows(figures))}"
    [total] = summary_rows(beyond)
    more = (
        f"{len(next(iter(beyond.values())))} tasks that go beyond plain calls, before nine servers and one that is "
        f"down: {total['requests']} requests, {total['of them searches']} of them searches, and {total['tokens']:,} "
        f"tokens. An image counts without its base64. Requests / tokens per task:\n\n"
        f"{markdown_table(task_rows(beyond))}"
    )
    return f"{note}\n\n{markdown_table(summary_rows(figures))}\n\n{per_task}\n\n{more}"


def _filled(task: Task, workspace: Workspace) -> Task:
    rounds = tuple(
        replace(one, steps=tuple(replace(step, arguments=workspace.filled(step.arguments)) for step in one.steps))
        for one in task.rounds
    )
    return replace(task, ask=workspace.filled(task.ask), rounds=rounds)


async def _no_reference(node: dict[str, Any]) -> Any:
    raise AnswerError(f"the recorded tasks hold no stored results, but {node!r}")


def main() -> None:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="run tasks whose name contains this text, and save nothing")
    arguments = parser.parse_args()
    tasks, more = (
        [task for task in recorded if arguments.only is None or arguments.only in task.name]
        for recorded in (TASKS, MORE_TASKS)
    )
    anyio.run(lambda: run(tasks, more, save=arguments.only is None))


if __name__ == "__main__":
    main()
