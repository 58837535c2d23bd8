"""Facts as they happen: events, spans, one append-only file per rank. Standard library only."""
