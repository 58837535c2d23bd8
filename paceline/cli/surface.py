"""The command line as a table: every command of interface §2, its group, and what has not arrived yet.

Help, refusals and the tests read this table, so that a command is either there or refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = ("Decide", "Run", "Look", "Keep")


@dataclass(frozen=True)
class Command:
    """One command: ``arrives`` is the capability it comes with, empty when it is here; ``instead`` until then."""

    name: str
    group: str
    args: str
    says: str
    arrives: str = ""
    options: tuple[str, ...] = ()
    instead: str = ""

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.name.split())


COMMANDS: tuple[Command, ...] = (
    Command("plan", "Decide", "JOB", "which layout, on what hardware, and is distributing worth it at all"),
    Command("prove", "Decide", "JOB", "is the distributed run the same training"),
    Command(
        "claim",
        "Decide",
        "JOB",
        "does distributing pay, by rules fixed before the run",
        "05",
        ("--ablate", "--shadow N", "--canary N"),
        instead="paceline plan JOB says whether distributing should pay",
    ),
    Command("train", "Run", "JOB", "train, on one device or on many"),
    Command(
        "eval",
        "Run",
        "RUN",
        "held-out loss, perplexity, bits per byte, own metrics",
        "06",
        ("--data SOURCE",),
        instead="paceline report RUN has the held-out evaluations of the training",
    ),
    Command("sample", "Run", "RUN", "text from a trained model"),
    Command(
        "launch",
        "Run",
        "ENGINE JOB",
        "the job for torchrun, slurm, kubernetes, ray, mpi, sky",
        "08",
        ("--print", "--check", "--submit"),
        instead="paceline train JOB --layout fsdp=N starts every rank of this machine",
    ),
    Command(
        "federate",
        "Run",
        "JOB",
        "sites that keep their data",
        "07",
        ("--serve ADDR", "--join SITE.toml", "--approve HASH", "--make-keys NAME"),
        instead="paceline train JOB with the data in one place",
    ),
    Command("runs", "Look", "", "list the runs"),
    Command("runs stop", "Look", "RUN", "save and stop a run, from anywhere"),
    Command("runs approve", "Look", "RUN", "let a waiting change through", "05", instead="paceline runs"),
    Command("runs delete", "Look", "RUN…", "delete runs; without --yes it says what and how many bytes"),
    Command("watch", "Look", "RUN", "live view of a run", "05", instead="paceline logs RUN --follow"),
    Command("logs", "Look", "RUN", "what a run printed, and its ranks"),
    Command("compare", "Look", "RUN RUN…", "what differs between runs, and why"),
    Command("report", "Look", "RUN", "one HTML page about a run"),
    Command(
        "replay",
        "Look",
        "RUN",
        "a step again, from checkpoint, batch and seeds",
    ),
    Command(
        "diagnose",
        "Look",
        "RUN",
        "backward from a bad outcome to the first broken assumption",
        "05",
        instead="paceline report RUN, and paceline logs RUN --rank 0",
    ),
    Command("checkpoint list", "Keep", "RUN", "the checkpoints of a run"),
    Command("checkpoint inspect", "Keep", "RUN", "what a checkpoint holds"),
    Command("checkpoint verify", "Keep", "RUN", "read a checkpoint whole and check every hash"),
    Command("checkpoint reshard", "Keep", "RUN", "write a checkpoint for another layout"),
    Command("checkpoint import", "Keep", "SOURCE", "make a checkpoint from other weights"),
    Command("checkpoint export", "Keep", "RUN DIR", "weights for other tools"),
    Command("cluster list", "Keep", "", "the accelerators and machine shapes known by name"),
    Command("cluster show", "Keep", "NAME", "devices, links and prices of a cluster"),
    Command(
        "cluster measure",
        "Keep",
        "",
        "measure this machine and its links",
    ),
    Command("job new", "Keep", "[KIND]", "print a commented job to start from"),
    Command("job check", "Keep", "JOB", "is the job file right"),
    Command("job show", "Keep", "JOB", "the job with every key filled in"),
    Command("job keys", "Keep", "[WORD]", "the keys, their types and defaults"),
    Command("job schema", "Keep", "", "JSON Schema of the job file, for editors"),
    Command("doctor", "Keep", "", "what this machine can do, and what is missing"),
)

BY_NAME = {command.name: command for command in COMMANDS}

SECTION_SAYS = {
    "runs": "the runs, and what to do with them",
    "checkpoint": "what a run saved",
    "cluster": "hardware known by name",
    "job": "the job file",
}
