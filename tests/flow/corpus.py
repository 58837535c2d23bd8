"""A small corpus that a test can learn in seconds: sentences made by rule, several documents, ragged lengths."""

from __future__ import annotations

import random
from pathlib import Path

SUBJECTS = ("the rider", "the wind", "a wheel", "the leader", "the pack", "a hill")
VERBS = ("pulls", "drafts", "turns", "slows", "leads", "follows")


def write_corpus(folder: Path, documents: int = 12, seed: int = 0) -> Path:
    """``folder/NN.txt`` of 1–4 kB each; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    for number in range(documents):
        lines = [
            f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.randint(1, 99)} times."
            for _ in range(rng.randint(40, 140))
        ]
        (folder / f"{number:02d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


JOB = """\
data.train = "corpus/*.txt"
data.eval = 0.2
data.tokenizer = "bytes"
data.sequence_length = 32
data.packing = "masked"
model.hidden_size = 32
model.intermediate_size = 64
model.num_hidden_layers = 2
model.num_attention_heads = 4
model.num_key_value_heads = 2
model.head_dim = 8
train.steps = 12
train.global_batch_size = 6
train.precision = "fp32"
optimizer.lr = 3e-3
checkpoint.every = 4
eval.every = "50%"
restart.hang_timeout = "60s"
"""


def write_job(folder: Path, text: str = JOB, name: str = "job.toml") -> Path:
    """The corpus, a job file beside it, and ``runs`` beside both."""
    write_corpus(folder / "corpus")
    path = folder / name
    path.write_text(f'run.root = "{folder / "runs"}"\n{text}', encoding="utf-8")
    return path
