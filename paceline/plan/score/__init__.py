"""The planner held to measured runs: what it predicts for each, and how far off it is."""
