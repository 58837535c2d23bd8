"""``single`` is the plain torch loop, to 1e-12 over ten steps in float64 (DESIGN §4)."""

from __future__ import annotations

import pytest

from paceline.deliver.mesh import build_mesh
from paceline.plan.layout import Layout
from paceline.recipes.assemble import assemble
from tests import plain_loop
from tests.recipes.parity_cases import CPU, train_steps
from tests.tiny import ragged_batches, tiny_job, tiny_widths

LIMIT = 1e-12
STEPS = 10


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("documents", "mbs"), [(False, 8), (True, 8), (True, 3)], ids=["one", "ragged", "accum3"]
)
def test_single_equals_the_plain_loop(tied: bool, bias: bool, documents: bool, mbs: int) -> None:
    job, widths = tiny_job(), tiny_widths(tie_word_embeddings=tied, attention_bias=bias)
    ours = train_steps(
        None, job=job, widths=widths, layout="single", steps=STEPS, mbs=mbs, documents=documents
    )

    start = assemble(job, widths, "fp64", build_mesh(Layout.parse("single"), 0, None), CPU)
    plain = plain_loop.train(
        dict(zip(start.names, start.parameters, strict=True)),
        {
            "layers": widths.num_hidden_layers,
            "head_dim": widths.head_dim,
            "eps": widths.rms_norm_eps,
            "theta": widths.rope_theta,
            "tied": tied,
            "betas": tuple(job.optimizer.betas),
            "adam_eps": job.optimizer.eps,
            "weight_decay": job.optimizer.weight_decay,
            "max_norm": job.optimizer.max_grad_norm,
        },
        ragged_batches(STEPS, documents=documents),
        [job.optimizer.lr * step / STEPS for step in range(1, STEPS + 1)],
    )

    assert max(abs(a - b) for a, b in zip(ours["losses"], plain["losses"], strict=True)) <= LIMIT
    assert max(abs(a - b) for a, b in zip(ours["norms"], plain["norms"], strict=True)) <= LIMIT
    assert min(plain["norms"]) > job.optimizer.max_grad_norm, "the case must clip"
    for name, expected in plain["weights"].items():
        worst = float((ours["weights"][name] - expected).abs().max())
        assert worst <= LIMIT, f"{name} is {worst:.1e} away from the plain loop"


def test_the_plain_loop_imports_nothing_of_paceline() -> None:
    with open(plain_loop.__file__, encoding="utf-8") as file:
        text = file.read()
    assert "paceline" not in text.split('"""', 2)[2].lower()
    assert len(text.splitlines()) < 100
