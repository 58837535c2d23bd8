"""Phase 5: what survives a failure."""
