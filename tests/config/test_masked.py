from __future__ import annotations

import pytest

from pml_gateway.config.edits.edit import masked_yaml
from pml_gateway.config.masked import masked_server, masked_settings
from pml_gateway.config.servers import UpstreamDefinition
from pml_gateway.config.settings import Settings
from pml_gateway.secrets.judgement import masked
from pml_gateway.secrets.masking import mask_secret, mask_text

KEY = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hunter2", "***"),
        ("", ""),
        ("${env:TOKEN}", "${env:TOKEN}"),
        ("${file:~/key}", "${file:~/key}"),
        ("Bearer ${env:TOKEN}", "Bearer ${env:TOKEN}"),
        ("${env:TOKEN:-hunter2}", "${env:TOKEN:-***}"),
        ("Bearer hunter2", "***"),
        ("x${env:TOKEN}hunter2", "***"),
    ],
)
def test_a_secret_shows_only_as_a_reference(text: str, shown: str) -> None:
    assert mask_secret(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:hunter2@x.test/mcp", "https://***@x.test/mcp"),
        ("https://x.test/mcp?key=hunter2&v=hunter2", "https://x.test/mcp?key=***&v=***"),
        ("https://x.test/mcp?key=${env:KEY}", "https://x.test/mcp?key=${env:KEY}"),
        ("https://x.test/s/0f8fad5bd9cb469fa16570867728950e/mcp", "https://x.test/s/***/mcp"),
        ("https://x.test/s/0f8fad5b-d9cb-469f-a165-70867728950e/mcp", "https://x.test/s/***/mcp"),
        ("https://x.test/mcp#hunter2", "https://x.test/mcp#***"),
        ("postgresql://u:hunter2@db:5432/app", "postgresql://***@db:5432/app"),
        (f"use {KEY} here", "use *** here"),
        ("password=hunter2 host=db", "password=*** host=db"),
        ("error: password=hunter2 host=db", "error: password=*** host=db"),
        ("a=" * 5_000,) * 2,
        ("x" * 50_000,) * 2,
        ("https://${env:HOST:-hunter2}/mcp", "https://${env:HOST:-***}/mcp"),
        (
            "${file:/run/secrets/0f8fad5bd9cb469fa16570867728950e}",
            "${file:/run/secrets/0f8fad5bd9cb469fa16570867728950e}",
        ),
        ("@modelcontextprotocol/server-sequential-thinking@2025.1.1",) * 2,
        ("secret_manager_list_secret_versions",) * 2,
        ("/home/me/projects/2024/customer",) * 2,
    ],
)
def test_credentials_inside_a_text_are_masked_and_the_rest_stays(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--token", "hunter2", "-y"], ["--token", "***", "-y"]),
        (["--api-key=hunter2"], ["--api-key=***"]),
        (["--api-key=${env:K}"], ["--api-key=${env:K}"]),
        (
            ["-e", "MODE=fast", "-e", "DB_PASS=hunter2", "-e", "B=${env:B}"],
            ["-e", "MODE=fast", "-e", "DB_PASS=***", "-e", "B=${env:B}"],
        ),
        (["-e", "PASSED_THROUGH"], ["-e", "PASSED_THROUGH"]),
        (["--header", "Authorization: Bearer hunter2"], ["--header", "Authorization: Bearer ***"]),
        (["--header", "Authorization:${env:AUTH}"], ["--header", "Authorization:${env:AUTH}"]),
        (["key=hunter2"], ["key=***"]),
        (["-u", "me:hunter2"], ["-u", "me:***"]),
        (['{"apiKey": "hunter2"}'], ['{"apiKey": "***"}']),
        (["-c", "export TOKEN=hunter2; run"], ["-c", "export TOKEN=***; run"]),
        (["--key", "${env:K}"], ["--key", "${env:K}"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        ([KEY], ["***"]),
        (["-y", "pkg@1.2.3", "--port", "80", "--path=/data"], ["-y", "pkg@1.2.3", "--port", "80", "--path=/data"]),
    ],
)
def test_arguments_that_carry_secrets_are_masked(arguments: list[str], shown: list[str]) -> None:
    assert masked(arguments) == shown


def test_of_a_server_secrets_are_masked_and_everything_else_is_shown() -> None:
    environment = {"MODE": "fast", "DB_PASS": "hunter2", "T": "${env:T}"}
    server = UpstreamDefinition(command="npx", args=("-y", "x"), env=environment, cwd="/srv")

    assert masked_server(server) == {
        "command": "npx",
        "args": ["-y", "x"],
        "env": {"MODE": "fast", "DB_PASS": "***", "T": "${env:T}"},
        "cwd": "/srv",
    }


def test_no_part_of_the_settings_shows_a_credential() -> None:
    settings = Settings.model_validate(
        {
            "gateway": {
                "intent": f"use {KEY}",
                "blacklisted_tools": ["secret_manager__*", "v2_server_0123456789_list"],
            },
            "storage": {"url": "redis://:hunter2@cache/0"},
            "servers": {
                "a": {"url": "https://hunter2@x.test/?key=hunter2", "headers": {"X-Auth": "hunter2"}},
                "b": {"command": "sh", "args": ["--password", "hunter2"], "env": {"PIN": "hunter2"}},
            },
            "clients": {"ci": {"key": "${env:CI}"}},
            "workflows": {"w": {"steps": [{"arguments": {"token": "hunter2", "url": "https://u:hunter2@x.test"}}]}},
        }
    )

    shown = masked_settings(settings)

    assert "hunter2" not in repr(shown)
    assert KEY not in repr(shown)
    assert shown["clients"]["ci"]["key"] == "${env:CI}"
    assert shown["gateway"]["blacklisted_tools"] == ["secret_manager__*", "v2_server_0123456789_list"]
    assert set(shown) == set(Settings.model_fields)


def test_a_masked_text_keeps_its_layout() -> None:
    text = (
        "servers:   # mine\n"
        "  a:\n"
        "    command: [npx, --token, hunter2]  # why\n"
        "    env:\n"
        "      A_PASS: 'hunter2'   # quoted\n"
        "      A: 'shown'\n"
        "      B_KEY: |\n"
        "        hunter2\n"
        "      C: ${env:C}\n"
        "clients: {ci: {key: hunter2}}\n"
        "storage: redis://:hunter2@host  # shared\n"
        "gateway: {hybrid: {max_tokens: 500}}\n"
    )

    shown = masked_yaml(text)

    assert shown == (
        "servers:   # mine\n"
        "  a:\n"
        "    command: [npx, --token, ***]  # why\n"
        "    env:\n"
        '      A_PASS: "***"   # quoted\n'
        "      A: 'shown'\n"
        '      B_KEY: "***"\n'
        "      C: ${env:C}\n"
        "clients: {ci: {key: ***}}\n"
        "storage: redis://:***@host  # shared\n"
        "gateway: {hybrid: {max_tokens: 500}}\n"
    )


@pytest.mark.parametrize("url", ["redis://:hunter2/x@host", "redis://:#hunter2@host", "unix://:hunter2@/run/r.sock"])
def test_a_url_of_redis_is_masked_up_to_its_host_though_it_is_wrong(url: str) -> None:
    shown = masked_settings(Settings.model_validate({"storage": {"url": url}}))["storage"]["url"]

    assert shown == f"{url.partition('://')[0]}://***@{url.rpartition('@')[2]}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("secretive: connection refused", "secretive: connection refused"),
        ("tokenizer: model missing", "tokenizer: model missing"),
        ("secret-notes: hunter2", "secret-notes: ***"),
        ("secretKey: hunter2", "secretKey: ***"),
        ("authentication: hunter2", "authentication: ***"),
        ("X-Authorization: hunter2", "X-Authorization: ***"),
    ],
)
def test_words_that_only_begin_like_a_secret_hide_nothing(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("secrets: connection refused", "secrets: connection refused"),
        ("tool 'secrets__read': no answer within 5 s", "tool 'secrets__read': no answer within 5 s"),
        ("secrets: the password: hunter2", "secrets: the password: ***"),
        ("secrets=hunter2", "secrets=***"),
        ('{"secrets": "hunter2"}', '{"secrets": ***}'),
    ],
)
def test_what_is_said_of_a_server_is_shown_whatever_it_is_called(text: str, shown: str) -> None:
    assert mask_text(text, {"secrets"}) == shown


