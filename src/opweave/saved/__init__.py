"""Files of compiled graphs: `MLGraph.save` and `MLContext.load`.

`container` reads and writes the file, `values` and `graphs` say how a graph is written in its manifest, `operations` finds the
operations, `parts` has what was compiled, and `trust` decides whether native code may run.
"""
