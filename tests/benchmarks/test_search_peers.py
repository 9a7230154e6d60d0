"""Peers and the shipped search rank the same tools, and the parts of the shipped search can be taken out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from benchmarks import run_quality
from benchmarks.ablations import ABLATIONS, Ablation, replaced
from benchmarks.baselines import fastmcp_bm25, fastmcp_regex, minilm_dense, rank_fusion
from benchmarks.labelled_sets import REPOSITORY, LabelledSet, dev_directory, multilingual_sets, read_set, real_servers
from benchmarks.own_search import OwnSearch, ranking_figures
from benchmarks.quantisation import float_reference
from benchmarks.rankers import peer_figures
from pml_gateway.index import search as search_module
from pml_gateway.index.cache import EmbeddingCache
from pml_gateway.index.calibration import shipped_directory
from pml_gateway.index.clauses import split_clauses
from pml_gateway.index.evaluation import LabelledQuery
from pml_gateway.index.search import ToolIndex
from pml_gateway.types import JsonObject
from tests.index.fakes import HashedWords

TOOLS: list[JsonObject] = [
    {
        "id": "files:read",
        "server": "files",
        "name": "read_file",
        "description": "Read the contents of a document",
        "input_schema": {"properties": {"path": {"description": "where it lies"}}},
    },
    {"id": "mail:send", "server": "mail", "name": "send", "description": "Send a message to recipients"},
    {"id": "chat:send", "server": "chat", "name": "send", "description": "Post to a channel"},
]
QUERIES = (
    LabelledQuery("read a document", (frozenset({"files:read"}),)),
    LabelledQuery("message the recipients", (frozenset({"mail:send"}),)),
)
SMALL = LabelledSet("small", {str(row["id"]): row for row in TOOLS}, QUERIES)


def own(tmp_path: Path) -> OwnSearch:
    return OwnSearch(SMALL, HashedWords(), EmbeddingCache(tmp_path))


def test_bm25_ranks_by_words_and_tells_tools_of_one_name_apart() -> None:
    ranker = fastmcp_bm25.build(SMALL)
    assert ranker.rank("message the recipients", 10)[0] == "mail:send"
    assert set(ranker.rank("send", 10)) == {"mail:send", "chat:send"}
    assert ranker.rank("where it lies", 10)[0] == "files:read"
    assert ranker.rank("zebra", 10) == []
    assert ranker.hit_text is not None
    assert json.loads(ranker.hit_text("files:read"))["inputSchema"]["properties"] == {
        "path": {"description": "where it lies"}
    }


def test_regex_finds_tools_with_any_long_word_in_catalog_order() -> None:
    ranker = fastmcp_regex.build(SMALL)
    assert ranker.rank("post a document", 10) == ["files:read", "chat:send"]
    assert ranker.rank("post a document", 1) == ["files:read"]
    assert ranker.rank("?!", 10) == []


def test_a_pattern_holds_as_many_words_as_the_transform_accepts() -> None:
    words = [f"word{number}" for number in range(1000)]
    found = fastmcp_regex.pattern(" ".join(words))
    assert len(found) <= fastmcp_regex.MAX_PATTERN
    assert found.split("|") == words[: found.count("|") + 1]
    assert fastmcp_regex.pattern("do it") == "do|it"


def test_dense_ranks_by_cosine_over_the_tool_text(tmp_path: Path) -> None:
    ranker = minilm_dense.build(SMALL, HashedWords(), EmbeddingCache(tmp_path))
    assert ranker.rank("post to a channel", 2)[0] == "chat:send"


def test_rank_fusion_prefers_what_both_rank_high() -> None:
    assert rank_fusion.fuse([["a", "b", "c"], ["b", "d"]]) == ["b", "a", "d", "c"]


def test_a_peer_gets_figures_of_its_ranking_and_none_of_its_scores() -> None:
    measured = peer_figures(fastmcp_bm25.build(SMALL), SMALL)
    assert (measured["n"], measured["recall@1"], measured["ndcg@10"]) == (2, 1.0, 1.0)
    assert measured["tokens_5_hits"] > 20
    assert not any(name.startswith(("coverage", "list", "empty")) for name in measured)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: str(ablation.name))
def test_every_part_can_be_taken_out_and_is_put_back(ablation: Ablation, tmp_path: Path) -> None:
    search = own(tmp_path)
    index = search.index()
    whole = ranking_figures(SMALL, index)
    assert 0 <= search.ablated(index, ablation)["ndcg@10"] <= 1
    assert ranking_figures(SMALL, index) == whole


def test_without_clauses_a_request_of_several_steps_is_one() -> None:
    request = "read the document in the folder and then send a message to all of the recipients"
    assert split_clauses(request)
    with replaced(ABLATIONS[0].replaced):
        assert not vars(search_module)["split_clauses"](request)
    assert vars(search_module)["split_clauses"] is split_clauses


def test_without_names_a_name_is_a_word_like_others(tmp_path: Path) -> None:
    search = own(tmp_path)
    (nameless,) = (ablation for ablation in ABLATIONS if ablation.name == "no names")
    assert search.index().search("send", limit=1).hits[0].score == 1.0
    with replaced(nameless.replaced):
        index = ToolIndex.build(SMALL.documents, HashedWords())
        assert index.search("send", limit=1).hits[0].score < 0.999


def test_a_part_that_moved_is_named() -> None:
    with pytest.raises(AttributeError, match="no_such_part"), replaced({"no_such_part": None}):
        pass


def test_an_answer_is_empty_only_if_nothing_but_the_removed_tools_fits(tmp_path: Path) -> None:
    search = own(tmp_path)
    assert search.empty_without_right_tools(search.index()) in (0.0, 0.5, 1.0)
    alone = LabelledSet("alone", {"mail:send": TOOLS[1], "chat:send": TOOLS[2]}, QUERIES[1:])
    lonely = OwnSearch(alone, HashedWords(), EmbeddingCache(tmp_path))
    assert lonely.empty_without_right_tools(lonely.index()) == 1.0


def test_distractors_are_added_unless_their_id_is_taken() -> None:
    more = {"files:read": {"id": "files:read", "name": "other"}, "x": {"id": "x", "name": "x"}}
    distracted = SMALL.distracted(more)
    assert (len(distracted.rows), distracted.distractors) == (4, 1)
    assert distracted.documents[0].name == "read_file"


def test_the_multilingual_set_has_a_right_tool_for_every_query() -> None:
    sets = list(multilingual_sets())
    assert len(sets) >= 6
    assert sum(len(labelled.queries) for labelled in sets) >= 60
    for labelled in sets:
        assert all(group & labelled.rows.keys() for query in labelled.queries for group in query.groups)


def test_the_requests_over_real_servers_have_right_tools_and_fall_into_two_halves() -> None:
    seen, unseen = real_servers()
    assert (len(seen.queries), len(unseen.queries), len(seen.rows)) == (118, 111, 180)
    assert not {query.text for query in seen.queries} & {query.text for query in unseen.queries}
    for query in (*seen.queries, *unseen.queries):
        assert all(group <= seen.rows.keys() for group in query.groups)


def test_a_float_original_counts_only_if_the_shipped_model_was_made_from_it(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"other weights")
    config = json.loads((shipped_directory() / "config.json").read_text(encoding="utf-8"))
    assert config["source_sha256"] != hashlib.sha256(b"other weights").hexdigest()
    assert float_reference([tmp_path / "absent", other]) is None


def test_without_the_data_the_run_is_skipped_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PML_DATA", str(tmp_path))
    assert run_quality.main([]) == 0
    assert "PML_DATA" in capsys.readouterr().err


def test_an_unknown_set_is_named_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PML_DATA", str(tmp_path))
    (tmp_path / "dev" / "small").mkdir(parents=True)
    (tmp_path / "dev" / "small" / "queries.jsonl").write_text("")
    assert run_quality.main(["--sets", "big"]) == 2
    assert "no set big" in capsys.readouterr().err


def test_a_run_of_no_queries_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_quality.main(["--limit", "0"])
    assert "0 queries measure nothing" in capsys.readouterr().err


def test_the_readme_has_a_block_for_the_tables() -> None:
    text = (REPOSITORY / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert text.index("<!-- quality:begin -->") < text.index("<!-- quality:end -->")


@pytest.mark.skipif(not dev_directory().is_dir(), reason="the shared retrieval data is not here")
def test_bm25_of_fastmcp_reaches_its_published_figures() -> None:
    golden = read_set(dev_directory() / "mcpproxy_golden")
    measured = peer_figures(fastmcp_bm25.build(golden), golden)
    assert [round(measured[name], 3) for name in ("recall@1", "recall@5", "ndcg@10")] == [0.511, 0.745, 0.645]
