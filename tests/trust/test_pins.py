"""The file of pins: shared, private, and no way around it when it is damaged or cannot be written."""

from __future__ import annotations

import stat
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pml_gateway.config.commands.packages import NO_PACKAGE
from pml_gateway.trust.identity import SERVER, Identity, digest
from pml_gateway.trust.pins import Acceptance, Form, HeldForm, HoldReason, Pins, ServerPins
from pml_gateway.trust.pins_file import MAX_SERVER_BYTES, PinsFile
from pml_gateway.trust.verdict import Level, Reason, RiskClass, SubjectKind, Verdict

NOTE = (SubjectKind.TOOL, "note")
RISKY = Verdict(Level.ATTACK, 0.9, (Reason(RiskClass.RUG_PULL, "description", "x\ud800"),))


def form(text: str, verdict: Verdict | None = None) -> Form:
    definition = {"name": "note", "description": text}
    return Form(definition, digest(definition), Acceptance.OWNER, 1.5, verdict)


def held(text: str) -> HeldForm:
    definition = {"name": "note", "description": text}
    return HeldForm(definition, digest(definition), HoldReason.CHANGED, 2.5, RISKY)


def server(name: str, *texts: str) -> ServerPins:
    pins = ServerPins(name, "w").with_forms([(NOTE, form(text)) for text in texts])
    return ServerPins(name, "w", pins.accepted, {SERVER: (held("s"),)}, {NOTE: (held("r"),)})


def test_what_was_written_is_read_again_word_for_word(tmp_path: Path) -> None:
    pins = Pins({("a", "w"): server("a", "one", "two\u202e")}, ("x", "y"))
    PinsFile(tmp_path / "trust", "id").change(lambda _: pins)
    file = PinsFile(tmp_path / "trust", "id")
    assert file.load() == pins
    assert file.load() is file.load()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert PinsFile(tmp_path / "trust", "other").load() == Pins()


def test_changes_of_several_processes_are_all_kept(tmp_path: Path) -> None:
    files = [PinsFile(tmp_path, "id") for _ in range(4)]

    def work(at: int) -> None:
        for number in range(5):
            added = server(f"{at}-{number}", "text")
            files[at].change(partial(Pins.having, pins=added))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(PinsFile(tmp_path, "id").load().servers) == 20


def test_news_are_what_another_process_wrote(tmp_path: Path) -> None:
    mine, other = PinsFile(tmp_path, "id"), PinsFile(tmp_path, "id")
    mine.change(lambda pins: pins.having(server("a", "one")))
    assert not mine.is_news
    other.change(lambda pins: pins.having(server("b", "two")))
    assert mine.is_news
    assert {key[0] for key in mine.load().servers} == {"a", "b"}
    assert not mine.is_news


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2, "rejected": [], "servers": [3]}', b"\xff"]
)
def test_a_damaged_file_is_set_aside_and_what_is_known_still_holds(tmp_path: Path, content: bytes) -> None:
    file = PinsFile(tmp_path, "id")
    known = file.change(lambda pins: pins.having(server("a", "one")))
    file.path.write_bytes(content)
    assert file.load() == known
    assert file.needs_writing
    assert file.path.with_suffix(".damaged").read_bytes() == content
    file.change(lambda pins: pins)
    assert PinsFile(tmp_path, "id").load() == known


def test_what_cannot_be_written_holds_for_this_process(tmp_path: Path) -> None:
    (tmp_path / "trust").write_text("in the way", encoding="utf-8")
    file = PinsFile(tmp_path / "trust", "id")
    with pytest.raises(OSError, match="trust"):
        file.change(lambda pins: pins.having(server("a", "one")))
    assert "cannot be written" in file.problem
    assert set(file.load().servers) == {("a", "w")}


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PinsFile(tmp_path, "id")
    file.change(lambda pins: pins.having(server("a", "one")))
    before = file.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pml_gateway.storage.documents.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        file.change(lambda pins: pins.having(server("b", "two")))
    assert file.path.read_bytes() == before
    assert len(file.load().servers) == 2
    monkeypatch.undo()
    file.change(lambda pins: pins)
    assert len(PinsFile(tmp_path, "id").load().servers) == 2, "written as soon as there is room"


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    PinsFile(tmp_path, "id").path.mkdir()
    file = PinsFile(tmp_path, "id")
    with pytest.raises(OSError, match="directory"):
        file.change(lambda pins: pins.having(server("a", "one")))
    assert file.path.is_dir()
    assert set(file.load().servers) == {("a", "w")}


