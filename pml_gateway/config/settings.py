"""The whole configuration as one frozen tree: names, types, defaults and limits."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pml_gateway.config.limits import Limits
from pml_gateway.config.servers import ExtensionSettings, Transport, UpstreamDefinition, one_or_more
from pml_gateway.hosts import ANY_PORT, read_authority, read_origin
from pml_gateway.secrets.references import is_reference
from pml_gateway.types import MODES, Effect, ExposureMode, Ranking

KNOWN_META_TOOLS = ("search_tools", "tool_schema", "call_tool", "call_batch", "execute_workflow", "read_result")
"""In the fixed order in which they are listed."""

CALLS_BY_EFFECT: Mapping[str, Effect] = MappingProxyType(
    {
        "call_tool_read": Effect.READ,
        "call_tool_write": Effect.WRITE,
        "call_tool_destructive": Effect.DESTRUCTIVE,
    }
)
"""The meta-tools that call tools up to an effect, so that a client can be allowed some of them; off by default."""

META_TOOLS = (*KNOWN_META_TOOLS, *CALLS_BY_EFFECT, "gateway_info")
"""All that `gateway.meta_tools` may name; others than the known ones are off by default."""

_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]{1,48}")
_LANGUAGE = re.compile(r"[^\W\d_][\w -]{1,30}")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B)?\s*$", re.IGNORECASE)
_FACTORS = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}

SKILLS_SERVER = "skills"
"""The id of the server whose skills are those of the setting `skills`."""

SHORTEST_NAME = 16
"""Lower bound of the maximum length of tool names: a hash and a few characters before it."""


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError(f"{value!r} is no size; write for example 4MiB, 500KB or 1048576")
    return int(float(match[1]) * _FACTORS[(match[2] or "B").lower()])


ByteSize = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
"""Bytes, also written as `4MiB`."""


def _no_literal(key: str | None) -> str | None:
    if key is not None and not is_reference(key):
        raise ValueError("a key is never written into the file; write ${env:NAME} or ${file:PATH}")
    return key


KeyReference = Annotated[str | None, AfterValidator(_no_literal)]
"""A reference to a key, such as `${env:NAME}`."""


def _meta_tools(names: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in names if name not in META_TOOLS]
    if unknown:
        raise ValueError(f"no such meta-tool: {', '.join(unknown)}; choose from {', '.join(META_TOOLS)}")
    return names


MetaToolNames = Annotated[tuple[str, ...], AfterValidator(_meta_tools)]

DirectCalls = Literal["visible", "listed"]
"""The tools that clients may call by name: all that they may see, or those on their list alone."""


class Section(BaseModel):
    """A frozen part of the tree that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class HybridSettings(Section):
    """Selection of the hybrid mode; semantic uses the cap and the threshold."""

    expose_meta_tools: bool = Field(default=True, description="list the meta-tools too")
    expose_underlying_tools: bool = Field(default=True, description="false: list the meta-tools only")
    apply_semantic_filter: bool = Field(
        default=True, description="false: the first tools in catalog order, whatever the intent"
    )
    max_underlying_tools: int = Field(
        default=50, ge=0, description="tools listed at most; whitelisted ones count, but are never cut"
    )
    semantic_threshold: float = Field(
        default=0.6,
        ge=0,
        le=1,
        description="score from which a tool is listed: 0.5 / 0.6 / 0.7 keep the right one in 94 / 91 / 87 % of cases",
    )
    max_tokens: int | None = Field(default=None, gt=0, description="o200k_base tokens of the listed upstream tools")
    fallback: Literal["none", "usage"] = Field(
        default="none", description="what fills the list when there is no intent; usage: the most used tools"
    )
    whitelisted_tools: tuple[str, ...] = Field(
        default=(), description="always listed in hybrid: qualified names, `server:tool` and globs"
    )


class FullProxySettings(Section):
    """Additions of full_proxy to the upstream tools."""

    expose_meta_tools: bool = Field(default=False, description="list the meta-tools in addition to every tool")


