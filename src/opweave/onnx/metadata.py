"""The metadata of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import ModelProto


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of a model, with the attributes of `onnxruntime.ModelMetadata`.

    Attributes:
        producer_name: the tool that wrote the model.
        graph_name: the name of the graph.
        domain: the organisation that the model belongs to.
        description: the description of the model.
        graph_description: the description of the graph.
        version: the version of the model.
        custom_metadata_map: further entries, by key.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: ModelProto) -> ModelMetadata:
        """Read the metadata of `proto`."""
        return cls(
            proto.producer_name,
            proto.graph.name,
            proto.domain,
            proto.doc_string,
            proto.graph.doc_string,
            proto.model_version if proto.HasField("model_version") else 2**63 - 1,  # as in ONNX Runtime
            {entry.key: entry.value for entry in proto.metadata_props},
        )
