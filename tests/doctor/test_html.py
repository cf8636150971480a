# SPDX-License-Identifier: Apache-2.0
"""The page of a checkup: it parses, loads nothing, escapes everything, and shows the checkup's numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from json_paths import table
from make_facts import read
from toy import File, Toy

from shoal.doctor import svg
from shoal.doctor.checkup import Checkup, checkup
from shoal.doctor.figures import ROWS, STRETCHES, figures, thinned
from shoal.doctor.finding import Finding
from shoal.doctor.fleet import Fleet, Patient
from shoal.doctor.html import index_page, page, page_name
from shoal.doctor.page_style import CSS
from shoal.doctor.report import number_text
from shoal.doctor.stock_rows import stock_rows
from shoal.errors import NotFound

DATA = Path(__file__).parent / "data"
VOID = {"meta", "br", "hr", "img", "input", "link"}
NASTY = "<script>alert('x')</script> & \"quoted\" </style>"


class Page(HTMLParser):
    """What a page holds; fails where tags don't close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # (innermost tag, text)
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for t, attrs in self.tags if t == tag]

    def text(self) -> str:
        return " ".join(" ".join(t for tag, t in self.texts if tag != "style").split())


@pytest.fixture(scope="module")
def sick() -> Checkup:
    window = replace(table(), name="shop." + NASTY, table=NASTY)
    nasty = Finding("D1", NASTY, "error", "supported", {"user": NASTY}, {NASTY: NASTY}, NASTY, (NASTY,), NASTY, (1, 2))
    every = tuple(Finding(f"D{n}", "n", "warn", "supported", {}, {"n": 1.5}, "s") for n in range(2, 18))
    return Checkup(checkup(window, slo_ms=30_000).case, (nasty, *every))


@pytest.fixture(scope="module")
def real() -> Checkup:
    return checkup(read(DATA / "virtual-writer-none-10s.json.gz")[0])


def pages(*checkups: Checkup) -> Iterator[Page]:
    for c in checkups:
        yield Page(page(c))


def test_it_parses_and_every_text_is_escaped(sick: Checkup) -> None:
    found = Page(page(sick))
    assert not found.all("script") and len(found.all("style")) == 1
    assert found.text().count("<script>alert('x')</script> & \"quoted\" </style>") > 6


