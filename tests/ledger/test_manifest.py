"""The manifest is complete, keeps no secret, and counts how often the held-out set was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.ledger import manifest
from paceline.ledger.atomic import read_json
from paceline.ledger.folder import create

NESTED = [
    ("hashes", ["data", "tokenizer", "weights", "code", "job"]),
    ("versions", ["python", "torch", "paceline", "numpy", "tokenizers"]),
    ("evaluation", ["set", "hash", "times_read"]),
]


def test_a_new_manifest_has_every_field_and_says_what_nobody_stated(tmp_path: Path) -> None:
    made = manifest.new_manifest(hashes={"job": "sha256:1"}, evaluation_set="1 % by hash of the document")
    assert manifest.missing(made) == []
    assert (made["schema"], made["kind"], len(made["run_id"])) == (1, "train", 32)
    assert made["hashes"]["data"] == made["data_licence"] == made["data_site"] == "not stated"
    for table, names in NESTED:
        assert set(names) <= set(made[table])
    assert manifest.new_manifest()["run_id"] != made["run_id"]


@pytest.mark.parametrize("field", manifest.FIELDS)
def test_a_manifest_that_lacks_a_field_is_not_written(tmp_path: Path, field: str) -> None:
    made = manifest.new_manifest()
    del made[field]
    with pytest.raises(ValueError, match=field):
        manifest.write(create(tmp_path, "r"), made)


@pytest.mark.parametrize(("table", "name"), [(t, n) for t, names in NESTED for n in names])
def test_nested_fields_are_asked_for_too(table: str, name: str) -> None:
    made = manifest.new_manifest()
    del made[table][name]
    assert manifest.missing(made) == [f"{table}.{name}"]


def test_readings_of_the_held_out_set_are_counted(tmp_path: Path) -> None:
    folder = create(tmp_path, "r")
    manifest.write(folder, manifest.new_manifest())
    assert [manifest.count_eval_read(folder) for _ in range(3)] == [1, 2, 3]
    assert read_json(folder.manifest)["evaluation"]["times_read"] == 3


def test_variables_that_matter_are_kept_and_secrets_are_not() -> None:
    kept = manifest.keep_variables(
        {
            "OMP_NUM_THREADS": "1",
            "NCCL_DEBUG": "INFO",
            "TOKENIZERS_PARALLELISM": "false",
            "SLURM_JOB_ID": "7",
            "SLURM_JWT_TOKEN": "s3cret",
            "TORCH_API_KEY": "s3cret",
            "NCCL_PROXY": "http://user:s3cret@host:1",
            "HOME": "/root",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
        }
    )
    assert sorted(kept) == [
        "NCCL_DEBUG",
        "NCCL_PROXY",
        "OMP_NUM_THREADS",
        "SLURM_JOB_ID",
        "TOKENIZERS_PARALLELISM",
    ]
    assert "s3cret" not in str(kept)


def test_an_unknown_hash_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="colour"):
        manifest.new_manifest(hashes={"colour": "x"})