def test_pins_belong_to_a_server_as_it_is_configured() -> None:
    pins = Pins({("a", "w"): server("a", "one")}, ("rejected",))
    assert pins.of("a", Identity("w", NO_PACKAGE)) is pins.servers["a", "w"]
    assert pins.of("b", Identity("w", NO_PACKAGE)) is None
    assert pins.of("a", Identity("x", NO_PACKAGE)) is None
    renamed = pins.copied("a", "b").of("b", Identity("w", NO_PACKAGE))
    assert renamed is not None
    assert (renamed.server, renamed.accepted) == ("b", pins.servers["a", "w"].accepted)
    assert pins.without_server("a") == Pins({}, ("rejected",))


def test_of_many_forms_the_newest_are_kept() -> None:
    pins = server("a", *(str(number) for number in range(20)))
    assert [each.definition["description"] for each in pins.accepted[NOTE]] == [str(number) for number in range(12, 20)]


def test_a_rejected_form_is_accepted_no_longer_and_the_other_way_round() -> None:
    pins = server("a", "one")
    one = held("one")
    rejected = pins.rejecting(NOTE, one)
    assert NOTE not in rejected.accepted
    assert rejected.refusal(NOTE, one.digest)
    again = rejected.with_forms([(NOTE, form("one"))])
    assert again.refusal(NOTE, one.digest) is None
    assert again.form(NOTE, one.digest) is not None


def test_of_many_rejected_texts_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pml_gateway.trust.pins.MAX_REJECTED_TEXTS", 3)
    pins = Pins().with_rejected(["a", "b", "c"]).with_rejected(["a", "d"])
    assert pins.rejected_texts == ("b", "c", "d")
    assert pins.without_rejected(["c"]).rejected_texts == ("b", "d")


def _having(server_pins: ServerPins, pins: Pins) -> Pins:
    return pins.having(server_pins)


@pytest.mark.field("A6")
@pytest.mark.parametrize(
    ("tools", "changes", "size"), [(40, 8, 50_000), (1, 8, 900_000), (3000, 3, 2000), (1, 3, 5_000_000)]
)
def test_definitions_that_are_kept_of_one_server_are_bounded_and_their_hashes_stay(
    tmp_path: Path, tools: int, changes: int, size: int
) -> None:
    file, server_pins = PinsFile(tmp_path / "trust", "id"), ServerPins("a", "w")
    for change in range(changes):
        forms = [
            (
                (SubjectKind.TOOL, f"t{number}"),
                replace(form(f"{change} {'x' * size}"), at=float(change), digest=f"{number} {change}"),
            )
            for number in range(tools)
        ]
        server_pins = server_pins.with_forms(forms)
        pins = file.change(partial(_having, server_pins))
        server_pins = pins.servers["a", "w"]
    # What is kept of each form beside its definition.
    overhead = 300 * tools * changes
    assert file.path.stat().st_size < MAX_SERVER_BYTES + overhead + 1000
    read = PinsFile(tmp_path / "trust", "id").load().servers["a", "w"]
    assert read == server_pins
    assert all(read.form((SubjectKind.TOOL, "t0"), f"0 {change}") for change in range(changes))
    if tools * size < MAX_SERVER_BYTES // 2:
        latest = read.latest((SubjectKind.TOOL, "t0"))
        assert latest is not None
        assert latest.definition


def test_a_small_server_beside_a_large_one_keeps_its_definitions(tmp_path: Path) -> None:
    large = server("large", *(str(number) + "x" * 900_000 for number in range(5)))
    small = server("small", "one", "two")
    pins = PinsFile(tmp_path / "trust", "id").change(lambda before: before.having(large).having(small))
    assert pins.servers["small", "w"] == small
