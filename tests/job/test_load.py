"""Loading: what wins over what, where every value came from, and errors that name key, file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.job import Job, load
from paceline.job.schema import leaves
from paceline.ledger.outcome import PacelineError, Refused, render

SHORT = 'data.train = "input.txt"\nmodel.preset = "tiny"\ntrain.steps = 200\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into an empty current folder; no defaults file of this machine is read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.job.stack.DEFAULTS_FILES", ())

    def writer(text: str, name: str = "job.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return Path(name)

    return writer


def only_our_errors(action: Callable[[], object]) -> None:
    """Runs ``action``; whatever it raises must be a usage error that prints."""
    error: PacelineError | None = None
    try:
        action()
    except PacelineError as caught:
        error = caught
    if error is not None:
        assert error.exit_code == 2
        assert render(error)


def refused(path, **options) -> Refused:
    with pytest.raises(Refused) as caught:
        load(path, **options)
    assert caught.value.exit_code == 2
    assert render(caught.value)
    return caught.value


def test_the_shortest_job(write, tmp_path):
    loaded = load(write(SHORT))
    job = loaded.job
    assert job.run.name == "job"
    assert job.train.steps == 200
    assert job.train.epochs is None
    assert job.data.train is not None
    assert job.data.train[0].path == str(tmp_path / "input.txt")
    assert job.data.tokenizer == "bpe:8192"
    assert loaded.base_folder == tmp_path
    assert loaded.origins["train.steps"] == "job.toml:3"
    assert loaded.origins["train.seed"] == "built-in default"
    assert loaded.origins["run.name"] == "file stem"
    assert set(loaded.origins) == set(job.flat())


def test_nothing_given_trains_one_epoch_of_tiny(write):
    job = load(write("")).job
    assert (job.model.preset, job.train.epochs, job.data.train) == ("tiny", 1.0, None)


def test_later_places_win(write, tmp_path):
    site = write('run.root = "a"\n[track]\nevery = "1s"\n[cluster]\nhosts = 1\ndevices = 1', "site.toml")
    mine = write('run.root = "b"\n[track]\nevery = "2s"\n[cluster]\nhosts = 2', "mine.toml")
    write('[track]\nevery = "3s"\n[train]\nseed = 3\nglobal_batch_size = 3', "base/base.toml")
    job = write('extends = "base/base.toml"\n[train]\nseed = 4\nsteps = 4')
    loaded = load(
        job, sets=[("train.steps", "5")], defaults_files=(site, mine), environment={"run.root": "env"}
    )
    flat, origins = loaded.job.flat(), loaded.origins
    want = {
        "cluster.devices": (1, "site.toml:6"),
        "cluster.hosts": (2, "mine.toml:5"),
        "run.root": ("env", "environment"),
        "track.every": ("3s", "base/base.toml:2"),
        "train.global_batch_size": (3, "base/base.toml:5"),
        "train.seed": (4, "job.toml:3"),
        "train.steps": (5, "--set"),
    }
    assert {key: (flat[key], origins[key]) for key in want} == want
    assert [path.name for path in loaded.files] == ["base.toml", "job.toml"]
    assert loaded.path == job


def test_paths_are_relative_to_the_file_that_names_them(write, tmp_path):
    write('data.eval = ["held.txt", "python-stdlib"]', "base/base.toml")
    write(
        'extends = "../base/base.toml"\ndata.train = "*.txt"\ndata.tokenizer = "t.json"',
        "x/a.toml",
    )
    job = load("x/a.toml").job
    assert [item.path for item in job.data.eval] == [str(tmp_path / "base/held.txt"), "python-stdlib"]  # type: ignore[union-attr]
    assert job.data.train[0].path == str(tmp_path / "x/*.txt")  # type: ignore[index]
    assert job.data.tokenizer == str(tmp_path / "x/t.json")
    on_line = load("x/a.toml", sets=["data.train=b.txt"]).job
    assert on_line.data.train[0].path == str(tmp_path / "b.txt")  # type: ignore[index]


def test_folders_with_brackets_are_no_pattern(write, tmp_path):
    write('data.train = "*.txt"', "run[1]/a.toml")
    (tmp_path / "run[1]" / "x.txt").write_text("x")
    import glob

    job = load("run[1]/a.toml").job
    assert glob.glob(job.data.train[0].path) == [str(tmp_path / "run[1]" / "x.txt")]  # type: ignore[index]


def test_one_of_group_is_cleared_by_a_later_place(write):
    path = write(SHORT)
    job = load(path, sets=["train.tokens=10B"]).job
    assert (job.train.steps, job.train.epochs, job.train.tokens) == (None, None, 10**10)
    job = load(path, sets=["train.tokens=10B", "train.epochs=2.0"]).job
    assert (job.train.steps, job.train.epochs, job.train.tokens) == (None, 2.0, None)
    job = load(path, sets=["train.tokens=10B", "train.tokens="]).job
    assert (job.train.steps, job.train.epochs) == (None, 1.0)


def test_one_of_group_given_twice_in_one_place_is_refused(write):
    error = refused(write("[train]\nsteps = 5\ntokens = 5\n"))
    assert "exclude each other" in error.message
    assert error.where.startswith("job.toml:")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.steps=300k", "train.steps", 300_000),
        ('train.steps="300k"', "train.steps", 300_000),
        ("layout.use=fsdp=2,tp=2", "layout.use", "fsdp=2,tp=2"),
        ("optimizer.betas=[0.8, 0.9]", "optimizer.betas", [0.8, 0.9]),
        ("run.note=two words", "run.note", "two words"),
        ("train.seed=", "train.seed", 0),
        ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
        ("train={seed = 7}", "train.seed", 7),
        ("cluster.link={inter = '400Gbit'}", "cluster.link.inter", "50GB"),
        ("run.note=a\nb = 1", "run.note", "a\nb = 1"),
        ("data.train={a = {path = '/x', weight = 2}}", "data.train", {"a": {"path": "/x", "weight": 2.0}}),
    ],
)
def test_set(write, text, key, value):
    loaded = load(write(SHORT + "train.seed = 9\n"), sets=[text])
    assert loaded.job.flat()[key] == value
    assert loaded.origins[key] == ("--set" if not text.endswith("=") else "built-in default")


@pytest.mark.parametrize("text", ["train.steps", "=5", " = "])
def test_set_without_key_or_value(write, text):
    assert refused(write(SHORT), sets=[text]).use == "--set train.steps=200"


BAD = [  # text of the job, key, line, what the repair says
    ("\n\ntrain.learning_rate = 3e-4", "train.learning_rate", 3, "optimizer.lr = 3e-4"),
    ("[train]\nstepz = 1", "train.stepz", 2, "train.steps = 1"),
    ("[trian]\nsteps = 1", "trian", 1, "[train]"),
    ("[train]\nsteps = true", "train.steps", 2, "train.steps = 200"),
    ("[train]\nsteps = 1.0", "train.steps", 2, "train.steps = 1"),
    ("[train]\nsteps = 0", "train.steps", 2, "train.steps = 200"),
    ("[train]\nsteps = -5", "train.steps", 2, "train.steps = 200"),
    ('[train]\nseed = "1"', "train.seed", 2, "train.seed = 0"),
    ("[train]\nseed = true", "train.seed", 2, "train.seed = 0"),
    ("[train]\nseed = 9223372036854775808", "train.seed", 2, "train.seed = 0"),
    ("[train]\nseed = 2026-11-30", "train.seed", 2, "train.seed = 0"),
    ("[train]\ndeterministic = 1", "train.deterministic", 2, "train.deterministic = false"),
    ("optimizer.lr = nan", "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ("optimizer.lr = inf", "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ("optimizer.lr = 1e309", "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ("optimizer.lr = -1e-3", "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ("optimizer.lr = true", "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ('optimizer.lr = "3e-4"', "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ("optimizer.lr = 1" + "0" * 400, "optimizer.lr", 1, "optimizer.lr = 0.0003"),
    ("optimizer.betas = [0.9, nan]", "optimizer.betas", 1, "optimizer.betas = [0.9, 0.95]"),
    ("optimizer.betas = [0.9, 1.0]", "optimizer.betas", 1, "optimizer.betas = [0.9, 0.95]"),
    ("optimizer.warmup_steps = 1.0", "optimizer.warmup_steps", 1, "optimizer.warmup_steps = 1"),
    ("optimizer.min_lr_ratio = 1.5", "optimizer.min_lr_ratio", 1, "optimizer.min_lr_ratio = 0.1"),
    ("train.max_time = 30", "train.max_time", 1, 'train.max_time = "30s"'),
    ('checkpoint.every = "5m"', "checkpoint.every", 1, 'checkpoint.every = "5min"'),
    ("checkpoint.keep = 0", "checkpoint.keep", 1, "checkpoint.keep = 2"),
    ('run.tags = "x"', "run.tags", 1, 'run.tags = ["x"]'),
    ("run.tags = [1]", "run.tags", 1, "run.tags = []"),
    ("run.name = 5", "run.name", 1, 'run.name = "5"'),
    ('run.name = "con"', "run.name", 1, "--name"),
    ('run.device = "mps"', "run.device", 1, 'run.device = "auto"'),
    ("data.train = 5", "data.train", 1, 'data.train = "input.txt"'),
    ("data.train = []", "data.train", 1, 'data.train = "input.txt"'),
    ("data.train = {a = {weight = 1.0}}", "data.train", 1, 'data.train = "input.txt"'),
    ("[data.train.a]\npath='x'\nweight = -1", "data.train", 1, 'data.train = "input.txt"'),
    ("data.eval = 1.5", "data.eval", 1, "data.eval = 0.01"),
    ("data.sequence_length = 9000", "data.sequence_length", 1, "data.sequence_length = 8192"),
    ('data.tokenizer = "bpe:7"', "data.tokenizer", 1, 'data.tokenizer = "bpe:8192"'),
    ('model.preset = "tinny"', "model.preset", 1, 'model.preset = "tiny"'),
    ("model.hidden_size = 250", "model.num_attention_heads", 1, "model.num_attention_heads = 2"),
    ('model = "tiny"', "model", 1, 'model.preset = "tiny"'),
    ("train = 5", "train", 1, "[train]"),
    ("[[train]]\nsteps = 5", "train", 1, "[train]"),
    ("cluster.link = 5", "cluster.link", 1, "[cluster.link]"),
    ('cluster.memory = "80gb"', "cluster.memory", 1, 'cluster.memory = "80GB"'),
    ("\nextends = 5", "extends", 2, 'extends = "base.toml"'),
    ('"train.steps" = 5', '"train.steps"', 1, "train.steps = 5"),
]


@pytest.mark.drill(49, 50)
@pytest.mark.parametrize(("text", "key", "line", "use"), BAD)
def test_errors_name_key_line_and_repair(write, text, key, line, use):
    error = refused(write(text))
    assert (error.key, error.where) == (key, f"job.toml:{line}")
    assert use in error.use
    assert error.rule


LATER = [  # text, key, number
    ("[lora]\nrank = 8", "lora.rank", "06"),
    ("[lora]\ndropout = 0.0", "lora.dropout", "06"),
    ("[lora]", "lora", "06"),
    ("[federation]\nrounds = 5", "federation.rounds", "07"),
    ("[claim]\nat_least = 1.0", "claim.at_least", "05"),
    ('[control.cost_usd]\nabove = 500\naction = "ask"', "control.cost_usd.action", "05"),
    ('[control.loss]\nabove = 5\naction = "fallback:dp=2"', "control.loss.action", "05"),
    ("[limits]\nusd = 5.0", "limits.usd", "05"),
    ("[rollout]\napproval = true", "rollout.approval", "05"),
    ("[launch]\nsetup = ['x']", "launch.setup", "08"),
    ("[launch.slurm]\npartition = 'a'", "launch.slurm.partition", "08"),
    ('model.python = "m.py:build"', "model.python", "06"),
    ('model.preset = "gemma-2-9b"', "model.preset", "06"),
    ('model.weights = "pretrained"', "model.weights", "06"),
    ('train.precision = "fp8"', "train.precision", "later"),
    ('optimizer.name = "muon"', "optimizer.name", "06"),
    ('update.policy = "diloco"', "update.policy", "07"),
    ('update.compression = "powersgd:4"', "update.compression", "07"),
    ("update.sync_every = 100", "update.sync_every", "07"),
    ('data.train = "hf://datasets/a/b"', "data.train", "06"),
    ('data.train = ["a.txt", "data.py:rows"]', "data.train", "06"),
    ('data.eval = "https://example.org/x.txt"', "data.eval", "06"),
    ('data.tokenizer = "openai/gpt2"', "data.tokenizer", "06"),
    ('data.placement = "local"', "data.placement", "08"),
    ('checkpoint.store = "s3://bucket/x"', "checkpoint.store", "04"),
    ("checkpoint.memory_copies = 1", "checkpoint.memory_copies", "04"),
    ('track.to = ["wandb"]', "track.to", "05"),
    ('eval.metrics = ["m.py:auc"]', "eval.metrics", "06"),
    ('run.scratch = "/local"', "run.scratch", "08"),
]


@pytest.mark.parametrize(("text", "key", "number"), LATER)
def test_what_has_not_arrived_is_refused_by_name(write, text, key, number):
    error = refused(write(text))
    assert error.key == key
    assert "not in this version" in error.message
    assert number in error.rule
    assert error.where == f"job.toml:{len(text.splitlines())}"


@pytest.mark.parametrize(
    "text",
    [
        'update.policy = "every_step"',
        "update.sync_every = 500",
        'update.compression = "none"',
        "track.to = []",
        "restart.elastic = false",
        "federation.rounds = 10",
        'federation.round_timeout = "1h"',
        'model.weights = "random"',
        "checkpoint.memory_copies = 0",
    ],
)
def test_the_default_of_what_has_not_arrived_is_accepted(write, text):
    path = write(text)
    assert load(path).job.hash == load(write("", "other.toml"), sets=["run.name=job"]).job.hash


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \n", 2),
        ("[train\n", 1),
        ("\n\nsteps 5", 3),
        ("a = 1\na = 2", 2),
        ("x = " + "1" * 5000, 1),
        ("x = " + "[" * 3000, 1),
        ("\0", 1),
        ('a = "unclosed', 1),
    ],
)
def test_syntax_errors_name_file_and_line(write, text, line):
    error = refused(write(text))
    assert error.message == "job.toml is not valid TOML"
    assert error.where == f"job.toml:{line}"


def test_files_that_cannot_be_read(write, tmp_path):
    assert "No such file" in refused("nothing.toml").seen
    assert refused(write('extends = "nothing.toml"')).where == "job.toml:1"
    (tmp_path / "latin.toml").write_bytes(b"\nrun.note = '\xe4'")
    assert refused("latin.toml").where == "latin.toml:2"
    (tmp_path / "big.toml").write_bytes(b"#" * (1 << 21))
    assert "too large" in refused("big.toml").message
    (tmp_path / "folder").mkdir()
    refused("folder")
    refused("bad\0name.toml")


def test_extends_that_goes_round(write):
    write('extends = "b.toml"', "a.toml")
    write('extends = "a.toml"', "b.toml")
    assert "circle" in refused("a.toml").message


@pytest.mark.parametrize(
    "text", ["[train]\nsteps = 5", "optimizer.lr = 1e-3", 'extends = "x.toml"', "checkpoint.keep = 3"]
)
def test_defaults_files_cannot_change_the_mathematics(write, text):
    error = refused(write(SHORT), defaults_files=(write(text, "site.toml"),))
    assert "cannot stand in a defaults file" in error.message
    assert error.where.startswith("site.toml:")


def test_defaults_files_that_are_not_there(write):
    assert load(write(SHORT), defaults_files=("nothing.toml",)).job.train.steps == 200


@pytest.mark.parametrize("name", ["two words.toml", ".toml", "con.toml", "last.toml"])
def test_a_stem_that_is_no_run_name(write, name):
    error = refused(write(SHORT, name))
    assert error.key == "run.name"
    assert error.where == name
    assert load(name, sets=["run.name=ok"]).job.run.name == "ok"


def test_a_run_is_its_resolved_job(write, tmp_path):
    job = load(write(SHORT + '[track]\nevery = "7s"')).job
    (tmp_path / "runs/x").mkdir(parents=True)
    job.save("runs/x/job.toml")
    (tmp_path / "runs/x/manifest.json").write_text("{}")
    site = write("cluster.hosts = 7", "site.toml")
    for path in ("runs/x", "runs/x/job.toml"):
        again = load(path, defaults_files=(site,), environment={"run.root": "elsewhere"})
        assert again.job == job
        assert again.job.run.name == "job"


def test_warnings_say_what_has_no_effect(write):
    loaded = load(write(SHORT + "optimizer.momentum = 0.5\noptimizer.decay_steps = 5\n"))
    assert [w.split(" has no effect")[0] for w in loaded.warnings] == [
        "optimizer.momentum",
        "optimizer.decay_steps",
    ]
    assert "job.toml:4" in loaded.warnings[0]


def test_job_load_is_the_same_job(write):
    path = write(SHORT)
    assert Job.load(path) == load(path).job
    assert Job.load(path, set={"train.tokens": "1M", "run.note": "5"}).flat()["run.note"] == "5"
    with pytest.raises(Refused):
        Job.load(path, set={"train.steps": "x"})


KEYS = st.sampled_from(
    [*leaves(), "train", "control", "control.a", "x", "train.x", "data.train.a.path", "", "a.b.c.d"]
)
ANY_VALUE = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(["10%", "5min", "80GB", "auto", "bpe:8192", "1e309", "{}", "[]", "", "fp32"]),
    st.lists(st.integers() | st.text(st.characters(codec="utf-8"), max_size=3), max_size=3),
    st.dictionaries(
        st.sampled_from(["path", "weight", "steps", "a"]), st.integers() | st.text(max_size=3), max_size=2
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(KEYS, ANY_VALUE, max_size=3))
def test_no_value_of_any_key_raises_anything_but_our_errors(write, values):
    only_our_errors(lambda: load(write(SHORT), sets=values))


TOML_PIECES = st.sampled_from(
    [
        "[train]\n",
        "steps = 5\n",
        "[",
        "]",
        "=",
        '"',
        "'",
        "\n",
        "data",
        ".",
        "train",
        "{",
        "}",
        ",",
        "1e309",
        "nan",
        "#",
    ]
    + [
        "[[x]]\n",
        'data.train = "a"\n',
        "control",
        "[control.x]\n",
        "above",
        " ",
        "true",
        "-",
        "1",
        '"""',
        "\\",
        "é",
        "\0",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TOML_PIECES, max_size=20).map("".join) | st.text(st.characters(codec="utf-8")))
