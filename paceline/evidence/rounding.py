"""What the messages of a layout may round that one device does not.

One device sums in its matrix product's accumulator and rounds once. Where ranks hold parts of a sum, each part is
rounded to the type of the message, and so is what they add up to: two units of rounding, relative to the largest
value. Without it a layout with tp in bfloat16 is held to the chance of one device's own error: two draws of
the same size are more than a factor of two apart in one tensor of a hundred.
"""

from __future__ import annotations

from paceline.plan.layout import Layout

BF16 = 2.0**-8
"""Unit of rounding: eight significant bits."""
ROUNDINGS = 2


def message_rounding(layout: Layout, precision: str, reduce_precision: str) -> float:
    """Relative, of a tensor's largest value; 0 where no message carries parts of a sum in bfloat16.

    Args:
        precision: of compute, in which activations and their gradients are summed over tp, cp and ep.
        reduce_precision: in which gradients are summed over dp, fsdp and cp.
    """
    activations = precision == "bf16" and max(layout.tp, layout.cp, layout.ep, layout.etp) > 1
    gradients = reduce_precision == "bf16" and layout.data_degree * layout.cp > 1
    return ROUNDINGS * BF16 if activations or gradients else 0.0
