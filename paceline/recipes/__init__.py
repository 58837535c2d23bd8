"""Whole runs, as plain functions; the only place where the five phases meet."""
