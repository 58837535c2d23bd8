"""What the user asks for: the job file's schema, strict, every key documented. No torch."""
