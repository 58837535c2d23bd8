"""The job file's tables, one file each: every key with its type, default, unit, meaning and arrival."""