def test_nothing_is_fetched_and_nothing_runs(sick: Checkup, real: Checkup) -> None:
    for c in (sick, real):
        text = page(c)
        found = Page(text)
        for tag, attrs in found.tags:
            assert tag not in ("script", "link", "img", "iframe", "object", "base", "form"), tag
            assert not attrs.keys() & {"src", "srcset", "href", "xlink:href", "action", "style"}, (tag, attrs)
            assert not any(name.startswith("on") for name in attrs), attrs
        assert "url(" not in text and "@import" not in text and "http://" not in text and "https://" not in text
        policy = next(m for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
        assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_it_is_readable_without_eyes(sick: Checkup, real: Checkup) -> None:
    for found in pages(sick, real):
        assert found.all("html")[0]["lang"] == "en" and len(found.all("h1")) == 1 and found.all("main")
        ids = [a["id"] for _, a in found.tags if "id" in a]
        assert len(ids) == len(set(ids))
        plots = found.all("svg")
        assert len(plots) == len(found.all("figure")) > 3
        for plot in plots:
            assert plot["role"] == "img" and set((plot["aria-labelledby"] or "").split()) <= set(ids)
        for key in (a["aria-labelledby"] for _, a in found.tags if "aria-labelledby" in a):
            assert set((key or "").split()) <= set(ids)
        assert len(found.all("figcaption")) == len(plots)
        assert all("scope" in th for th in found.all("th"))


def test_dark_and_narrow_have_their_style() -> None:
    assert "@media (prefers-color-scheme:dark)" in CSS and "@media (max-width:560px)" in CSS
    light, dark = (dict(re.findall(r"--(\w+):(#\w+)", part)) for part in CSS.split("prefers-color-scheme:dark")[:2])
    dark = dict(re.findall(r"--(\w+):(#\w+)", CSS.split("prefers-color-scheme:dark")[1].split("\n*{")[0]))
    light = {k: v for k, v in light.items() if k in dark}
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for ink in ("ink", "soft", "c0", "good", "bad", "warn"):
            for ground in ("ground", "card"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(a: str, b: str) -> float:
    def light(colour: str) -> float:
        full = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
        parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        lin = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_numbers_are_the_models(real: Checkup) -> None:
    text = Page(page(real)).text()
    m = real.case.model
    assert real.verdict.text in text
    for row in stock_rows(m, real.case.limits):
        assert number_text(row.now) in text
    assert m.merge is not None and f"{m.merge.runs_to_merge.most:,}" in text
    made = m.flows
    assert f"Files made a minute over the whole window: {made.per_minute('flush'):,.3g} flush" in text


def test_figures_hold_the_numbers_that_they_draw(sick: Checkup, real: Checkup) -> None:
    by_key = {f.key: f for f in figures(sick)}
    assert set(by_key) == {"stocks", "flows", "runs", "cadence", "factors", "buckets", "holders"}
    assert by_key["factors"].rows[0] == ("commits per minute", "1", "6", "x6", "+20")
    assert by_key["cadence"].rows[0][1:] == ("60",) and by_key["cadence"].rows[-1][1:] == ("10",)
    assert all(len(f.rows) <= max(ROWS + 1, 20) and len(f.rows[0]) == len(f.heads) for f in by_key.values())
    assert "60 → 10 s" in by_key["stocks"].svg
    files = sum(float(r[1]) for r in by_key["flows"].rows)
    assert files > 0 and {f.key for f in figures(real)} == {"stocks", "flows", "runs", "cadence", "buckets", "holders"}
    states = real.case.states
    assert states is not None
    runs = next(f for f in figures(real) if f.key == "runs")
    worst = max(b.runs for b in real.case.model.buckets)
    assert f"holds {worst} sorted runs now" in runs.says


def test_the_timeline_is_in_the_page_with_its_changes(sick: Checkup) -> None:
    t = sick.timeline
    assert t is not None and t.changes
    found = Page(page(sick))
    drawn = [a for a in found.all("svg") if a.get("class") == "shoal"]
    assert [a["aria-labelledby"] for a in drawn] == ["timeline-far", "timeline-near"]
    text = found.text()
    for change in t.changes:
        assert text.count(change.says) >= 3, change  # in both pictures, and in the table
    for lane in t.lanes:
        assert lane.title in text
    assert {"interval 60→10 s"} <= {c.says for c in t.changes}


@pytest.mark.parametrize(("commits", "there"), [(0, False), (1, False), (2, True)])
def test_a_page_without_a_past_has_no_timeline(commits: int, there: bool) -> None:
    toy = Toy()
    for n in range(commits):
        toy.commit(("flush", File(0, 100)), at=n * 60_000)
    found = checkup(toy.window())
    assert (found.timeline is not None) is there
    assert ("timeline" in [a.get("id") for a in Page(page(found)).all("h2")]) is there


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_tables_that_hardly_exist_have_a_page(commits: int) -> None:
    toy = Toy()
    for n in range(commits):
        toy.commit(("flush", File(0, 100)), at=n)
    found = Page(page(checkup(toy.window())))
    assert "too little data" in found.text()


def test_thinning_keeps_crests_and_troughs() -> None:
    import numpy as np

    values = np.zeros(10_000, np.int64)
    values[[17, 5000, 9998]] = [9, -4, 7]
    x, y = thinned(np.arange(10_000), values)
    assert len(x) <= 2 * STRETCHES + 2 and {9.0, -4.0, 7.0} <= set(y) and x[-1] == 9999.0


@pytest.mark.parametrize("span", [0, 1, 999, 60_000, 7_200_000, 86_400_000 * 40])
def test_time_axes_have_a_few_round_moments(span: int) -> None:
    start = 1_767_225_601_234
    found = svg.time_ticks(start, start + max(span, 1))
    assert len(found) <= 6 and all(start <= at <= start + max(span, 1) for at, _ in found)


def test_plots_of_nothing_are_still_plots() -> None:
    for text in (
        svg.lines("k", "t", "a", []), svg.lines("k", "t", "a", [svg.Line("n", [1], [0])]), svg.bars("k", "t", "a", []),
        svg.stacked("k", "t", "a", [0, 1], [], []), svg.heat("k", "t", "a", [0, 1], ["b"], [[0]], 0),
    ):  # fmt: skip
        assert len(Page(text).all("svg")) == 1 and "nan" not in text and "inf" not in text


def test_the_index_links_to_pages_that_exist(sick: Checkup, real: Checkup) -> None:
    fleet = Fleet((Patient("shop." + NASTY, sick), Patient("shop.a b", real), Patient("x.y", None, NotFound(NASTY))))
    found = Page(index_page(fleet))
    links = [a["href"] for a in found.all("a")]
    assert links == [page_name("shop." + NASTY), page_name("shop.a b")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+\.html", link or "") for link in links)
    assert "cannot be read" in found.text() and NASTY in found.text()
    assert page_name("a-b") != page_name("a-2db")
