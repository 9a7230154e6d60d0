"""Proxies and authorities are those of a client's variables, read as httpx reads them of the process's."""

from __future__ import annotations

from pathlib import Path

import pytest
from httpx2._utils import get_environment_proxies

from pml_gateway.mcp.network import Network
from pml_gateway.working_directory import WorkingDirectory

FOLDER = Path("/work/folder")


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no", "ftp"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_PROXY".upper(), raising=False)


@pytest.mark.parametrize(
    "environ",
    [
        {"HTTP_PROXY": "http://p:1", "https_proxy": "p:2", "ALL_PROXY": "socks5://p:3"},
        {"HTTP_PROXY": "http://large:1", "http_proxy": "http://small:1"},
        {"HTTP_PROXY": "http://large:1", "http_proxy": ""},
        {"HTTP_PROXY": "", "https_proxy": "http://p:1"},
        {"ftp_proxy": "http://p:1"},
        {"no_proxy": "localhost, .a.example,*.b.example,c.example:8080,10.0.0.0/8,10.1.1.1,::1,fe80::/10,[::2],x/y,"},
        {"http_proxy": "http://p:1", "no_proxy": "https://a.example,a b,10.0.0.0/99,[oops"},
        {"http_proxy": "http://p:1", "NO_PROXY": "a.example,*"},
    ],
)
def test_variables_mean_what_they_mean_to_httpx(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    expected = get_environment_proxies()
    network = Network.of(WorkingDirectory(FOLDER, environ))
    assert network.proxies == expected
    assert network.has_proxy == any(expected.values())


def test_those_of_the_process_are_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://p:1")
    monkeypatch.setenv("SSL_CERT_FILE", "/of/the/process.pem")
    network = Network.of(WorkingDirectory(FOLDER, {"no_proxy": "localhost"}))
    assert not network.has_proxy
    assert network.certificates is None
    assert network.ssl_context() is not None


def test_authorities_are_those_of_a_file_or_a_folder(tmp_path: Path) -> None:
    file = WorkingDirectory(tmp_path, {"SSL_CERT_FILE": "own.pem", "SSL_CERT_DIR": "/certificates"})
    assert Network.of(file).certificates == ("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    with pytest.raises(FileNotFoundError):
        Network.of(file).ssl_context()
    folder = Network.of(WorkingDirectory(tmp_path, {"SSL_CERT_FILE": "", "SSL_CERT_DIR": str(tmp_path)}))
    assert not folder.ssl_context().get_ca_certs()


def test_connections_share_a_context_until_its_authorities_change(tmp_path: Path) -> None:
    network = Network.of(WorkingDirectory(tmp_path, {"SSL_CERT_DIR": str(tmp_path)}))
    made = network.ssl_context()
    assert network.ssl_context() is made
    assert Network.of(WorkingDirectory(tmp_path, {})).ssl_context() is not made
    (tmp_path / "0a0b0c0d.0").touch()
    assert network.ssl_context() is not made
