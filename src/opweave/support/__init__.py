"""Helpers for all rooms: errors, caches, files, names, numbers of processors. They know nothing of operations."""
