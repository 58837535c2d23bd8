"""Phase 3: the right tensor on the right rank. Never sees a model by name."""