FILE_PATHS = [
    "/root/.npm/_npx/15c61037b1978c83/node_modules/x/index.js",
    "_npx/15c61037b1978c83/node_modules",
    "C:\\Users\\me\\AppData\\npm-cache\\_npx\\15c61037b1978c83\\x",
    "~/.cache/uv/archive-v0/0yrPFyVdkLzDSEMsZzs7J4/lib/python3.11",
    "/nix/store/0c7c4p2s3m3k9xkz6f3y5d9wq1hh2g5r-nodejs/bin/node",
    "/tmp/15c61037b1978c83aaa/index.js",
    "/var/folders/zz/zyxvpxvq6csfxvn00000000000000/T/x",
    "node_modules/.pnpm/a15c61037b1978c83/node_modules/a",
]


@pytest.mark.parametrize("path", FILE_PATHS)
@pytest.mark.parametrize("text", ["{}", "cannot read {}: gone", "at start ({}:3:14)", '"{}"', "cwd={}", "file://{}"])
def test_folders_that_are_named_by_hashes_are_shown(path: str, text: str) -> None:
    if "file://" in text and not path.startswith("/"):
        pytest.skip("an address of a file is absolute")
    assert mask_text(text.format(path)) == text.format(path)


@pytest.mark.parametrize(
    "text",
    [
        "https://h.test/home/{}/x",
        "https://h.test/node_modules/{}/x",
        "GET /home/{}/x HTTP/1.1",
        '"POST /tmp/{} HTTP/1.1"',
        "/home/me/x {}",
        "/home/me/x?key={}",
        "token=/home/me/{}",
        "/home/me: {}",
        "/hooks/{}",
    ],
)
def test_what_looks_like_a_key_is_masked_elsewhere(text: str) -> None:
    assert "15c61037b1978c83" not in mask_text(text.format("15c61037b1978c83"))


def test_a_credential_in_a_path_is_masked() -> None:
    assert "ghp_" not in mask_text("/home/me/ghp_0123456789abcdefghijABCDEFGHIJ012345/x")


def test_a_remedy_stays_readable_and_a_value_in_its_place_does_not() -> None:
    remedy = "write API_KEY=... into your file, or give a default: ${env:API_KEY:-default}"
    assert mask_text(remedy) == remedy
    given = mask_text(remedy.replace("...", "...x").replace("-default", "-defaults"))
    assert "...x" not in given
    assert "-defaults" not in given
