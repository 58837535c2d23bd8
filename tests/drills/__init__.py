"""Fault drills: a fault is planted, seen to strike, and answered as the list says. `make drills` writes the table."""
