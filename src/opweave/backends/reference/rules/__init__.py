"""Rules of the reference back end, one file for each family of operations, including composites."""
