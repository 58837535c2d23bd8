"""Tests of the cost files."""
