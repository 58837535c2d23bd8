"""N processes, anywhere, started by the name of an entry. Knows only the plan; no torch."""
