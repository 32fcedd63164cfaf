"""Verification of other engines for graphs and models, beside the programs that use them.

`uses` finds graphs and models that were used for some seconds, `process` starts a child process, and `verifier` is that
child: it compares results, time, building and memory with the current engine, and keeps a verdict for later builds.
"""
