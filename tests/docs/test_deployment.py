"""The examples of deployments: programs that know their format accept them, and their configurations are ours."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pml_gateway.config.load import load_settings
from pml_gateway.config.settings import Settings
from pml_gateway.docs import deployment_files, page_of
from pml_gateway.serve.http.binding import check_http
from tests.e2e.install import InstallationError, install_balancer, install_linters
from tests.support.command_line import pml
from tests.support.skipping import unavailable

FILES = deployment_files()
SECRETS = {"redis_url": "redis://:a-password@redis:6379/0", "storage_key": "0" * 64, "metrics_key": "1" * 64}
SPARE_SECONDS = 5
"""Seconds that a container gets beyond those that the gateway asks for."""


def documents(name: str) -> Iterator[dict[str, Any]]:
    yield from YAML(typ="safe").load_all(FILES[name])


def of_kind(kind: str) -> dict[str, Any]:
    return next(each for each in documents("kubernetes.yaml") if each["kind"] == kind)


def configurations() -> dict[str, str]:
    return {"compose.yaml": FILES["config.yaml"], "kubernetes.yaml": of_kind("ConfigMap")["data"]["config.yaml"]}


def settings_of(name: str, folder: Path) -> Settings:
    """The settings of an example, with its secrets in a folder of the test."""
    text = configurations()[name].replace("/run/secrets/pml", "/run/secrets").replace("/run/secrets", str(folder))
    for secret, value in SECRETS.items():
        (folder / secret).write_text(f"{value}\n", encoding="utf-8")
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return load_settings(config_file=folder / "config.yaml").settings


@pytest.mark.parametrize("name", configurations())
def test_a_configuration_may_be_served_as_it_is(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path)
    check_http(settings, {})
    assert settings.storage.url is not None
    assert settings.requires_keys


def test_a_pod_tells_the_others_its_own_address(tmp_path: Path) -> None:
    [container] = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    settings_of("kubernetes.yaml", tmp_path)
    [told] = [each["value"] for each in container["env"] if each["name"] == "PML_HTTP__ADVERTISE"]
    environ = {"PML_HTTP__ADVERTISE": told.replace("$(POD_IP)", "10.0.0.1")}
    loaded = load_settings(config_file=tmp_path / "config.yaml", environ=environ)
    assert loaded.settings.http.advertise == "http://10.0.0.1:8765"


def test_both_configurations_say_the_same(tmp_path: Path) -> None:
    differing = {"allowed_hosts"}
    compose, kubernetes = (settings_of(name, tmp_path) for name in configurations())
    assert compose.model_dump(exclude={"http"}) == kubernetes.model_dump(exclude={"http"})
    assert compose.http.model_dump(exclude=differing) == kubernetes.http.model_dump(exclude=differing)


def test_a_container_gets_the_time_that_its_gateway_needs_to_end(tmp_path: Path) -> None:
    services = next(documents("compose.yaml"))["services"]
    grace = {
        "compose.yaml": int(services["gateway"]["stop_grace_period"].removesuffix("s")),
        "kubernetes.yaml": of_kind("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
    }
    for name, seconds in grace.items():
        settings = settings_of(name, tmp_path)
        assert settings.http.drain_seconds + settings.http.shutdown_seconds + SPARE_SECONDS == seconds
        assert settings.http.shutdown_seconds > settings.upstreams.call_timeout


def test_every_secret_of_a_configuration_is_one_of_its_deployment() -> None:
    compose = next(documents("compose.yaml"))
    assert set(SECRETS) == set(of_kind("Secret")["stringData"]) == set(compose["services"]["gateway"]["secrets"])
    assert all(f"/run/secrets/{name}}}" in FILES["config.yaml"] for name in SECRETS)


def test_every_file_is_shown_by_its_name_and_named_by_the_page() -> None:
    page = page_of("replicas").text
    for name, text in FILES.items():
        assert f"`{name}`" in page
        assert pml("docs", name).stdout == text
    assert json.loads(pml("docs", "compose.yaml", "--json").stdout)["text"] == FILES["compose.yaml"]


def test_no_load_balancer_sends_a_call_again_that_may_have_reached_a_replica() -> None:
    assert re.findall(r"(?m)^ +retry-on +(.*)", FILES["haproxy.cfg"]) == ["conn-failure"]
    assert re.findall(r"(?m)^ +proxy_next_upstream +(.*);", FILES["nginx.conf"]) == ["error"]


def accepted(command: Sequence[str | Path], folder: Path, text: str | None = None) -> None:
    done = subprocess.run(
        command, cwd=folder, input=text, capture_output=True, text=True, timeout=100, check=False, env={"PATH": "/bin"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.e2e
def test_linters_accept_every_file(tmp_path: Path) -> None:
    try:
        linters = install_linters()
        haproxy, nginx = install_balancer("haproxy"), install_balancer("nginx")
    except InstallationError as exc:
        unavailable(exc)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    accepted([linters / "hadolint", "Containerfile"], tmp_path)
    accepted([linters / "docker-compose", "-f", "compose.yaml", "config", "--quiet"], tmp_path)
    accepted([linters / "kubernetes-validate", "--strict", "kubernetes.yaml"], tmp_path)
    accepted([haproxy, "-c", "-f", "haproxy.cfg"], tmp_path)
    accepted([nginx, "-t", "-p", tmp_path, "-c", "nginx.conf", "-g", f"pid {tmp_path}/pid;"], tmp_path)
