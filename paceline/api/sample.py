"""``pl.sample``: text from a run's model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.api.load import load_checkpoint, locate
from paceline.api.runs import Run
from paceline.ledger.outcome import Exit, Refused


@dataclass(frozen=True)
class Sample:
    """Prompt and continuation in ``text``; ``tokens`` new ones; ``source`` is RUN@STEP."""

    text: str
    tokens: int
    source: str

    def __str__(self) -> str:
        return self.text


def sample(
    run: Run | str | Path = "last",
    *,
    prompt: str = "",
    tokens: int = 100,
    temperature: float = 0.8,
    seed: int = 0,
    device: Any = "cpu",
) -> Sample:
    """Writes on after ``prompt``, at most ``tokens`` tokens, until the model ends the document.

    Raises:
        Refused: (2) no such run, or an empty prompt where the tokenizer marks no start; (20) no tokenizer is
            known; (52) no checkpoint.
        Failed: (53) the checkpoint is damaged; no older one is taken in its place.
    """
    from paceline.recipes.sample import generate
    from paceline.recover.checkpoint import open_manifest

    path, found = locate(run)
    tokenizer = tokenizer_of(found)
    # The marker between documents comes first: the model then begins a document, as it was trained to.
    ids = ([tokenizer.eos] if tokenizer.eos is not None else []) + tokenizer.encode(prompt)
    if not ids:
        raise Refused(
            "an empty prompt, and no token that begins a document",
            exit_code=Exit.USAGE,
            key="--prompt",
            seen="nothing",
            rule="the first token is predicted from another one",
            use='--prompt "Once"',
        )
    model = load_checkpoint(path, found, device=device, dtype=None)
    new = list(
        generate(
            model,
            ids,
            tokens=tokens,
            temperature=temperature,
            seed=seed,
            window=min(found.job.data.sequence_length, model.widths.max_position_embeddings),
            end=tokenizer.eos,
        )
    )
    step = open_manifest(path).step
    return Sample(prompt + tokenizer.decode(new), len(new), f"{found.name}@{step}")


def tokenizer_of(run: Run) -> Any:
    """The tokenizer that made the run's tokens: the copy in its ``source/``, else the prepared data's own."""
    from paceline.compute.data import tokens

    manifest = run.manifest.get("preprocessing")
    prepared = manifest.get("folder", "") if isinstance(manifest, dict) else ""
    places = [run.folder.source / "tokenizer.json"]
    places += [Path(str(prepared)) / "tokenizer.json"] if prepared else []
    for place in places:
        if place.is_file():
            return tokens.load(place)
    raise Refused(
        f"{run.name}: its tokenizer is not here",
        exit_code=Exit.DATA,
        key="data.tokenizer",
        seen=" and ".join(map(str, places)),
        rule="a run keeps its tokenizer in source/, and the prepared data in the cache has it too",
        use=f"paceline train {run.path} --resume (prepares the data again), or copy tokenizer.json there",
    )
