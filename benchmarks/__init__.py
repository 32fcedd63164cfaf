"""Benchmarks, run by hand: `python -m benchmarks` writes docs/benchmarks.md and docs/benchmarks.json.

What is compared is measured in one run, alternately, and told as a ratio: machines differ, and are shared.
"""
