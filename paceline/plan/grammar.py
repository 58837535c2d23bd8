"""The grammar of a layout string (interface §4): text to fields, every mistake answered with the repair.

Only syntax lives here. Whether a well-formed layout can run is the rule book's business (``rules.py``); the
value with its printing and arithmetic is ``layout.py``. All errors are exit 2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from paceline.ledger.outcome import Exit, Refused

AUTO = 0
"""A degree written ``auto``: the devices that are left."""

AXES = ("dp", "fsdp", "tp", "pp", "cp", "ep", "etp")
"""Axes in print order. ``ep`` and ``etp`` add no ranks."""

KINDS: dict[str, tuple[str, ...]] = {
    "fsdp": ("zero3", "zero2", "zero1"),
    "pp": ("1f1b", "gpipe", "interleaved", "zero-bubble", "zbv", "dualpipev"),
    "cp": ("allgather", "ulysses", "ring"),
}
"""What may follow the colon of an axis; the first is the default."""

KIND_FIELD = {"fsdp": "zero", "pp": "schedule", "cp": "cp_kind"}

OPTIONS: dict[str, tuple[str, ...]] = {
    "mbs": (),
    "vpp": (),
    "recompute": ("none", "selective", "full"),
    "offload": ("none", "optimizer", "all"),
    "compile": ("off", "on"),
}
"""Options in print order with their words (the first is the default); no words = an integer."""

LARGEST = 1_000_000
MOST_REPAIRS = 32

FOREIGN: dict[str, tuple[str, str]] = {
    "ddp": ("dp", "dp replicates the model (DDP)"),
    "hsdp": ("dp,fsdp", "both axes together are HSDP: dp=replicas,fsdp=shards"),
    "dp_replicate": ("dp", "dp replicates the model (DDP)"),
    "data_parallel_replicate_degree": ("dp", "dp replicates the model (DDP)"),
    "data_parallel_degree": ("dp", "dp replicates the model, fsdp shards it"),
    "data_parallel_size": ("dp", "dp replicates the model, fsdp shards it"),
    "data_parallel": ("dp", "dp replicates the model, fsdp shards it"),
    "dp_replicate_size": ("dp", "dp replicates the model (DDP)"),
    "dp_shard": ("fsdp", "fsdp shards the model (ZeRO)"),
    "dp_shard_size": ("fsdp", "fsdp shards the model (ZeRO)"),
    "data_parallel_shard_degree": ("fsdp", "fsdp shards the model (ZeRO)"),
    "fsdp2": ("fsdp", "fsdp shards the model (ZeRO)"),
    "fully_shard": ("fsdp", "fsdp shards the model (ZeRO)"),
    "zero": ("fsdp", "the stage follows the degree: fsdp=N:zero1, :zero2 or :zero3"),
    "zero1": ("fsdp:zero1", "the stage follows the degree: fsdp=N:zero1"),
    "zero2": ("fsdp:zero2", "the stage follows the degree: fsdp=N:zero2"),
    "zero3": ("fsdp", "the stage follows the degree: fsdp=N:zero3 (the default)"),
    "sp": ("tp", "tp always runs with sequence parallelism, so sp is no axis of its own"),
    "sequence_parallel": ("tp", "tp always runs with sequence parallelism, so it is no axis of its own"),
    "tensor_parallel": ("tp", "tp cuts the weights of a layer"),
    "tensor_parallel_degree": ("tp", "tp cuts the weights of a layer"),
    "tensor_parallel_size": ("tp", "tp cuts the weights of a layer"),
    "tensor_model_parallel_size": ("tp", "tp cuts the weights of a layer"),
    "tp_size": ("tp", "tp cuts the weights of a layer"),
    "pipeline_parallel_degree": ("pp", "pp cuts the depth"),
    "pipeline_parallel_size": ("pp", "pp cuts the depth"),
    "pipeline_model_parallel_size": ("pp", "pp cuts the depth"),
    "pp_size": ("pp", "pp cuts the depth"),
    "context_parallel_degree": ("cp", "cp cuts the sequence"),
    "context_parallel_size": ("cp", "cp cuts the sequence"),
    "cp_size": ("cp", "cp cuts the sequence"),
    "ulysses": ("cp:ulysses", "the kind follows the degree: cp=N:ulysses"),
    "ring": ("cp:ring", "the kind follows the degree: cp=N:ring"),
    "expert_parallel_degree": ("ep", "ep spreads the experts"),
    "expert_parallel_size": ("ep", "ep spreads the experts"),
    "expert_model_parallel_size": ("ep", "ep spreads the experts"),
    "micro_batch_size": ("mbs", "mbs is the micro-batch, sequences per data rank"),
    "micro_batch": ("mbs", "mbs is the micro-batch, sequences per data rank"),
    "per_device_train_batch_size": ("mbs", "mbs is the micro-batch, sequences per data rank"),
    "local_batch_size": ("mbs", "mbs is the micro-batch, sequences per data rank"),
    "virtual_pipeline": ("vpp", "vpp is the number of stages per rank"),
    "virtual_pipeline_model_parallel_size": ("vpp", "vpp is the number of stages per rank"),
    "gradient_checkpointing": ("recompute=full", "recompute says what is computed again in backward"),
    "activation_checkpoint": ("recompute=full", "recompute says what is computed again in backward"),
    "activation_checkpointing": ("recompute=full", "recompute says what is computed again in backward"),
    "cpu_offload": ("offload=optimizer", "offload says what lives in host memory"),
    "torch_compile": ("compile=on", "compile is on or off"),
}
"""Names of other tools: ours, and why."""

_ACCUMULATION = "accumulation follows: global_batch_size = micro-batch × accumulation × data ranks"
_WORLD = "the world size follows: dp · fsdp · tp · pp · cp"

NOT_SET = {
    "gradient_accumulation_steps": _ACCUMULATION,
    "accumulation": _ACCUMULATION,
    "world_size": _WORLD,
    "nproc_per_node": _WORLD,
    "devices": "the world size follows from the axes; what there is to run on is cluster.use",
}


def read(text: str, where: str = "") -> dict[str, Any]:
    """The fields that ``text`` sets: axis degrees, kinds, options and ``auto``; nothing that was not written.

    Raises:
        Refused: exit 2, with the layout that was probably meant in ``use``; that one parses.
    """
    try:
        return _read(text, where)
    except Refused as refused:
        refused.use = f"--layout {_possible(refused.use.removeprefix('--layout '))}"
        raise


def _possible(text: str) -> str:
    """A repair mends one mistake; where more are left, theirs are taken as well."""
    for _ in range(MOST_REPAIRS):
        try:
            _read(text, "")
        except Refused as refused:
            text = refused.use.removeprefix("--layout ")
        else:
            return text
    return "auto" if text.startswith("auto") else "single"


def _read(text: str, where: str) -> dict[str, Any]:
    if not isinstance(text, str) or not text.strip():
        _refuse(text, "a layout is empty", "a layout names its axes; one device is `single`", "single", where)
    fields: dict[str, Any] = {}
    head = ""
    items = [item.strip() for item in text.split(",")]
    for item in items:
        if not item:
            fixed = ",".join(i for i in items if i)
            _refuse(text, "an item is missing between commas", "items are separated by one `,`", fixed, where)
        if item in ("single", "auto"):
            if head:
                _refuse(text, f"{head} and {item} together", "`single` or `auto` stands once", item, where)
            head = item
            continue
        _item(item, text, fields, where)
    axes = [a for a in AXES if a in fields]
    if head and axes:
        rest = ",".join(i for i in items if i not in ("single", "auto"))
        rule = {"single": "`single` is one device"}.get(
            head, "`auto` chooses every axis; only options may be added"
        )
        _refuse(text, f"{head} takes no axis ({axes[0]})", rule, rest, where)
    if not head and not axes:
        rule = "options change how a layout runs; a layout starts with axes, `single` or `auto`"
        kept = [i for i in items if _key(i) != "vpp"]  # stages are carved out of a pipeline
        _refuse(text, "options without a layout", rule, ",".join(["single", *kept]), where)
    if [fields[a] for a in axes].count(AUTO) > 1:
        rule = "at most one degree is auto: the devices that are left"
        _refuse(text, "two degrees are auto", rule, "auto", where)
    if head == "auto":
        fields["auto"] = True
    return fields


def _item(item: str, text: str, fields: dict[str, Any], where: str) -> None:
    name, equals, value = (part.strip() for part in item.partition("="))
    if not equals:
        _no_value(item, text, where)
    value = re.sub(r"\s*:\s*", ":", value)
    if re.search(r"\s", name + value):
        tight = re.sub(r"\s*([=:,])\s*", r"\1", text.strip())
        rule = "items are separated by `,`"
        _refuse(text, f"`{item}` holds a blank", rule, re.sub(r"\s+", ",", tight), where)
    if name not in AXES and name not in OPTIONS:
        _unknown(name, item, value, text, where)
    if name in fields:
        _refuse(text, f"{name} stands twice", "each key once", _drop_second(text, name), where)
    if name in AXES:
        degree, colon, kind = (part.strip() for part in value.partition(":"))
        fields[name] = _degree(name, degree, item, text, where)
        if colon:
            fields[KIND_FIELD.get(name, "")] = _kind(name, kind, item, text, where)
    elif OPTIONS[name]:
        fields[name] = _word(name, value, item, text, where)
    else:
        fields[name] = _integer(name, value, item, text, where)


def _no_value(item: str, text: str, where: str) -> NoReturn:
    glued = re.fullmatch(r"([a-z_]+?)(\d+)", item)
    name = glued[1] if glued else item
    if item.lower() in ("single", "auto"):
        fixed = _swap(text, item, item.lower())
        _refuse(text, f"`{item}` is not a layout", "names are lower case", fixed, where)
    if glued and (name in AXES or name in OPTIONS):
        fixed = _swap(text, item, f"{name}={glued[2]}")
        _refuse(text, f"`{item}` has no `=`", "an item is key=value", fixed, where)
    if item in FOREIGN and item not in ("sp",):
        _unknown(item, item, "", text, where)
    if item in AXES or item in OPTIONS:
        value = (OPTIONS.get(item) or ("2",))[-1]
        fixed = _swap(text, item, f"{item}={value}")
        _refuse(text, f"{item} has no value", "an item is key=value", fixed, where)
    _unknown(name, item, "", text, where)


def _unknown(name: str, item: str, value: str, text: str, where: str) -> NoReturn:
    key = name.lower().replace("-", "_")
    if key in NOT_SET:
        _refuse(text, f"{name} is not set in a layout", NOT_SET[key], _without(text, item) or "single", where)
    ours, why = FOREIGN.get(key, ("", ""))
    if not ours:
        near = _close(key, [*AXES, *OPTIONS], n=1, cutoff=0.5)
        ours = near[0] if near else ""
        why = "axes and options are " + " ".join([*AXES, *OPTIONS])
    number = value if value.isdigit() or value == "auto" else "2"
    if name == "sp":
        fixed = _without(text, item) if re.search(r"\btp\s*=", text) else _swap(text, item, f"tp={number}")
    elif not ours:
        fixed = _without(text, item) or "single"
    elif ours == "dp,fsdp":
        fixed = _swap(text, item, _hybrid(value))
    elif "=" in ours:
        fixed = _swap(text, item, ours)
    else:
        axis, _, kind = ours.partition(":")
        kept = value if OPTIONS.get(axis) else number
        colon = f":{kind}" if kind else ""
        if key == "zero" and value in ("1", "2", "3"):
            colon, kept = ("" if value == "3" else f":zero{value}"), "2"
        elif not colon and ":" in value and axis in KINDS:
            kept = value
        fixed = _swap(text, item, f"{axis}={kept}{colon}")
    meant = f": {ours}" if ours and ours.isalpha() else ""
    _refuse(text, f"{name} is not an axis or option{meant}", why, fixed, where)


def _hybrid(value: str) -> str:
    pair = re.fullmatch(r"(\d+)\s*[x×*]\s*(\d+)", value)
    if pair:
        return f"dp={pair[1]},fsdp={pair[2]}"
    half = int(value) // 2 if value.isdigit() and len(value) < 8 else 0
    return f"dp=2,fsdp={max(half, 2)}"


def _degree(name: str, value: str, item: str, text: str, where: str) -> int:
    return AUTO if value == "auto" else _integer(name, value, item, text, where)


def _integer(name: str, value: str, item: str, text: str, where: str) -> int:
    digits = value.isascii() and value.isdigit()
    if digits and len(value) < 16 and 1 <= int(value) <= LARGEST:
        return int(value)
    what = "auto or a whole number" if name in AXES else "a whole number"
    rule = f"{name} is {what} from 1 to {LARGEST}"
    fixed = f"{name}={LARGEST if digits and len(value.lstrip('0')) > 6 else 1}"
    close = _close(value.lower(), ["auto"], n=1) if name in AXES else []
    fixed = f"{name}=auto" if close else fixed
    _refuse(text, f"{item} is not possible", rule, _plain(_swap(text, item, fixed)), where)


def _kind(name: str, kind: str, item: str, text: str, where: str) -> str:
    if kind in KINDS.get(name, ()):
        return kind
    stem = item.partition(":")[0].strip()
    if name not in KINDS:
        rule = f"{name} has one kind only; a kind follows fsdp, pp or cp"
        _refuse(text, f"{name} takes no `:{kind}`", rule, _swap(text, item, stem), where)
    words = KINDS[name]
    bare = re.sub(r"[-_]", "", kind.lower())
    same = [w for w in words if w.replace("-", "") == bare or w[-1:] == kind]
    near = same or _close(kind.lower(), words, n=1, cutoff=0.3) or [words[0]]
    rule = f"{name} may be followed by :" + " :".join(words)
    _refuse(text, f"`{kind}` is no kind of {name}", rule, _swap(text, item, f"{stem}:{near[0]}"), where)


def _word(name: str, value: str, item: str, text: str, where: str) -> str:
    words = OPTIONS[name]
    if value in words:
        return value
    yes, no = ("on", "off") if name == "compile" else (words[-1], "none")
    meant = {"true": yes, "on": yes, "1": yes, "false": no, "off": no, "0": no}.get(value.lower())
    near = [meant] if meant else _close(value.lower(), words, n=1, cutoff=0.3)
    fixed = _swap(text, item, f"{name}={near[0] if near else words[0]}")
    _refuse(text, f"{item} is not possible", f"{name} is one of {' '.join(words)}", fixed, where)


def _swap(text: str, item: str, new: str) -> str:
    """``text`` with the first ``item`` replaced, in the order in which it was written."""
    items = [i.strip() for i in text.split(",")]
    items[items.index(item)] = new
    return ",".join(items)


def _plain(text: str) -> str:
    """Degree 1 is the same as absent, so a repair that is only ``axis=1`` reads ``single``."""
    axes = [i for i in text.split(",") if i.partition("=")[0] in AXES]
    kept = [i for i in text.split(",") if i not in axes or i.partition("=")[2] != "1"]
    headed = any(i in axes or i in ("single", "auto") for i in kept)
    return ",".join(kept if headed else ["single", *kept])


def _without(text: str, item: str) -> str:
    items = [i.strip() for i in text.split(",")]
    items.remove(item)
    return ",".join(items)


def _drop_second(text: str, name: str) -> str:
    kept: list[str] = []
    for item in (i.strip() for i in text.split(",")):
        again = _key(item) == name and any(_key(k) == name for k in kept)
        kept += [] if again else [item]
    return ",".join(kept)


def _close(word: str, words: Sequence[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    import difflib  # only a mistake pays for it

    return difflib.get_close_matches(word, words, n=n, cutoff=cutoff)


def _key(item: str) -> str:
    return item.partition("=")[0].strip()


def _refuse(text: object, message: str, rule: str, use: str, where: str) -> NoReturn:
    raise Refused(
        message,
        exit_code=Exit.USAGE,
        key="layout.use",
        seen=text,
        rule=rule,
        use=f"--layout {use}",
        where=where,
    )
