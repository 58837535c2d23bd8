"""What a plan of a published model says about how it was counted."""

from __future__ import annotations

from paceline.job.presets import ModelWidths
from paceline.plan.model import flops_per_token, parameters, predicted, without_predicted


def published_lines(widths: ModelWidths, sequence_length: int) -> list[str]:
    """For ``assumed``: notes of the reading, what multi-token prediction adds, and what our decoder lacks."""
    beyond = widths.beyond
    if beyond is None:
        return []
    lines = list(beyond.notes)
    if predicted(widths):
        lines.append(_further(widths, sequence_length))
    lines.append(
        "time and activations as of our own decoder, which does not compute " + ", ".join(beyond.needs)
    )
    return lines


def _further(widths: ModelWidths, sequence_length: int) -> str:
    count, plain = predicted(widths), without_predicted(widths)
    numbers = parameters(widths).total - parameters(plain).total
    flops = flops_per_token(widths, sequence_length) - flops_per_token(plain, sequence_length)
    many = f"{count} layers" if count > 1 else "one layer"
    return (
        f"multi-token prediction counted: {many}, {numbers / 1e9:.2f} B parameters, "
        f"{flops / 1e9:.2f} GFLOP/token (num_nextn_predict_layers)"
    )