class NamespaceSettings(Section):
    """Groups of `gateway.style: namespaces`: one namespace per upstream, unless a group takes its tools."""

    groups: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="namespace to tools: qualified names, `server:tool` and globs; first match"
    )
    split_by_access: bool = Field(default=False, description="<name>_read and <name>_write, by the tools' annotations")

    @field_validator("groups")
    @classmethod
    def _are_tool_names(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        wrong = [name for name in groups if not _NAMESPACE.fullmatch(name) or name in META_TOOLS]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} cannot name a namespace; use up to 48 letters, digits, _ and -, and no meta-tool's name"
            )
        if empty := [name for name, entries in groups.items() if not entries]:
            raise ValueError(f"{empty[0]!r} has no tools; name some, as in server:*, or take it out")
        return groups


class GatewaySection(Section):
    """Exposure of the catalog to clients."""

    tools_exposure: ExposureMode = Field(default=ExposureMode.META_ONLY, description="how much clients see")
    intent: str | None = Field(
        default=None, description="what the work is about; selects tools where the client sends no intent"
    )
    follow: Literal["off", "searches"] = Field(
        default="off", description="searches: what a session just searched for and used selects its lists as well"
    )
    style: Literal["tools", "namespaces"] = Field(
        default="tools", description="namespaces: one tool per server, with an action, and search_tools"
    )
    namespaces: NamespaceSettings = NamespaceSettings()
    legacy_tools: bool = Field(
        default=False, description="with namespaces: list the original tools too, marked as legacy"
    )
    meta_tools: MetaToolNames = Field(
        default=KNOWN_META_TOOLS,
        description="which meta-tools there are; also call_tool_read, call_tool_write, "
        "call_tool_destructive and gateway_info",
    )
    instructions_tokens: int = Field(
        default=400, ge=0, description="o200k_base tokens of what clients are told when they connect; 0: nothing"
    )
    direct_calls: DirectCalls = Field(
        default="visible", description="visible: a tool is callable by name though not listed; listed: only if it is"
    )
    blacklisted_tools: tuple[str, ...] = Field(
        default=(), description="denied in every mode on every path: qualified names, `server:tool` and globs"
    )
    sets: tuple[str, ...] = Field(
        default=(),
        description="every client sees only what one of these sets gives; a project's file may name some, to narrow",
    )
    sets_by_client_name: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="the same for clients that call themselves so (globs, in any case); a preference, and no right: "
        "names can be claimed",
    )
    hybrid: HybridSettings = HybridSettings()
    full_proxy: FullProxySettings = FullProxySettings()

    def selects_by_intent(self, mode: ExposureMode) -> bool:
        """Return True if lists of `mode` depend on an intent."""
        filters = self.hybrid.apply_semantic_filter and self.hybrid.expose_underlying_tools
        return MODES[mode].reads_intent and (filters or mode is not ExposureMode.HYBRID)


class NamingSettings(Section):
    """Names of upstream tools for clients."""

    prefix: Literal["always", "on_collision", "never"] = Field(
        default="always", description="when a tool is named server__tool"
    )
    max_length: int = Field(
        default=52,
        ge=SHORTEST_NAME,
        le=128,
        description="longest name of a tool or namespace; clients put a prefix before it and allow 60 to 64 in all",
    )


class SearchSettings(Section):
    """Search for tools."""

    model: str = Field(default="builtin", description="builtin, or a sentence-transformers model: name or folder")
    ranking: Ranking = Field(default=Ranking.FUSED, description="the evidence that orders hits")
    min_score: float = Field(default=0.3, ge=0, le=1, description="score from which search_tools answers a tool")
    limit: int = Field(default=5, ge=1, le=50, description="hits of a search that asks for no number")
    example_queries: bool = Field(
        default=True, description="find tools also by what is asked for them (pml example-queries list)"
    )


