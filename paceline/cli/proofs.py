"""What ``paceline prove`` answers: the table and the verdict, or the line of each layout of ``--all``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.cli.screen import Reply, Screen
from paceline.ledger.outcome import MEANING, Exit, Failed

if TYPE_CHECKING:
    from paceline.api.prove import Proof


def reply_of(proof: Proof, *, json: bool) -> Reply:
    """The screen of interface §10."""
    from paceline.evidence.parity_text import headline, table, verdict

    path = str(proof.run.path)
    lines = [
        headline(proof.run.name.removesuffix("-prove"), proof.said, proof.layout, proof.steps, proof.legs),
        table(proof.rows),
        *(f"         {note}" for note in proof.notes),
        verdict(proof.layout, proof.proven, proof.first_difference, proof.seconds, path, proof.exit_code),
    ]
    error = None if proof.proven or not json else unproven(proof)
    return Reply(proof.to_dict(), "\n".join(lines), proof.exit_code, error)


def unproven(proof: Proof) -> Failed:
    """The five fields of a proof that failed, for ``--json``."""
    first = proof.first_difference
    return Failed(
        f"{proof.layout} does not train the same model",
        exit_code=Exit.UNPROVEN,
        key="layout.use",
        seen=first.headline if first else "",
        rule=MEANING[Exit.UNPROVEN],
        use=f"look at {proof.run.path}/evidence/prove.json",
    )


def prove_every(
    screen: Screen,
    job: str,
    ranks: int,
    layout: str | None,
    steps: int,
    leg: str,
    shrink: str,
    sets: Any,
) -> Reply:
    """``--all N``: a line for each layout as soon as it is known."""
    from paceline.api.prove_all import prove_all
    from paceline.evidence.parity_text import case_line, summary
    from paceline.ledger.outcome import Refused

    if layout is not None:
        raise Refused(
            "--layout and --all together",
            exit_code=Exit.USAGE,
            key="--all",
            seen=f"--layout {layout} --all {ranks}",
            rule="--all proves a set of layouts, --layout one",
            use=f"--all {ranks}",
        )
    found = prove_all(
        job,
        ranks,
        steps=steps,
        leg=leg,
        shrink=shrink,
        set=sets,
        on_message=lambda message: screen.note(f"{message['field']:<8} {message['text']}"),
        on_case=lambda case: (
            None if screen.json else screen.line(case_line(case.to_dict(), case.number, case.of))
        ),
    )
    error = (
        None
        if found.proven or not screen.json
        else Failed(
            "not every layout is proven",
            exit_code=found.exit_code,
            seen=summary(found.to_dict()),
            rule=MEANING[Exit.UNPROVEN],
        )
    )
    return Reply(found.to_dict(), summary(found.to_dict()), found.exit_code, error)
