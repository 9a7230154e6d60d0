"""Tools that one session put on its own list, until it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pml_gateway.catalog.model import Catalog, CatalogTool
from pml_gateway.types import ExposureMode

FOCUS = "focus"
"""The meta-tool's name."""

LISTS_AGAIN_WITHIN = 2.0
"""Seconds after a notice within which a client lists again that follows notices."""

Source = tuple[str, str]
"""A server and its own name of a tool, which stay when the tool is renamed."""

Shows = Callable[[CatalogTool], bool]
"""Whether a tool of the catalog exists for the client."""


@dataclass(frozen=True, slots=True)
class Focused:
    """What a session has on its list beside what its mode lists: tools, and the meta-tool that puts them there."""

    tools: tuple[CatalogTool, ...] = ()
    is_offered: bool = False

    def __bool__(self) -> bool:
        return bool(self.tools) or self.is_offered


NOT_FOCUSED = Focused()


def _nobody() -> None:
    return


@dataclass(slots=True)
class Focus:
    """What a handshake session focused on. Who `follows` notices is offered the meta-tool without a setting.

    `on_change` tells that its list may be another one now.
    """

    sources: tuple[Source, ...] = ()
    follows: bool = False
    on_change: Callable[[], None] = _nobody
    _told_at: float | None = None

    def told(self, now: float) -> None:
        """The client was told that its list of tools changed."""
        self._told_at = now

    def listed(self, now: float) -> None:
        """The client lists its tools."""
        told_at, self._told_at = self._told_at, None
        if not self.follows and told_at is not None and now - told_at <= LISTS_AGAIN_WITHIN:
            self.follows = True
            self.on_change()

    def put(self, tools: Sequence[CatalogTool]) -> None:
        """Have these tools on the list, and none beside them."""
        self.sources = tuple((tool.upstream_id, tool.name) for tool in tools)
        self.on_change()

    def tools(self, catalog: Catalog, shows: Shows) -> tuple[CatalogTool, ...]:
        """Those of its tools that exist for the client now, by name."""
        found = [catalog.owned(*source) for source in self.sources]
        visible = [tool for tool in found if tool is not None and shows(tool)]
        return tuple(sorted(visible, key=lambda tool: tool.qualified_name))


def focused(focus: Focus | None, mode: ExposureMode, catalog: Catalog, shows: Shows) -> Focused:
    """What a session's focus adds to its list; nothing where there is no session, or everything is listed already."""
    if focus is None or not (focus.sources or focus.follows) or mode is ExposureMode.FULL_PROXY:
        return NOT_FOCUSED
    return Focused(focus.tools(catalog, shows), focus.follows)
