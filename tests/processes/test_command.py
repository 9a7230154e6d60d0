"""A command that reads a text and prints one: what it is given, and when it is ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from pml_gateway.processes.children import Children, open_children
from pml_gateway.processes.command import MAX_LAST_WORDS, Finished, OutputTooLongError, run_command
from tests.support.process import is_alive
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def children() -> Iterator[Children]:
    with open_children() as opened:
        yield opened


async def python(code: str, given: str, folder: Path, children: Children, max_bytes: int = 100_000) -> Finished:
    command = (sys.executable, "-I", "-S", "-c", code)
    return await run_command(
        command, given, env={"ONLY": "this"}, folder=folder, max_bytes=max_bytes, children=children
    )


async def test_gives_the_text_and_returns_what_is_printed(tmp_path: Path, children: Children) -> None:
    code = (
        "import os,sys; print(sys.stdin.read()[::-1], os.getcwd(), os.environ.get('ONLY'));"
        "sys.stderr.write('hm'); sys.exit(3)"
    )
    finished = await python(code, "straße", tmp_path, children)
    assert finished == Finished(3, f"eßarts {tmp_path} this\n", "hm")


async def test_one_that_reads_nothing_may_answer(tmp_path: Path, children: Children) -> None:
    finished = await python("print('done')", "x" * 1_000_000, tmp_path, children)
    assert finished.output == "done\n"


async def test_keeps_the_end_of_stderr(tmp_path: Path, children: Children) -> None:
    finished = await python("import sys; sys.stderr.write('x' * 100_000 + 'the reason')", "", tmp_path, children)
    assert finished.last_words.endswith("the reason")
    assert len(finished.last_words) <= MAX_LAST_WORDS


async def test_ends_one_that_prints_too_much(tmp_path: Path, children: Children) -> None:
    with pytest.raises(OutputTooLongError):
        await python("while True: print('x' * 10_000)", "", tmp_path, children)


async def test_ends_what_it_started_when_it_is_cancelled(tmp_path: Path, children: Children) -> None:
    file = tmp_path / "pids"
    code = (
        "import os,subprocess,sys,time\n"
        "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(file)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(file)!r} + '.new', {str(file)!r})\n"
        "time.sleep(1000)"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(python, code, "", tmp_path, children)
        await until(file.exists)
        tasks.cancel_scope.cancel()
    pids = [int(pid) for pid in file.read_text().split()]
    await until(lambda: not any(map(is_alive, pids)))


async def test_what_it_leaves_running_is_not_waited_for(tmp_path: Path, children: Children) -> None:
    code = (
        "import subprocess,sys\n"
        "child = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(1000)'])\n"
        "print(child.pid)"
    )
    with anyio.fail_after(30):
        finished = await python(code, "", tmp_path, children)
    await until(lambda: not is_alive(int(finished.output)))


async def test_says_that_a_program_is_not_there(tmp_path: Path, children: Children) -> None:
    with pytest.raises(FileNotFoundError):
        await run_command(("/nowhere/at-all",), "", env={}, folder=tmp_path, max_bytes=1, children=children)
