"""From a graph to a program: choose an implementation for each node, decompose, fuse, partition."""