class ReferenceSettings(Section):
    """Storage of results that are answered by reference."""

    mode: Literal["off", "workflow", "meta", "all"] = Field(
        default="meta",
        description="whose results are stored: batch slots and steps; meta: also call_tool; all: also direct calls",
    )
    threshold_tokens: int = Field(
        default=4000, gt=0, description="results over this are stored and answered by reference"
    )
    media_bytes: ByteSize = Field(
        default=4 * 1024**2, description="images and audio of one result are stored over this, and shown up to it"
    )
    ttl_seconds: float = Field(default=3600, gt=0, description="how long a stored result is kept")
    max_bytes: ByteSize = Field(
        default=256 * 1024**2, description="of all stored results; the least recently used go first"
    )


class StorageSettings(Section):
    """Location of content that need not be a file in the gateway's folder."""

    url: str | None = Field(
        default=None,
        description="redis://, rediss:// or unix:// URL of a Redis server that several gateways share; also written in "
        "one line, as `storage: ${env:PML_REDIS}`",
    )
    key: KeyReference = Field(
        default="${env:PML_STORAGE_KEY}",
        description="with `url`: ${env:NAME} or ${file:PATH} of a random text, the same for all replicas, by which "
        "what lies in Redis is encrypted",
    )
    results: str = Field(default="memory", description="stored results without `url`: memory, disk or disk:<folder>")

    @field_validator("results")
    @classmethod
    def _is_a_store(cls, store: str) -> str:
        if store in ("memory", "disk") or store.startswith("disk:"):
            return store
        raise ValueError("unknown store; write memory, disk or disk:<folder>, or name a Redis server in storage.url")


class LearningSettings(Section):
    """Learning from results."""

    output_shapes: bool = Field(default=True, description="field names and types of tools that declare no output")


class WorkflowSettings(Section):
    """Budgets of one workflow; a request may only tighten them."""

    max_steps: int = Field(default=50, ge=1, description="steps of one workflow")
    max_tokens: int = Field(default=50_000, ge=1, description="tokens of what the steps of one workflow return")
    max_seconds: float = Field(default=300, gt=0, description="time of one workflow")
    max_parallel: int = Field(default=8, ge=1, description="steps or batch slots at the same time")


class LimitSettings(Limits):
    """Limits on the calls of each client, and of one request with all its calls and steps."""

    request_steps: int = Field(
        default=2_000_000, ge=1000, description="evaluations of expressions and schemas; about two seconds"
    )
    request_parts: int = Field(
        default=1_000_000, ge=1000, description="values that its expressions build; about 100 MB"
    )
    on_outage: Literal["open", "closed"] = Field(
        default="open",
        description="while the Redis of storage.url does not answer: each gateway counts for itself, or calls with a "
        "limit are refused",
    )


class BreakerSettings(Section):
    """Circuit breaker: when and for how long calls to an upstream that does not answer are refused."""

    failures: int = Field(default=5, ge=0, description="calls in a row without an answer; 0 never refuses")
    pause: float = Field(default=30, gt=0, description="seconds until one call is let through to see")


class UpstreamSettings(Section):
    """Limits for every upstream that sets none of its own; times in seconds."""

    call_timeout: float = Field(
        default=60,
        gt=0,
        description="seconds a call may take without an answer; progress that its server reports renews them",
    )
    call_timeout_total: float = Field(
        default=1800, gt=0, description="seconds a call may take in all, however much progress its server reports"
    )
    connect_timeout: float = Field(default=15, gt=0, description="seconds until a server must have answered its start")
    first_start_timeout: float = Field(
        default=300,
        gt=0,
        description="seconds a package runner (npx, uvx, docker run, ...) may take to install what it starts first",
    )
    refresh_interval: float = Field(
        default=60, gt=0, description="seconds between listings of a connected server, whatever it announces"
    )
    max_concurrent: int = Field(default=8, ge=1, description="calls to one server at the same time")
    max_queue: int = Field(default=64, ge=0, description="calls that wait for one server; more are answered BUSY")
    idle_timeout: float = Field(default=600, gt=0, description="seconds after which an unused connection is closed")
    max_sessions: int = Field(
        default=64, ge=1, description="sessions of single clients to one server, in addition to the shared one"
    )
    question_timeout: float = Field(
        default=600, gt=0, le=900, description="seconds a server's question waits for the client's answer"
    )
    max_message_bytes: ByteSize = Field(
        default=ByteSize(64 * 1024**2), ge=64 * 1024, description="longest message of a server; longer ones are refused"
    )
    extensions: ExtensionSettings = Field(default=ExtensionSettings(), description="of every server")
    breaker: BreakerSettings = BreakerSettings()


