"""Modules that the tests of several rooms share: devices, corpora, engines of their own, and small helpers."""
