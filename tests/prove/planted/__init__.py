"""Faults that ranks of a proof run with, by kind: one small function each, after bugs that such programs have had.

Each is an entry for ``paceline.api.trials.ENTRY`` (see ``tests/flow/planted_proof.py``): it plants its fault in the
rank's own process for each case, and then runs the proof. One device never meets a fault. Most need no condition for
that, since what they break is not called there; the others ask the layout, as their bug did.

In ``harmless`` are changes that are none: another order, another moment, another kernel. They must stay proven.
"""
