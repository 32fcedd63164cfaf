"""Benchmarks, run by hand: `python -m benchmarks --help` lists them.

What is compared is measured alternately in one run, and reported as a ratio: machines differ, and are shared.
"""
