"""``pl.load``: a run's or a checkpoint's whole model as an ordinary module, every key accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.runs import Run, find_checkpoint
from paceline.ledger.folder import RunFolder
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    import torch

    from paceline.compute.models.decoder import Decoder


def load(
    run_or_checkpoint: Run | str | Path = "last", *, device: Any = "cpu", dtype: torch.dtype | None = None
) -> Decoder:
    """The whole model on one device, whatever layout wrote the checkpoint.

    Args:
        run_or_checkpoint: a run, its name or folder, ``RUN@STEP``, or a checkpoint's folder inside a run.
        device: where the parameters go, as torch names it.
        dtype: compute and parameter dtype; default: the one that the checkpoint holds.

    Raises:
        Refused: (2) no such run; (52) no such checkpoint; (54) names or shapes are not the model's.
        Failed: (53) a byte is not what was written.
    """
    path, run = locate(run_or_checkpoint)
    return load_checkpoint(path, run, device=device, dtype=dtype)


def locate(word: Run | str | Path) -> tuple[Path, Run]:
    """The checkpoint's folder, and the run that it belongs to (its job says what the model is)."""
    run, path = find_checkpoint(word.path if isinstance(word, Run) else word)
    if run is not None:
        return path, run
    folder = RunFolder(path.resolve().parent.parent)
    if not folder.is_run():
        raise Refused(
            "the checkpoint is not inside a run",
            exit_code=Exit.MISSING,
            key="RUN",
            seen=str(path),
            rule="the run's job.toml, two folders up, says which model the tensors belong to",
            use="a run, RUN@STEP, or runs/NAME/checkpoints/step-NNNNNNNN",
        )
    return path, Run(folder)


def load_checkpoint(path: Path, run: Run, *, device: Any, dtype: torch.dtype | None) -> Decoder:
    """The model of ``run``'s job with the tensors of the checkpoint ``path``; strict in both directions."""
    import torch

    from paceline.compute.models.decoder import Decoder
    from paceline.recover.whole import read_whole

    tensors = read_whole(path)
    table = tensors.get("embed_tokens.weight")
    if table is None:
        raise _mismatch(path, "no tensor embed_tokens.weight", "a decoder's checkpoint has it")
    kept = dtype or table.dtype
    with torch.device("meta"):
        model = Decoder(run.job.model.widths(table.shape[0]), dtype=kept)
    _same(path, {name: tuple(p.shape) for name, p in _named(model)}, tensors)
    model.load_state_dict({name: t.to(device, kept) for name, t in tensors.items()}, strict=True, assign=True)
    model.tie_weights()
    return model.eval()


def _named(model: Any) -> list[tuple[str, Any]]:
    return list(model.state_dict(keep_vars=True).items())


def _same(path: Path, wanted: dict[str, tuple[int, ...]], found: dict[str, Any]) -> None:
    missing = sorted(set(wanted) - set(found))
    unexpected = sorted(set(found) - set(wanted))
    shapes = [
        f"{name} {tuple(found[name].shape)}, the model has {shape}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    if missing or unexpected or shapes:
        parts = [("missing", missing), ("unexpected", unexpected), ("shape", shapes)]
        seen = "\n".join(f"{what}: {', '.join(names)}" for what, names in parts if names)
        raise _mismatch(path, seen, "every parameter is in the checkpoint once, with its shape")


def _mismatch(path: Path, seen: str, rule: str) -> Refused:
    return Refused(
        "checkpoint and model do not match",
        exit_code=Exit.MISMATCH,
        key="checkpoint",
        seen=seen,
        rule=rule,
        use="the job that wrote it: job.toml of its run",
        where=str(path),
    )
