"""Doctor's checks of the Redis server that gateways share."""

from __future__ import annotations

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pml_gateway.config.findings import Finding, SettingsCase, Severity
from pml_gateway.config.settings import Settings
from pml_gateway.reports.doctor.storage import RedisFacts, findings_of, storage
from pml_gateway.storage.change_feed import ChangeFeed
from pml_gateway.storage.redis import replica_name
from pml_gateway.storage.replicas import Replica, Replicas
from tests.storage.test_redis import opened

KEY = "a random text that all gateways have"
INFO = {
    "redis_version": "7.2.4",
    "role": "master",
    "maxmemory": 1000,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}


def checked(url: str | None, key: str = KEY) -> list[Finding]:
    settings = Settings.model_validate({"storage": {"url": url, "key": "${env:KEY}"}})
    return [*storage(SettingsCase(settings, {"KEY": key}))]


def judged(info: dict[str, Any] | None = None, **facts: Any) -> list[Finding]:
    given: dict[str, Any] = {"save": "", "seconds": 0.001, "clock_difference": 0.1} | facts
    return [*findings_of(RedisFacts(INFO | (info or {}), **given))]


@pytest.mark.anyio
async def test_a_server_that_answers_is_told_with_its_version(redis_url: str) -> None:
    first, *_ = await anyio.to_thread.run_sync(checked, redis_url)
    assert first.severity is Severity.OK
    assert "answers in" in first.what


def test_without_a_url_and_with_settings_that_are_refused_nothing_is_asked() -> None:
    assert checked(None) == []
    assert checked("redis://127.0.0.1:1/x") == []
    assert checked("redis://127.0.0.1:1", "short") == []


def test_a_server_that_does_not_answer_is_an_error_without_the_password() -> None:
    [finding] = checked("redis://:hunter2@127.0.0.1:1")
    assert (finding.severity, finding.what) == (Severity.ERROR, "Redis at 127.0.0.1:1 fails: no connection")
    assert finding.fix
    assert "hunter2" not in repr(finding)


@pytest.mark.anyio
async def test_a_socket_whose_server_wants_a_password_says_so(tmp_path: Path) -> None:
    async def refuse(stream: ByteStream) -> None:
        async with stream:
            async for asked in stream:
                await stream.send(b"-NOAUTH Authentication required.\r\n" * asked.count(b"*"))

    async with (
        await anyio.create_unix_listener(tmp_path / "redis") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, refuse)
        [finding] = await anyio.to_thread.run_sync(checked, f"unix://{tmp_path}/redis?db=3")
        tasks.cancel_scope.cancel()
    assert "it refuses the user or password" in finding.what


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("host", "authority", "what", "fix"),
    [
        ("localhost", "", "its certificate is not trusted", "ssl_ca_certs="),
        ("127.0.0.1", "?ssl_ca_certs={file}", "or is that of another host", "ssl_ca_certs="),
        ("localhost", "?ssl_ca_certs={file}", "no connection", "is it running"),
    ],
)
async def test_a_certificate_that_is_refused_is_named(
    tmp_path: Path, host: str, authority: str, what: str, fix: str
) -> None:
    certificate, context = tmp_path / "cert.pem", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    private_key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder(name, name, private_key.public_key(), 1, now, now + timedelta(hours=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    written = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate.write_bytes(written + made.sign(private_key, hashes.SHA256()).public_bytes(Encoding.PEM))
    context.load_cert_chain(certificate)

    async def close(stream: ByteStream) -> None:
        await stream.aclose()

    tcp = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with TLSListener(tcp, context, standard_compatible=False) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, close)
        port = tcp.extra(SocketAttribute.local_port)
        url = f"rediss://{host}:{port}/0{authority.format(file=certificate)}"
        [finding] = await anyio.to_thread.run_sync(checked, url)
        tasks.cancel_scope.cancel()
    assert what in finding.what
    assert fix in finding.fix


def test_a_host_without_an_address_is_named() -> None:
    [finding] = checked("redis://none.invalid")
    assert (finding.what, finding.fix) == (
        "Redis at none.invalid:6379 fails: no address is known for its host name",
        "correct the host of storage.url",
    )


async def answer(stream: ByteStream) -> None:
    async with stream:
        await stream.receive()
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("url", "what"),
    [
        (None, []),
        ("http://127.0.0.1:1", ["is not reached at http://127.0.0.1:1: nothing answers there"]),
        ("{one}", ["is not reached at {one}: another replica gives the same address"] * 2),
    ],
)
async def test_a_replica_that_gives_a_wrong_address_is_named(redis_url: str, url: str | None, what: list[str]) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        one = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        urls = [one] if url is None else [one, url.format(one=one)]
        async with opened(redis_url, KEY) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            replicas = [Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0)) for _ in urls]
            for replica, address in zip(replicas, urls, strict=True):
                await replica.serve_at(address)
            found = await anyio.to_thread.run_sync(checked, redis_url)
            names = [replica_name(each.own.id) for each in replicas]
            await server.run(lambda redis: redis.delete(*names))
            tasks.cancel_scope.cancel()
    about = [each for each in found if each.subject.startswith("replica")]
    assert [each.what for each in about] == [each.format(one=one) for each in what]
    assert all("http.advertise" in each.fix for each in about)


