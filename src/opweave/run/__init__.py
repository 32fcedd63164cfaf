"""Programs, and their execution."""