class HttpSettings(Section):
    """The HTTP endpoint."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8765, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="values of the Host header accepted in addition to loopback and `host`"
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="values of the Origin header accepted in addition to those of the hosts"
    )
    max_body_bytes: ByteSize = Field(default=4 * 1024**2, description="longest request")
    header_seconds: float = Field(default=10, gt=0, description="seconds in which a request's headers must arrive")
    body_seconds: float = Field(
        default=60, gt=0, description="seconds in which its body must; it may stand still for a quarter of them"
    )
    max_connections: int = Field(
        default=2000, ge=1, description="open connections; less where the system allows too few open files"
    )
    max_connections_per_address: int = Field(
        default=1000, ge=1, description="of them from one address, which behind a reverse proxy is the proxy's"
    )
    max_client_sessions: int = Field(
        default=1000, ge=1, description="sessions of one client; with one more, the one it used longest ago ends"
    )
    session_idle_seconds: float = Field(default=1800, gt=0, description="after which an unused session ends")
    shutdown_seconds: float = Field(default=10, gt=0, description="time that running calls get to end")
    drain_seconds: float = Field(
        default=0,
        ge=0,
        description="time before the end in which requests are still accepted, while /readyz says 503: a load balancer "
        "sends no new ones meanwhile",
    )
    advertise: str | None = Field(
        default=None,
        description="URL by which other replicas reach this one, such as http://10.0.0.5:8765; by default the address "
        "that it listens on, or this machine's",
    )
    console: bool = Field(
        default=False,
        description="serve the console at /console, to holders of the owner's token (`pml keys add --owner`)",
    )
    metrics: bool = Field(default=False, description="serve /metrics for Prometheus; the operator's, not the clients'")
    metrics_key: KeyReference = Field(
        default=None, description="${env:NAME} or ${file:PATH}; needed for /metrics where `clients:` have keys"
    )

    @field_validator("advertise")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        origin = None if value is None else read_origin(value.rstrip("/"))
        if value is not None and (origin is None or origin[0] not in ("http", "https")):
            raise ValueError(
                f"{value[:80]!r} is not an http:// or https:// URL without a path, such as http://10.0.0.5:8765"
            )
        return value

    @field_validator("allowed_hosts", "allowed_origins")
    @classmethod
    def _can_be_sent(cls, values: tuple[str, ...], field: ValidationInfo) -> tuple[str, ...]:
        is_host = field.field_name == "allowed_hosts"
        read, example = (read_authority, "mcp.example.com") if is_host else (read_origin, "https://app.example.com")
        for value in values:
            if read(value.removesuffix(ANY_PORT)) is None:
                raise ValueError(f"{value[:80]!r} is no {'host' if is_host else 'origin'}; write for example {example}")
        return values


class LocalSettings(Section):
    """The one gateway that the programs on this machine share over stdio."""

    attach: bool = Field(
        default=True,
        description="clients that start `pml serve` share one gateway on this machine; false: each has one of its own",
    )
    idle_minutes: float = Field(
        default=30, gt=0, description="after which that gateway, where a client started it, ends without a client"
    )


class LogSettings(Section):
    """Lines on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe lines that are written"
    )
    format: Literal["auto", "text", "json"] = Field(
        default="auto", description="json: one object a line; auto is text, coloured on a terminal"
    )

    @field_validator("level", mode="before")
    @classmethod
    def _in_any_case(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level


class TelemetrySettings(Section):
    """Export of spans and metrics, and detail of tools in metrics."""

    otlp_endpoint: str | None = Field(
        default=None, description="OTLP over HTTP, such as http://127.0.0.1:4318; also by OTEL_* variables"
    )
    max_tools: int = Field(default=200, ge=0, description="tools with metrics of their own; the rest are 'other'")

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_http(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("http://", "https://", "${")):
            raise ValueError("no http or https URL; spans go out by OTLP over HTTP, whose usual port is 4318")
        return endpoint


KeptArguments = Literal["off", "keys", "masked", "whole"]


class ActivitySettings(Section):
    """Local records of calls, searches and lists."""

    record: bool = Field(default=True, description="record calls, searches and lists on this machine")
    arguments: KeptArguments = Field(
        default="keys",
        description="what is kept of arguments; keys: names and sizes; masked: values without what looks like a "
        "secret; whole: also large ones, without known secrets; off: nothing",
    )
    sink: Literal["file", "redis"] = Field(
        default="file",
        description="redis: also pass records on to the other replicas, so that each has those of all",
    )
    max_days: int = Field(default=30, ge=1, description="older records are deleted")
    max_bytes: int = Field(
        default=200 * 1024 * 1024, ge=1024 * 1024, description="size of all records; the oldest are deleted beyond"
    )

    @property
    def keeps_values(self) -> bool:
        """Return True if arguments are kept with their values."""
        return self.record and self.arguments in ("masked", "whole")


class AuditSettings(Section):
    """Accesses as lines of JSON, to be kept as evidence."""

    path: str = Field(
        default="auto",
        description="file of the audit; auto: audit.jsonl in the gateway's folder if `clients:` has two entries, or "
        "it is required; off: none",
    )
    required: bool = Field(default=False, description="refuse what cannot be written to it")
    arguments: KeptArguments = Field(default="keys", description="what is kept of arguments, as activity.arguments")

    @model_validator(mode="after")
    def _has_a_file(self) -> Self:
        if self.required and self.path == "off":
            raise ValueError("audit.required needs a file; set audit.path to one, or to auto")
        return self


class TrustSettings(Section):
    """Handling of new and changed definitions: tools, prompts, templates, instructions, versions."""

    changes: Literal["notice", "hold_attacks", "review"] = Field(
        default="hold_attacks",
        description="hold_attacks: a change is served at once unless it is an attack; notice: every change is; "
        "review: none is, until you approve it",
    )
    new_servers: Literal["accept", "review"] = Field(
        default="accept", description="review: nothing of a new server is served until you approve it"
    )

    @field_validator("changes", mode="before")
    @classmethod
    def _has_a_current_name(cls, changes: object) -> object:
        renamed = {"accept": "notice", "risky": "hold_attacks"}
        if isinstance(changes, str) and changes in renamed:
            raise ValueError(f"{changes!r} is now called {renamed[changes]!r}")
        return changes


class EnrichSettings(Section):
    """The language model that `pml enrich` has write what people ask for when they need a tool."""

    command: tuple[str, ...] = Field(
        default=(),
        description="a command that reads a prompt on stdin and prints the answer, as `[claude, -p]`",
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="variables of that command in addition to the usual few; secrets as references",
    )
    endpoint: str | None = Field(
        default=None, description="base URL of an OpenAI-compatible service, used where there is no command"
    )
    model: str | None = Field(default=None, description="the model that the endpoint is asked for")
    key: KeyReference = Field(default=None, description="its key: ${env:NAME} or ${file:PATH}")
    languages: tuple[str, ...] = Field(
        default=("en",),
        min_length=1,
        max_length=8,
        description="languages you ask in: eight examples a tool, four more for each further language, at most 16",
    )
    timeout: float = Field(default=300, gt=0, le=3600, description="seconds that one prompt may take, retries included")
    max_tokens: int = Field(
        default=500_000, gt=0, description="expected tokens of one unattended run; the next run continues"
    )

    @field_validator("languages")
    @classmethod
    def _are_names(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        for language in languages:
            if not _LANGUAGE.fullmatch(language):
                raise ValueError(f"{language[:40]!r} is no language; write for example en, de, pt-BR or Japanese")
        return languages

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("https://", "http://")):
            raise ValueError(f"{endpoint[:80]!r} is no URL; write for example https://api.openai.com/v1")
        return endpoint


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_list), Field(min_length=1)]
"""Names and globs; a single one is also written without a list."""

