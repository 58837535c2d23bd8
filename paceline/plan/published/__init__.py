"""Training runs that others measured and published, as the planner's own values: model, cluster, layout, work.

A table of runs (``open/*.csv``, or the user's own history) has one run a row; a blank cell is what its source does
not say. What is filled in for a blank is written down, run by run.
"""
