from __future__ import annotations

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_gateway.config.document import parse
from pml_gateway.config.edits.edit import KEPT_BACKUPS, apply_preset, edit_file, set_values
from pml_gateway.config.presets import PRESET_NAMES, load_preset
from pml_gateway.errors import ConfigurationError
from tests.support.examples import examples
from tests.support.full_disk import contents, room_for

FILE = Path("config.yaml")


def values(text: str) -> dict[str, object]:
    return parse(text, "user", FILE).values


def test_only_the_characters_of_the_exposure_keys_change() -> None:
    before = """\
# my gateway

gateway:   # all of it
  # how much is listed
  tools_exposure: "full_proxy"   # for now
  intent: 'fix bugs'
  blacklisted_tools:
    - "*:delete_*"     # never
  hybrid:
      whitelisted_tools: [git__log]
      max_underlying_tools: 5    # few
  # style: tools

servers: &all   # here
  gh: {command: npx, args: [-y,   gh]}
"""
    after = apply_preset(before, load_preset("hybrid_balanced"))

    assert (
        after
        == """\
# my gateway

gateway:   # all of it
  # how much is listed
  tools_exposure: "hybrid"       # for now
  intent: 'fix bugs'
  blacklisted_tools:
    - "*:delete_*"     # never
  hybrid:
      whitelisted_tools: [git__log]
      max_underlying_tools: 20   # few
      expose_meta_tools: true
      expose_underlying_tools: true
      apply_semantic_filter: true
      semantic_threshold: 0.7
      max_tokens: 3000
      fallback: usage
  full_proxy:
    expose_meta_tools: false
  # style: tools

servers: &all   # here
  gh: {command: npx, args: [-y,   gh]}
"""
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "servers: {a: {command: b}}",
        "gateway:",
        "gateway:   # empty\nservers:\n",
        "gateway: null  # nothing\n",
        "gateway:\n  hybrid:\n  full_proxy: {}\n",
        "gateway: {}\n",
        "gateway: {hybrid: }\n",
        "{gateway: {intent: x}, servers: {}}\n",
        '{"gateway": {"intent": "x"}, "servers": {"a": {"command": "b"}}}',
        "gateway:\n  intent: |\n    one\n    two\n\n# after\nservers:\n",
        "gateway:\n  hybrid:\n    whitelisted_tools:\n    - a\n    -\n  # tail\n",
        "gateway:\r\n  tools_exposure: semantic\r\n# end\r\n",
        "\ufeffgateway:\n  tools_exposure: semantic # é 🦊\n",
        "---\ngateway:\n  tools_exposure: semantic\n",
        "gateway:\n  tools_exposure: >\n    semantic\n  intent: x\n",
        "gateway:\n  tools_exposure:\n  hybrid:\n    max_tokens:   # none\n",
        "workflows: {cap: &cap 5}\ngateway:\n  hybrid: {max_underlying_tools: *cap}\n",
        "gateway:\n  intent: x\n  meta_tools: &m [search_tools]\n  blacklisted_tools: *m\n",
        "workflows: {m: &m x}\ngateway:\n  blacklisted_tools:\n    - *m\n  # tail\nservers:\n",
        "gateway:\n  hybrid: {\n    max_tokens: 3, # c\n    }\n",
    ],
)
@pytest.mark.parametrize("name", ["hybrid_permissive", "meta_only"])
def test_every_way_to_write_the_section_is_understood(text: str, name: str) -> None:
    preset = load_preset(name)

    after = apply_preset(text, preset)

    found = values(after)
    assert found["gateway"]["tools_exposure"] == preset.values["gateway"]["tools_exposure"]  # type: ignore[index]
    assert apply_preset(after, preset) == after
    assert re.findall(r"#.*", after) == re.findall(r"#.*", text)
    assert ("\r\n" in after) == ("\r\n" in text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("workflows: {h: &h {max_tokens: 1}}\ngateway:\n  hybrid: *h\n", "is a YAML alias"),
        ("workflows:\n  h: &h {hybrid: {whitelisted_tools: [x]}}\ngateway:\n  <<: *h\n", "write by hand"),
        ("gateway: [a]\n", "should be a section"),
        ("gateway:\n  hybrid: 3\n", "should be a section"),
        ("gateway: {\n", "broken YAML"),
        ("gateway: {}\ngateway: {}\n", "duplicate key"),
        ("gateway: {hybrid: {max_tokens: &x 4}, meta_tools: [*x]}\n", "write by hand"),
    ],
)
def test_what_cannot_be_edited_safely_is_left_to_a_person(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        apply_preset(text, load_preset("hybrid_balanced"))


def test_nested_values_and_texts_that_need_quotes_are_written() -> None:
    after = set_values("# top\n", {"servers": {"a b": {"command": "true", "args": ["-y", "x: y"], "env": {}}}})

    assert values(after) == {"servers": {"a b": {"command": "true", "args": ["-y", "x: y"], "env": {}}}}
    assert after.startswith("# top\n\nservers:\n")


WORDS = st.sampled_from(["alpha", "beta: gamma", "'quoted'", "# hash", "é🦊", "${env:X}", "true", "1.10"])
COMMENTS = st.lists(st.sampled_from(["# one", "#two", "   # three: [", "# tools_exposure: full_proxy", ""]), max_size=2)


@st.composite
def configurations(draw: st.DrawFn) -> str:
    """Configurations in many layouts: block and flow, with comments everywhere and foreign keys between."""
    step = draw(st.sampled_from([2, 3, 4]))
    lines: list[str] = []

    def comment(indent: int = 0) -> None:
        lines.extend(f"{' ' * indent}{text.strip()}" if text else "" for text in draw(COMMENTS))

    def tail() -> str:
        return draw(st.sampled_from(["", "  # why", "      # aligned"]))

    def foreign(indent: int, keys: list[str]) -> None:
        for key in keys:
            word = draw(WORDS)
            comment(indent)
            match draw(st.sampled_from(["quoted", "list", "block"])):
                case "quoted":
                    lines.append(f"{' ' * indent}{key}: '{word.replace(chr(39), chr(39) * 2)}'{tail()}")
                case "list":
                    lines.append(f"{' ' * indent}{key}:{tail()}")
                    lines.append(f"{' ' * (indent + step)}-   'x'{tail()}")
                case _:
                    lines.extend([f"{' ' * indent}{key}: |", f"{' ' * (indent + step)}{word}"])

    comment()
    if draw(st.booleans()):
        foreign(0, ["servers", "workflows"])
    if draw(st.booleans()):
        comment()
        lines.append(f"gateway:{tail()}")
        foreign(step, draw(st.lists(st.sampled_from(["intent", "style"]), unique=True)))
        if draw(st.booleans()):
            mode = draw(st.sampled_from(["meta_only", "'hybrid'", '"full_proxy"', "nonsense"]))
            lines.append(f"{' ' * step}tools_exposure: {mode}{tail()}")
        match draw(st.sampled_from(["absent", "flow", "block"])):
            case "flow":
                lines.append(f"{' ' * step}hybrid: {{max_tokens: 7,  whitelisted_tools: ['a#b']}}{tail()}")
            case "block":
                lines.append(f"{' ' * step}hybrid:{tail()}")
                lines.append(f"{' ' * 2 * step}max_underlying_tools: {draw(st.integers(0, 99))}{tail()}")
                foreign(2 * step, ["whitelisted_tools"])
            case _:
                pass
        foreign(step, ["blacklisted_tools"])
    comment()
    foreign(0, ["clients"])
    text = "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


EXPOSURE_LINE = re.compile(
    r"\s*(tools_exposure|hybrid|full_proxy|expose_\w+|apply_semantic_filter|max_\w+|semantic_threshold|fallback):"
)


@given(text=configurations(), name=st.sampled_from(PRESET_NAMES), then=st.sampled_from(PRESET_NAMES))
@settings(max_examples=examples(60))
def test_comments_foreign_keys_and_their_order_are_never_lost(text: str, name: str, then: str) -> None:
    preset = load_preset(name)

    after = apply_preset(text, preset)

    # The last line of a file may lack its end; the edit gives it one.
    found, before = values(after), values(text if text.endswith("\n") else f"{text}\n")
    for path, value in preset.leaves().items():
        node: object = found
        for key in path:
            node = node[key]  # type: ignore[index]
        assert node == value
    assert {key: value for key, value in found.items() if key != "gateway"} == {
        key: value for key, value in before.items() if key != "gateway"
    }
    kept = [line for line in text.splitlines() if line.strip() and not EXPOSURE_LINE.match(line)]
    assert [line for line in after.splitlines() if line.strip() and not EXPOSURE_LINE.match(line)] in (
        kept,
        [*kept, "gateway:"],
    )
    for line in text.splitlines():
        _, hash_sign, comment = line.partition("  #")
        assert not hash_sign or comment in after
    assert apply_preset(after, preset) == after
    assert values(apply_preset(after, load_preset(then))) == values(apply_preset(text, load_preset(then)))


def test_a_missing_file_is_created_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "config.yaml"

    edit = edit_file(file, lambda text: apply_preset(text, load_preset("semantic")))

    assert "tools_exposure: semantic" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert edit.backup is None


def test_the_text_before_is_kept_in_a_backup_with_the_same_mode(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("# a\n")
    file.chmod(0o640)

    first = edit_file(file, lambda text: f"{text}# b\n")
    second = edit_file(file, lambda text: f"{text}# c\n")

    assert file.read_text() == "# a\n# b\n# c\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    for edit, content in ((first, "# a\n"), (second, "# a\n# b\n")):
        assert edit.backup is not None
        assert re.fullmatch(r"config\.yaml\.bak-\d{8}-\d{6}(-\d+)?", edit.backup.name)
        assert edit.backup.read_text() == content
        assert stat.S_IMODE(edit.backup.stat().st_mode) == 0o640


def test_the_latest_backups_stay_and_older_ones_of_this_file_go(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("")
    others = [tmp_path / name for name in ("other.yaml.bak-20200101-000000", "config.yaml.bak-mine", "config.yaml.old")]
    old = [tmp_path / f"config.yaml.bak-20200101-00000{second}" for second in range(3)]
    for path in (*others, *old):
        path.write_text("# kept by hand\n")

    edits = [edit_file(file, lambda text: f"{text}#") for _ in range(KEPT_BACKUPS + 2)]

    backups = [edit.backup for edit in edits if edit.backup is not None]
    assert [path for path in backups if path.exists()] == backups[-KEPT_BACKUPS:]
    assert len(backups[-1].read_text()) == KEPT_BACKUPS + 1
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in others)


def test_an_edit_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("# a\n")
    before = file.stat()

    edit = edit_file(file, lambda text: text)

    assert (edit.has_changed, edit.diff, edit.backup) == (False, "", None)
    assert file.stat().st_ino == before.st_ino


def test_a_trial_shows_the_change_and_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"

    edit = edit_file(file, lambda text: "gateway: {}\n", dry_run=True)

    assert "+gateway: {}" in edit.diff
    assert list(tmp_path.iterdir()) == []


def test_a_refused_edit_leaves_the_file_and_no_backup(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("gateway: [\n")

    with pytest.raises(ConfigurationError):
        edit_file(file, lambda text: apply_preset(text, load_preset("semantic")))

    assert file.read_text() == "gateway: [\n"
    assert not list(tmp_path.glob("*.bak-*"))


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.yaml"
    target.write_text("# a\n")
    link = tmp_path / "config.yaml"
    link.symlink_to(target)

    edit_file(link, lambda text: f"{text}# b\n")

    assert link.is_symlink()
    assert target.read_text() == "# a\n# b\n"


def test_edits_at_the_same_time_do_not_lose_each_other(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("")

    with ThreadPoolExecutor(6) as pool:
        edits = list(pool.map(lambda number: edit_file(file, lambda text: f"{text}# {number}\n"), range(12)))

    assert set(file.read_text().splitlines()) == {f"# {number}" for number in range(12)}
    assert len({edit.backup for edit in edits}) == 12


def test_a_diff_does_not_show_credentials(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "# old key: ghp_hunter2hunter2hunter2\n"
        "servers: {gh: {command: x, args: [--token, hunter2], env: {PIN: 'hunter2', A_PW: hunter2, C: '${env:C}'}}}\n"
        "clients: {}\n"
    )

    diff = edit_file(file, lambda text: apply_preset(text, load_preset("semantic"))).diff

    assert "hunter2" not in diff
    assert "${env:C}" in diff
    assert "hunter2" in file.read_text()


@pytest.mark.parametrize("size", [0, 1, 60, 99, 100, 150, 199])
def test_an_edit_on_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, size: int) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("# a" * 33 + "\n")
    for second in range(KEPT_BACKUPS):
        (tmp_path / f"config.yaml.bak-20200101-00000{second}").write_text("# kept")
    before = contents(tmp_path)

    with room_for(size), pytest.raises(ConfigurationError, match=r"config\.yaml cannot be written: File too large"):
        edit_file(file, lambda text: text * 2)

    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "mode", "kept"),
    [
        ("# a\n", 0o644, 0o644),
        ("# a\n", 0o400, 0o400),
        ("servers: {s: {command: c, env: {API_KEY: hunter2-hunter2}}}\n", 0o644, 0o600),
        ("servers: {s: {command: c, env: {API_KEY: hunter2-hunter2}}}\n", 0o400, 0o400),
        ("servers: {s: {command: c, env: {API_KEY: '${env:KEY}'}}}\n", 0o640, 0o640),
        ("servers: [broken\n", 0o644, 0o600),
    ],
)
def test_a_backup_is_as_open_as_its_file_unless_it_holds_secrets(
    tmp_path: Path, text: str, mode: int, kept: int
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    file.chmod(mode)

    edit = edit_file(file, lambda text: f"{text}# b\n")

    assert edit.backup is not None
    assert stat.S_IMODE(edit.backup.stat().st_mode) == kept