MatchedEffect = Literal["read", "write", "destructive", "open_world"]
"""An unknown effect counts as destructive. `open_world` is everything that declares to reach beyond its server, and
what changes something without denying that, as MCP has it."""

Effects = Annotated[tuple[MatchedEffect, ...], BeforeValidator(_as_list), Field(min_length=1)]


class MatchSettings(Section):
    """The calls that a rule is about: those that fit everything that is given here."""

    tool: Names | None = Field(default=None, description="qualified names, `server:tool` and globs")
    server: Names | None = Field(default=None, description="ids of servers, and globs")
    effect: Effects | None = Field(
        default=None, description="read, write, destructive (also unknown effects) or open_world; one or several"
    )
    client: Names | None = Field(
        default=None, description="names under `clients:`, local, owner (commands) or anonymous; and globs"
    )
    role: Names | None = Field(default=None, description="names of the client's roles, and globs")
    where: str | None = Field(
        default=None, min_length=1, max_length=2000, description="a condition in JMESPath over the arguments"
    )

    @model_validator(mode="after")
    def _has_no_empty_key(self) -> Self:
        # A rule that lost its condition would be about more calls than its author wrote.
        if empty := [key for key in self.model_fields_set if getattr(self, key) is None]:
            raise ValueError(f"`{empty[0]}` is empty; give it a value, or take it out")
        return self


