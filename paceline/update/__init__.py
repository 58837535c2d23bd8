"""Phase 4: when a gradient becomes a weight."""
