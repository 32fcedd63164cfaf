"""Custom operations beside built-in ones, with and without copies: `python -m benchmarks.interop` writes docs/interop.md.

The four tests of WebNN's issue 6 (https://github.com/webmachinelearning/webnn/issues/6#issuecomment-536408448), on the CPU.
"""