class RuleSettings(Section):
    """One rule about calls, or the preset whose rules stand in its place."""

    preset: Literal["trusting", "careful", "read_only"] | None = Field(
        default=None,
        description="careful: ask before destructive and open-world calls; read_only: deny all that may change "
        "something; trusting: allow",
    )
    match: MatchSettings = MatchSettings()
    do: Literal["allow", "ask", "deny"] | None = Field(
        default=None, description="allow the call, ask before it, or deny it"
    )
    answered_by: Literal["owner", "client"] = Field(
        default="owner",
        description="who is asked: owner (pml approvals), or the user of the client where it can be asked",
    )

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        given = self.model_fields_set
        if "preset" in given and self.preset is not None:
            if given != {"preset"}:
                raise ValueError("a preset stands alone; write other keys into an entry of their own")
        elif self.do is None:
            raise ValueError("`do` is missing; write do: allow, do: ask or do: deny")
        if "answered_by" in given and self.do != "ask":
            raise ValueError(f"`answered_by` is only for do: ask, and this rule says do: {self.do}")
        return self


RULE_PRESETS: Mapping[str, tuple[RuleSettings, ...]] = MappingProxyType(
    {
        "trusting": (RuleSettings(do="allow"),),
        "careful": (RuleSettings(match=MatchSettings(effect=("destructive", "open_world")), do="ask"),),
        "read_only": (
            RuleSettings(match=MatchSettings(effect=("read",)), do="allow"),
            RuleSettings(do="deny"),
        ),
    }
)
"""The rules that each preset stands for."""


class SetSettings(Section):
    """Named tools, prompts and resources, and how they are listed; given to any client, several together."""

    include: tuple[str, ...] = Field(
        default=("*",), description="what it gives: names of servers, qualified names, `server:tool` and globs"
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="what its clients may not have, whatever another set gives them"
    )
    effects: tuple[Effect, ...] = Field(
        default=(), description="gives only tools of these effects; prompts and resources are read; empty: of any"
    )
    mode: ExposureMode | None = Field(default=None, description="the mode of its clients; of several sets, the first")
    preset: str | None = Field(
        default=None, description="how their tools are listed, as `pml serve --preset`; of several sets, the first"
    )
    intent: str | None = Field(default=None, description="selects their tools; of several sets, the first")

    @field_validator("preset")
    @classmethod
    def _is_a_preset(cls, preset: str | None) -> str | None:
        known = [name for facts in MODES.values() for name in facts.presets]
        if preset is not None and preset not in known:
            raise ValueError(f"no preset {preset[:40]!r}; choose from {', '.join(known)}")
        return preset


