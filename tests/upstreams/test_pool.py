"""The end of a pool: every upstream is asked at once, and those that are waited for are named."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.gateway.gateway import open_gateway
from pml_gateway.processes.stdio import LEAVE_SECONDS, TERMINATE_SECONDS
from pml_gateway.secrets.env_file import store_variables
from pml_gateway.working_directory import WorkingDirectory
from tests.support.memory import MemoryStreams, paths_in, settings_for
from tests.support.scripted_server import ScriptedServer, tool

pytestmark = pytest.mark.anyio


class SlowToEnd(MemoryStreams):
    """Upstreams each of which ends only when `may_end` is set; whoever waits for that is among `asked`."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: ScriptedServer([tool("t")]) for name in names})
        self.asked: set[str] = set()
        self.may_end = anyio.Event()

    @asynccontextmanager
    async def __call__(
        self, upstream_id: str, definition: UpstreamDefinition, **options: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        async with super().__call__(upstream_id, definition, **options) as streams:
            try:
                yield streams
            finally:
                self.asked.add(upstream_id)
                if self.asked == set(self.upstreams) - {"quick"}:
                    self.all_asked()
                if upstream_id != "quick":
                    with anyio.fail_after(20, shield=True):
                        await self.may_end.wait()

    def all_asked(self) -> None:
        """Called when the last one was asked to end, before any has."""
        self.may_end.set()


async def test_every_upstream_is_asked_to_end_before_any_has_ended(tmp_path: Path) -> None:
    streams = SlowToEnd("a", "b", "c")
    settings = settings_for(streams.upstreams)
    async with open_gateway(settings, paths_in(tmp_path), identity="test", open_streams=streams) as gateway:
        await gateway.refresh(20)
    assert streams.asked == {"a", "b", "c"}


async def test_the_upstreams_that_are_waited_for_are_named(tmp_path: Path) -> None:
    streams = SlowToEnd("slow", "quick")
    said: list[str] = []

    class Hear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "to end" in record.getMessage():
                said.append(f"{record.levelname} {record.getMessage()}")
                streams.may_end.set()

    streams.all_asked = lambda: None  # type: ignore[method-assign]
    logger, handler = logging.getLogger("pml_gateway.upstreams.pool"), Hear()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        settings = settings_for(streams.upstreams)
        async with open_gateway(settings, paths_in(tmp_path), identity="test", open_streams=streams) as gateway:
            await gateway.refresh(20)
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    assert said == ["INFO waiting for slow to end"], "nothing is wrong: a command that only warns keeps quiet"


def test_a_child_that_heeds_nothing_is_killed_in_time_for_a_stop_within_two_seconds() -> None:
    assert LEAVE_SECONDS + TERMINATE_SECONDS <= 1


async def test_a_server_whose_stored_key_changed_is_started_again_and_no_other(tmp_path: Path) -> None:
    streams = MemoryStreams({name: ScriptedServer([tool("t")]) for name in ("keyed", "plain")})
    settings = settings_for(streams.upstreams)
    keyed = settings.servers["keyed"].model_copy(update={"env": {"T": "${env:T}"}})
    settings = settings.model_copy(update={"servers": {**settings.servers, "keyed": keyed}})
    paths = paths_in(tmp_path)
    here = WorkingDirectory(tmp_path, {"PML_HOME": str(paths.home)})
    store_variables(paths.secrets_file, {"T": "wrong-key"})
    async with open_gateway(settings, paths, identity="test", open_streams=streams, working_directory=here) as gateway:
        await gateway.refresh(20)
        before = dict(gateway.pool.upstreams)

        store_variables(paths.secrets_file, {"T": "right-key"}, ["T"])
        await gateway.reload(settings)

        after = gateway.pool.upstreams
        assert after["plain"] is before["plain"]
        assert after["keyed"] is not before["keyed"]
