# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges and histograms in groups, and what they hold as values or as Prometheus text.

A `Registry` is an argument like the clock: a lake has one and gives it to its tables, nothing here is global. What is
measured is read when somebody asks, so a gauge costs nothing until then. Agrees with: MetricRegistry, MetricGroupImpl,
SimpleCounter, DescriptiveStatisticsHistogram (2.0.0). Invariant: a group of a name and its labels exists once in a
registry, whoever asks for it; counters and histograms may be used from several threads.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

Number = int | float

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """How often something happened."""

    __slots__ = ("_lock", "count")

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def inc(self, by: int = 1) -> None:
        with self._lock:
            self.count += by

    def dec(self, by: int = 1) -> None:
        self.inc(-by)


@dataclass(frozen=True, slots=True)
class Summary:
    """The last values of a histogram; `count` and `total` are of all there ever were. NaN where there are none."""

    count: int
    total: float
    min: float
    max: float
    mean: float
    stddev: float
    quantiles: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Number | None]:
        named = {"count": self.count, "min": self.min, "max": self.max, "mean": self.mean, "stddev": self.stddev}
        named |= {f"p{100 * q:g}": v for q, v in self.quantiles}
        return {n: None if math.isnan(v) else v for n, v in named.items()}


class Histogram:
    """The last `window` values."""

    __slots__ = ("_count", "_lock", "_total", "_values")

    def __init__(self, window: int = 100) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._count = 0
        self._total = 0.0
        self._lock = threading.Lock()

    def update(self, value: float) -> None:
        with self._lock:
            self._values.append(value)
            self._count += 1
            self._total += value

    def mean(self, empty: float) -> float:
        """The mean of the last values, `empty` without any."""
        with self._lock:
            return sum(self._values) / len(self._values) if self._values else empty

    def summary(self) -> Summary:
        with self._lock:
            values, count, total = sorted(self._values), self._count, self._total
        n = len(values)
        mean = sum(values) / n if n else math.nan
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else 0.0 if n else math.nan
        low, high = (values[0], values[-1]) if n else (math.nan, math.nan)
        return Summary(count, total, low, high, mean, spread, tuple((q, quantile(values, q)) for q in QUANTILES))


def quantile(ordered: list[float], q: float) -> float:
    """As Java estimates it: between the values around place q * (n + 1), counted from 1."""
    n = len(ordered)
    place = q * (n + 1)
    if not n or place < 1:
        return ordered[0] if n else math.nan
    if place >= n:
        return ordered[-1]
    below = int(place)
    return ordered[below - 1] + (place - below) * (ordered[below] - ordered[below - 1])


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a group. `ours`: Paimon has none of this name."""

    kind: str
    help: str
    read: Callable[[], Number | Summary]
    ours: bool


class Group:
    """Metrics of one kind of work, on one table."""

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self.name = name
        self.labels = dict(labels)
        self.metrics: dict[str, Metric] = {}

    def counter(self, name: str, help: str, *, falls: bool = False, ours: bool = False) -> Counter:  # noqa: A002
        """`falls`: it counts what is there, and goes down again."""
        made = Counter()
        self.metrics[name] = Metric("gauge" if falls else "counter", help, lambda: made.count, ours)
        return made

    def gauge(self, name: str, help: str, read: Callable[[], Number], *, ours: bool = False) -> None:  # noqa: A002
        self.metrics[name] = Metric("gauge", help, read, ours)

    def histogram(self, name: str, help: str, window: int = 100, *, ours: bool = False) -> Histogram:  # noqa: A002
        made = Histogram(window)
        self.metrics[name] = Metric("summary", help, made.summary, ours)
        return made

    def values(self) -> dict[str, Number | dict[str, Number | None]]:
        """What every metric is now, by name."""
        out: dict[str, Number | dict[str, Number | None]] = {}
        for name, metric in self.metrics.items():
            value = metric.read()
            out[name] = value.to_dict() if isinstance(value, Summary) else value
        return out


class Measured(Protocol):
    """Something that keeps the metrics of a group up to date."""

    @property
    def group(self) -> Group: ...


M = TypeVar("M", bound=Measured)


class Registry:
    """Groups by name and labels."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], Measured] = {}
        self._lock = threading.Lock()

    def of(self, make: Callable[[Group], M], name: str, **labels: str) -> M:
        """What keeps this group, made by `make` at the first call."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = make(Group(name, labels))
        return found  # type: ignore[return-value]  # a group has one kind of keeper

    def groups(self) -> list[Group]:
        """In the order in which they were first asked for."""
        with self._lock:
            return [m.group for m in self._made.values()]

    def to_dict(self) -> list[dict[str, object]]:
        """The values of every group, with its name and labels."""
        return [{"group": g.name, **g.labels, **g.values()} for g in self.groups()]

    def prometheus(self) -> str:
        """Everything in Prometheus' text format 0.0.4 (`CONTENT_TYPE`); times are in the unit of Paimon, milliseconds.

        A metric of Paimon is `paimon_<group>_<name>`, one of ours `shoal_<group>_<name>`; a histogram is a summary.
        """
        series: dict[str, tuple[Metric, list[str]]] = {}
        for group in self.groups():
            for name, metric in group.metrics.items():
                full = f"{'shoal' if metric.ours else 'paimon'}_{group.name}_{name}"
                lines = series.setdefault(full, (metric, []))[1]
                lines += _samples(full, group.labels, metric.read())
        return "".join(
            f"# HELP {name} {_help(metric.help)}\n# TYPE {name} {metric.kind}\n" + "".join(f"{s}\n" for s in samples)
            for name, (metric, samples) in series.items()
        )


def _samples(name: str, labels: Mapping[str, str], value: Number | Summary) -> Iterator[str]:
    if not isinstance(value, Summary):
        yield f"{name}{_labels(labels)} {_number(value)}"
        return
    for q, found in value.quantiles:
        yield f"{name}{_labels({**labels, 'quantile': f'{q:g}'})} {_number(found)}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {value.count}"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{n}="{_escaped(v)}"' for n, v in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    """A label's value: backslash, quote and line end are escaped."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    """A help text: backslash and line end are."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: Number) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
    return repr(value)
