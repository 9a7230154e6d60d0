from __future__ import annotations

from pathlib import Path

import pytest

from pml_gateway.errors import SecretError
from pml_gateway.secrets.references import MAX_SECRET_BYTES, SecretReference, is_reference, references, resolve


def test_references_are_replaced_by_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from file\n")

    text = resolve(f"a ${{env:ONE}} b ${{file:{tmp_path}/key}} c", {"ONE": "1"})

    assert text == "a 1 b from file c"


def test_a_file_below_the_home_directory_can_be_named_with_a_tilde(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("at home")

    assert resolve("${file:~/key}", {"HOME": str(tmp_path)}) == "at home"


def test_what_was_put_in_is_never_scanned_again() -> None:
    assert resolve("${env:A}", {"A": "${env:B}", "B": "wrong"}) == "${env:B}"


def test_a_default_is_used_where_the_variable_is_unset_or_empty() -> None:
    assert resolve("${env:A:-x}|${env:B:-y}|${env:C:-}", {"B": ""}) == "x|y|"


def test_a_doubled_dollar_sign_makes_a_literal() -> None:
    assert resolve("$${env:A}", {"A": "wrong"}) == "${env:A}"
    assert references("$${env:A}") == ()


@pytest.mark.parametrize("text", ["$HOME", "${HOME}", "${input:token}", "cost: $5", ""])
def test_text_that_is_no_reference_stays(text: str) -> None:
    assert resolve(text, {"HOME": "wrong"}) == text


def test_an_unset_variable_is_named_with_its_remedy() -> None:
    with pytest.raises(SecretError) as caught:
        resolve("Bearer ${env:GITHUB_TOKEN}", {})

    assert "GITHUB_TOKEN is not set" in caught.value.message
    assert "export" in caught.value.hint
    assert caught.value.details == {"variable": "GITHUB_TOKEN"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:A", "not closed"),
        ("${env:no good}", "names no environment variable"),
        ("${file:relative/key}", "not an absolute path"),
        ("${file:/does/not/exist}", "/does/not/exist does not exist"),
        ("${file:/}", "no regular file"),
    ],
)
def test_a_reference_that_cannot_work_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SecretError, match=message):
        resolve(text, {"A": "x"})


def test_unusable_files_are_named_and_their_content_is_not(tmp_path: Path) -> None:
    contents = {"large": b"s3cret" * MAX_SECRET_BYTES, "binary": b"s3cret\xff\xfe", "empty": b"\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SecretError) as caught:
            resolve(f"${{file:{tmp_path / name}}}", {})
        assert name in str(caught.value)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_references_are_listed_with_their_names_and_defaults() -> None:
    assert references("${env:A:-d} ${file:~/k}") == (SecretReference("env", "A", "d"), SecretReference("file", "~/k"))
    assert references("${env:A:-d}")[0].label == "${env:A}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${env:KEY}", True),
        ("${file:/run/key}", True),
        ("${env:KEY:-literal}", False),
        ("Bearer ${env:KEY}", False),
        ("$${env:KEY}", False),
        ("${env:KEY", False),
        ("literal", False),
    ],
)
def test_only_a_whole_reference_without_a_literal_default_counts_as_one(text: str, expected: bool) -> None:
    assert is_reference(text) is expected
