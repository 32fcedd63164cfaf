"""Compiled graphs and how they run."""
