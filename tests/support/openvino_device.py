"""A context on OpenVINO's CPU, and its results beside the reference's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import opweave as ow
from support.graphs import outputs_of


@cache
def openvino_context() -> ow.MLContext:
    """The context; tests that ask for it are skipped where openvino is not installed."""
    pytest.importorskip("openvino", reason="openvino is not installed")
    return ow.ml.create_context(backend="openvino", device="cpu")


def check_openvino(build: Callable[..., Any], tolerance: float = 1e-5, fuse: bool = True, **feeds: np.ndarray) -> None:
    """Compare OpenVINO's results of a later run with the reference's: the engine may write results in place of constants.

    Args:
        build: see `graphs.build_graph`.
        tolerance: absolute and relative.
        fuse: whether chains may become loops, which OpenVINO does not run.
        **feeds: the inputs.
    """
    theirs = outputs_of(ow.ml.create_context(device="reference"), build, feeds, fuse=fuse)
    ours = outputs_of(openvino_context(), build, feeds, fuse=fuse)
    for name, wanted in theirs.items():
        assert ours[name].shape == wanted.shape
        np.testing.assert_allclose(ours[name], wanted, rtol=tolerance, atol=tolerance, err_msg=name)
