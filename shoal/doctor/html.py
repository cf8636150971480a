# SPDX-License-Identifier: Apache-2.0
"""A checkup as one HTML file: verdict, stocks, findings, timeline, plots, the fix. Opens anywhere, without a network.

Light and dark follow the reader's system, the layout follows the width. Each plot has its words and the table of its
numbers. Invariants: every text from a table or a job is escaped; nothing is loaded and no script runs, which the page
itself forbids (`Content-Security-Policy`); the numbers are those of the checkup's JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from shoal.doctor.checkup import Checkup
from shoal.doctor.checkup_text import forecast_lines
from shoal.doctor.figures import Figure, figures
from shoal.doctor.finding import Finding
from shoal.doctor.fix import BLOCKS, Step
from shoal.doctor.fleet import Fleet, Patient
from shoal.doctor.page_style import CSS
from shoal.doctor.report import brief, number_text, signed, size_text
from shoal.doctor.stock_rows import stock_rows
from shoal.doctor.svg import moment
from shoal.doctor.timeline import Timeline
from shoal.doctor.timeline_svg import PAGE_STYLE, pictures

_SEVERITY = {"error": "error", "warn": "warning", "info": "note"}
_BLOCK_TEXT = {
    "first aid": "Reversible; each step says what freshness it loses.",
    "root fix": "Prove it on a shadow of the table first.",
}
_SQL = "The SQL is Flink's, to be run as a batch (SET 'execution.runtime-mode' = 'batch'), one statement after another."


def page(c: Checkup) -> str:
    """The whole file."""
    v = c.verdict
    title = f"{c.name}: {v.word}"
    body = [_header(c), _stock_section(c), _finding_section(c), _timeline_section(c.timeline)]
    body += [_figure_section(figures(c)), _fix_section(c)]
    return document(title, "".join(body) + _forecast_section(c) + _footer(c), PAGE_STYLE)


def document(title: str, body: str, style: str = "") -> str:
    """A file around a page's body; `style` goes beside that of all pages."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{CSS}{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _header(c: Checkup) -> str:
    d, w = c.case.model.debt, c.case.window
    facts = [("address", w.table)]
    if d.first is not None:
        kinds = ", ".join(f"{n:,} {k}" for k, n in d.snapshots.items())
        facts += [
            ("snapshots", f"{d.first} to {d.last} ({kinds})"),
            ("from", moment(d.first_ms)), ("to", moment(d.last_ms)),
        ]  # fmt: skip
    if d.interval_s:
        facts.append(("commits", f"{d.commits:,}, one every {brief(d.interval_s)} s"))
    if c.case.slo_ms is not None:
        facts.append(("rows must be seen within", f"{brief(c.case.slo_ms / 1000)} s"))
    told = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    word = c.verdict.word.split()[0]
    return (
        f'<header><p class="kind">shoal doctor check</p><h1>{escape(c.name)}</h1>'
        f'<p class="verdict {word}">{escape(c.verdict.text)}</p><dl class="facts head">{told}</dl></header>\n'
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", stack: bool = False) -> str:
    """A table that scrolls by itself where it is wider than the page; with `stack` a phone shows a card for each row.

    Cells are texts, not markup.
    """
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    lines = "".join(
        "<tr>" + "".join(
            f'<th scope="row">{escape(cell)}</th>' if i == 0
            else f'<td data-h="{escape(heads[i], quote=True)}">{escape(cell)}</td>'
            for i, cell in enumerate(row)
        ) + "</tr>"
        for row in rows
    )  # fmt: skip
    kind = ' class="stack"' if stack else ""
    whole = f"<table{kind}>{told}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide" tabindex="0">{whole}</div>'


def _section(key: str, title: str, body: str) -> str:
    return f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(title)}</h2>{body}</section>\n'


def _stock_section(c: Checkup) -> str:
    if c.case.model.debt.first is None:
        return ""
    rows = []
    for r in stock_rows(c.case.model, c.case.limits):
        slope = ""
        if r.per_hour is not None:
            value, low, high = map(signed, r.per_hour)
            slope = f"{value} ({low} to {high})"
        note = r.note + (f"; {size_text(r.bytes)}" if r.bytes else "")
        rows.append(
            (
                r.name,
                *("" if v is None else number_text(v) for v in (r.now, r.mean, r.most)),
                slope,
                r.direction,
                r.paid_by,
                note,
            )
        )
    heads = ("stock", "now", "mean per snapshot", "most", "an hour, with 95 % interval", "trend", "paid by", "")
    return _section("stocks", "Four stocks of debt", _table(heads, rows, stack=True) + _pace(c))


