from __future__ import annotations

import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest

from pml_gateway.config.file_changes import FileChanges

pytestmark = pytest.mark.anyio

LIMIT = 60


async def test_each_is_told_of_its_own_files_however_many_there_are(tmp_path: Path) -> None:
    changes = FileChanges()
    files = [tmp_path / name / "file" for name in "abc"]
    for file in files:
        file.parent.mkdir()
    with anyio.fail_after(LIMIT):
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            tasks.start_soon(changes.run)
            told = [await stack.enter_async_context(changes.of([file])) for file in files]
            for file, receive in zip(files, told, strict=True):
                file.write_text("x")
                assert await receive.receive() == {file}
            tasks.cancel_scope.cancel()


async def test_a_change_before_the_watcher_stands_is_told(tmp_path: Path) -> None:
    changes, file = FileChanges(), tmp_path / "file"
    file.write_text("before")
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks, changes.of([file]) as told:
            file.write_text("and after")
            tasks.start_soon(changes.run)
            assert await told.receive() == {file}
            tasks.cancel_scope.cancel()


async def test_a_folder_that_went_keeps_nobody_elses_from_being_watched(tmp_path: Path) -> None:
    changes, gone, stays, new = FileChanges(), tmp_path / "gone" / "file", tmp_path / "stays", tmp_path / "new" / "file"
    for file in (gone, new):
        file.parent.mkdir()
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks, changes.of([gone]), changes.of([stays]) as told:
            tasks.start_soon(changes.run)
            gone.parent.rmdir()
            async with changes.of([new]) as told_of_new:
                new.write_text("x")
                assert await told_of_new.receive() == {new}
                stays.write_text("x")
                assert await told.receive() == {stays}
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("name", [b"\xff\xfe", b"d" * 300, b"nu\0ll"], ids=["no UTF-8", "too long a name", "null"])
async def test_a_folder_that_cannot_be_watched_keeps_nobody_elses_from_being_watched(
    tmp_path: Path, name: bytes
) -> None:
    changes, odd, file = FileChanges(), tmp_path / os.fsdecode(name) / "file", tmp_path / "file"
    with suppress(OSError, ValueError):
        odd.parent.mkdir()
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tasks, changes.of([odd]), changes.of([file]) as told:
            tasks.start_soon(changes.run)
            file.write_text("x")
            assert await told.receive() == {file}
            tasks.cancel_scope.cancel()
