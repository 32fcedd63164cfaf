"""Verification of other engines for graphs and models, beside the programs that use them.

`uses` notes what was used for some seconds, `process` starts a child process for it, and `verifier` is that child: it compares
results, time, building and memory with the engine that runs the graph now, and keeps a verdict. What is built later follows
it.
"""