def _pace(c: Checkup) -> str:
    m, parts = c.case.model, []
    if m.flows.write_amplification is not None:
        parts.append(f"write amplification {brief(m.flows.write_amplification)} over this window")
    if m.sustainability is not None:
        s = m.sustainability
        parts.append(f"{s.paid}, over {s.basis}{' (provisional)' if s.provisional else ''}")
    if m.cycles is not None and m.cycles.next_full is not None:
        parts.append(str(m.cycles.next_full))
    return f"<p>{escape('; '.join(parts))}.</p>" if parts else ""


# ---- findings --------------------------------------------------------------------------------------------


def _finding_section(c: Checkup) -> str:
    if not c.findings:
        return _section("findings", "Findings", "<p>None: no diagnosis found its cause in these snapshots.</p>")
    return _section("findings", "Findings", "".join(_finding(f) for f in c.findings))


def _finding(f: Finding) -> str:
    where = ", ".join(f"{k} {v}" for k, v in f.scope.items() if k != "table" and v != "")
    small = ", ".join(t for t in (f.confidence, where) if t)
    change = "".join(f"<li>{escape(step)}</li>" for step in f.change)
    evidence = [(k.replace("_", " "), _evidence(v)) for k, v in f.evidence.items()]
    if f.snapshots:
        evidence.append(("snapshots", _evidence(f.snapshots)))
    numbers = _table(("number", "value"), evidence) if evidence else ""
    return (
        f'<article class="finding {f.severity}"><h3><span class="tag">{_SEVERITY[f.severity]}</span> '
        f"{escape(f.id)} {escape(f.name)} <small>{escape(small)}</small></h3>"
        f"<p>{escape(f.says)}</p>"
        + (f"<ul>{change}</ul>" if change else "")
        + (f"<p>Effect: {escape(f.effect)}</p>" if f.effect else "")
        + (f"<details><summary>the numbers behind it</summary>{numbers}</details>" if numbers else "")
        + "</article>"
    )


def _evidence(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value[:12])) + (" ..." if len(value) > 12 else "")
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not known"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return brief(value, 4) if isinstance(value, float) else str(value)


# ---- timeline --------------------------------------------------------------------------------------------


def _timeline_section(t: Timeline | None) -> str:
    """The picture, which names the changes, and the changes as a table."""
    if t is None:
        return ""
    rows = [
        (t.clock(change.at_ms), "act" if change.act else "measured", change.says, _id(change.snapshot))
        for change in t.changes
    ]  # fmt: skip
    told = _table(("time", "kind", "change", "snapshot"), rows, caption="Changes in order") if rows else ""
    more = f"<details><summary>the changes as a table</summary>{told}</details>" if told else ""
    return _section("timeline", "What happened, and when", pictures(t) + more)


def _id(snapshot: int | None) -> str:
    return "" if snapshot is None else str(snapshot)


# ---- figures ---------------------------------------------------------------------------------------------


def _figure_section(found: Sequence[Figure]) -> str:
    if not found:
        return ""
    body = '<div class="figures">' + "".join(_figure(f) for f in found) + "</div>"
    return _section("plots", "What the snapshots show", body + "<p>Times are UTC.</p>")


def _figure(f: Figure) -> str:
    legend = "".join(f'<li><i class="key s{i}"></i>{escape(name)}</li>' for i, name in enumerate(f.legend))
    told = f'<ul class="legend">{legend}</ul>' if len(f.legend) > 1 else ""
    return (
        f"<figure><figcaption><h3>{escape(f.title)}</h3></figcaption>{f.svg}{told}"
        f"<p>{escape(f.says)}</p><details><summary>as a table</summary>{_table(f.heads, f.rows, caption=f.title)}"
        "</details></figure>"
    )


# ---- fix and forecast ------------------------------------------------------------------------------------


def _fix_section(c: Checkup) -> str:
    if not c.plan.steps:
        return _section("fix", "Fix", "<p>Nothing to mend.</p>")
    body = f"<p>{escape(_SQL)}</p>" if any(s.sql for s in c.plan.steps) else ""
    for block in BLOCKS:
        steps = c.plan.block(block)
        if steps:
            told = "".join(f"<li>{_step(s)}</li>" for s in steps)
            body += f'<h3>{block.capitalize()}</h3><p>{_BLOCK_TEXT[block]}</p><ol class="steps">{told}</ol>'
    return _section("fix", "Fix", body)


