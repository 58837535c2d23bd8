"""``paceline checkpoint export``: a run's weights for other tools."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from paceline.api.load import locate
from paceline.api.reshard import refuse_other_names, widths_of
from paceline.api.runs import Run
from paceline.ledger.atomic import read_json_or
from paceline.ledger.outcome import Exit, Refused

if TYPE_CHECKING:
    from paceline.job.families.outward import Outward
    from paceline.job.presets import ModelWidths
    from paceline.recover.export import Entry
    from paceline.recover.manifest import Manifest

KINDS = ("safetensors", "hf")
DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def export(run: Run | str | Path, into: str | Path, *, to: str = "safetensors") -> dict[str, Any]:
    """Write the whole, unsharded weights of a checkpoint into a new folder, ``config.json`` beside them.

    Args:
        run: a run, its name or folder, ``RUN@STEP``, or a checkpoint's folder inside a run.
        into: the folder to be made; an empty one may be there.
        to: ``safetensors``: the model's own names, everything that it holds. ``hf``: names and config of the published
            family that computes the same, as ``transformers`` loads it.

    Returns:
        ``path to family step tensors bytes files``.

    Raises:
        Refused: (2) ``into`` holds something, or no family computes this model; (52) no such checkpoint; (54) it is not
            of the run's model.
        Failed: (53) a byte is not what was written; (55) it cannot be written there.
    """
    from paceline.recover import export as outside
    from paceline.recover.checkpoint import open_manifest

    if to not in KINDS:
        raise Refused(
            f"--to {to} is not a format",
            exit_code=Exit.USAGE,
            key="--to",
            seen=to,
            rule="hf is for transformers, safetensors for everything else",
            allowed=", ".join(KINDS),
            use="--to safetensors",
        )
    step_dir, found = locate(run)
    folder = Path(into)
    outside.refuse_taken(folder)
    table = open_manifest(step_dir)
    widths = widths_of(found.job, table, step_dir)
    _refuse_other_model(step_dir, widths, table)
    family = _family(widths, found, step_dir, folder, must=to == "hf")
    done = outside.export(
        step_dir,
        folder,
        _entries(table, family if to == "hf" else None),
        _beside(found, widths, family, table),
    )
    return {
        "path": str(done.path),
        "to": to,
        "family": family.family if family is not None else None,
        "step": table.step,
        "tensors": done.tensors,
        "bytes": done.nbytes,
        "files": list(done.files),
    }


def _refuse_other_model(step_dir: Path, widths: ModelWidths, table: Manifest) -> None:
    from paceline.plan.layout import Layout
    from paceline.recipes.holdings import Holdings

    ours = {name: tensor for name, tensor in table.tensors.items() if name.startswith("model/")}
    holdings = Holdings(Layout.parse("single"), widths, 1, ours)
    refuse_other_names(step_dir, holdings.missing(), holdings.unexpected())


def _family(widths: ModelWidths, run: Run, step_dir: Path, into: Path, *, must: bool) -> Outward | None:
    from paceline.job.families.outward import Unmapped, outward

    try:
        return outward(widths)
    except Unmapped as why:
        if not must:
            return None
        raise Refused(
            f"{run.name} is no model that transformers has",
            exit_code=Exit.USAGE,
            key="--to",
            seen=str(why),
            rule="--to hf writes what loads elsewhere and computes the same, or nothing",
            allowed="safetensors",
            use=f"paceline checkpoint export {quote(str(step_dir))} --to safetensors {quote(str(into))}",
        ) from why


def _entries(table: Manifest, family: Outward | None) -> list[Entry]:
    """In the order of the checkpoint's names; a tied weight stands once, under its first name."""
    from paceline.recover.export import Entry

    found = []
    for name, tensor in sorted(table.tensors.items()):
        kind, _, ours = name.partition("/")
        if kind != "model":
            continue
        if family is None:
            found.append(Entry(ours, name))
        else:
            found += [Entry(key, name, at) for key, at in family.keys(ours, tensor.shape)]
    return found


def _beside(run: Run, widths: ModelWidths, family: Outward | None, table: Manifest) -> dict[str, bytes]:
    """``config.json`` and, where the run has it, its tokenizer."""
    dtype = DTYPES.get(table.tensors["model/embed_tokens.weight"].dtype, "float32")
    config = dict(family.config) if family is not None else _own_config(widths)
    config |= {"torch_dtype": dtype, "paceline": {"run": run.name, "step": table.step, **table.identity}}
    found = {"config.json": (json.dumps(config, indent=2) + "\n").encode()}
    tokenizer = run.folder.source / "tokenizer.json"
    if tokenizer.is_file() and "model" in (
        read_json_or(tokenizer, None) or {}
    ):  # bytes are no tokenizer elsewhere
        found[tokenizer.name] = tokenizer.read_bytes()
    return found


def _own_config(widths: ModelWidths) -> dict[str, Any]:
    """Our widths by their names, where no published family computes them."""
    return {"model_type": "paceline", **{k: v for k, v in widths.to_dict().items() if k != "beyond"}}
