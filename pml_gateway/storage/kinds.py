"""The kinds of what lies on disk: the shape, place, lifetime and limit of each.

A document names its kind, so nothing is stored as one without a row here. Constants of the limits stand where they
are applied; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StorageShape(StrEnum):
    """The form of content, and thereby how it stays whole and how processes share it."""

    DOCUMENT = "document"
    TABLE = "table"
    BLOB = "blob"
    OWN = "own"
    """A form that something else asks for: people edit it, or it ends with its process."""


@dataclass(frozen=True, slots=True)
class StoredKind:
    """A kind of stored content.

    `location` is a pattern of paths in the gateway's folder. `stays` says why the content is of no use on another
    machine; it is empty if it could move.
    """

    name: str
    shape: StorageShape
    location: str
    lifetime: str
    limit: str
    stays: str = ""


MANIFEST = StoredKind(
    "manifest: last listings and assigned names",
    StorageShape.DOCUMENT,
    "manifest/*.json",
    "while the server is configured",
    "what servers list",
)
OUTPUT_SHAPES = StoredKind(
    "learned output shapes",
    StorageShape.DOCUMENT,
    "manifest/*.shapes.json",
    "until the tool's definition changes",
    "5,000",
)
VECTORS = StoredKind(
    "vectors of tools and their example queries",
    StorageShape.BLOB,
    "cache/embeddings/*.sqlite3*",
    "until newer ones need the room",
    "50,000 of each, or 1.25 times the catalog",
)
PINS = StoredKind(
    "accepted, held and rejected definitions",
    StorageShape.DOCUMENT,
    "trust/*.json",
    "until the server is removed",
    "2 MiB a server; past that, hashes",
)
APPROVALS = StoredKind(
    "approved project files",
    StorageShape.DOCUMENT,
    "trust.json",
    "until the approval is revoked",
    "a hash a file",
    "paths of this machine",
)
ANSWERED_APPROVALS = StoredKind(
    "answered approvals of calls, encrypted",
    StorageShape.TABLE,
    "approvals.sqlite3*",
    "30 days",
    "5,000",
    "their key is this machine's",
)
LOGINS = StoredKind(
    "logins at servers, encrypted",
    StorageShape.DOCUMENT,
    "auth/*.login",
    "until you log out",
    "one for each server and address",
    "their key is this machine's",
)
LOGIN_KEY = StoredKind(
    "key of the logins and approvals, if no keyring answers",
    StorageShape.DOCUMENT,
    "auth/key",
    "for good",
    "one",
    "a secret of this machine",
)
CLIENT_KEYS = StoredKind(
    "hashes of clients' keys",
    StorageShape.DOCUMENT,
    "keys.json",
    "until they are revoked",
    "1,000",
    "paths of this machine",
)
KEY_USES = StoredKind(
    "last uses of clients' keys",
    StorageShape.DOCUMENT,
    "key-uses.json",
    "as long as the keys",
    "one for each key",
)
INSTALLS = StoredKind(
    "first starts of package runners",
    StorageShape.DOCUMENT,
    "installs/*.json",
    "for good",
    "one for each package",
    "packages of this machine",
)
EXAMPLE_QUERIES = StoredKind(
    "example queries",
    StorageShape.TABLE,
    "example-queries/examples.sqlite3*",
    "60 days after a catalog last had the definition",
    "200,000 definitions",
)
SHARED_EXAMPLES = StoredKind(
    "example queries that replicas share",
    StorageShape.DOCUMENT,
    "example-queries/shared.json",
    "as the example queries",
    "10,000 definitions",
)
TRIED = StoredKind(
    "definitions that `pml enrich` has tried",
    StorageShape.DOCUMENT,
    "example-queries/tried.json",
    "until newer ones need the room",
    "50,000",
)
ACTIVITY = StoredKind(
    "calls, searches and lists", StorageShape.TABLE, "activity.db*", "`activity.max_days`", "`activity.max_bytes`"
)
RESULTS = StoredKind(
    "stored results with `storage.results: disk`",
    StorageShape.BLOB,
    "results/**/*",
    "`references.ttl_seconds`",
    "`references.max_bytes`, and an eighth for bookkeeping",
)
TASKS = StoredKind(
    "tasks of clients, without their results",
    StorageShape.DOCUMENT,
    "tasks/*.json",
    "until the time of the task is over, a day at most",
    "512 for each gateway",
    "calls of this machine's processes",
)
MIGRATION_STEPS = StoredKind(
    "steps of `pml migrate`",
    StorageShape.DOCUMENT,
    "migrations/*.json",
    "until they are undone",
    "20 for each configuration",
    "texts of this machine's files",
)
CONNECTIONS = StoredKind(
    "edits of clients' files",
    StorageShape.DOCUMENT,
    "connections.json",
    "until `pml disconnect`",
    "one for each file",
    "files of this machine",
)
REMOVED = StoredKind(
    "servers that were removed",
    StorageShape.DOCUMENT,
    "removed.json",
    "until they are added again",
    "one for each server",
)
BACKUP_INDEX = StoredKind(
    "index of the backups",
    StorageShape.DOCUMENT,
    "backups/index.json",
    "as long as the backups",
    "one entry for each backup",
    "files of this machine",
)
KINDS = (
    MANIFEST,
    OUTPUT_SHAPES,
    VECTORS,
    PINS,
    APPROVALS,
    LOGINS,
    LOGIN_KEY,
    CLIENT_KEYS,
    KEY_USES,
    INSTALLS,
    EXAMPLE_QUERIES,
    SHARED_EXAMPLES,
    TRIED,
    ACTIVITY,
    RESULTS,
    TASKS,
    MIGRATION_STEPS,
    CONNECTIONS,
    REMOVED,
    BACKUP_INDEX,
    StoredKind("configuration", StorageShape.OWN, "config.yaml", "yours to edit", "none"),
    StoredKind("secrets", StorageShape.OWN, "secrets.env", "yours to edit", "256 KiB"),
    StoredKind(
        "backups of the configuration",
        StorageShape.OWN,
        "config.yaml.bak-*",
        "until newer ones need the room",
        "10",
        "texts of this machine's files",
    ),
    StoredKind(
        "backups of clients' files",
        StorageShape.OWN,
        "backups/*",
        "until `pml disconnect` has restored them",
        "one for each edit",
        "files of this machine",
    ),
    StoredKind(
        "logs",
        StorageShape.OWN,
        "logs/*",
        "until they are rotated",
        "2 MiB for each server, 20 MiB for each gateway",
        "processes of this machine",
    ),
    StoredKind(
        "audit",
        StorageShape.OWN,
        "audit.jsonl*",
        "until it is rotated",
        "20 files of 20 MiB",
        "evidence of this machine",
    ),
    StoredKind(
        "damaged documents and tables, set aside",
        StorageShape.OWN,
        "**/*.damaged*",
        "until you delete them",
        "of each file the first four and the last one",
    ),
    StoredKind(
        "locks next to the files that they protect",
        StorageShape.OWN,
        "**/.*.lock",
        "for good",
        "one for each file, empty",
        "processes of this machine",
    ),
    StoredKind(
        "sockets, locks and the request of `pml up`",
        StorageShape.OWN,
        "run/*",
        "as long as their process",
        "one for each process",
        "processes of this machine",
    ),
)
"""Every kind, first those that the package reads and writes through this folder."""
