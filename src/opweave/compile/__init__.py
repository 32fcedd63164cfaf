"""From a graph to a program: choose who runs each node, decompose, fuse, partition. Nothing else decides this."""
