"""The wire: every process group of a run is made here, and wrapped once.

This package imports no torch: the launcher reads :mod:`.slot` and :mod:`.lost` from a process that has none.
"""
