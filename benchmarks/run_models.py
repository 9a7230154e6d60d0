"""Can a model do its work through the gateway, and what does it cost? With any model, and with recorded ones.

    python -m benchmarks.run_models --endpoint http://localhost:8000/v1 --model NAME [--key-variable OPENAI_API_KEY]
    python -m benchmarks.run_models --command "my-model --json"
    python -m benchmarks.run_models --replay benchmarks/results/models-DATE.jsonl

Tasks in a scripted office of twelve systems that keep a state (`benchmarks.office`), among servers of others. A task is
done if the office was left with all changes that were asked for, and no others. Each way of showing tools gets the same
tasks: listed, hybrid (the list is made for the task), meta_only (search and calls), workflows (meta_only with them),
by_effect (a call tool for each effect). A command gets `{"messages": [...], "tools": [...]}` on stdin, as chat
completions have them, and gives a message on stdout: `{"content": "..."}`, or
`{"tool_calls": [{"name": "...", "arguments": {...}}]}`.

Transcripts are written as lines while it runs; a run that was ended goes on where it stopped if it is given the same
`--transcripts`. A replay makes the recorded calls again: exit code 1 if the gateway leaves another state behind now.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from benchmarks.agents.command import CommandModel
from benchmarks.agents.endpoint import open_endpoint
from benchmarks.agents.intervals import DRAWS
from benchmarks.agents.model import Model
from benchmarks.agents.report import task_rows, way_rows
from benchmarks.agents.session import open_desk
from benchmarks.agents.transcripts import (
    RecordedModel,
    Transcript,
    differences,
    read_transcripts,
    write_line,
    write_transcript,
)
from benchmarks.agents.ways import MODEL_WAYS
from benchmarks.harness import table
from benchmarks.office.tasks import TASKS, OfficeTask
from benchmarks.results import RESULTS, save
from pml_gateway.exposure.token_count import TOKENIZER

OTHERS = 163
"""Tools of others: those of eleven published servers."""

MAX_ERRORS = 3
"""A model that gives out so often in a row is not asked any more."""

ENDPOINT_SECONDS = 300.0
UNNAMED = "a frontier model"


class Recording:
    """A file of transcripts that grows as tasks are done."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self.transcripts: list[Transcript] = []
        if path.exists():
            _, self.transcripts = read_transcripts(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_line(path, head)

    def has(self, way: str, task: OfficeTask, run: int) -> bool:
        """Whether the task was carried out already."""
        return (way, task.name, run) in {each.key for each in self.transcripts if not each.error}

    def add(self, transcript: Transcript) -> None:
        """Write one."""
        self.transcripts.append(transcript)
        write_transcript(self.path, transcript)


async def measure(
    model: Model, recording: Recording, ways: Sequence[str], tasks: Sequence[OfficeTask], runs: int, others: int
) -> None:
    """Carry out what the recording lacks."""
    errors = 0
    for way in ways:
        async with open_desk(MODEL_WAYS[way], others) as desk:
            for run in range(1, runs + 1):
                for task in tasks:
                    if recording.has(way, task, run):
                        continue
                    told = await desk.carry_out(task, model, run)
                    recording.add(told)
                    _say(told)
                    errors = errors + 1 if told.error else 0
                    if errors == MAX_ERRORS:
                        print(f"the model gave out {errors} times in a row: {told.error}", file=sys.stderr)
                        return


async def replay(recorded: Sequence[Transcript], others: int) -> tuple[list[Transcript], list[str]]:
    """Make recorded calls again; what is told now, and where another state is left behind."""
    tasks = {task.name: task for task in TASKS}
    now: list[Transcript] = []
    problems: list[str] = []
    for way in dict.fromkeys(each.way for each in recorded):
        async with open_desk(MODEL_WAYS[way], others) as desk:
            for each in recorded:
                if each.way != way or each.error:
                    continue
                told = await desk.carry_out(tasks[each.task], RecordedModel(each), each.run)
                now.append(told)
                found = differences(each, told)
                if told.is_done != each.is_done:
                    found.append(f"was {'done' if each.is_done else 'not done'}: {told.faults or 'is done now'}")
                problems += [f"{way}, {each.task}, run {each.run}: {difference}" for difference in found]
    return now, problems


@asynccontextmanager
async def _model(arguments: argparse.Namespace) -> AsyncIterator[Model]:
    if arguments.command:
        yield CommandModel(shlex.split(arguments.command), arguments.seconds)
        return
    key = os.environ.get(arguments.key_variable)
    options = {} if arguments.temperature is None else {"temperature": arguments.temperature}
    async with open_endpoint(arguments.endpoint, arguments.model, key, arguments.seconds, options) as model:
        yield model


async def _measure(arguments: argparse.Namespace, recording: Recording, tasks: Sequence[OfficeTask]) -> None:
    async with _model(arguments) as model:
        await measure(model, recording, arguments.ways, tasks, arguments.runs, arguments.others)


def _say(told: Transcript) -> None:
    outcome = "gave out" if told.error else "done" if told.is_done else "not done"
    print(f"{told.way}, {told.task}, run {told.run}: {outcome}, {told.requests} requests", file=sys.stderr)


def report(head: dict[str, Any], transcripts: Sequence[Transcript], *, shows_faults: bool = True) -> dict[str, Any]:
    """Print the tables; what is saved of them."""
    ways, tasks = way_rows(transcripts), task_rows(transcripts)
    missing = [name for name in MODEL_WAYS if name not in {each.way for each in transcripts}]
    left_out = [task.name for task in TASKS if task.name not in {each.task for each in transcripts}]
    print(f"{head['model']}, {head['date']}; tokens of {TOKENIZER}; success with Wilson's interval of 95 %, the rest ")
    print(f"with a bootstrapped one ({DRAWS:,} draws of tasks). Per task: runs done, requests, tokens read.\n")
    print(table(ways), end="\n\n")
    print(table(tasks))
    for each in transcripts if shows_faults else ():
        if each.faults or each.error:
            print(f"\n{each.way}, {each.task}, run {each.run}: {each.error or '; '.join(each.faults)}")
    print(f"\nnot run: ways {missing or 'none'}; tasks {left_out or 'none'}")
    return {"model": head["model"], "ways": ways, "tasks": tasks, "ways not run": missing, "tasks not run": left_out}


def main() -> None:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--endpoint", help="the base URL of chat completions, as http://localhost:8000/v1")
    whose.add_argument("--command", help="a command that reads a request from stdin and writes a message to stdout")
    whose.add_argument("--replay", nargs="+", type=Path, help="transcripts to repeat; no model is needed")
    parser.add_argument("--model", help=f"the model's name; kept with the results ({UNNAMED!r} if there is none)")
    parser.add_argument("--key-variable", default="OPENAI_API_KEY", help="the environment variable with the key")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seconds", type=float, default=ENDPOINT_SECONDS, help="the longest that one answer may take")
    parser.add_argument("--ways", nargs="+", choices=list(MODEL_WAYS), default=list(MODEL_WAYS))
    parser.add_argument("--tasks", nargs="+", metavar="TEXT", help="tasks whose name contains one of these texts")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N tasks, drawn evenly from all")
    parser.add_argument("--runs", type=int, default=1, help="how often each task is done under each way")
    parser.add_argument("--others", type=int, default=OTHERS, help="tools of others around the office, 0 to 380")
    parser.add_argument("--transcripts", type=Path, help="where transcripts go, and are continued")
    parser.add_argument("--save", action="store_true", help="keep figures and transcripts in benchmarks/results")
    arguments = parser.parse_args()
    if arguments.endpoint and not arguments.model:
        parser.error("--endpoint needs --model")
    if arguments.replay:
        sys.exit(_replayed(arguments.replay, arguments.others, saves=arguments.save))
    now = datetime.now(UTC)
    head = {"model": arguments.model or UNNAMED, "date": f"{now:%Y-%m-%d}", "others": arguments.others}
    path = arguments.transcripts or (RESULTS if arguments.save else Path()) / f"models-{now:%Y%m%d-%H%M%S}.jsonl"
    recording = Recording(path, head)
    tasks = chosen(TASKS, arguments.tasks, arguments.first)
    anyio.run(_measure, arguments, recording, tasks)
    measured = report(head, recording.transcripts)
    print(f"transcripts: {path}")
    if arguments.save:
        print(save("models", {"others": arguments.others, "runs": arguments.runs}, measured))


def chosen(tasks: Sequence[OfficeTask], texts: Sequence[str] | None, first: int | None) -> list[OfficeTask]:
    """The tasks that are named, or some spread evenly over all."""
    found = [task for task in tasks if not texts or any(text in task.name for text in texts)]
    count = min(first or len(found), len(found))
    return [found[at * len(found) // count] for at in range(count)]


def _replayed(paths: Sequence[Path], others: int, *, saves: bool) -> int:
    """Replay, report as it is now; the exit code."""
    files = [read_transcripts(path) for path in paths]
    head = files[0][0]
    recorded = [each for _, transcripts in files for each in transcripts]
    now, problems = anyio.run(replay, recorded, int(head.get("others", others)))
    measured = report(head, now)
    for problem in problems:
        print(f"differs: {problem}")
    if saves:
        print(save("models", {"replayed": [path.name for path in paths]}, measured))
    return 1 if problems else 0


if __name__ == "__main__":
    main()