class RoleApprovals(Section):
    """Times of approvals for the clients of a role, in the place of those in `approvals`."""

    hold_seconds: float | None = Field(
        default=None, ge=0, le=45, description="instead of `approvals.hold_seconds`; of several roles, the shortest"
    )
    minutes: float | None = Field(
        default=None, gt=0, le=1440, description="instead of `approvals.minutes`; of several roles, the shortest"
    )


class RoleSettings(Section):
    """Sets under one name, with what else holds for the clients of the role."""

    sets: tuple[str, ...] = Field(min_length=1, description="what its clients may see and call")
    meta_tools: MetaToolNames | None = Field(
        default=None, description="instead of `gateway.meta_tools`; of several roles, those that all of them name"
    )
    direct_calls: DirectCalls | None = Field(
        default=None, description="instead of `gateway.direct_calls`; of several roles, `listed` wins"
    )
    limits: Limits = Field(default=Limits(), description="of each of its clients")
    approvals: RoleApprovals = RoleApprovals()


class ApprovalSettings(Section):
    """Approvals of calls for which a rule asks."""

    hold_seconds: float = Field(
        default=45, ge=0, le=45, description="seconds that a call waits for its answer before it is PENDING_APPROVAL"
    )
    minutes: float = Field(
        default=60, gt=0, le=1440, description="after which a question without an answer, and an unused approval, ends"
    )
    secret: str | None = Field(
        default=None,
        pattern=r"^scrypt:[0-9a-f]{32}:[0-9a-f]{64}$",
        description="hash of the passphrase that each approval takes; `pml approvals secret` sets it",
    )
    notify: bool = Field(
        default=True, description="desktop notifications of calls that wait, by notify-send, or osascript on macOS"
    )


class ClientSettings(Section):
    """One client with a bearer key: what it may see and call, and how it sees it."""

    key: KeyReference = Field(
        default=None, description="${env:NAME} or ${file:PATH}; beside it there may be keys of `pml keys add`"
    )
    sets: tuple[str, ...] = Field(default=(), description="names of `sets:` that it has")
    roles: tuple[str, ...] = Field(default=(), description="names of `roles:` that it has")
    allow: tuple[str, ...] | None = Field(
        default=None,
        description="what it may see and call as well, as `include` of a set; null: nothing more than its sets and "
        "roles give, or everything if it has none",
    )
    deny: tuple[str, ...] = Field(default=(), description="what it may not; wins over `allow`, sets and roles")
    mode: ExposureMode | None = Field(
        default=None, description="its own mode, whatever its sets, `gateway.tools_exposure` and the endpoint say"
    )
    intent: str | None = Field(default=None, description="selects its tools where it sends none itself")
    limits: Limits = Limits()


