"""Phase 2: one device's forward and backward, as if one device existed. Never sees a rank."""
