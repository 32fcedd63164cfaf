"""The reference back end: every operation in NumPy, written for readability. It defines the results of all operations.

A rule takes arrays and attributes by the operation's parameter names. float32 and float16 arrays are passed as float64, and
results are rounded once. Integers keep their type and wrap around on overflow.
"""

from .backend import Reference as Reference, reference as reference
