"""Classifiers with string labels: WebNN computes scores and label positions, ONNX Runtime maps positions to strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..model.protobuf import AttributeProto, NodeProto
from ..model.registry import TRADITIONAL

if TYPE_CHECKING:
    from .trace import TracedNode, Tracer

CLASSIFIER = (TRADITIONAL, "LinearClassifier")


def has_names(node: NodeProto) -> bool:
    """Whether a classifier has labels that are strings, and no others."""
    labels = {attribute.name: attribute for attribute in node.attribute if attribute.name.startswith("classlabels_")}
    names, numbers = labels.get("classlabels_strings"), labels.get("classlabels_ints")
    return names is not None and bool(names.strings) and (numbers is None or not numbers.ints)


def name_labels(tracer: Tracer, node: NodeProto) -> list[TracedNode]:
    """Split a classifier into one that returns label positions, and a LabelEncoder that maps positions to strings.

    The LabelEncoder runs only if something reads the labels.
    """
    from .trace import TracedNode

    attributes = {attribute.name: attribute for attribute in node.attribute}
    names = attributes.pop("classlabels_strings").strings[:]
    positions = range(len(names))
    label, *scores = node.output[:]
    position = f"{tracer.fresh(node)}position"

    def replacement(
        op_type: str, inputs: Sequence[str], outputs: Sequence[str], *attribute: AttributeProto
    ) -> NodeProto:
        return NodeProto(
            op_type=op_type, domain=TRADITIONAL, name=node.name, input=inputs, output=outputs, attribute=attribute
        )

    classifier = replacement(
        node.op_type, node.input[:], [position, *scores], _integers("classlabels_ints", positions), *attributes.values()
    )
    tracer.trace.values |= tracer.convert(classifier)
    # Version 1 maps positions to `classes_strings`, later ones map keys to values.
    if tracer.model.opsets.get(TRADITIONAL, 1) < 2:
        table = [_strings("classes_strings", names)]
    else:
        table = [_integers("keys_int64s", positions), _strings("values_strings", names)]
    names_of_labels = tracer.steps([replacement("LabelEncoder", [position], [label], *table)])
    for step in names_of_labels:
        step.reason = "the labels are strings"
    return [TracedNode(classifier, "webnn", None), *names_of_labels]


def _integers(name: str, values: Iterable[int]) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.INTS, ints=values)


def _strings(name: str, values: Iterable[bytes]) -> AttributeProto:
    return AttributeProto(name=name, type=AttributeProto.STRINGS, strings=values)
