"""``JOB``: a job file, or a run (its folder's ``job.toml``), with ``--set`` on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api.surroundings import hub_folder, job_values
from paceline.job import Job, Loaded, load
from paceline.job.around import config_of
from paceline.job.families.place import is_hub_id
from paceline.job.files import is_job_file
from paceline.launch.environment import exported
from paceline.ledger.outcome import Exit, PacelineError, Refused

if TYPE_CHECKING:
    from paceline.api.runs import Run

Sets = Mapping[str, object] | Sequence[tuple[str, str]]
MOST_NEAR = 5
IN_PYTHON = "Python"
MANY_TOKENS = 1 << 20  # a vocabulary that no rule finds too small, while the tokenizer's is not known


def load_job(job: Job | str | Path, sets: Sets = ()) -> Loaded:
    """The job of a file, of a run (folder, name or ``last``), around a published config, or a :class:`Job` as it is.

    Raises:
        Refused: (2) there is no such file or run, or the job is wrong; key, file and line are named.
    """
    if isinstance(job, Job):
        changed = job.replace(dict(sets)) if sets else job
        return Loaded(changed, dict.fromkeys(changed.flat(), IN_PYTHON), (), Path.cwd(), ())
    run = run_of(job)
    # pydantic's plugins belong to other people's models; looking for them reads every installed distribution.
    with exported({"PYDANTIC_DISABLE_PLUGINS": "__all__"}):
        return load(run.path if run else job, sets=sets, environment=job_values(), hub=hub_folder())


def run_of(word: str | Path) -> Run | None:
    """The run that ``word`` names, or None when it is the path of a job file."""
    path = Path(word)
    folder = path.is_dir()
    if not folder and (
        path.is_file() or path.suffix.lower() == ".toml" or config_of(path, hub_folder()) is not None
    ):
        return None
    from paceline.api.runs import Run  # not for a job file, which is what is read most often
    from paceline.ledger.folder import RunFolder

    if folder:
        return Run(RunFolder(path)) if RunFolder(path).is_run() else None
    try:
        return Run(word)
    except PacelineError as error:
        hub = _of_hub(str(word))
        if hub:
            raise Refused(
                f"{word} is not in the local Hugging Face cache",
                exit_code=Exit.USAGE,
                key="JOB",
                seen=str(word),
                rule="a hub id ORG/NAME[@REV] is read from the cache; nothing is fetched from the network",
                allowed="a hub id that the cache has, a model's config.json, a job file (….toml), or a run",
                use=hub,
            ) from error
        raise Refused(
            f"there is no job file and no run {str(word)!r}",
            exit_code=Exit.USAGE,
            key="JOB",
            seen=str(word),
            rule="JOB is a job file (….toml), a run (folder, name, or `last`), a model's config.json, or a hub id",
            allowed=error.allowed,
            use=_nearest_file(path) or "paceline job new > job.toml",
        ) from error


def check_layout(job: Job, layout: str, where: str = "") -> None:
    """What the rule book says of a layout before the data are read: the vocabulary may still be unknown.

    Raises:
        Refused: (2, 10) the layout breaks a rule.
    """
    from paceline.plan.rules import Facts, check, read

    facts = Facts(
        widths=job.model.widths(job.model.own_vocab_size() or MANY_TOKENS),
        global_batch=job.train.global_batch_size,
        optimizer=job.optimizer.name,
        sequence_length=job.data.sequence_length,
    )
    check(read(layout, facts, where), facts, where)


def check_job(job: str | Path, sets: Sets = ()) -> Loaded:
    """:func:`load_job`, and what can be known without preparing data: layout, model and sources.

    Raises:
        Refused: (2, 10) the layout breaks a rule; (20) a source is missing, empty or not readable.
    """
    from paceline.compute.data.sources import refuse_same_files, resolve
    from paceline.compute.data.spec import DataSpec, given_tokenizer

    loaded = load_job(job, sets)
    found = loaded.job
    check_layout(found, found.layout.use, loaded.origins.get("layout.use", ""))
    if found.data.train is not None:
        spec = DataSpec.from_job(found)
        given_tokenizer(spec.tokenizer)
        files = resolve(spec.train)
        if not isinstance(spec.eval, float):
            refuse_same_files(files, resolve(spec.eval, key="data.eval"))
    return loaded


def _of_hub(word: str) -> str:
    """What brings a model's config into the cache, where the word has the form of a hub id and of no path here."""
    if not is_hub_id(word) or Path(word).parent.exists():
        return ""
    name, _, revision = word.partition("@")
    return f"hf download {name} config.json{f' --revision {revision}' * bool(revision)}, or paceline job new > job.toml"


def _nearest_file(path: Path) -> str:
    from difflib import get_close_matches

    folder = path.parent
    names = [p.name for p in folder.glob("*.toml")] if folder.is_dir() else []
    near = get_close_matches(path.name + ".toml", names, n=MOST_NEAR, cutoff=0.4)
    return next((str(folder / name) for name in near if is_job_file(folder / name)), "")
