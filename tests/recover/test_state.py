"""Names are the model's own, ties stay ties, and what cannot be kept is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from paceline.ledger.outcome import Refused
from paceline.recover.state import TrainState, apply, collect
from tests.pool import RankPool
from tests.recover.cases import Odd, Run, names_of

CASES = "tests.recover.cases"


def test_wrappers_leave_no_trace_in_names(ranks: RankPool) -> None:
    plain = names_of(None, "single")
    assert "model/embed.weight" in plain
    assert "optimizer/up.weight/exp_avg_sq" in plain
    for layout in ("dp=2", "fsdp=2"):
        assert ranks(2).run(f"{CASES}:names_of", layout=layout) == [plain, plain]


def test_compile_and_activation_checkpointing_leave_no_trace() -> None:
    model = Odd()
    plain = sorted(collect(model).tensors)
    model.up = checkpoint_wrapper(model.up)
    model.gate = torch.compile(model.gate)
    assert sorted(collect(torch.compile(model)).tensors) == plain


def test_a_users_own_module_called_module_keeps_its_name() -> None:
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    assert sorted(collect(model).tensors) == ["model/module.bias", "model/module.weight"]


def test_ties_and_buffers() -> None:
    state = collect(Odd())
    assert state.ties == {"model/head.weight": "model/embed.weight"}
    assert "model/seen" in state.tensors
    assert not any("cache" in name or "head" in name for name in state.tensors)


def test_state_before_the_first_step_is_what_the_optimizer_would_make() -> None:
    fresh, used = Run(None, "single"), Run(None, "single")
    state = fresh.state()
    apply(state, fresh.model, fresh.optimizer)
    fresh.train(0, 2)
    used.train(0, 2)
    for name, tensor in used.state().tensors.items():
        assert torch.equal(tensor, fresh.state().tensors[name]), name


@pytest.mark.parametrize("fused", [True, False])
def test_step_counters_are_put_back_as_torch_keeps_them(fused: bool) -> None:
    run = Run(None, "single", "fused" if fused else "plain")
    run.train(0, 2)
    want = {type(s["step"]): (s["step"].dtype, float(s["step"])) for s in run.optimizer.state.values()}
    state, other = run.state(), Run(None, "single", "fused" if fused else "plain")
    apply(state, other.model, other.optimizer)
    got = {type(s["step"]): (s["step"].dtype, float(s["step"])) for s in other.optimizer.state.values()}
    assert got == want == {torch.Tensor: (torch.float32, 2.0)}


def test_apply_copies_between_models_and_moves_the_learning_rate() -> None:
    run, other = Run(None, "single"), Run(None, "single")
    run.train(0, 2)
    run.optimizer.param_groups[0].update(lr=0.5, initial_lr=0.7)
    other.optimizer.param_groups[0]["initial_lr"] = 0.01
    other.optimizer.param_groups[0]["weight_decay"] = 0.3
    before = [p.data_ptr() for p in other.model.parameters()]
    apply(run.state(), other.model, other.optimizer)
    assert [p.data_ptr() for p in other.model.parameters()] == before
    for a, b in zip(run.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
    group = other.optimizer.param_groups[0]
    assert (group["lr"], group["initial_lr"], group["weight_decay"]) == (0.5, 0.7, 0.3)


def test_apply_refuses_what_is_not_there() -> None:
    run = Run(None, "single")
    with pytest.raises(Refused, match="the state has no model/one"):
        apply(TrainState(), run.model, run.optimizer)


class Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(Refused, match="extra state"):
        collect(Extra(2, 2))
    with pytest.raises(Refused, match="has no data"):
        collect(nn.Linear(2, 2, device="meta"))
    model = nn.Linear(2, 2)
    with pytest.raises(Refused, match="cannot be kept"):
        collect(model, torch.optim.Adagrad(model.parameters()))
    with pytest.raises(Refused, match="cannot be kept"):
        collect(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, dampening=0.1))
    with pytest.raises(Refused, match="the model does not"):
        collect(model, torch.optim.AdamW(nn.Linear(2, 2).parameters()))


def test_sgd_without_momentum_keeps_nothing_and_amsgrad_a_third_tensor() -> None:
    model = nn.Linear(2, 2, bias=False)
    assert [
        n for n in collect(model, torch.optim.SGD(model.parameters(), lr=1.0)).tensors if "optim" in n
    ] == []
    kept = collect(model, torch.optim.AdamW(model.parameters(), amsgrad=True)).tensors
    assert "optimizer/weight/max_exp_avg_sq" in kept
