"""Doctor: which servers answered, which did not, and their last words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pml_gateway.catalog.prompts_and_resources import UriConflict
from pml_gateway.catalog.uris import unusable
from pml_gateway.config.advice import hindrances
from pml_gateway.config.findings import Area, Finding, Severity
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.processes.child_log import LogReader, log_path
from pml_gateway.processes.package_faults import BROKEN_FOLDER
from pml_gateway.reports.doctor.cases import StartedCase
from pml_gateway.reports.status import need_of
from pml_gateway.text import counted
from pml_gateway.types import JsonObject
from pml_gateway.upstreams.upstream import Upstream

LAST_WORDS = 10
"""Lines of stderr that are shown of a server that failed."""

MAX_CLAIMS = 10
"""Resources that are shown of a server that lists what it should not."""

ADVERTISEMENT = "npm notice"
"""Prefix of the lines with which npm offers its next version after any error."""


class StderrTail:
    """Lines that servers write to stderr after this is created; where there are none, the last ones before."""

    def __init__(self, logs_dir: Path, definitions: Mapping[str, UpstreamDefinition]) -> None:
        self._readers = {
            name: LogReader(log_path(logs_dir, name), definition)
            for name, definition in definitions.items()
            if definition.enabled and definition.command is not None
        }
        for reader in self._readers.values():
            reader.last(0)

    def of(self, server: str) -> tuple[str, ...]:
        """Return the last lines of one server, without its secrets."""
        reader = self._readers.get(server)
        written = (reader.more() or reader.last(LAST_WORDS)) if reader is not None else ()
        lines = [line for line in written if line.strip() and not line.startswith(ADVERTISEMENT)]
        # A server that is tried again says the same again.
        return tuple(dict.fromkeys(lines[-LAST_WORDS:]))


def servers(case: StartedCase) -> Iterator[Finding]:
    """Tell of each server how it answered; a failure whose cause is known without starting it is told there."""
    for row in case.rows:
        name = row["server"]
        upstream = case.upstreams[name]
        if upstream.connector.last_error is None or not hindrances(case.settings, name, case.environ):
            yield _server(row, upstream, case)


def resources(case: StartedCase) -> Iterator[Finding]:
    """Find servers that list what is another one's, or what no client can ask for."""
    table = case.state.catalog.offers
    pairs: dict[tuple[str, str], list[UriConflict]] = {}
    for claim in table.claims:
        pairs.setdefault((claim.upstream_id, claim.owner_id), []).append(claim)
    for (server, owner), claims in pairs.items():
        what = (
            f"lists {counted(len(claims), 'resource')} of server {owner}, and is not asked for them under their own URI"
        )
        fix = f"if {server} is to answer for them, configure it before {owner}; if it should not list them, take it out"
        lines = [f"{claim.uri}: covered by {claim.template}" for claim in claims[:MAX_CLAIMS]]
        yield Finding(Area.SERVERS, Severity.WARNING, server, what, fix, tuple(ascii(line)[1:-1] for line in lines))
    for server, said in table.upstreams.items():
        listed = [] if said is None else [str(each.get("uri", "")) for each in said.resources]
        left_out = [uri for uri in listed if unusable(uri)]
        if left_out:
            what = f"lists {counted(len(left_out), 'resource')} whose URI no client can ask for, so left out"
            lines = [f"{uri[:200]!a} {unusable(uri)}" for uri in left_out[:MAX_CLAIMS]]
            yield Finding(Area.SERVERS, Severity.WARNING, server, what, "its author may want to know", tuple(lines))


def _server(row: JsonObject, upstream: Upstream, case: StartedCase) -> Finding:
    name, listed, need = upstream.upstream_id, upstream.last_listed, need_of(row)
    if need is not None and need.severity is Severity.ERROR:
        found = replace(need, details=case.last_words(name))
        folder = (
            upstream.connector.last_error.details.get(BROKEN_FOLDER)
            if upstream.connector.last_error is not None
            else None
        )
        if folder is None:
            return found
        question = f"Remove {folder}, which npx then installs anew?"
        return replace(found, question=question, npx_folder=str(folder))
    if upstream.connector.installing is not None:
        what = upstream.connector.installing.message.removeprefix(f"{name}: ")
        fix = "it goes on by itself; look again in a moment"
        return Finding(Area.SERVERS, Severity.WARNING, name, what, fix, case.last_words(name))
    if not upstream.connector.settled.is_set() or listed is None:
        what = f"did not list its tools within {case.waited:.0f} s"
        fix = f"check the server, or raise servers.{name}.connect_timeout"
        return Finding(Area.SERVERS, Severity.ERROR, name, what, fix, case.last_words(name))
    tools = counted(len(listed.tools), "tool")
    version = f" {listed.server_version}" if listed.server_version else ""
    what = f"{tools} ({listed.server_name or 'unnamed'}{version}, {listed.era})"
    capabilities = listed.offers.capabilities
    if not (listed.tools or capabilities.offers("prompts") or capabilities.offers("resources")):
        fix = f"check its arguments and rights; its messages: pml upstreams logs {name}"
        return Finding(Area.SERVERS, Severity.WARNING, name, f"answers, and has nothing to offer: {what}", fix)
    if listed.faults:
        fix = "what came is used; its author may want to know, and it is asked for again from time to time"
        lines = tuple(fault.removeprefix(f"{name}: ") for fault in listed.faults)
        return Finding(Area.SERVERS, Severity.WARNING, name, f"gives faulty lists: {what}", fix, lines)
    return Finding(Area.SERVERS, Severity.OK, name, what)
