# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges, histograms, and their text for Prometheus."""

from __future__ import annotations

import math
import re
import threading

import pytest

from shoal.metrics import Counter, Group, Histogram, Registry


class Kept:
    def __init__(self, group: Group) -> None:
        self.group = group


def test_counters_count_from_many_threads() -> None:
    counter = Counter()
    threads = [threading.Thread(target=lambda: [counter.inc() for _ in range(2_000)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    counter.dec(7)
    assert counter.count == 4 * 2_000 - 7


def test_a_histogram_knows_its_last_values_and_the_number_of_all() -> None:
    histogram = Histogram(window=100)
    for i in range(1, 251):
        histogram.update(i)
    found = histogram.summary()  # of 151 to 250
    assert (found.count, found.total) == (250, 250 * 251 / 2)
    assert (found.min, found.max, found.mean) == (151, 250, 200.5)
    assert found.stddev == pytest.approx(29.011491975882016)  # of a sample: sqrt(100 * 101 / 12)
    # commons-math Percentile at its default: place p * (n + 1), between its neighbours
    assert dict(found.quantiles) == pytest.approx(
        {0.5: 200.5, 0.75: 225.75, 0.95: 245.95, 0.98: 248.98, 0.99: 249.99, 0.999: 250}
    )


@pytest.mark.parametrize(
    ("values", "p50", "p99", "stddev"), [([], None, None, None), ([7], 7, 7, 0), ([1, 2], 1.5, 2, math.sqrt(0.5))]
)
def test_small_histograms(values: list[float], p50: float | None, p99: float | None, stddev: float | None) -> None:
    histogram = Histogram()
    for v in values:
        histogram.update(v)
    found = histogram.summary().to_dict()
    assert (found["count"], found["p50"], found["p99"]) == (len(values), p50, p99)
    assert found["stddev"] == (None if stddev is None else pytest.approx(stddev))


def test_a_group_exists_once() -> None:
    registry = Registry()
    one, two = registry.of(Kept, "commit", table="a"), registry.of(Kept, "commit", table="b")
    assert registry.of(Kept, "commit", table="a") is one
    assert [g.labels["table"] for g in registry.groups()] == ["a", "b"]
    two.group.counter("made", "How many.").inc(3)
    assert registry.to_dict() == [{"group": "commit", "table": "a"}, {"group": "commit", "table": "b", "made": 3}]


# ---- Prometheus' text, read by the rules of exposition format 0.0.4

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')


def plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)


def parsed(text: str) -> dict[str, tuple[str, str, dict[tuple[tuple[str, str], ...], float]]]:
    """{metric: (type, help, {labels: value})}; fails where a line breaks the format."""
    out: dict[str, tuple[str, str, dict[tuple[tuple[str, str], ...], float]]] = {}
    assert text.endswith("\n") or not text
    current, help_text = "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current, help_text = line[7:].split(" ", 1)
            assert current not in out, "all lines of a metric are one group"
            continue
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current and kind in ("counter", "gauge", "summary")
            out[name] = (kind, plain(help_text), {})
            continue
        found = _SAMPLE.fullmatch(line)
        assert found, line
        name, labels, value = found.groups()
        at, pairs = 0, []
        while labels and at < len(labels):
            label = _LABEL.match(labels, at)
            assert label, labels
            pairs.append((label[1], plain(label[2])))
            at = label.end()
        kind, _, samples = out[current]
        suffix = name.removeprefix(current)
        assert suffix in (("", "_sum", "_count") if kind == "summary" else ("",))
        key = (*pairs, *([("", suffix)] if suffix else []))
        assert key not in samples
        samples[key] = float(value)
    return out


def test_prometheus_text_holds_everything_under_escaped_labels() -> None:
    registry = Registry()
    names = ['shop."orders"', "a\\b\nc", "größe"]
    for i, name in enumerate(names):
        group = registry.of(Kept, "commit", table=name).group
        group.counter("commits", "How many\nin all, C:\\n.").inc(i)
        group.gauge("share", "A part.", lambda i=i: i / 4, ours=True)
        group.counter("waiting", "How many wait.", falls=True).dec(i)
        group.gauge("odd", "What no number is.", lambda: math.inf)
        histogram = group.histogram("took", "Milliseconds.")
        for v in range(i):
            histogram.update(10 * v)
    found = parsed(registry.prometheus())
    assert list(found) == [
        "paimon_commit_commits", "shoal_commit_share", "paimon_commit_waiting", "paimon_commit_odd", "paimon_commit_took",
    ]  # fmt: skip
    keys = [(("table", n),) for n in names]
    assert found["paimon_commit_commits"] == ("counter", "How many\nin all, C:\\n.", dict(zip(keys, (0, 1, 2))))
    assert found["shoal_commit_share"][2] == dict(zip(keys, (0, 0.25, 0.5)))
    assert found["paimon_commit_waiting"][::2] == ("gauge", dict(zip(keys, (0, -1, -2))))
    assert set(found["paimon_commit_odd"][2].values()) == {math.inf}
    kind, _, took = found["paimon_commit_took"]
    assert kind == "summary"
    assert math.isnan(took[("table", names[0]), ("quantile", "0.5")])
    assert took[("table", names[2]), ("quantile", "0.5")] == 5
    assert (took[("table", names[2]), ("", "_sum")], took[("table", names[2]), ("", "_count")]) == (10, 2)


def test_an_empty_registry_is_an_empty_text() -> None:
    assert Registry().prometheus() == ""
