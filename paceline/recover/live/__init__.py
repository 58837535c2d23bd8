"""The state of a run in memory that outlives its processes: what a dead rank costs is the step it was in."""
