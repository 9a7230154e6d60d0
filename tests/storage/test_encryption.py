"""Where the key of stored logins is, and what happens when it is not there."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.null import Keyring as NoKeyring
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from pml_gateway.config.servers import AuthDefinition
from pml_gateway.errors import UpstreamAuthError
from pml_gateway.storage.encryption import KEY_FILE, Encryption, EncryptionError
from pml_gateway.upstreams.auth.logins import LoginStore, StoredLogin
from tests.support.authorization import keys_in_files

SECRET = "s3cret-token"
URL = "https://example.com/mcp"


class InMemory(KeyringBackend):
    """A keyring as an operating system has one."""

    priority = 1.0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password


class Locked(InMemory):
    """A keyring whose owner does not open it."""

    def get_password(self, service: str, username: str) -> str | None:
        raise RuntimeError("locked")


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    with keys_in_files():
        yield


def login() -> StoredLogin:
    return StoredLogin(
        server_url=URL,
        tokens=OAuthToken(access_token=SECRET, refresh_token=SECRET),
        client=OAuthClientInformationFull(client_id="c", client_secret=SECRET),
        obtained_at=0.0,
    )


def stored(folder: Path) -> tuple[LoginStore, Path]:
    store = LoginStore(folder)
    path = store.path("remote", URL, AuthDefinition())
    store.save(path, login())
    return store, path


def test_a_login_is_kept_encrypted_in_files_of_the_owner_alone(tmp_path: Path) -> None:
    store, path = stored(tmp_path / "auth")
    assert store.load("remote", path) == login()
    assert SECRET not in path.read_text()
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "auth").iterdir()}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "auth").stat().st_mode) == 0o700
    assert KEY_FILE in modes
    assert SECRET not in repr(login())


def test_a_keyring_that_answers_holds_the_key_and_no_file_does(tmp_path: Path) -> None:
    keyring.set_keyring(InMemory())
    store, path = stored(tmp_path)
    assert not (tmp_path / KEY_FILE).exists()
    assert LoginStore(tmp_path).load("remote", path) == store.load("remote", path) == login()


def test_a_locked_keyring_gives_way_to_a_file(tmp_path: Path) -> None:
    keyring.set_keyring(Locked())
    _, path = stored(tmp_path)
    assert (tmp_path / KEY_FILE).exists()
    assert LoginStore(tmp_path).load("remote", path) == login()


def test_a_key_that_is_gone_asks_for_a_login_which_mends_it(tmp_path: Path) -> None:
    keyring.set_keyring(InMemory())
    _, path = stored(tmp_path)
    keyring.set_keyring(NoKeyring())  # type: ignore[no-untyped-call]
    store = LoginStore(tmp_path)
    with pytest.raises(UpstreamAuthError, match="encrypted with a key that is neither in") as caught:
        store.load("remote", path)
    assert caught.value.hint == "pml upstreams login remote"
    store.save(path, login())
    assert store.load("remote", path) == login()


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", '{"version": 1, "key": "x"}', '{"version": 9, "key": "x", "data": "x"}', "\0\0", "ÿ" * 9]
)
def test_a_damaged_file_asks_for_a_login(tmp_path: Path, damaged: str) -> None:
    store, path = stored(tmp_path)
    path.write_text(damaged, encoding="latin-1")
    with pytest.raises(UpstreamAuthError) as caught:
        store.load("remote", path)
    assert caught.value.hint == "pml upstreams login remote"


def test_a_ciphertext_that_was_changed_is_not_read(tmp_path: Path) -> None:
    vault = Encryption(tmp_path)
    envelope = vault.encrypt(SECRET)
    at = envelope.index("gAAAA") + 40
    changed = envelope[:at] + ("A" if envelope[at] != "A" else "B") + envelope[at + 1 :]
    with pytest.raises(EncryptionError, match="damaged"):
        vault.decrypt(changed)


def test_a_login_of_an_older_shape_asks_for_a_login_and_quotes_nothing(tmp_path: Path) -> None:
    store, path = stored(tmp_path)
    path.write_text(Encryption(tmp_path).encrypt(f'{{"tokens": "{SECRET}"}}'))
    with pytest.raises(UpstreamAuthError, match="incomplete") as caught:
        store.load("remote", path)
    assert caught.value.__cause__ is None
    assert SECRET not in str(caught.value)


def test_a_name_of_any_characters_has_a_file_of_its_own(tmp_path: Path) -> None:
    store = LoginStore(tmp_path)
    paths = {store.path(name, URL, AuthDefinition()) for name in ("a/b", "a_b", "a b", "..", "x" * 300)}
    assert len(paths) == 5
    assert {path.parent for path in paths} == {tmp_path}


def test_a_copied_login_is_read_under_its_new_name_and_replaces_one_that_is_there(tmp_path: Path) -> None:
    store, path = stored(tmp_path)
    copy = store.path("new", URL, AuthDefinition())
    store.save(copy, login().refused())

    store.copy(path, copy)
    store.copy(store.path("unknown", URL, AuthDefinition()), copy)

    assert store.load("new", copy) == store.load("remote", path) == login()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
