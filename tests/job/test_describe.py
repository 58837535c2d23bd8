"""Rows of keys and the JSON Schema are the schema again: nothing said twice, nothing left out."""

from __future__ import annotations

import json

import pytest

from paceline.job.describe import json_schema, keys
from paceline.job.schema import leaves
from paceline.ledger.outcome import Refused


def test_all_keys():
    rows = keys()
    assert [row.key for row in rows] == list(leaves())
    assert all(row.meaning and row.form and row.default for row in rows if row.key != "run.note")


def test_one_key_lists_its_values():
    (row,) = keys("model.preset")
    assert "tiny" in row.values
    assert "gemma-2-9b (06)" in row.values
    (row,) = keys("train.precision")
    assert row.values == ("auto", "bf16", "fp32", "fp64", "fp8 (later)")
    assert keys("[train]")[0].key == "train.steps" or "train.steps" in {r.key for r in keys("[train]")}


def test_words_and_names_of_other_tools():
    assert keys("learning_rate")[0].key == "optimizer.lr"
    assert keys("block_size")[0].key == "data.sequence_length"
    assert "train.seed" in {row.key for row in keys("seed")}
    with pytest.raises(Refused) as caught:
        keys("xyzzy")
    assert caught.value.exit_code == 2


def nodes(schema: dict) -> dict[str, dict]:
    """Dotted key → its node, references followed."""

    def walk(node: dict, prefix: str) -> None:
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        for name, inner in node.get("properties", {}).items():
            found[prefix + name] = inner
            if prefix + name not in leaves():
                walk(inner, f"{prefix}{name}.")
        if prefix == "control.":
            walk(node["additionalProperties"], "control.*.")

    found: dict[str, dict] = {}
    walk(schema, "")
    return found


def test_json_schema_has_every_key_with_its_words():
    schema = json.loads(json.dumps(json_schema(), allow_nan=False))
    found = nodes(schema)
    for name, leaf in leaves().items():
        assert found[name]["description"].startswith(leaf.meaning), name
        assert found[name].get("x-arrives", "") == leaf.arrives
    assert schema["additionalProperties"] is False
    assert '"null"' not in json.dumps(schema)


def test_json_schema_defaults_and_limits():
    found = nodes(json_schema())
    assert found["train.global_batch_size"]["default"] == 32
    assert found["checkpoint.every"]["default"] == "15min"
    assert found["optimizer.betas"]["default"] == [0.9, 0.95]
    assert found["optimizer.lr"]["exclusiveMinimum"] == 0
    assert found["run.device"]["enum"] == ["auto", "cpu", "cuda"]
    assert found["train.steps"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