class Settings(Section):
    """The whole configuration."""

    gateway: GatewaySection = GatewaySection()
    naming: NamingSettings = NamingSettings()
    search: SearchSettings = SearchSettings()
    references: ReferenceSettings = ReferenceSettings()
    storage: StorageSettings = StorageSettings()
    learning: LearningSettings = LearningSettings()
    workflow: WorkflowSettings = WorkflowSettings()
    limits: LimitSettings = LimitSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    http: HttpSettings = HttpSettings()
    local: LocalSettings = LocalSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    activity: ActivitySettings = ActivitySettings()
    audit: AuditSettings = AuditSettings()
    trust: TrustSettings = TrustSettings()
    enrich: EnrichSettings = EnrichSettings()
    servers: dict[str, UpstreamDefinition] = Field(default_factory=dict)
    skills: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] = Field(
        default=(), description="folders of skills, served as those of a server named `skills`"
    )
    sets: dict[str, SetSettings] = Field(default_factory=dict)
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    clients: dict[str, ClientSettings] = Field(default_factory=dict)
    approvals: ApprovalSettings = ApprovalSettings()
    rules: tuple[RuleSettings, ...] = Field(
        default=(),
        max_length=500,
        description="which calls are allowed, asked about or denied; the first match decides",
    )
    workflows: dict[str, Any] = Field(
        default_factory=dict, description="composite tools by name: description, input, steps, output"
    )

    @model_validator(mode="before")
    @classmethod
    def _serve_skills(cls, raw: Any) -> Any:
        folders = raw.get("skills") if isinstance(raw, dict) else None
        if not folders:
            return raw
        servers = raw.get("servers") or {}
        entry = servers.get(SKILLS_SERVER) or {}
        if (
            not isinstance(entry, dict)
            or {"command", "url"} & entry.keys()
            or entry.get("skills") not in (None, folders)
        ):
            raise ValueError(
                f"`skills` are served as those of a server {SKILLS_SERVER!r}, and servers.{SKILLS_SERVER} is another; "
                "rename it, or list the folders in its `skills`"
            )
        return {**raw, "servers": {**servers, SKILLS_SERVER: {**entry, "skills": folders}}}

    def fingerprint(self) -> str:
        """Return a hash of what all replicas should have in common; secrets enter as references only."""
        shared = self.model_dump_json(exclude={"http": {"host", "port", "advertise"}, "log": True})
        return hashlib.sha256(shared.encode()).hexdigest()[:16]

    @property
    def requires_keys(self) -> bool:
        """Return True if requests over HTTP need a client's key; clients then differ in what they see."""
        return bool(self.clients)

    @property
    def tells_clients_apart(self) -> bool:
        """Return True if clients may differ in what they see, so that no list of one may answer another."""
        return self.requires_keys or bool(self.gateway.sets_by_client_name)

    @field_validator("workflows")
    @classmethod
    def _have_their_name_alone(cls, workflows: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if workflows and "workflows" in info.data.get("servers", {}):
            raise ValueError("a server is named 'workflows', which is where these tools appear; rename that server")
        return workflows


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """One upstream as it is configured, and how long and how much it is used where it says nothing of its own."""

    upstream_id: str
    definition: UpstreamDefinition
    defaults: UpstreamSettings

    @property
    def transport(self) -> Transport:
        """Return the transport."""
        return self.definition.resolved_transport

    @property
    def idle_timeout(self) -> float:
        """Seconds after which an unused connection is closed; one to own skills costs nothing, and tells of edits."""
        return math.inf if self.transport is Transport.SKILLS else self.defaults.idle_timeout

    @property
    def call_timeout(self) -> float:
        """Seconds for a request."""
        return self.definition.call_timeout or self.defaults.call_timeout

    @property
    def call_timeout_total(self) -> float:
        """Seconds for a request with all progress; no less than for one without."""
        return max(self.definition.call_timeout_total or self.defaults.call_timeout_total, self.call_timeout)

    @property
    def connect_timeout(self) -> float:
        """Seconds for opening a connection."""
        return self.definition.connect_timeout or self.defaults.connect_timeout

    @property
    def first_start_timeout(self) -> float:
        """Seconds for a start that has something to install first."""
        return max(self.defaults.first_start_timeout, self.connect_timeout)

    @property
    def max_concurrent(self) -> int:
        """Requests at the same time."""
        return self.definition.max_concurrent or self.defaults.max_concurrent

    @property
    def max_queue(self) -> int:
        """Requests that wait for a place; 0 is a limit, too."""
        return self.defaults.max_queue if self.definition.max_queue is None else self.definition.max_queue

    @property
    def max_sessions(self) -> int:
        """Sessions of single clients."""
        return self.definition.max_sessions or self.defaults.max_sessions

    @property
    def denied_extensions(self) -> frozenset[str]:
        """Return the identifiers of the extensions that are switched off."""
        return frozenset(self.definition.extensions.deny) | frozenset(self.defaults.extensions.deny)

    @property
    def per_client(self) -> bool:
        """Return True if every client has a session of its own."""
        return self.definition.resolved_sessions == "per_client"

    @property
    def where_to_look(self) -> str:
        """Return where to look if the server does not answer."""
        if self.transport is not Transport.STDIO:
            return "is it running, and is the url that of its MCP endpoint?"
        return f"its messages: pml upstreams logs {self.upstream_id}"
