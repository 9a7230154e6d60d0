"""Loading embedding models, and what the shipped one is worth."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import SHIPPED_MODEL, shipped_directory
from pml_gateway.index.embedder import Embedder, Embeddings
from pml_gateway.index.evaluation import tool_document
from pml_gateway.index.models import load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.index.text import ToolDocument
from pml_gateway.types import Ranking
from tests.index.tools import OFFICE, REPOSITORY, SHARED_DATA, labelled_tools, read_rows, tool

HEAVY = ("onnxruntime", "tokenizers", "faiss", "Stemmer", "sentence_transformers", "torch", "scipy", "transformers")
EXTRA = ("sentence_transformers", "transformers", "torch", "scipy", "sklearn", "safetensors")
MODEL_FILES = {"model.onnx", "tokenizer.json", "config.json", "calibration.json"}


@pytest.fixture(scope="module")
def labelled(shipped: Embedder) -> tuple[ToolIndex, list[tuple[str, str]]]:
    tools, intents = labelled_tools()
    return ToolIndex.build(tools, shipped), intents


def test_importing_the_index_loads_nothing_heavy() -> None:
    program = f"import sys, pml_gateway.index; print([name for name in {HEAVY} if name in sys.modules])"
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_shipped_model_reproduces_known_cosines(shipped: Embedder) -> None:
    # of the tuned weights in float32; 8 bits may move them by a hundredth
    query, close, far = shipped.encode(
        ["how do I delete a branch", "git remove a branch", "weather forecast for a city"]
    )
    assert float(query @ close) == pytest.approx(0.8077, abs=0.02)
    assert float(query @ far) == pytest.approx(-0.0306, abs=0.02)


def test_a_vector_depends_on_its_text_only(shipped: Embedder) -> None:
    together = shipped.encode(["read a file", "a much longer text about something else entirely " * 20])
    assert np.array_equal(together[:1], shipped.encode(["read a file"]))
    assert np.linalg.norm(together, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert together.dtype == np.float32
    assert shipped.encode([]).shape == (0, shipped.dimension)


def test_text_beyond_the_limit_of_the_model_is_cut(shipped: Embedder) -> None:
    assert np.array_equal(shipped.encode(["word " * 254]), shipped.encode(["word " * 4_000]))


def test_the_model_id_names_the_content_of_the_model_file(shipped: Embedder) -> None:
    digest = hashlib.sha256((shipped_directory() / "model.onnx").read_bytes()).hexdigest()
    assert shipped.model_id == f"{SHIPPED_MODEL}@{digest[:12]}"


@pytest.mark.parametrize(
    ("ranking", "recall_at_1", "recall_at_5"),
    [(Ranking.FUSED, 0.83, 0.95), (Ranking.DENSE, 0.83, 0.95), (Ranking.LEXICAL, 0.42, 0.47)],
)
def test_the_labelled_set_is_found(
    labelled: tuple[ToolIndex, list[tuple[str, str]]], ranking: Ranking, recall_at_1: float, recall_at_5: float
) -> None:
    index, intents = labelled
    ranked = [[hit.key for hit in index.search(query, limit=5, ranking=ranking).hits] for query, _ in intents]
    assert np.mean([gold in keys[:1] for keys, (_, gold) in zip(ranked, intents, strict=True)]) >= recall_at_1
    assert np.mean([gold in keys for keys, (_, gold) in zip(ranked, intents, strict=True)]) >= recall_at_5


@pytest.mark.parametrize(("threshold", "coverage"), [(0.5, 0.9), (0.6, 0.88), (0.7, 0.65)])
def test_lists_cut_at_a_threshold_keep_the_right_tool(
    labelled: tuple[ToolIndex, list[tuple[str, str]]], threshold: float, coverage: float
) -> None:
    index, intents = labelled
    lists = [[hit.key for hit in index.search(query, limit=40).hits if hit.score >= threshold] for query, _ in intents]
    assert np.mean([gold in keys for keys, (_, gold) in zip(lists, intents, strict=True)]) >= coverage
    assert np.median([len(keys) for keys in lists]) <= len(index.documents) / 3


def test_a_query_that_no_tool_serves_scores_low(labelled: tuple[ToolIndex, list[tuple[str, str]]]) -> None:
    index, _ = labelled
    for query in ("asdkjh qwe zxc", "who won the world cup in 1966", "how tall was Napoleon"):
        assert all(hit.score < 0.6 for hit in index.search(query, limit=40).hits)


WEB_SERVERS = ("brave", "exa", "tavily", "google", "bing", "serper")
MIXED = (
    *(
        tool(f"{server}__web_search", "Search the web and return the top results for a query.")
        for server in WEB_SERVERS
    ),
    tool("notes__create_note", "Create a note with a title and text."),
    tool("notes__list_notes", "List all notes."),
    tool("mail__send_email", "Send an email to recipients."),
    tool("files__move_file", "Move or rename a file."),
    tool("git__git_diff", "Show differences between commits."),
    tool("shell__execute_command", "Execute any shell command and return its output."),
    tool("python__run_code", "Run Python code. Can do anything: files, web, math, data analysis."),
    tool("database__execute_query", "Execute a SQL query on the database."),
)


def test_twins_on_many_servers_leave_room_for_the_other_steps_of_a_request(shipped: Embedder) -> None:
    index = ToolIndex.build(MIXED, shipped)
    request = "Search the web for flights to Oslo, then put the result into my notes and email a summary to Anna"
    found = [hit.key for hit in index.search(request, limit=5).hits]
    assert {"notes__create_note", "mail__send_email"} <= set(found)
    assert sum(key.endswith("__web_search") for key in found) >= 1


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("rename a picture", "files__move_file"),
        ("show what changed between two commits", "git__git_diff"),
        ("run the query that lists customers", "database__execute_query"),
    ],
)
def test_tools_that_can_do_anything_do_not_win_what_one_tool_is_for(shipped: Embedder, query: str, right: str) -> None:
    assert ToolIndex.build(MIXED, shipped).search(query, limit=1).hits[0].key == right


@pytest.mark.skipif(not (SHARED_DATA / "dev").is_dir(), reason="the shared retrieval data is not here")
def test_the_golden_set_of_mcp_tools_is_found(shipped: Embedder) -> None:
    directory = SHARED_DATA / "dev" / "mcpproxy_golden"
    tools = [
        ToolDocument(
            row["id"], row["server"], row["name"], "", row["description"], tuple(row["input_schema"]["properties"])
        )
        for row in read_rows(directory / "tools.jsonl")
    ]
    index = ToolIndex.build(tools, shipped)
    queries = read_rows(directory / "queries.jsonl")
    ranked = [[hit.key for hit in index.search(row["query"], limit=5).hits] for row in queries]
    assert np.mean([keys[0] in row["gold"] for keys, row in zip(ranked, queries, strict=True)]) >= 0.80
    assert np.mean([not set(row["gold"]).isdisjoint(keys) for keys, row in zip(ranked, queries, strict=True)]) >= 0.97


def test_queries_in_other_languages_are_found_as_often_as_by_the_untuned_model(shipped: Embedder) -> None:
    tools, _ = labelled_tools()
    index = ToolIndex.build(tools, shipped)
    queries = read_rows(REPOSITORY / "tests" / "data" / "multilingual_queries.jsonl")
    assert (len(queries), len({row["language"] for row in queries})) == (65, 6)
    found = [{hit.key for hit in index.search(row["query"], limit=5).hits} for row in queries]
    assert np.mean([not keys.isdisjoint(row["gold"]) for keys, row in zip(found, queries, strict=True)]) >= 0.508


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("stage and commit changes in git repository", {"git::git_add", "git::git_commit"}),
        (
            "remember a person and how they relate to a company",
            {"memory::create_entities", "memory::create_relations"},
        ),
        (
            "fetch https://example.com/changelog; save it to changes.md; commit it",
            {"fetch::fetch", "filesystem::write_file", "git::git_commit"},
        ),
    ],
)
def test_several_actions_find_a_tool_each_on_real_servers(local: ToolIndex, query: str, wanted: set[str]) -> None:
    found = [hit.key for hit in local.search(query, limit=5).hits]
    assert wanted <= set(found)
    assert "memory::delete_entities" not in found[:2]


@pytest.fixture(scope="module")
def local(shipped: Embedder) -> ToolIndex:
    """The tools of servers that every machine has."""
    rows = read_rows(REPOSITORY / "tests" / "data" / "servers" / "tools.jsonl")
    servers = ("fetch", "filesystem", "git", "memory", "sqlite", "time")
    return ToolIndex.build([tool_document(row) for row in rows if row["server"] in servers], shipped)


def test_an_installed_package_finds_the_model_inside_itself(tmp_path: Path) -> None:
    package = tmp_path / "pml_gateway"
    shutil.copytree(REPOSITORY / "pml_gateway", package, ignore=shutil.ignore_patterns("__pycache__"))
    shipped_copy = package / "_shipped" / "models" / SHIPPED_MODEL
    shutil.copytree(REPOSITORY / "models" / SHIPPED_MODEL, shipped_copy)
    program = "from pml_gateway.index.models import load_embedder; print(load_embedder('builtin').encode(['a']).shape)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("(1, 384)", "")


def test_the_wheel_takes_along_every_file_of_the_model() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    mapped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {path.name for path in (REPOSITORY / "models" / SHIPPED_MODEL).iterdir()} == MODEL_FILES
    for name in MODEL_FILES:
        path = f"models/{SHIPPED_MODEL}/{name}"
        assert mapped[path] == f"pml_gateway/_shipped/{path}"


def test_a_model_directory_is_loaded_by_its_path(shipped: Embedder) -> None:
    assert load_embedder(str(shipped_directory())).model_id == shipped.model_id


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json"])
def test_an_incomplete_model_directory_is_named_in_the_error(tmp_path: Path, missing: str) -> None:
    directory = tmp_path / "broken"
    shutil.copytree(shipped_directory(), directory)
    (directory / missing).unlink()
    with pytest.raises(ModelError, match="broken") as caught:
        load_embedder(str(directory))
    assert "search.model" in caught.value.hint


def test_a_damaged_model_file_is_named_in_the_error(tmp_path: Path) -> None:
    directory = tmp_path / "damaged"
    shutil.copytree(shipped_directory(), directory)
    (directory / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="damaged"):
        load_embedder(str(directory))


def test_a_damaged_calibration_is_named_in_the_error(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(shipped_directory(), directory)
    calibration = directory / "calibration.json"
    content = json.loads(calibration.read_text(encoding="utf-8"))
    content["fused"]["knots"].reverse()
    calibration.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=r"calibration\.json"):
        ToolIndex.build(OFFICE, load_embedder(str(directory)))


class Flattened:
    """A model whose cosines all lie close together, as those of many large models do."""

    model_id = "flattened"

    def __init__(self, original: Embedder) -> None:
        self._original = original
        self.dimension = original.dimension + 1

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """The vectors of the original, all pulled towards one new direction."""
        vectors = self._original.encode(texts)
        vectors = np.concatenate([vectors, np.full((len(vectors), 1), 1.5, dtype=np.float32)], axis=1)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def test_scores_of_a_model_with_other_cosines_are_brought_to_the_same_scale(shipped: Embedder) -> None:
    index, flattened = ToolIndex.build(OFFICE, shipped), ToolIndex.build(OFFICE, Flattened(shipped))
    for query in ("send an email to the recipients", "rain tomorrow"):
        expected, found = index.search(query, limit=7).hits, flattened.search(query, limit=7).hits
        assert [hit.key for hit in found] == [hit.key for hit in expected]
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=0.01)


def test_a_tool_is_read_by_server_name_title_and_description(shipped: Embedder) -> None:
    tools = [tool("a__x", "", title="Cancel a subscription"), tool("b__listInvoices"), tool("weather__get", "")]
    index = ToolIndex.build(tools, shipped)
    for query, expected in (
        ("end my subscription", "a__x"),
        ("all bills", "b__listInvoices"),
        ("rain", "weather__get"),
    ):
        assert index.search(query, limit=1).hits[0].key == expected


def test_the_shipped_model_is_loaded_and_searched_with_without_what_the_extra_brings() -> None:
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({EXTRA}))\n"
        "from pml_gateway.index.models import load_embedder\n"
        "from pml_gateway.index.search import ToolIndex\n"
        "from pml_gateway.index.text import ToolDocument\n"
        "tools = [ToolDocument(f'a__{name}', 'a', name, '', name, ()) for name in ('read_file', 'send_email')]\n"
        "print(ToolIndex.build(tools, load_embedder('builtin')).search('open a document', limit=1).hits[0].key)"
    )
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "a__read_file"


@pytest.mark.parametrize("owners", [{}, {"ORT_DISABLE_TELEMETRY": ""}, {"ORT_DISABLE_TELEMETRY": "0"}], ids=str)
def test_loading_the_shipped_model_leaves_no_trace_of_telemetry(tmp_path: Path, owners: dict[str, str]) -> None:
    # onnxruntime's own would make a database and an identifier of the machine below the home, and a sending thread.
    script = (
        "import os\n"
        "from pml_gateway.index.models import load_embedder\n"
        "load_embedder('builtin').encode(['a text'])\n"
        "print(*(os.readlink(f'/proc/self/fd/{each}') for each in os.listdir('/proc/self/fd')\n"
        "        if os.path.exists(f'/proc/self/fd/{each}')))\n"
    )
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, **owners, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert list(tmp_path.rglob("*")) == []
    assert "onnxruntime.db" not in done.stdout
    assert "socket:" not in done.stdout
