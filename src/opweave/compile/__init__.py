"""From a graph to a program: choose what runs each node, decompose, fuse, partition. Nothing else decides this."""
