"""Any sentence-transformers model can be named instead of the shipped one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pml_gateway.errors import ModelError
from pml_gateway.index.calibration import shipped_directory
from pml_gateway.index.embedder import Embedder, embed_query
from pml_gateway.index.models import library, load_embedder
from pml_gateway.index.search import ToolIndex
from pml_gateway.installation import TRANSFORMERS, adding
from tests.index.fakes import HashedWords
from tests.index.tools import OFFICE

WORDS = ("read", "send", "file", "email", "city", "rain", "an", "a", "in", "recipients")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers directory with a random two-layer model that tells queries from documents."""
    sentence_transformers, transformers = library("sentence_transformers"), library("transformers")

    directory = tmp_path_factory.mktemp("tiny")
    bert = directory / "bert"
    bert.mkdir()
    (bert / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", ":", *WORDS]))
    transformers.BertTokenizer(vocab=str(bert / "vocab.txt")).save_pretrained(bert)
    config = transformers.BertConfig(
        vocab_size=17, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(bert)
    # without a file of modules the library adds mean pooling
    model = sentence_transformers.SentenceTransformer(str(bert), device="cpu", prompts={"query": "query: "})
    model.save(str(directory / "model"))
    return directory / "model"


@pytest.fixture(params=["shipped", "hashed words", pytest.param("sentence-transformers", marks=pytest.mark.slow)])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    match request.param:
        case "shipped":
            return load_embedder("builtin")
        case "hashed words":
            return HashedWords()
        case _:
            return load_embedder(str(request.getfixturevalue("tiny_model")))


def test_every_embedder_gives_one_normalised_row_per_text(embedder: Embedder) -> None:
    vectors = embedder.encode(["read a file", "", "send an email", "read a file"])
    assert vectors.shape == (4, embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-4)
    assert vectors[0] == pytest.approx(vectors[3], abs=1e-5)
    assert embedder.encode([]).shape == (0, embedder.dimension)


def test_every_embedder_serves_an_index(embedder: Embedder) -> None:
    hits = ToolIndex.build(OFFICE, embedder).search("files__read_file", limit=3).hits
    assert (hits[0].key, hits[0].score) == ("files__read_file", 1.0)
    assert all(0 <= hit.score < 1 for hit in hits[1:])


@pytest.mark.slow
def test_queries_are_read_with_the_prompt_of_the_model(tiny_model: Path) -> None:
    embedder = load_embedder(str(tiny_model))
    assert embed_query(embedder, "read a file") == pytest.approx(embedder.encode(["query: read a file"])[0], abs=1e-5)


@pytest.mark.slow
def test_a_model_trained_further_in_its_directory_gets_another_id(tiny_model: Path) -> None:
    before = load_embedder(str(tiny_model)).model_id
    assert load_embedder(str(tiny_model)).model_id == before
    (tiny_model / "README.md").write_text("trained further")
    assert load_embedder(str(tiny_model)).model_id != before


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `pml-gateway` was installed without `[sentence-transformers]`."""
    for name in ("sentence_transformers", "transformers", "torch"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_library_the_error_names_the_command_that_adds_it(tmp_path: Path) -> None:
    for model in ("nobody/no-such-model", str(tmp_path)):
        with pytest.raises(ModelError, match="sentence-transformers, which is not installed") as caught:
            load_embedder(model)
        assert adding(TRANSFORMERS) in caught.value.hint
        assert "builtin" in caught.value.hint
        assert caught.value.details == {"model": model}


@pytest.mark.usefixtures("without_the_extra")
def test_without_the_library_the_shipped_model_and_its_like_load() -> None:
    assert load_embedder(str(shipped_directory())).model_id == load_embedder("builtin").model_id


def test_a_library_that_cannot_be_imported_is_an_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "sentence_transformers.py"
    broken.write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"nobody/model.*libcudart"):
        load_embedder("nobody/model")


@pytest.mark.slow
def test_a_model_that_cannot_be_had_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nobody/no-such-model") as caught:
        load_embedder("nobody/no-such-model")
    assert "builtin" in caught.value.hint
