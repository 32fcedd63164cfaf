"""Benchmarks, run by hand: `python -m benchmarks --help` lists them.

What is compared is measured in one run, in turns, and told as a ratio: machines differ, and are shared.
"""
