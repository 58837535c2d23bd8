"""Values and types of the job file in words, for messages, help and docs."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.job.interval import Interval
from paceline.job.lines import shortened
from paceline.job.presets import WIDTHS, ModelWidths, find_preset
from paceline.job.quantities import print_duration
from paceline.job.schema import Leaf

# For keys whose default is no value: one that shows the form.
_EXAMPLES = {
    "data.residency": '"clinic-7"',
    "cluster.device_mtbf": '"20000h"',
    "extends": '"base.toml"',
    "run.name": '"my-run"',
    "model.preset": '"tiny"',
    "model.hf": '"config.json"',
    "model.weights": '"random"',
    "data.train": '"input.txt"',
    "train.steps": "200",
    "train.epochs": "1.0",
    "train.tokens": '"10B"',
    "train.max_time": '"50min"',
    "model.vocab_size": "8192",
    "model.head_dim": "64",
    "model.num_key_value_heads": "2",
    "model.rope_scaling": '{rope_type = "linear", factor = 2.0}',
    "model.layer_types": '["full_attention"]',
    "model.sliding_window": "0",
    "model.attn_logit_softcapping": "50.0",
    "model.final_logit_softcapping": "30.0",
    "model.q_lora_rank": "0",
    "model.kv_lora_rank": "0",
    "cluster.hosts": "1",
    "cluster.devices": "8",
    "cluster.accelerator": '"H100-SXM-80GB"',
    "cluster.memory": '"80GB"',
    "cluster.link.intra": '"450GB"',
    "cluster.link.inter": '"400Gbit"',
    "cluster.latency.inter": '"5us"',
    "cluster.usd_per_device_hour": "2.99",
    "layout.deadline": '"24h"',
    "layout.budget_usd": "500.0",
}
_WIDTHS = ModelWidths.__dataclass_fields__


def value_text(value: object) -> str:
    """A value as it would stand in TOML, on one line; never fails, whatever it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return shortened('"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in value) + '"')
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return shortened("{" + ", ".join(f"{k} = {value_text(v)}" for k, v in list(value.items())[:4]) + "}")
    if isinstance(value, list | tuple):
        return shortened("[" + ", ".join(value_text(v) for v in value[:6]) + "]")
    return shortened(str(value))


def default_text(leaf: Leaf, *, toml: bool = False) -> str:
    """The default in words; with ``toml`` only what can be pasted, else empty."""
    if leaf.about.shown and not toml:
        return leaf.about.shown
    default = leaf.default
    if default is None:
        return "" if toml else "–"
    if isinstance(default, Interval):
        return f'"{default}"'
    if leaf.form == "Duration":
        return f'"{print_duration(default)}"'
    return value_text(default)


def example(leaf: Leaf) -> str:
    """A TOML value for a key: its default, else one that shows the form."""
    if leaf.name in _EXAMPLES:
        return _EXAMPLES[leaf.name]
    name = leaf.name.removeprefix("model.")
    if leaf.table == "model" and name in WIDTHS:
        return value_text(find_preset("tiny").widths.get(name, _WIDTHS[name].default))
    return default_text(leaf, toml=True)


def choices(leaf: Leaf) -> tuple[str, ...]:
    """The words that this version takes."""
    return tuple(choice for choice in leaf.choices if not leaf.later(choice))


def expected(leaf: Leaf | None) -> str:
    """``an Interval``, ``a whole number``, ``one of auto, cpu, cuda`` …"""
    if leaf is None:
        return "a value"
    if leaf.choices and not leaf.about.form:
        return "one of " + ", ".join(choices(leaf))
    plain = {
        "int": "whole number",
        "float": "number",
        "str": "text",
        "bool": "true or false",
        "Bytes": "bytes",
    }
    word = plain.get(leaf.form, leaf.form)
    if word in ("text", "true or false", "bytes"):
        return word
    return f"{'an' if word[0] in 'aeiouAEIOU' else 'a'} {word}"
