"""The one place that knows cpu from cuda."""

from __future__ import annotations

import pytest
import torch

from paceline.deliver.device import open_device
from paceline.ledger.outcome import Exit, Refused


def test_cpu_is_gloo_with_the_threads_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        device = open_device("cpu", 3, threads=1, deterministic=False)
        assert (device.kind, device.backend, str(device.torch)) == ("cpu", "gloo", "cpu")
        assert torch.get_num_threads() == 1
        reserved, allocated = device.memory_gib()
        assert 0.01 < allocated <= reserved < 100
        device.synchronize()
        device.reset_peak()
        tensor = torch.ones(3)
        assert device.from_host(tensor) is tensor
    finally:
        torch.set_num_threads(before)


def test_other_devices_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        open_device("mps", 0, threads=1, deterministic=False)
    assert caught.value.exit_code == Exit.CLUSTER


def test_cuda_that_is_not_there_is_refused_and_auto_falls_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Refused, match="not enough CUDA devices"):
        open_device("cuda", 0, threads=1, deterministic=False)
    assert open_device("auto", 0, threads=torch.get_num_threads(), deterministic=False).kind == "cpu"
