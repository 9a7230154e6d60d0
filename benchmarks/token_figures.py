"""What lists cost, as the documents and presets say it: measured once, written everywhere, and found where it differs.

`python -m benchmarks.run_tokens --write` measures, keeps the figures in `results/tokens.json` and writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pml_gateway.config.settings import KNOWN_META_TOOLS
from pml_gateway.exposure.instructions import Systems
from pml_gateway.exposure.token_count import count_tokens
from pml_gateway.meta.meta_tools import ALL_META_TOOLS

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "tokens.json"
DOCS = Path("pml_gateway") / "docs"

SYSTEMS = (
    *("github", "gitlab", "linear", "atlassian", "slack", "notion"),
    *("google-drive", "filesystem", "playwright", "postgres", "sentry", "context7"),
)
"""Twelve systems, as many as the search names."""

FEW = 3
"""The meta-tools that search, describe and call."""

BAR = 29
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class ListFigure:
    """The median list of one preset."""

    tools: int
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """One measurement; `meta_tools` and `few` are the default meta-tools and the first three, twelve systems named."""

    tools: int
    servers: int
    intents: int
    lists: dict[str, ListFigure]
    meta_tools: int
    few: int

    @property
    def full(self) -> int:
        """Tokens of every tool."""
        return self.lists["full_proxy"].tokens

    @property
    def each(self) -> int:
        """Tokens of one tool."""
        return round(self.full / self.tools)

    def about(self, tools: int) -> int:
        """Tokens of the meta-tools and so many tools, in hundreds."""
        return round((self.meta_tools + tools * self.each) / 100) * 100

    def chart(self) -> str:
        """The lists as lines with bars."""
        return "\n".join(
            f"{preset:18} {figure.tools:5} tools {figure.tokens:9,} tokens  {_bar(figure.tokens / self.full)}"
            for preset, figure in self.lists.items()
        )


def meta_tool_tokens() -> tuple[int, int]:
    """What the default meta-tools and the first three of them cost with twelve systems named."""
    definitions = [tool.definition(Systems(SYSTEMS)) for tool in ALL_META_TOOLS if tool.name in KNOWN_META_TOOLS]
    whole, few = (json.dumps(some, separators=(",", ":")) for some in (definitions, definitions[:FEW]))
    return count_tokens(whole), count_tokens(few)


def saved() -> TokenFigures:
    """The figures of the last measurement that was written."""
    raw = json.loads(RESULTS.read_text(encoding="utf-8"))
    return TokenFigures(**{**raw, "lists": {name: ListFigure(**each) for name, each in raw["lists"].items()}})


def save(figures: TokenFigures) -> None:
    """Keep the figures, and write them wherever they are said."""
    RESULTS.write_text(f"{json.dumps(asdict(figures), indent=2)}\n", encoding="utf-8")
    for file, text in written(figures):
        file.write_text(text, encoding="utf-8")


def written(figures: TokenFigures) -> Iterator[tuple[Path, str]]:
    """Every file that says figures, as it should be.

    Raises:
        ValueError: a place that is known to say them does not.
    """
    places: dict[Path, list[tuple[str, str]]] = {}
    for name, pattern, said in _places(figures):
        places.setdefault(REPOSITORY / name, []).append((pattern, said))
    for file, patterns in places.items():
        text = file.read_text(encoding="utf-8")
        for pattern, said in patterns:
            found = list(re.finditer(pattern, text, re.DOTALL))
            if len(found) != 1:
                raise ValueError(f"{file.relative_to(REPOSITORY)} says {pattern!r} {len(found)} times instead of once")
            text = text[: found[0].start(1)] + said + text[found[0].end(1) :]
        yield file, text


def _places(figures: TokenFigures) -> Iterator[tuple[Path, str, str]]:
    """File, pattern and figure: the pattern's group is where the figure stands."""
    number = r"([\d,]+)"
    full, each, meta = f"{figures.full:,}", f"{figures.each:,}", f"{figures.meta_tools:,}"
    for document in (Path("README.md"), DOCS / "figures.md"):
        yield document, r"```text\n(full_proxy .*?)\n```", figures.chart()
    yield DOCS / "figures.md", rf"six default meta-tools, 12 systems named \| {number} \|", meta
    yield DOCS / "figures.md", rf"that is {number} tokens", f"{figures.lists['meta_only'].tokens:,}"
    yield DOCS / "figures.md", rf"twelve well-known servers {number}\.", meta
    yield DOCS / "meta-tools.md", rf"the default six cost {number} tokens", meta
    presets = Path("presets")
    yield presets / "full_proxy.yaml", rf"Cost: {number} o200k_base", each
    yield presets / "full_proxy.yaml", rf"{number} before the first word", full
    yield presets / "meta_only.yaml", rf"Cost: {number} o200k_base", meta
    yield presets / "meta_only.yaml", rf"\({number} for search_tools", f"{figures.few:,}"
    yield presets / "meta_only.yaml", rf"cost {number} tokens", full
    yield presets / "meta_only.yaml", rf"tokens, {number} each", each
    for preset, listed in (("semantic", 50), ("hybrid_permissive", 50), ("hybrid_balanced", 20)):
        file = presets / f"{preset}.yaml"
        yield file, rf"Cost: {number} o200k_base", meta
        yield file, rf"plus {number} for each", each
        yield file, rf"{listed} tools make about {number}", f"{figures.about(listed):,}"
        yield file, rf"cost {number} tokens", full


def _bar(share: float) -> str:
    eighths = max(round(share * BAR * 8), 1)
    return f"{'█' * (eighths // 8)}{_EIGHTHS[eighths % 8]}".rstrip()
