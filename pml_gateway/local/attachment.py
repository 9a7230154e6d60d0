"""The attachment of a bridge: its client, the client's working directory and environment, and its options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pml_gateway.config.load import LoadedSettings, load_settings, with_servers
from pml_gateway.config.sets import check_sets, named_sets
from pml_gateway.owner.answering import AskedOperation
from pml_gateway.paths import PROJECT_NAME, Paths
from pml_gateway.policy.principal import Principal, local_client
from pml_gateway.secrets.references import references
from pml_gateway.upstreams.sharing import WantedUpstream
from pml_gateway.working_directory import WorkingDirectory

KEEP_STATE = frozenset({"call"})
"""Operations that may leave state in servers."""

_PLACES = frozenset({"PML_HOME", "PML_CONFIG"})


class Options(BaseModel):
    """The options of `pml serve` from the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str | None = None
    mode: str | None = None
    preset: str | None = None
    set: str | None = None
    log_level: str | None = None
    log_format: str | None = None


class Hello(BaseModel):
    """The first line of a bridge, without its environment variables.

    `state` is the session state that the last gateway gave to the bridge. `replaced` is True if an older gateway has
    ended to make room for this client.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    attach: int
    version: str
    secret: str = Field(min_length=32, max_length=200, repr=False)
    pid: int
    folder: str
    options: Options = Options()
    state: dict[str, Any] | None = None
    replaced: bool = False
    operation: AskedOperation | None = None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A request of one client to be served."""

    version: str
    pid: int
    client: Principal
    working_directory: WorkingDirectory = field(repr=False)
    options: Options
    state: dict[str, Any] | None
    has_replaced: bool
    operation: AskedOperation | None = None

    @classmethod
    def read(cls, line: bytes) -> Attachment:
        """Read the first line of a bridge.

        Raises:
            ValueError: the line is malformed.
        """
        try:
            given = json.loads(line)
            # Not validated: variables may hold bytes that are not valid text.
            environ = {str(name): str(value) for name, value in given.pop("environ").items()}
            hello = Hello.model_validate(given)
            if not Path(hello.folder).is_absolute() or "\0" in hello.folder:
                raise ValueError(f"no folder that a client works in: {hello.folder!r}")
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"no attachment of a bridge: {type(error).__name__}") from None
        except ValidationError as error:
            # The error's own text would show the given values.
            where = ", ".join(".".join(map(str, each["loc"][:2])) for each in error.errors())
            raise ValueError(f"no attachment of a bridge: {where}") from None
        working_directory = WorkingDirectory(Path(hello.folder), environ)
        for name in _PLACES & environ.keys():
            # Relative paths start in the client's folder, not in the folder of this process.
            environ[name] = environ[name] and str(working_directory.path(environ[name]))
        # Operations of the owner are those of no client.
        sets = named_sets(hello.options.set, environ) if hello.operation is None else ()
        return cls(
            hello.version,
            hello.pid,
            # Only the bridge keeps the secret itself.
            local_client(hashlib.sha256(hello.secret.encode()).hexdigest()[:24], sets),
            working_directory,
            hello.options,
            hello.state,
            hello.replaced,
            hello.operation,
        )

    @property
    def keeps_state(self) -> bool:
        """Return True if its operation may leave state in servers that the next command needs."""
        return self.operation is not None and self.operation.name in KEEP_STATE

    @property
    def paths(self) -> Paths:
        """Return the paths of its gateway's files."""
        return Paths.from_environ(self.working_directory.environ)

    @property
    def config_file(self) -> Path | None:
        """Return the configuration file given instead of the user's, relative to its folder; None if there is none."""
        return (
            None
            if self.options.config is None
            else self.working_directory.folder / Path(self.options.config).expanduser()
        )

    @property
    def identity(self) -> str:
        """Return the identity of its configuration."""
        return self.paths.identity(self.config_file)

    def is_like(self, other: Attachment) -> bool:
        """Return True if both get the same service under any configuration."""
        return (self.working_directory, self.options) == (other.working_directory, other.options)

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Return messages about options that have no effect with a shared gateway."""
        given = {"--log-level": self.options.log_level, "--log-format": self.options.log_format}
        named = [option for option, value in given.items() if value is not None]
        if not named:
            return ()
        return (
            f"{' and '.join(named)}: the log is that of the gateway that clients share; pml serve --alone has its own",
        )

    def key(self, loaded: LoadedSettings, upstreams: Mapping[str, WantedUpstream]) -> Hashable:
        """Return a key that is equal for clients that can share one gateway: settings, server processes, and folder.

        The folder counts only if something depends on it: a project's file, or a setting that refers to files there.
        Blocking: reads the disk.
        """
        settings, environ = loaded.settings, self.working_directory.environ
        servers = frozenset(each.key for each in upstreams.values())
        rest = settings.model_dump_json(exclude={"servers"})
        named = references(rest)
        variables = frozenset((each.name, environ.get(each.name)) for each in named if each.kind == "env")
        depends = (
            any(file.name == PROJECT_NAME for file in loaded.files)
            or any(each.kind == "file" for each in named)
            or settings.storage.results.startswith("disk:")
        )
        folder = self.working_directory.folder_identity if depends else None
        return self.identity, folder, settings.model_dump_json(), servers, variables

    @property
    def project_file(self) -> Path:
        """Return the path of its project's configuration file, even if it does not exist."""
        return self.working_directory.folder / PROJECT_NAME

    def load(self, overrides: Mapping[str, Any] | None = None) -> LoadedSettings:
        """Return the settings for this client; `overrides` are options of its command line by dotted key.

        Raises:
            ConfigurationError: the settings have problems, all of which it lists, or there are no servers.
        UsageError: the client was started with a set that there is not.
        """
        loaded = load_settings(
            config_file=self.config_file,
            project_dir=self.working_directory.folder,
            mode=self.options.mode,
            preset=self.options.preset,
            environ=self.working_directory.environ,
            overrides=overrides,
        )
        check_sets(self.client.sets, loaded.settings)
        return with_servers(loaded, self.identity)
