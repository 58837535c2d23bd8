"""Tests of the speeds."""
