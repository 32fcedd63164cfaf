"""Passes over graphs, one a file; each says what it requires and ensures."""
