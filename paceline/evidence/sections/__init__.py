"""The parts of the report, one file each: facts of a run in, HTML out."""
