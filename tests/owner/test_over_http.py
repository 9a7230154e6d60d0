"""Approvals over HTTP, with the owner's token and nothing else."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from pml_gateway.docs import page_of
from pml_gateway.gateway.approvals import hashed_passphrase
from pml_gateway.owner.over_http import MAX_BODY
from pml_gateway.policy.keys import KeyStore
from pml_gateway.policy.owner_tokens import GUESS_SECONDS, MAX_GUESSES, OwnerTokens, TooManyGuessesError
from tests.support.approving import KEYS, Asking, asking
from tests.support.memory import paths_in

pytestmark = pytest.mark.anyio

APPROVALS = "/owner/approvals"
MINE = {"repo": "mine"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


def tokens_in(folder: Path) -> KeyStore:
    return KeyStore(paths_in(folder), "test", of_owner=True)


@asynccontextmanager
async def owner_of(folder: Path, token: str | None = None, **sections: Any) -> AsyncIterator[tuple[Asking, Any]]:
    """A gateway where a call waits, and a client that sends a token, by default a new one."""
    given = tokens_in(folder).add().text if token is None else token
    async with asking(folder, **sections) as asked:
        base = asked.served.url.removesuffix("/mcp")
        async with httpx2.AsyncClient(base_url=base, headers=bearing(given)) as client:
            await asked.call("up__wipe", MINE)
            yield asked, client


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def test_the_owner_lists_shows_and_approves_as_by_command(tmp_path: Path) -> None:
    async with owner_of(tmp_path) as (asked, client):
        [row] = (await client.get(APPROVALS)).json()
        assert [row["id"]] == await asked.waiting()
        shown = (await client.get(f"{APPROVALS}/{row['id']}")).json()
        assert shown["calls"][0]["arguments"] == MINE
        answered = await client.post(f"{APPROVALS}/{row['id']}", json={"answer": "approve", "for": "arguments"})
        assert (answered.status_code, answered.json()["state"], answered.json()["scope"]) == (
            200,
            "approved",
            "arguments",
        )
        assert [await asked.call("up__wipe", MINE) for _ in range(2)] == ["OK", "OK"]
        denied = await client.post(f"{APPROVALS}/{row['id']}", json={"answer": "deny"})
        assert denied.json()["state"] == "denied"
        assert await asked.call("up__wipe", MINE) == "FORBIDDEN"
        for path in (APPROVALS, f"{APPROVALS}/{row['id']}", f"{APPROVALS}/nothing", "/owner"):
            assert (await client.get(path)).headers["cache-control"] == "no-store"


async def test_an_approval_takes_the_passphrase_where_one_is_set(tmp_path: Path) -> None:
    secret = hashed_passphrase("correct horse battery")
    async with owner_of(tmp_path, approvals={"hold_seconds": 0, "secret": secret}) as (asked, client):
        [id_] = await asked.waiting()
        for given in ({}, {"passphrase": "wrong"}):
            refused = await client.post(f"{APPROVALS}/{id_}", json={"answer": "approve", **given})
            assert (refused.status_code, "passphrase" in refused.json()["error"]["message"]) == (403, True)
        assert await asked.waiting() == [id_]
        right = {"answer": "approve", "passphrase": "correct horse battery"}
        assert (await client.post(f"{APPROVALS}/{id_}", json=right)).json()["state"] == "approved"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="runs curl")
async def test_the_examples_of_the_docs_work(tmp_path: Path) -> None:
    text = page_of("approvals").text
    examples = [block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "curl" in block]
    assert len(examples) == 1
    async with owner_of(tmp_path) as (asked, client):
        [id_] = await asked.waiting()
        here = examples[0].replace("http://127.0.0.1:8765", str(client.base_url).rstrip("/")).replace("1f2e3d4c", id_)
        environ = {**os.environ, "TOKEN": client.headers["Authorization"].removeprefix("Bearer ")}
        done = await anyio.run_process(["bash", "-e", "-c", here.replace("curl ", "curl -sSf ")], env=environ)
        assert b'"state":"approved"' in done.stdout
        assert await asked.call("up__wipe", MINE) == "OK"


async def test_without_a_token_nothing_is_served(tmp_path: Path) -> None:
    async with owner_of(tmp_path, token="") as (_, client):
        for headers in ({}, bearing(KEYS["ADA"]), bearing("pml_owner_guess")):
            assert (await client.get(APPROVALS, headers=headers)).status_code == 404
        token = tokens_in(tmp_path).add().text
        assert (await client.get(APPROVALS, headers=bearing(token))).status_code == 200


async def test_a_token_is_revoked_and_expires_without_a_restart(tmp_path: Path) -> None:
    store = tokens_in(tmp_path)
    kept, gone = store.add(), store.add()
    past = store.add(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    async with owner_of(tmp_path, token=kept.text) as (_, client):
        assert (await client.get(APPROVALS, headers=bearing(gone.text))).status_code == 200
        store.revoke([gone.key_id])
        for token in (gone.text, past.text, "x"):
            answer = await client.get(APPROVALS, headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, "Bearer" in answer.headers["www-authenticate"]) == (401, True)
        assert (await client.get(APPROVALS)).status_code == 200


async def test_neither_is_a_token_a_clients_key_nor_a_clients_key_a_token(tmp_path: Path) -> None:
    made = KeyStore(paths_in(tmp_path), "test").add("ada")
    async with owner_of(tmp_path) as (asked, client):
        token = client.headers["Authorization"].removeprefix("Bearer ")
        for key in (KEYS["ADA"], made.text, made.key.sha256, made.key_id):
            assert (await client.get(APPROVALS, headers=bearing(key))).status_code == 401
        assert (await client.post("/mcp", json={})).status_code == 401
        assert await asked.served.names(key=made.text) != []
        assert "401" in str((await client.get("/mcp", headers=bearing(token))).status_code)


async def test_pages_of_other_sites_and_malformed_answers_answer_nothing(tmp_path: Path) -> None:
    right, asked_by = b'{"answer": "approve"}', {"Content-Type": "application/json"}
    attempts: list[tuple[int, bytes, dict[str, str]]] = [
        (421, right, {"Host": "evil.example"}),
        (403, right, {"Origin": "https://evil.example"}),
        (403, right, {"Origin": "null"}),
        (415, right, {"Content-Type": "text/plain"}),
        (415, right, {"Content-Type": "application/x-www-form-urlencoded"}),
        (400, b"", {}),
        (400, b"[]", {}),
        (400, b"{", {}),
        (400, b"[" * 10_000, {}),
        (400, b"\xff", {}),
        (400, b'{"answer": "yes"}', {}),
        (400, b'{"answer": "approve", "for": "all"}', {}),
        (400, b'{"answer": "approve", "force": true}', {}),
        (400, b'{"answer": "approve", "passphrase": 1}', {}),
        (413, b'{"answer": "deny", "passphrase": "' + b"x" * MAX_BODY + b'"}', {}),
    ]
    async with owner_of(tmp_path) as (asked, client):
        [id_] = await asked.waiting()
        for status, body, headers in attempts:
            answer = await client.post(f"{APPROVALS}/{id_}", content=body, headers=asked_by | headers)
            assert answer.status_code == status, (body[:40], headers)
            assert status in (403, 421) or answer.json()["error"]["message"]
        assert await asked.waiting() == [id_]


async def test_other_methods_paths_and_ids_are_refused(tmp_path: Path) -> None:
    async with owner_of(tmp_path) as (asked, client):
        [id_] = await asked.waiting()
        override = {"X-HTTP-Method-Override": "POST"}
        refused = [
            *[await client.request(method, f"{APPROVALS}/{id_}") for method in ("PUT", "DELETE", "PATCH", "OPTIONS")],
            await client.post(APPROVALS, json={"answer": "approve"}),
        ]
        assert {each.status_code for each in refused} == {405}
        paths = (
            "/owner",
            f"{APPROVALS}/",
            f"{APPROVALS}/{id_}/",
            "/owner/approvals/nothing",
            f"//owner/approvals/{id_}",
        )
        assert {(await client.get(path)).status_code for path in paths} == {404}
        assert (await client.get(f"{APPROVALS}/{id_}?answer=approve", headers=override)).status_code == 200
        assert await asked.waiting() == [id_]


async def test_guesses_are_limited_for_each_address(tmp_path: Path) -> None:
    async with owner_of(tmp_path) as (_, client):
        wrong = [await client.get(APPROVALS, headers=bearing("pml_owner_guess")) for _ in range(MAX_GUESSES + 1)]
        assert [each.status_code for each in wrong] == [401] * MAX_GUESSES + [429]
        assert int(wrong[-1].headers["retry-after"]) == GUESS_SECONDS
        assert (await client.get(APPROVALS)).status_code == 429


def test_guesses_of_one_address_are_forgotten_and_keep_no_other_one_out(tmp_path: Path) -> None:
    store, now, used = tokens_in(tmp_path), [0.0], list[str]()
    made = store.add()
    tokens = OwnerTokens(store, used.append, clock=lambda: now[0])
    for _ in range(MAX_GUESSES):
        assert tokens.identify("guess", "2001:db8::1") is None
    with pytest.raises(TooManyGuessesError):
        tokens.identify(made.text, "2001:db8::2")
    assert tokens.identify(made.text, "2001:db8:1::1") == made.key_id
    now[0] += GUESS_SECONDS + 1
    assert tokens.identify(made.text, "2001:db8::1") == made.key_id
    assert used == [made.key_id] * 2
