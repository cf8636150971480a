# SPDX-License-Identifier: Apache-2.0
"""The counts of a debt as text for an 80-column terminal, and numbers as people read them.

Invariant: what is printed is what `Debt.to_dict()` holds; nothing is judged here. rich is imported when something is
rendered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.doctor.compare import factors_of, seconds
from shoal.doctor.debt import Buckets, Debt, Limits, total
from shoal.doctor.physical import PhysicalCount
from shoal.doctor.window import Count

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 80
SHOWN = 5  # buckets in the text; JSON names more

_LABELS = {
    "level0": "level-0 data", "compacted": "compacted/upper", "data": "data files", "sidecar": "data sidecars",
    "changelog": "changelog", "manifest": "manifests", "manifest_list": "manifest lists",
    "index_manifest": "index manifests", "index": "index files", "snapshot": "snapshots", "schema": "schemas",
    "hint": "hints", "other": "other",
}  # fmt: skip


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


# ---- numbers ---------------------------------------------------------------------------------------------


def size_text(size: float) -> str:
    """Bytes for people.

    >>> size_text(1023), size_text(1536), size_text(128 << 20)
    ('1,023 B', '1.5 KiB', '128 MiB')
    """
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:,.{1 if size < 100 * scale else 0}f} {unit}"
    return f"{size:,.0f} B"


def number_text(value: float | None) -> str:
    """A number for people, `-` for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


def brief(value: float, digits: int = 3) -> str:
    """A few digits that count, never an exponent.

    >>> brief(0.0000050912), brief(0.25), brief(12.345), brief(99.96), brief(12345.6), brief(-7.0), brief(4.34, 2)
    ('0.00000509', '0.25', '12.3', '100', '12,346', '-7', '4.3')
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value):
        return f"{value:,.0f}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if decimals > 0 else text


def signed(value: float, digits: int = 3) -> str:
    """The same with its sign.

    >>> signed(6.0), signed(-0.00051234), signed(0.0)
    ('+6', '-0.000512', '+0')
    """
    return f"{'-' if value < 0 else '+'}{brief(abs(value), digits)}"


# ---- text ------------------------------------------------------------------------------------------------


def plain_text(renderable: RenderableType, width: int) -> str:
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, emoji=False, markup=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def counts(d: Debt, listed: PhysicalCount | None = None) -> RenderableType:
    """One debt for a rich console: the counts, the flows, the worst buckets."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(window_text(d), overflow="fold")]
    if d.first is not None:
        parts += [_counts(d), Text("\n".join(_flow_lines(d)))]
        if d.buckets is not None and d.buckets.top:
            parts.append(_bucket_table(d.buckets, d.limits))
    if listed is not None:
        parts.append(_listing(listed))
    return Group(*parts)


def window_text(d: Debt) -> str:
    """The table's address and the snapshots that were looked at."""
    if d.first is None:
        return f"{d.table}\nno snapshot yet"
    kinds = " + ".join(f"{n:,} {kind}" for kind, n in d.snapshots.items())
    every = f", one every {seconds(d.interval_s)}" if d.interval_s else ""
    return f"{d.table}\nsnapshots {d.first} to {d.last} ({kinds}), {_n(d.commits, 'commit')}{every}"


def grid(*heads: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    return table


def _counts(d: Debt) -> Table:
    """Files made, live and retained by kind."""
    table = grid("files", "made", "", "live", "", "retained", "")
    live, held = _live_counts(d), d.retained
    made = {**d.made, "data": d.made["level0"] + d.made["compacted"]}
    for kind in ("level0", "compacted", "data", *list(d.made)[2:]):
        cells = (made.get(kind), None if live is None else live.get(kind), None if held is None else held.get(kind))
        if kind in ("sidecar", "index_manifest") and not any(c is not None and c.files for c in cells):
            continue
        table.add_row(_LABELS[kind], *(t for c in cells for t in _cell(c)))
    totals = d.files_made, None if live is None else _total(live), None if held is None else total(held.values())
    table.add_section()
    table.add_row("total", *(t for c in totals for t in _cell(c)))
    return table


def _live_counts(d: Debt) -> Mapping[str, Count] | None:
    if d.live is None:
        return None
    upper = total(c for level, c in d.live.levels.items() if level)
    return {
        "level0": d.live.level0, "compacted": upper, "data": d.live.data, "sidecar": Count(d.live.sidecars),
        **d.live.metadata,
    }  # fmt: skip


def _total(live: Mapping[str, Count]) -> Count:
    return total(c for kind, c in live.items() if kind not in ("level0", "compacted"))


def _cell(count: Count | None) -> tuple[str, str]:
    if count is None:
        return "", ""
    return f"{count.files:,}", size_text(count.bytes) if count.bytes else ""


def _flow_lines(d: Debt) -> list[str]:
    lines = []
    if (rate := d.files_per_minute) is not None:
        lines.append(f"{rate:,.0f} files a minute, {d.files_per_commit or 0:,.1f} a commit")
        if factors := factors_of(d):
            lines[-1] += ":"
            lines.append("  " + " x ".join(f"{v:,.1f} {n}" for n, v in list(factors.items())[:2]))
            lines.append("  x " + " x ".join(f"{v:,.1f} {n}" for n, v in list(factors.items())[2:]))
    if d.write_amplification is not None and d.flush_file_bytes is not None:
        size = size_text(d.flush_file_bytes)
        lines.append(f"write amplification {d.write_amplification:.2f}; half of the new files are under {size}")
    if d.upgraded.files:
        lines.append(f"{_n(d.upgraded.files, 'file')} moved to a higher level, which writes nothing")
    if d.live is not None:
        lines.append(f"{d.live.mean_files:,.1f} live data files in a snapshot on average, {d.live.max_files:,} at most")
    if d.retained is not None:
        lines.append("retained: held only by older snapshots; tags, branches, orphans are not in it")
    else:
        lines.append("retained: not counted, since not every snapshot was seen")
    return lines


def _bucket_table(b: Buckets, limits: Limits | None) -> RenderableType:
    tree = limits is not None and limits.primary_key
    table = grid("bucket", "files", "level 0", *(("runs", "mean", "most") if tree else ("mean", "most")), "bytes")
    for t in b.top[:SHOWN]:
        over_time = [f"{t.mean_files:.1f}", f"{t.max_files:,}"]
        if tree:
            over_time = [f"{t.runs:,}", f"{t.mean_runs:.1f}", f"{t.max_runs:,}"]
        name = f"{t.partition}/{t.bucket}" if t.partition else str(t.bucket)
        table.add_row(name, f"{t.files:,}", f"{t.level0:,}", *over_time, size_text(t.bytes))
    if b.count > SHOWN:
        table.add_row(f"... {b.count - SHOWN:,} more", *[""] * (len(table.columns) - 1))
    return spaced(table)


def spaced(table: RenderableType) -> RenderableType:
    """With an empty line above."""
    from rich.padding import Padding

    return Padding(table, (1, 0, 0, 0))


def _listing(p: PhysicalCount) -> RenderableType:
    table = grid("on disk", "files", "bytes")
    some_known = p.data.files > p.kinds["data"].files
    for kind, count in p.kinds.items():
        if count.files:
            label = "data, maker unknown" if kind == "data" and some_known else _LABELS[kind]
            table.add_row(label, f"{count.files:,}", size_text(count.bytes))
    table.add_section()
    table.add_row("total", f"{p.files.files:,}", size_text(p.files.bytes))
    return spaced(table)
