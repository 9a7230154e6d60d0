"""Answered approvals with their sealed arguments, for what their owner looks up later. Nothing here approves a call."""

from __future__ import annotations

import json
import time
from pathlib import Path

from pml_gateway.storage.encryption import Encryption
from pml_gateway.storage.kinds import ANSWERED_APPROVALS
from pml_gateway.storage.tables import Connection, Tables
from pml_gateway.types import JsonObject

KEPT_DAYS = 30
MAX_ANSWERED = 5000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answered (id TEXT PRIMARY KEY, at REAL NOT NULL, sealed TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS approved (
    client TEXT NOT NULL, source TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (client, source)
);
"""


class ApprovalHistory:
    """The answered approvals of this machine. Every method blocks: call it in a thread."""

    def __init__(self, path: Path, keys: Path) -> None:
        """Name the file, and the folder of the key that its content is encrypted with."""
        self._tables = Tables(ANSWERED_APPROVALS, path, _SCHEMA)
        self._encryption = Encryption(keys)

    def keep(self, shown: JsonObject, sources: list[str]) -> None:
        """Keep an answered approval as its owner sees it, and which tools it approved.

        Raises:
            TablesError: it cannot be written.
            EncryptionError: its key cannot be read.
        """
        now, sealed = time.time(), self._encryption.encrypt(json.dumps(shown))

        def update(connection: Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?)", (shown["id"], now, sealed))
            for source in sources:
                connection.execute(
                    "INSERT OR REPLACE INTO approved VALUES (?, ?, ?)", (shown["client"], source, shown["id"])
                )
            connection.execute("DELETE FROM answered WHERE at < ?", (now - KEPT_DAYS * 86400,))
            connection.execute(
                "DELETE FROM answered WHERE id NOT IN (SELECT id FROM answered ORDER BY at DESC LIMIT ?)",
                (MAX_ANSWERED,),
            )
            connection.execute("DELETE FROM approved WHERE id NOT IN (SELECT id FROM answered)")

        self._tables.change(update)

    def find(self, id_: str) -> JsonObject | None:
        """Return an answered approval as its owner saw it; None if it is not kept.

        Raises:
            TablesError: it cannot be read.
            EncryptionError: it is damaged, or its key is missing.
        """
        rows = self._tables.rows("SELECT sealed FROM answered WHERE id = ?", (id_,))
        return self._opened(rows[0][0]) if rows else None

    def last_approved(self, client: str, source: str, tool: str) -> JsonObject | None:
        """Return the arguments of a client's last approved call of a tool; raises as `find` does."""
        query = "SELECT sealed FROM answered JOIN approved USING (id) WHERE client = ? AND source = ?"
        for (sealed,) in self._tables.rows(query, (client, source)):
            for call in self._opened(sealed)["calls"]:
                if call["tool"] == tool:
                    arguments: JsonObject = call["arguments"]
                    return arguments
        return None

    def _opened(self, sealed: str) -> JsonObject:
        opened: JsonObject = json.loads(self._encryption.decrypt(sealed))
        return opened
