"""How a page looks: escaping, numbers, charts, style. Knows nothing of runs."""
