"""Arithmetic that serves one layout and a column of them alike: a number, or an array of numbers.

The price of a layout is written once (``plan/cost``). Asked about a :class:`paceline.plan.cost.sheaf.Sheaf`, whose
degrees are arrays, the same lines answer for all of its layouts at once. What Python decides with ``if``, ``max`` and
``min`` is said with the words below instead; where no array comes in, numpy is not imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Column = Any
"""A number, or a numpy array with one number for each layout."""


def is_column(value: Column) -> bool:
    """Whether there is a number for each layout."""
    kind = type(value)
    return kind is not int and kind is not float and hasattr(value, "shape") and bool(value.shape)


def choose(condition: Column, yes: Column, no: Column) -> Column:
    """``yes`` where the condition holds, else ``no``."""
    if not is_column(condition):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def _numbers(values: Iterable[Column]) -> bool:
    """Whether all are plain numbers: asked so often that it is worth asking without a call for each."""
    return {type(value) for value in values} <= PLAIN or not any(map(is_column, values))


PLAIN = {int, float, bool}


def most(*values: Column) -> Column:
    """The largest, layout by layout."""
    if _numbers(values):
        return max(values)
    import numpy as np

    found = values[0]
    for value in values[1:]:
        found = np.maximum(found, value)
    return found


def least(*values: Column) -> Column:
    """The smallest, layout by layout."""
    if _numbers(values):
        return min(values)
    import numpy as np

    found = values[0]
    for value in values[1:]:
        found = np.minimum(found, value)
    return found


def rounded(value: Column) -> Column:
    """To the nearest whole number, halves to the even one."""
    if not is_column(value):
        return round(value)
    import numpy as np

    return np.rint(value)


def exponential(value: Column) -> Column:
    """Of each."""
    if not is_column(value):
        return math.exp(value)
    import numpy as np

    return np.exp(value)


def some(condition: Column) -> bool:
    """Whether it holds for any layout."""
    return bool(condition.any()) if is_column(condition) else bool(condition)


def index_of_most(values: Iterable[Column]) -> Column:
    """Which of the values is the largest, the first of equals; layout by layout."""
    values = list(values)
    if _numbers(values):
        return max(range(len(values)), key=lambda i: values[i])
    import numpy as np

    return np.argmax(np.stack(np.broadcast_arrays(*values)), axis=0)
