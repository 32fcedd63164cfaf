"""Models on more than one machine: what clusters copy to their processes, and run there.

    from opweave.scale import Predictor

    predict = Predictor("model.onnx", inputs={"image": "x"})   # {column: input}
    predict({"image": images})                                 # in this process; docs/scale.md: in the actors of Ray

Ray is imported only where it is used.
"""

from __future__ import annotations

from .predictor import Predictor as Predictor
