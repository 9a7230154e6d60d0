from __future__ import annotations

from pathlib import Path

from pml_gateway.paths import Paths


def test_everything_lives_below_the_home_of_the_gateway(tmp_path: Path) -> None:
    paths = Paths.from_environ({"PML_HOME": str(tmp_path)})

    assert paths.home == tmp_path
    assert paths.config_file == tmp_path / "config.yaml"
    inside = (paths.run_dir, paths.manifest_dir, paths.cache_dir, paths.logs_dir, paths.trust_file)
    assert all(path.parent == tmp_path for path in inside)
    assert list(tmp_path.iterdir()) == []


def test_without_a_variable_the_home_is_a_folder_of_the_user(tmp_path: Path) -> None:
    assert Paths.from_environ({"HOME": str(tmp_path)}).home == tmp_path / ".pml"


def test_a_variable_names_another_configuration_file(tmp_path: Path) -> None:
    paths = Paths.from_environ({"PML_HOME": str(tmp_path), "PML_CONFIG": "/etc/pml.yaml"})

    assert paths.config_file == Path("/etc/pml.yaml")
    assert paths.trust_file == tmp_path / "trust.json"
