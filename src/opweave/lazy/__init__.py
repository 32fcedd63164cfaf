"""Collect operations on arrays, dispatches of deferred contexts and `@jit` functions, and run them as compiled graphs."""
