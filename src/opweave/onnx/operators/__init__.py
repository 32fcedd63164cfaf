"""Converters of the ONNX operators; one file a family."""

from . import activation as activation
from . import attention as attention
from . import convolution as convolution
from . import einsum as einsum
from . import indexing as indexing
from . import logic as logic
from . import loss as loss
from . import math as math
from . import matrix as matrix
from . import movement as movement
from . import normalization as normalization
from . import pooling as pooling
from . import quantization as quantization
from . import recurrent as recurrent
from . import reduction as reduction
from . import resize as resize
from . import rotary as rotary
from . import shape as shape
from . import transformer as transformer