@pytest.mark.anyio
async def test_a_replica_whose_clock_differs_is_named(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    async with opened(redis_url, KEY) as server:
        replica = Replicas(server, ChangeFeed(server), "1", lambda: ("same", 0))
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now + 300)
            await replica.serve_at("http://127.0.0.1:1")
        found = await anyio.to_thread.run_sync(checked, redis_url)
        await server.run(lambda redis: redis.delete(replica_name(replica.own.id)))
    named = [each for each in found if each.subject == f"replica {replica.own.id}"]
    assert "its clock and that of this machine differ by 5 min" in named[0].what
    assert "NTP" in named[0].fix


@pytest.mark.parametrize(
    ("version", "configuration", "what"),
    [("2", "same", "has version 2 than"), ("1", "other", "has another configuration than")],
)
def test_a_replica_that_is_set_otherwise_is_named(version: str, configuration: str, what: str) -> None:
    usual = [(Replica(f"{n}", f"http://10.0.0.{n}", "1", "same", 0.0), "") for n in range(2)]
    other = (Replica("other", "http://10.0.0.9", version, configuration, 0.0), "")
    [_, found] = judged(replicas=[*usual, other])
    assert found.subject == "replica other"
    assert what in found.what


def test_a_good_server_needs_nothing() -> None:
    assert [finding.severity for finding in judged()] == [Severity.OK]
    assert "Valkey 8.1.0" in judged({"valkey_version": "8.1.0"})[0].what


@pytest.mark.parametrize(
    ("info", "facts", "severity", "what"),
    [
        ({"redis_version": "6.0.16"}, {}, Severity.ERROR, "version 6.0.16"),
        ({"role": "slave"}, {}, Severity.ERROR, "only reads"),
        ({"maxmemory_policy": "allkeys-lru"}, {}, Severity.WARNING, "maxmemory-policy is allkeys-lru"),
        ({"maxmemory_policy": "volatile-ttl"}, {}, Severity.WARNING, "maxmemory-policy is volatile-ttl"),
        ({}, {"seconds": 0.05}, Severity.WARNING, "takes 50 ms"),
        ({}, {"clock_difference": -30}, Severity.WARNING, "differ by 30 s"),
        ({"aof_enabled": 0}, {}, Severity.NOTE, "keeps nothing on disk"),
        ({"aof_enabled": 0}, {"save": None}, Severity.NOTE, "keeps snapshots at most on disk"),
        ({"aof_enabled": 0}, {"save": "3600 1"}, Severity.NOTE, "keeps snapshots only on disk"),
    ],
)
def test_what_loses_or_slows_something_has_a_remedy(
    info: dict[str, Any], facts: dict[str, Any], severity: Severity, what: str
) -> None:
    _, finding = judged(info, **facts)
    assert finding.severity is severity
    assert what in finding.what
    assert finding.fix


def test_a_user_without_info_leaves_the_rest_unchecked() -> None:
    findings = [*findings_of(RedisFacts(None, None, 0.001, 0))]
    assert [finding.severity for finding in findings] == [Severity.OK, Severity.NOTE]
