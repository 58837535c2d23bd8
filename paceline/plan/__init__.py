"""Phase 1: who does what. Arithmetic, no torch."""
