"""The rows of the fault log about the mathematics of a step: which test holds each, and what is refused by name.

Each row has a test in a ``test_open_rows_*.py`` with its number in the name, or stands in :data:`COVERED`, where its
trigger and right value were tested before; most have both, since a row is a kind and not a case.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.job import Job, load
from paceline.ledger.outcome import Exit, Refused

TESTS = Path(__file__).parents[1]

ROWS = {
    "GA": ("B002", "B004", "B005"),
    "LAST": ("B034", "B036"),
    "TW": ("B006", "B008"),
    "TIE": ("B010", "B011"),
    "RNG": ("B012", "B013"),
    "CLIP": ("B016", "B018"),
    "ROPE": ("B019", "B020"),
    "BF16": ("B060", "B061"),
    "SYNC": ("B063", "B065"),
    "FRZ": ("B067", "B068"),
    "LAY": ("B038",),
    "MB": ("B040",),
    "VOC": ("B041", "B044"),
    "HEAD": ("B045",),
    "MOE": ("B047", "B048"),
    "BAL": ("B051", "B052"),
    "CP": ("B056", "B057"),
    "PACK": ("B058",),
}

COVERED = {
    "B004": "update/pipeline/test_runtime.py::test_calls_in_a_row_scale_each_gradient_once",
    "B008": "deliver/test_cp.py::test_a_decoder_equals_one_device_wherever_its_valid_tokens_are",
    "B013": "compute/models/test_moe.py::test_nothing_is_random",
    "B019": "compute/models/test_rope.py::test_tables_are_float32_and_exact_at_4096",
    "B020": "compute/models/test_rope.py::test_casting_the_model_leaves_the_tables_alone",
    "B038": "update/pipeline/test_runtime.py::test_equals_one_device",
    "B040": "plan/pipeline/test_counts.py::"
    "test_fewer_micro_batches_than_stages_are_refused_with_the_counts_that_run",
    "B047": "compute/models/test_moe.py::test_experts_without_tokens_have_a_gradient_of_zero",
    "B048": "deliver/test_ep.py::test_equal_to_one_device",
    "B051": "compute/models/test_balance.py::test_the_term_tells_a_skewed_router_from_an_even_one",
    "B052": "compute/models/test_balance.py::test_the_term_tells_a_skewed_router_from_an_even_one",
    "B058": "compute/models/test_decoder.py::test_loss_and_gradients_are_those_of_the_plain_formulation",
    "B067": "deliver/test_dp.py::test_a_layer_that_is_never_called_does_not_hang_the_others",
    "B068": "deliver/test_dp.py::test_a_layer_that_is_never_called_does_not_hang_the_others",
}

# What the fault needs and this version does not have. "Ignored" would be the fault.
WITHOUT = {
    "B012": (
        "model.attention_dropout = 0.1",
        "model.hidden_dropout = 0.1",
        "model.resid_pdrop = 0.1",
        "model.embd_pdrop = 0.1",
        "model.attn_pdrop = 0.1",
        "model.dropout = 0.1",
        "train.dropout = 0.1",
    ),
    "B013": (
        "model.router_jitter_noise = 0.01",
        "model.router_noise = true",
        "model.input_jitter_noise = 0.01",
    ),
    "B044": ("train.label_smoothing = 0.1", "model.label_smoothing = 0.1", "layout.gather_logits = true"),
    "B051": (
        "model.expert_capacity = 2",
        "model.capacity_factor = 1.25",
        "model.moe_token_drop_policy = 'probs'",
    ),
    "B052": ("model.pad_to_capacity = true", "train.moe_pad_expert_input_to_capacity = true"),
    "B060": (
        "train.precision = 'bf16-true'",
        "train.param_dtype = 'bf16'",
        "optimizer.master_weights = false",
    ),
    "B067": (
        "model.freeze = ['layers.0.*']",
        "train.static_graph = true",
        "layout.find_unused_parameters = true",
    ),
}


def functions(path: Path) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def rows_named() -> Iterator[str]:
    for path in Path(__file__).parent.glob("test_open_rows_*.py"):
        for name in functions(path):
            numbers = re.match(r"test((?:_b\d{3})+)_", name)
            assert numbers, f"{path.name}: {name} names no row"
            yield from re.findall(r"B\d{3}", numbers[1].upper())


def test_every_row_has_a_test() -> None:
    rows = {row for kind in ROWS.values() for row in kind}
    assert len(rows) == sum(map(len, ROWS.values())) == 33
    assert set(rows_named()) | set(COVERED) == rows
    assert set(WITHOUT) <= rows


@pytest.mark.parametrize("row", COVERED)
def test_a_test_that_covers_a_row_is_there(row: str) -> None:
    """And says so: the row's number is in its words or in those of its file."""
    path, name = COVERED[row].split("::")
    assert name in functions(TESTS / path)
    assert row in (TESTS / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("row", "line"), [(row, line) for row, lines in WITHOUT.items() for line in lines])
def test_what_is_not_here_is_refused_by_name(
    row: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file, in a file that another extends, on the command line and from Python; key and place are named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.job.stack.DEFAULTS_FILES", ())
    key, value = line.split(" = ")
    plain = 'data.train = "input.txt"\nmodel.preset = "tiny"\n'
    Path("base.toml").write_text(plain + line + "\n")
    Path("job.toml").write_text('extends = "base.toml"\n')
    Path("plain.toml").write_text(plain)
    table, name = key.split(".")
    ways = (
        lambda: load(Path("base.toml")),
        lambda: load(Path("job.toml")),
        lambda: load(Path("plain.toml"), sets=[f"{key}={value}"]),
        lambda: Job(**{"data": {"train": "input.txt"}, table: {name: 0.1}}),
    )
    for number, way in enumerate(ways):
        with pytest.raises(Refused) as caught:
            way()
        assert caught.value.exit_code == Exit.USAGE
        assert caught.value.key == key
        assert key in caught.value.message
        if number < 2:
            assert caught.value.where == "base.toml:3"
