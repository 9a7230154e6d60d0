"""Skills that models read: how a hit says so, and the file that is meant by a URI or a name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote

from pml_gateway.catalog.prompts_and_resources import Offer, Route
from pml_gateway.catalog.skills import folder_of, is_within, skill_files, skill_name
from pml_gateway.catalog.uris import canonical, unusable
from pml_gateway.errors import InvalidInputError, ToolHeldBackError, ToolNotFoundError, UpstreamProtocolError
from pml_gateway.gateway.call import READ_RESULT, Attempt, CallContext, search_hint
from pml_gateway.gateway.calling import ask_upstream
from pml_gateway.gateway.decisions import CallRefusal, Decision
from pml_gateway.policy.view import View
from pml_gateway.results.content import Content
from pml_gateway.skills.folders import MAIN_FILE
from pml_gateway.types import JsonObject

MAX_FILES = 50
"""Maximum number of further files that are named next to a SKILL.md, about 1,000 tokens."""


def reading_of(context: CallContext, skill: Offer) -> str:
    """Return how a client reads a skill."""
    tool = context.meta_tools.find(READ_RESULT)
    if tool is None or not tool.is_enabled(context.state.settings):
        return f"resources/read {skill.public}"
    return f"{READ_RESULT}({json.dumps({'ref': skill.public}, ensure_ascii=False)})"


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a visible skill, by the URI that clients use."""

    skill: Offer
    uri: str

    async def read(self, context: CallContext) -> tuple[JsonObject, Content]:
        """Return what is said about the file, and its content.

        Raises:
            GatewayError: the skill has no such file, or its server failed.
        """
        attempt = _SkillRead(context, self)
        result = await attempt.run()
        said: JsonObject = {"skill": skill_name(self.skill), "server": self.skill.upstream_id}
        if self.uri == self.skill.public and (more := attempt.other_files):
            said["files"] = more[:MAX_FILES]
            if len(more) > MAX_FILES:
                said["more_files"] = len(more) - MAX_FILES
        return said, _content(result, self.uri)


def skill_file(view: View, ref: str) -> SkillFile | None:
    """Return the file that a reference means: a URI within a skill, a skill's name, or a path that begins with it.

    Raises:
        GatewayError: several skills have this name, or no skill has this URI.
    """
    if "://" in ref:
        uri = ref.rstrip("/")
        for skill in sorted(view.skills.values(), key=lambda each: -len(each.public)):
            folder = folder_of(skill.public)
            if canonical(uri) == canonical(folder):
                return SkillFile(skill, skill.public)
            if not unusable(uri) and is_within(folder, uri):
                return SkillFile(skill, uri)
        raise ToolNotFoundError(f"no skill has the file {ref[:200]!r}", hint=search_hint(view, view.client))
    asked, _, path = ref.partition("/")
    server, _, name = asked.rpartition(":")
    named = [skill for skill in view.skills.values() if skill_name(skill) == name and server in ("", skill.upstream_id)]
    if len(named) > 1:
        uris = ", ".join(skill.public for skill in named[:MAX_FILES])
        raise InvalidInputError(f"{len(named)} skills are named {asked!r}", hint=f"give one of {uris}")
    if not named:
        return None
    [skill] = named
    return SkillFile(skill, f"{folder_of(skill.public)}/{quote(path or MAIN_FILE)}")


class _SkillRead(Attempt):
    """A file of a skill, read at the server of the skill and no other."""

    def __init__(self, context: CallContext, file: SkillFile) -> None:
        super().__init__(context, "resources/read", file.uri, {"uri": file.uri})
        self._skill = file.skill
        self._route: Route | None = None

    @property
    def other_files(self) -> list[str]:
        """Return the URIs under which clients read the other files of the skill."""
        upstream_id, view = self._skill.upstream_id, self.context.view
        files = [uri for uri in skill_files(self._skill) if uri != self._skill.name]
        permitted = (uri for uri in files if view.offers.permits(upstream_id, uri))
        return [view.catalog.offers.public_uri(upstream_id, uri) for uri in permitted]

    def resolve(self) -> None:
        """Find the file among those that the skill lists."""
        self.server = self._skill.upstream_id
        listed = {canonical(uri) for uri in skill_files(self._skill)}
        for route in self.context.view.offers.routes(self.name):
            if route.upstream_id == self.server and (not listed or canonical(route.uri) in listed):
                self._route = route
                return

    async def authorise(self) -> Decision:
        """Refuse what is not a file of the skill, or does not exist for the client."""
        if self._route is not None:
            return None
        if self.context.view.offers.holds_back(self.name):
            return CallRefusal(ToolHeldBackError(self.name), "held back")
        names = ", ".join(self.other_files[:MAX_FILES]) or "none"
        return CallRefusal(
            ToolNotFoundError(
                f"the skill {skill_name(self._skill)!r} has no file {self.name[:200]!r}",
                hint=f"files beside its {MAIN_FILE}: {names}",
            )
        )

    async def send(self) -> JsonObject:
        """Return the contents, as the server sends them."""
        if self._route is None:
            raise AssertionError("refused before it is sent")
        context = self.context
        return await ask_upstream(context.gateway, self.server, self.method, {"uri": self._route.uri}, context.options)


def _content(result: JsonObject, uri: str) -> Content:
    for each in result.get("contents") or ():
        if isinstance(text := each.get("text"), str):
            return Content("text", text)
        if isinstance(blob := each.get("blob"), str):
            return Content("binary", blob, each.get("mimeType"))
    raise UpstreamProtocolError(f"{uri[:200]} was answered without content")