def _step(s: Step) -> str:
    words = [("loses", s.loses), ("effect", s.effect), *(("forecast", str(f)) for f in s.forecasts)]
    words += [("confirmed by", s.probe), *(("note", n) for n in s.notes)]
    words += [(f"in the job: {k}", v) for k, v in s.job.items()]
    sql = f"<pre><code>{escape(chr(10).join(s.sql))}</code></pre>" if s.sql else ""
    undo = "".join(f"<pre><code>{escape(u)}</code></pre>" for u in s.undo if ";" in u)
    words += [("undo", u) for u in s.undo if ";" not in u]
    undo = f"<p>Undo:</p>{undo}" if undo else ""
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in words if v)
    return (
        f"<h4>{escape(s.title)} <small>{escape(s.id)}, for {escape(', '.join(s.findings))}</small></h4>{sql}"
        f'<dl class="facts">{facts}</dl>{undo}'
    )


def _forecast_section(c: Checkup) -> str:
    m = c.case.model
    if m.requests is None:
        return ""
    told = []
    for line in forecast_lines(m.stalls, m.requests, m.steady, None, width=10_000):
        kind = ' class="under"' if line.startswith(" ") else ""
        told.append(f"<p{kind}>{escape(line.strip())}</p>" if line else "</div><div>")
    return _section("forecast", "If nothing changes", f'<div class="prose"><div>{"".join(told)}</div></div>')


def _footer(c: Checkup) -> str:
    w, p = c.case.window, " The look was cut by its budget." if c.case.window.stock.partial else ""
    return (
        f"<footer><p>Looked at {escape(moment(w.stock.taken_ms))}, with {w.stock.requests:,} requests and "
        f"{escape(size_text(w.stock.bytes_read))} read.{p} A number that the retained snapshots cannot give is not "
        "shown.</p></footer>"
    )


# ---- fleet -----------------------------------------------------------------------------------------------


def page_name(table: str) -> str:
    """The file of a table's page, safe on every system.

    >>> page_name("shop.orders"), page_name("a/b.c d")
    ('shop.orders.html', 'a-2fb.c-20d.html')
    """
    return re.sub(r"[^A-Za-z0-9._]", lambda m: f"-{ord(m[0]):x}", table) + ".html"


def index_page(f: Fleet) -> str:
    """All tables, the sickest first, each with a link to its page."""
    head = "".join(f'<th scope="col">{h}</th>' for h in _FLEET)
    rows = "".join(_patient(p) for p in f.patients)
    word = "sick" if any(p.code in (1, 3) for p in f.patients) else "well"
    count = f"{len(f.patients):,} table{'' if len(f.patients) == 1 else 's'}"
    body = (
        f'<header><p class="kind">shoal doctor fleet</p><h1>{escape(count)}</h1>'
        f'<p class="verdict {word}">{escape(f.headline)}</p></header>'
        f'<div class="wide" tabindex="0"><table class="fleet stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    return document(count, body)


_FLEET = (
    "table", "verdict", "live files", "merge debt", "excess files", "retained files", "snapshots", "files a minute",
    "why",
)  # fmt: skip


def _patient(p: Patient) -> str:
    facts = p.facts()
    shown = ("live_files", "merge_debt", "excess_files", "retained_files", "snapshots", "files_per_minute")
    numbers = "".join(f'<td data-h="{h}">{escape(number_text(facts[k]))}</td>' for h, k in zip(_FLEET[2:], shown))
    if p.checkup is None:
        why = "" if p.trouble is None else p.trouble.message
        return (
            f'<tr><th scope="row">{escape(p.name)}</th>'
            f'<td data-h="verdict"><span class="tag sick">cannot be read</span></td>{numbers}'
            f'<td class="text">{escape(why)}</td></tr>'
        )
    why = ", ".join(dict.fromkeys(f"{f.id} {f.name}" for f in p.checkup.findings if f.severity != "info"))
    word = p.checkup.verdict.word
    return (
        f'<tr><th scope="row"><a href="{escape(page_name(p.name), quote=True)}">{escape(p.name)}</a></th>'
        f'<td data-h="verdict"><span class="tag {word.split()[0]}">{escape(word)}</span></td>{numbers}'
        f'<td class="text">{escape(why)}</td></tr>'
    )
