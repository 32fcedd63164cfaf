"""Look into a session: what runs where, how long it takes, a drawing, and tuning. Each method imports what it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...context.tensor import Locks, MLTensor
from ...support import lazy_imports
from ...support.errors import OperationError, require
from .choice import COMPILING, UNCOMPILED
from .model_program import ModelProgram
from .shape_cache import Key, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from ...compile.engines import Tuning
    from ...run.drawing import Drawing
    from ...run.profile import Profile
    from .parts import SessionParts

ALIKE = 'this is what run() uses; InferenceSession(..., specialise="always") compiles the model instead'
PENDING = (
    "run() compiles these shapes in the background, and uses the result once it is there; profile again to measure that"
)
UNKNOWN = "the model has dynamic dimensions; run it first, or pass input_shapes"


class InspectionMethods:
    """Mixin of `InferenceSession`."""

    _parts: SessionParts

    def explain(self, input_shapes: Mapping[str, Sequence[int]] | None = None) -> str:
        """Tell how the session runs its calls, why, and what changes that; then where each node runs, and why it fell back.

        Args:
            input_shapes: the shapes to compile the model for, if needed, and to explain, without the sentence on the session.
                Default: the compiled shapes that were used last, and what runs other shapes.
        """
        from . import summary, verification

        parts = self._parts
        if input_shapes is not None:
            compiled = parts.compile_for(input_shapes)
            return "\n".join(summary.explain_lines(compiled, parts.context, verification.state_of(parts, compiled)))
        lines, models = [str(parts.choice())], [compiled for _, compiled in parts.shape_cache.compiled.items()]
        if models:
            lines += summary.explain_lines(models[-1], parts.context, verification.state_of(parts, models[-1]))
        if not parts.is_static or not models:
            lines += [f"{shapes}: {way}" for shapes, way in parts.shape_cache.describe().items()]
        if parts.shape_cache.why_one_by_one:
            lines.append(f"shapes are compiled one by one: {parts.shape_cache.why_one_by_one}")
        if parts.shape_cache.tailored:
            from ...support.formatting import chosen_text

            lines.append(chosen_text(parts.shape_cache.chosen_sizes(), parts.shape_cache.tailored))
        return "\n".join(lines if models else [*lines, *verification.lines(parts)])

    def profile(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        repeat: int = 10,
        detail: bool = False,
    ) -> Profile:
        """Run the model, and measure each step of its program: time, bytes, copies, and memory that is reused.

        A session may have several programs, one for each combination of shapes. The profile measures the program that `run`
        uses for the same inputs; `remarks` says which program that is, and how calls with other shapes run.

        If the program is one step, as an uncompiled model is, its kernels are measured, too, with the names of the model's
        nodes. That takes separate runs of a second copy of the program, since it slows the engine down.

        Args:
            inputs: a value for each input, as for `run`; they select the program. Default: random values.
            input_shapes: the shapes to measure with random values, without `inputs`. Default: the shapes of the last call.
            repeat: the number of measured runs, after a warm-up.
            detail: whether to also measure the kernels of programs of several steps, and to list all of them.

        Returns:
            A table to `print`, and its numbers.

        Raises:
            ValidationError: names or shapes do not fit; the model has dynamic dimensions, and has not run yet.
            OperationError: the model fails with these inputs.

        >>> import opweave as ow
        >>> from onnx.parser import parse_model
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> session = ow.InferenceSession(parse_model(text), context=ow.ml.create_context(device="reference"))
        >>> profile = session.profile(input_shapes={"x": [2]}, repeat=2)
        >>> [step.title for step in profile.steps], profile.remarks
        (["relu 'y'"], ('program: x [2]: compiled',))
        """
        from .compiled import CompiledModel
        from .tuning import random_feed

        parts = self._parts
        parts.check_alive()
        require(inputs is None or input_shapes is None, "profile: inputs and input_shapes must not be given both")
        require(inputs is None or isinstance(inputs, Mapping), "profile: inputs must map names to arrays")
        tensors = [value for value in (inputs or {}).values() if isinstance(value, MLTensor)]
        with Locks(tensors):
            cache = parts.shape_cache
            if inputs is not None:
                feed = parts.read_feed("profile: inputs", inputs)
                key, model = cache.program_for(parts.shapes_in(feed), feed)
            elif input_shapes is None and (last := cache.last()) is not None:
                key, model = last[0], cache.only_uncompiled or last[1]
                feed = random_feed(parts, {name: size for name, size in key if not isinstance(size, bytes)})
            else:
                require(input_shapes is not None or parts.is_static, UNKNOWN)
                shapes = parts.shapes_of(input_shapes or {})
                feed = random_feed(parts, shapes)
                key, model = cache.program_for(shapes, feed)
            sources, targets = model.memory(feed)
            measured_for, ways = text_of(key, [*parts.inputs, *parts.overridable()]), cache.describe()
            program = f"program: {measured_for}: " if measured_for else "program: "
            if isinstance(model, CompiledModel):
                remarks = [f"{program}compiled"]
            else:
                remarks = [
                    f"{program}{UNCOMPILED}",
                    PENDING if ways.get(measured_for) == COMPILING else ALIKE,
                ]
            remarks += [f"other calls: {text}: {way}" for text, way in ways.items() if text != measured_for]
            space, device = parts.space, parts.context.device.name
            profile_arguments = (model.program, sources, targets, space, device, repeat, detail, remarks)
            try:
                measured: Profile = lazy_imports.profile_model(*profile_arguments)
            except OperationError as error:
                if inputs is not None:
                    raise
                advice = "pass inputs (of which values determine shapes)"
                raise OperationError(f"profile: the model fails with random inputs; {advice}") from error
        return measured

    def draw(
        self,
        path: str | Path | None = None,
        *,
        input_shapes: Mapping[str, Sequence[int]] | None = None,
        profile: Profile | Mapping[str, float] | None = None,
    ) -> Drawing:
        """Draw the nodes of the model, and what runs them.

        An SVG has lanes for the sections of the program, and merges the nodes of large models. A page in HTML has a search,
        details of each node, and groups that open: modules, from names such as "/layer1/conv1/Conv", or else repeated blocks.

        Args:
            path: an .html or .svg file to write the drawing to, or None. Without a file, models of more than 150 nodes are
                pages.
            input_shapes: the shapes to draw; compiled if needed. Default: the shapes of the last call.
            profile: times that a page shows as colours: a profile that was measured with `detail=True`, or seconds by the
                names of nodes.

        Returns:
            The drawing: a string of SVG or HTML that notebooks show. Its title names the shapes.

        Raises:
            ValidationError: the file's name does not end with .html or .svg; the model has dynamic dimensions, and no shapes
                are compiled; the profile has no times of these nodes.
            DataError: the file cannot be written.

        >>> import opweave as ow
        >>> from onnx.parser import parse_model
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> ow.InferenceSession(parse_model(text)).draw(input_shapes={"x": [2]}).startswith("<svg")
        True
        """
        from .compiled import CompiledModel

        parts = self._parts
        parts.check_alive()
        key, model = _program_of(parts, input_shapes)
        advice = "which is one step of ONNX Runtime; pass input_shapes to draw what would run if they were compiled"
        require(isinstance(model, CompiledModel), f"draw: calls run in {UNCOMPILED}, {advice}")
        title = f"{parts.recipe.title}: {text_of(key, [*parts.inputs, *parts.overridable()])}"
        names = ([argument.name for argument in parts.inputs], list(parts.outputs))
        drawing: Drawing = lazy_imports.draw_model(model, *names, title, path, profile)
        return drawing

    def save(self, path: str | Path, *, shapes: Sequence[Mapping[str, Sequence[int]]] | None = None) -> None:
        """Convert the model to one graph, and write the graph into a file that `MLContext.load` reads (see `MLGraph.save`).

        Loading needs neither the model nor `onnx`. Dynamic dimensions keep their names, unless `fix_shapes` fixes them.
        Inputs and outputs keep their names; bool ones become uint8. What is compiled for static shapes is in the file, too.

        The operations of some models depend on the sizes, such as a pooling that rounds up. Such a model is converted for
        certain shapes. The graph then runs all sizes whose comparisons give the same answers, and others are errors.

        Args:
            path: the file to write; by convention, its name ends in `.opweave`.
            shapes: the shapes to convert for and to compile for, each a shape for every input whose shape is not declared in
                full. Default: for models whose operations depend on sizes, the shapes that are in use, as for `tune`.

        Raises:
            NotSupportedError: WebNN cannot express the model; its operations depend on the sizes, and there are no shapes.
            ValidationError: names or shapes that do not fit.
            DataError: the file cannot be written.

        >>> import numpy as np, opweave as ow, tempfile
        >>> from onnx.parser import parse_model
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ow.InferenceSession(parse_model(text)).save(f"{folder}/model.opweave")
        ...     context = ow.ml.create_context()
        ...     graph = context.load(f"{folder}/model.opweave")
        >>> context.compute(graph, {"x": np.float32([-1, 2, 3])})["y"].tolist()
        [0.0, 2.0, 3.0]
        """
        from ...context.graph import state_of
        from .load import convert
        from .tuning import combinations_of

        parts = self._parts
        combinations = (
            parts.shape_cache.shapes_in_use() if shapes is None else combinations_of(parts, "save", shapes, None)[0]
        )
        graph = convert(parts.model, parts.context, parts.inputs, takes_names=True, combinations=combinations)
        for item in combinations if shapes is not None else ():
            state_of(graph).version_for(
                "save", {name: shape for name in graph.inputs if (shape := item[name]) is not None}
            )
        graph.save(path)

    def warmup(
        self,
        shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
    ) -> dict[str, str]:
        """Prepare the session for given shapes, so that no later call with them compiles or loads anything.

        For each of the shapes, the program that `run` uses is made: a compiled model, also where `specialise="recurring"`
        would wait for the shapes to recur, or ONNX Runtime's session for all shapes. It then runs once, with random values
        unless there are `inputs`: engines and devices prepare themselves in a first run. Threads that want the same shapes
        wait for one compilation.

        Args:
            shapes: a shape for every input whose shape is not declared in full, or a list of such combinations. Default: those
                of a model without dynamic dimensions, else those that are compiled, and those of recent calls.
            inputs: a value for each input, as for `run`, of the only shapes to prepare; instead of `shapes`. A model whose
                small inputs hold shapes or axes is compiled for their values, too.

        Returns:
            By shapes, as text: "compiled", or "ONNX Runtime, uncompiled", with the reason if shapes that recur are not
            compiled: `program_bytes` or the number of threads left no room, or the model is in several parts.

        Raises:
            ValidationError: an input is missing or unknown, or its shape does not fit the model; no shapes are in use.
            NotSupportedError: `fallback="error"`, and the model needs it for these shapes.
            OperationError: the model fails with `inputs`. A model that fails with random values was prepared all the same.

        >>> import opweave as ow
        >>> from onnx.parser import parse_model
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> session = ow.InferenceSession(parse_model(text), specialise="recurring")
        >>> session.warmup([{"x": [2]}, {"x": [3]}])
        {'x [2]': 'compiled', 'x [3]': 'compiled'}
        >>> session.warmup({"y": [2]})
        Traceback (most recent call last):
        opweave.support.errors.ValidationError: input_shapes must hold ['x']; missing: ['x'], unknown: ['y']
        """
        from . import warmup

        return warmup.warm_up(self._parts, shapes, inputs)

    def tune(
        self,
        shapes: Sequence[Mapping[str, Sequence[int]]] | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        seconds: float = 4.0,
    ) -> Tuning:
        """Measure the engines that can run the model for given shapes, and use the fastest one for these shapes from now on.

        If several engines can run it on the session's device, the model is compiled for each. The engines, and ONNX Runtime
        with the uncompiled model, are measured alternately, after pauses. Another way than the default is used if it is faster
        in the quartiles of the ratios of rounds, too. Building counts, too: a slower build is used if it saves that time in
        200 runs, or in runs of half a second if these are more. The shapes stay compiled, whatever `program_bytes` allows by
        default. The figures are kept in the cache on disk: later sessions of this model use them, and compile these shapes at
        their first call. Ctrl-C ends the measurement, and keeps the shapes measured so far.

        Args:
            shapes: the shapes to tune, each a shape for every input whose shape is not declared in full. Default: those that
                are compiled, and those of recent calls.
            inputs: a value for each input, of the only shapes to tune; instead of `shapes`. Default: random ones;
                integers are indices into a weight, or 0 and 1.
            seconds: approximate time to measure each of the shapes, without compiling.

        Returns:
            A table to `print`, and its numbers.

        Raises:
            ValidationError: names or shapes that do not fit; no shapes are in use; the session compiles nothing, because of
                `specialise="never"`.
            OperationError: the model fails with these inputs.

        >>> import numpy as np, opweave as ow
        >>> from onnx.parser import parse_model
        >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
        >>> session = ow.InferenceSession(parse_model(text), context=ow.ml.create_context(device="reference"))
        >>> print(session.tune([{"x": [2]}], seconds=0))
        tuned           chosen
        a model: x [2]  reference  there is no other engine for it
        """
        from . import tuning

        return tuning.tune(self._parts, shapes, inputs, seconds)


def _program_of(parts: SessionParts, input_shapes: Mapping[str, Sequence[int]] | None) -> tuple[Key, ModelProgram]:
    """The program for given shapes, or the program of the last call."""
    if input_shapes is None and (last := parts.shape_cache.last()) is not None:
        return last
    require(input_shapes is not None or parts.is_static, UNKNOWN)
    shapes = parts.shapes_of(input_shapes or {})
    return tuple(shapes.items()), parts.shape_cache.compile_for(shapes, {})
