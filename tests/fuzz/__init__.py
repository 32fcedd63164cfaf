"""Seeded campaigns of hostile input: `python -m fuzz --help`, in the folder `tests`.

A campaign is a function of a seed and a number; its cases run in child processes under limits of memory and time. Nothing
depends on how fast the machine is, so that a case that fails can be run again by its number.
"""
