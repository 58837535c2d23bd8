"""What the facts prove: reads everything, and nothing reads it."""
