from __future__ import annotations

import pytest

from pml_gateway.secrets.judgement import MASK, masked, secrets_of, secrets_of_argument
from pml_gateway.secrets.names import is_secret_name

from .credentials import Row, rows


def found_in(row: Row) -> tuple[str, ...]:
    """The parts of a row's value that are taken for secret."""
    match row.place:
        case "env":
            found = secrets_of(row.value, ("env", row.name))
        case "header":
            found = secrets_of(row.value, ("headers", row.name))
        case "url":
            found = secrets_of(row.value, ("url",))
        case _:
            found = secrets_of_argument(row.value, row.name)
    return tuple(row.value[secret.start : secret.end] for secret in found)


@pytest.mark.parametrize("is_held_out", [False, True])
def test_values_of_known_servers_are_judged_as_their_pages_say(is_held_out: bool) -> None:
    table = [row for row in rows() if row.is_held_out is is_held_out]
    assert len(table) > 250
    wrong = [f"{row.place} {row.name}={row.value}" for row in table if found_in(row) != row.secrets]
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("IMAP_PASS", "DB_PASS", "PIN", "pgpassword", "apiKey", "X-Auth-Token", "smtppass")),
        *((name, True) for name in ("AWS_ACCESS_KEY_ID", "API_KEY_2", "TOKEN_GITHUB", "clientSecret", "JSESSIONID")),
        *(
            (name, False)
            for name in ("MEMORY_FILE_PATH", "SLACK_TEAM_ID", "MONKEY", "KEYBOARD", "SPIN", "PINECONE_ENV")
        ),
        *((name, False) for name in ("PASSTHROUGH", "COMPASS", "AUTHOR", "MAX_TOKENS", "PUBLIC_KEY", "NO_AUTH", "")),
        *((name, False) for name in ("TOKENIZER", "SECRETARY", "CLIENT_ID", "AUTH_TYPE", "PINECONE_ENV")),
    ],
)
def test_names_are_read_as_words(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("${env:TOKEN}", "${env:TOKEN}"),
        ("Bearer ${env:TOKEN}", "Bearer ${env:TOKEN}"),
        ("${file:~/key}", "${file:~/key}"),
        ("${input:token}", "${input:token}"),
        ("${env:USER}:hunter2", f"${{env:USER}}{MASK}"),
        ("hunter2-${env:USER}", f"{MASK}${{env:USER}}"),
        ("${env:TOKEN:-hunter2}", f"${{env:TOKEN:-{MASK}}}"),
        ("$${env:TOKEN}", MASK),
        ("pa${ss", MASK),
        ("true", "true"),
        ("", ""),
    ],
)
def test_references_are_no_secrets_and_what_stands_beside_them_is(text: str, shown: str) -> None:
    assert masked({"env": {"API_TOKEN": text}}) == {"env": {"API_TOKEN": shown}}


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        *((name, "apple banana cherry dog egg fish", True) for name in ("SEED_PHRASE", "RECOVERY_PHRASE")),
        *((name, "991245", True) for name in ("MFA_CODE", "PIN_CODE", "ACCESS_CODE", "BACKUP_CODES", "OTP_CODE")),
        *((name, "x", True) for name in ("IMAP_PASSWORT", "KENNWORT", "CONTRASENA", "SENHA", "MOT_DE_PASSE")),
        *((name, "42", False) for name in ("SEED", "RANDOM_SEED", "sampling.seed", "COUNTRY_CODE", "PHRASE")),
        ("TOTP_SEED", "JBSWY3DPEHPK3PXP", True),
        ("SESSION_SEED", "424242424242", True),
    ],
)
def test_phrases_codes_and_passwords_in_other_languages_are_secrets(name: str, value: str, is_secret: bool) -> None:
    assert bool(secrets_of(value, ("env", name))) is is_secret


@pytest.mark.parametrize(
    ("before", "argument", "shown"),
    [
        ("--user", "1000:1000", "1000:1000"),
        ("-u", "0:0", "0:0"),
        ("-u", "bob:1000", f"bob:{MASK}"),
        ("--config", "eyJhcGlLZXkiOiAiYWJjMTIzIn0=", MASK),
        ("--blob", "Zk9sQ1F3N0xrMlZiNVRuOFJjNEhkNkpzMQ==", MASK),
        ("--token", "TOKEN=", MASK),
        ("", "TOKEN=", "TOKEN="),
    ],
)
def test_users_of_containers_and_padded_base64_as_arguments(before: str, argument: str, shown: str) -> None:
    assert masked({"args": [before, argument]}) == {"args": [before, shown]}


@pytest.mark.parametrize("part", ["a", "a=", "a://", "https://", "-", "${env:", "key: ", "eyJ", "A1", '"a":'])
def test_long_texts_are_judged_in_time_by_their_length(part: str) -> None:
    text = part * (5_000 // len(part))
    masked({"env": {"X": text, "TOKEN": text, "AUTH": f"{text}!"}, "args": [text], "url": text})