def test_no_text_raises_anything_but_our_errors(write, text):
    only_our_errors(lambda: load(write(text)))


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(max_size=12) | st.tuples(KEYS, st.text(max_size=8)), max_size=2))
def test_no_set_raises_anything_but_our_errors(write, sets):
    only_our_errors(lambda: load(write(SHORT), sets=sets))


DEEP = ".".join(["a"] * 5000)


@pytest.mark.parametrize(
    "text",
    [
        f"{DEEP} = 1",
        f"train.{DEEP} = 1",
        f"[{DEEP}]",
        f"data.train = {{{DEEP} = 1}}",
        f"model.rope_scaling.{DEEP} = 1",
    ],
)
def test_a_key_of_thousands_of_levels_is_refused(write, text):
    error = refused(write(text))
    assert "too deep" in error.message or "not a key" in error.message
    assert error.where.startswith("job.toml") or "job.toml" in error.where
    assert error.use


@pytest.mark.parametrize("one", [f"{DEEP}=1", f"train.steps={{{DEEP} = 1}}", f"data.train={{{DEEP} = 1}}"])
def test_a_set_of_thousands_of_levels_is_refused(write, one):
    error = refused(write(SHORT), sets=[one])
    assert error.where == "--set"


def test_a_nested_value_in_python_is_refused():
    nested = {}
    for _ in range(3000):
        nested = {"a": nested}
    only_our_errors(lambda: Job(data={"train": nested}))
    with pytest.raises(Refused, match="too deep"):
        Job(data={"train": nested})
