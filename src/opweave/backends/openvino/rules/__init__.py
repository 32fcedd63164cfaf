"""OpenVINO rules, one file for each family of operations, including composites.

Where OpenVINO deviates from WebNN, there is no rule, or a rule for some data types only. On CPUs the engine compares and
divides int32 as float32, narrows 64-bit integers to 32 bits, and saturates 8-bit integers; `emit` carries integers in other
types, so that moving them is exact.
"""
