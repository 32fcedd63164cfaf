"""Metrics of a server for Prometheus: latency, batches, waiting, errors by kind, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .. import memory
from ..scale.http import ServedModel

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of histograms of times: from a small model to a large one on a busy machine."""

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Bounds of the histogram of batches."""

LABELS = ("model", "version")


class ServerMetrics:
    """The metrics of one server. Labels have only names of models that are served, so clients cannot add series."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(CopyCollector())

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(f"opweave_{name}", text, LABELS, buckets=bounds, registry=self.registry)

        self._latency = histogram("request_seconds", "From the arrival of a request to its response.", SECONDS)
        self._queue = histogram("queue_seconds", "From the arrival of a request to the start of its batch.", SECONDS)
        self._execution = histogram("execution_seconds", "Runs of the model.", SECONDS)
        self._rows = histogram("batch_rows", "Rows of the batches that have run.", ROWS)
        self._errors = Counter(
            "opweave_errors", "Requests answered with an error.", (*LABELS, "kind"), registry=self.registry
        )
        self._progress = Gauge(
            "opweave_requests_in_progress", "Requests that are read, wait or run.", LABELS, registry=self.registry
        )
        self._tokens = Counter(
            "opweave_tokens", "Tokens of language models.", ("model", "kind"), registry=self.registry
        )

    def observe(self, model: ServedModel) -> None:
        """Count the requests of a model from now on."""
        labels = model.name, model.version
        model.observers.append(
            ModelMetrics(
                *(metric.labels(*labels) for metric in (self._latency, self._queue, self._execution, self._rows)),
                errors=self._errors,
                labels=labels,
            )
        )
        self._progress.labels(*labels).set_function(lambda: model.count)

    def observe_chat(self, model: str, count: Callable[[], int]) -> None:
        """Show the number of requests for a language model."""
        self._progress.labels(model, "").set_function(count)

    def add_tokens(self, model: str, read: int, written: int) -> None:
        """Count the tokens of a request for a language model."""
        self._tokens.labels(model, "read").inc(read)
        self._tokens.labels(model, "written").inc(written)

    def add_chat(self, model: str, seconds: float, kind: str = "") -> None:
        """Count a request for a language model, and the kind of its error."""
        if kind:
            self._errors.labels(model, "", kind).inc()
        else:
            self._latency.labels(model, "").observe(seconds)

    def add_error(self, kind: str) -> None:
        """Count an error of a request for no model."""
        self._errors.labels("", "", kind).inc()

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics, and the media type of their text, for the header `Accept` of a client."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type


class ModelMetrics:
    """Counts the requests and executions of one model (an `Observer`)."""

    def __init__(
        self,
        latency: Histogram,
        queue: Histogram,
        execution: Histogram,
        rows: Histogram,
        *,
        errors: Counter,
        labels: Sequence[str],
    ) -> None:
        self._latency, self._queue, self._execution, self._rows = latency, queue, execution, rows
        self._errors, self._labels = errors, labels

    def add_execution(self, rows: int, durations: Sequence[int]) -> None:
        """Count an execution of the model."""
        self._rows.observe(rows)
        self._execution.observe(durations[1] * 1e-9)

    def add_success(self, rows: int, total: int, queue: int, durations: Sequence[int]) -> None:
        """Count an answered request."""
        self._latency.observe(total * 1e-9)
        self._queue.observe(queue * 1e-9)

    def add_failure(self, total: int, kind: str) -> None:
        """Count a request that was answered with an error."""
        self._errors.labels(*self._labels, kind).inc()


class CopyCollector(Collector):
    """The counter of copies of this process (`opweave.memory.copies`), by reason."""

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of copies and bytes."""
        count = CounterMetricFamily("opweave_copies", "Copies of tensors.", labels=["reason"])
        size = CounterMetricFamily("opweave_copied_bytes", "Bytes of these copies.", labels=["reason"])
        for reason, tally in sorted(dict(memory.copies.by_reason).items()):
            count.add_metric([reason], tally.count)
            size.add_metric([reason], tally.bytes)
        yield count
        yield size
