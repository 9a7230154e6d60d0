"""Doctor: how well tools are found, by the model, the index and the manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pml_gateway.catalog.manifest import Manifest, ManifestFile
from pml_gateway.config.document import is_there
from pml_gateway.config.findings import Area, Finding, SettingsCase, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.errors import ModelError
from pml_gateway.index.models import load_embedder
from pml_gateway.reports.doctor.cases import MachineCase, StartedCase
from pml_gateway.storage.places import MANIFEST, obstacle
from pml_gateway.text import counted, span
from pml_gateway.types import Ranking

PROBE = "a tool"


def model(case: SettingsCase) -> Iterator[Finding]:
    """Check that the embedding model can be loaded."""
    name = case.settings.search.model
    if case.settings.search.ranking is Ranking.LEXICAL:
        what = "search.ranking is lexical: tools are found by their words alone"
        yield Finding(Area.SEARCH, Severity.NOTE, "", what, "set search.ranking: fused for better answers")
        return
    try:
        load_embedder(name)
    except ModelError as error:
        what = f"{error.message}; tools are found by their words alone"
        yield Finding(Area.SEARCH, Severity.WARNING, f"model {name}", what, error.hint)
    else:
        yield Finding(Area.SEARCH, Severity.OK, f"model {name}", "is there and loads")


def index(case: StartedCase) -> Iterator[Finding]:
    """Check what searches use: the model and the index."""
    state = case.state
    count = len(state.index.documents) if state.index is not None else 0
    if state.index is None or not case.is_indexed:
        what = f"not built in time ({count} of {counted(len(state.catalog.tools), 'tool')})"
        fix = "large catalogs take a while at first; run it again, or leave a gateway running"
        yield Finding(Area.SEARCH, Severity.WARNING, "index", what, fix)
        return
    wanted = state.settings.search.ranking
    ranking = state.index.search(PROBE, limit=1).ranking if count else wanted
    what = f"{counted(count, 'tool')}, ranking {ranking}"
    if ranking is not wanted:
        yield Finding(Area.SEARCH, Severity.WARNING, "index", f"{what} instead of {wanted}", "see the model above")
    else:
        yield Finding(Area.SEARCH, Severity.OK, "index", what)


def examples(case: StartedCase) -> Iterator[Finding]:
    """Count the tools of which it is known what people ask for."""
    documents = case.state.index.documents if case.state.index is not None else ()
    known = sum(1 for document in documents if document.examples)
    if not case.settings.search.example_queries:
        what = "search.example_queries is false: tools are found without them"
    else:
        what = f"known for {known:,} of {counted(len(documents), 'tool')}"
        what += "; pml enrich writes some for the others" if known < len(documents) else ""
    yield Finding(Area.SEARCH, Severity.OK, "example queries", what)


def manifest(case: MachineCase) -> Iterator[Finding]:
    """Check the cached listings for the next start, before a gateway is opened, which rewrites them."""
    if not any(definition.enabled for definition in case.settings.servers.values()):
        return
    file = ManifestFile(case.paths.manifest_dir, case.identity, case.settings.naming.prefix)
    known, folder = file.load(), file.path.parent
    is_usable = is_there(file.path) and known != Manifest()
    if not is_usable and (reason := obstacle(folder)):
        what = f"there is none, and {folder} cannot be written ({reason}): {MANIFEST.consequence}"
        yield Finding(Area.SEARCH, Severity.NOTE, "manifest", what)
    elif not is_there(file.path):
        yield Finding(Area.SEARCH, Severity.OK, "manifest", "there is none yet; this run writes it")
    elif known == Manifest():
        yield Finding(
            Area.SEARCH, Severity.WARNING, "manifest", f"{file.path} is unreadable", "this run writes it anew"
        )
    else:
        yield _age(known, case.settings)


def _age(known: Manifest, settings: Settings) -> Finding:
    entries = {name: entry for name, entry in known.entries.items() if name in settings.servers}
    changed = [name for name, entry in entries.items() if entry.fingerprint != settings.servers[name].fingerprint()]
    if not entries:
        return Finding(Area.SEARCH, Severity.OK, "manifest", "no server's tools are known yet; this run asks for them")
    oldest = min(entry.listed_at for entry in entries.values())
    what = f"tools of {counted(len(entries), 'server')}, the oldest list {span(time.time() - oldest)} old"
    if changed:
        what += f"; changed since: {', '.join(changed)}"
    return Finding(Area.SEARCH, Severity.OK, "manifest", what)
