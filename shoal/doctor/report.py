# SPDX-License-Identifier: Apache-2.0
"""A debt or a comparison as text for an 80-column terminal, or as JSON. The verdict comes first.

Invariants: only `judge` decides whether a table is well; what is printed is what `to_dict()` holds. rich is imported
when something is rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.doctor.compare import Comparison, Ratio, factors_of, seconds
from shoal.doctor.debt import Buckets, Debt, Limits, total
from shoal.doctor.physical import PhysicalCount
from shoal.doctor.window import Count

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 80
SHOWN = 5  # buckets in the text; JSON names more
_FEW = 3  # snapshots that get a line each
# Small files of one append bucket that would fill this many compactions: nobody compacts.
_ROUNDS = 4

_LABELS = {
    "level0": "level-0 data", "compacted": "compacted/upper", "data": "data files", "sidecar": "data sidecars",
    "changelog": "changelog", "manifest": "manifests", "manifest_list": "manifest lists",
    "index_manifest": "index manifests", "index": "index files", "snapshot": "snapshots", "schema": "schemas",
    "hint": "hints", "other": "other",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the table is well, and why: the first line says it, the others add what to know. Exit code 0 or 1."""

    ok: bool
    lines: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1


def judge(d: Debt) -> Verdict:
    """The verdict over what is counted today: the metadata adds up, compaction keeps up. Trends are not judged."""
    problems, notes = _metadata_problems(d), _metadata_notes(d)
    if d.buckets is not None and d.limits is not None:
        problems += _backlog_problems(d.buckets, d.limits)
        notes += _backlog_notes(d.buckets, d.limits)
    if problems:
        return Verdict(False, (f"unwell: {problems[0]}", *problems[1:], *notes))
    if d.first is None:
        return Verdict(True, (*(notes or ("well: the table has no snapshot yet",)),))
    return Verdict(True, (f"well: {_headline(d)}", *notes))


def _headline(d: Debt) -> str:
    if d.live is None or d.buckets is None or d.limits is None:
        return f"{_n(d.identity.listed, 'live file')}, and the manifests add up"
    text = f"{_n(d.live.data.files, 'live file')} in {_n(d.buckets.count, 'bucket')}"
    if d.limits.primary_key:
        top = max((b.runs for b in d.buckets.top if b.bucket >= 0), default=0)
        return f"{text}, at most {_n(top, 'sorted run')} in one; writers wait above {d.limits.stop_trigger}"
    return text


def _metadata_problems(d: Debt) -> list[str]:
    out = []
    if broken := d.identity.broken:
        ids = ", ".join(map(str, broken[:SHOWN])) + (" ..." if len(broken) > SHOWN else "")
        out.append(f"the manifest lists of {_n(len(broken), 'snapshot')} do not add up to their files ({ids})")
    if d.identity.counted not in (None, d.identity.listed):
        listed = _n(d.identity.listed, "live file")
        out.append(f"the manifest lists say {listed}, the manifests hold {d.identity.counted:,}")
    missing = [g for g in d.gaps if g.kind == "missing"]
    out += [f"snapshot {g.first} has not expired, but cannot be read: {g.what}" for g in missing[:_FEW]]
    if len(missing) > _FEW:
        out.append(f"{_n(len(missing) - _FEW, 'snapshot')} more cannot be read")
    if d.live is None and d.first is not None:
        out.append(f"the live files of snapshot {d.last} cannot be read: a manifest is missing")
    return out


def _metadata_notes(d: Debt) -> list[str]:
    expired = sum(g.last - g.first + 1 for g in d.gaps if g.kind == "expired")
    return [f"{_n(expired, 'snapshot')} expired unseen: what they made is not counted"] if expired else []


def _backlog_problems(b: Buckets, limits: Limits) -> list[str]:
    if b.at_stop:
        who = "write-only tables need a dedicated compaction" if limits.write_only else "compaction is behind"
        where = f"{_n(b.at_stop, 'bucket')} over {limits.stop_trigger} sorted runs, where writers wait"
        return [f"{where} (the worst has {max(t.runs for t in b.top):,}); {who}"]
    if not limits.primary_key and b.max_small >= _ROUNDS * limits.min_file_num:
        enough = f"{limits.min_file_num} are enough to compact"
        return [f"{b.max_small:,} small files in one bucket, where {enough}: nobody compacts"]
    return []


def _backlog_notes(b: Buckets, limits: Limits) -> list[str]:
    out = []
    if b.at_trigger and not b.at_stop:
        out.append(f"{_n(b.at_trigger, 'bucket')} over {limits.compaction_trigger} sorted runs: a compaction is due")
    if b.excess:
        size = size_text(limits.target_size)
        out.append(f"{_n(b.excess, 'live file')} more than the bytes need at {size} each")
    return out


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


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


# ---- text ------------------------------------------------------------------------------------------------


def check_text(d: Debt, listed: PhysicalCount | None = None, *, width: int = WIDTH) -> str:
    """One debt as plain text."""
    return _plain(check(d, listed), width)


def comparison_text(c: Comparison, *, width: int = WIDTH) -> str:
    """A comparison as plain text."""
    return _plain(comparison(c), width)


def to_json(result: Debt | Comparison | PhysicalCount, verdict: Verdict | None = None) -> str:
    """The same as JSON, on one indented page; a debt carries its verdict."""
    out = result.to_dict()
    if isinstance(result, Debt):
        verdict = verdict or judge(result)
        out["verdict"] = {"ok": verdict.ok, "lines": list(verdict.lines)}
    return json.dumps(out, indent=2)


def _plain(renderable: RenderableType, width: int) -> str:
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, emoji=False, markup=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def check(d: Debt, listed: PhysicalCount | None = None) -> RenderableType:
    """One debt for a rich console: the verdict, the counts, the flows, the worst buckets."""
    from rich.console import Group
    from rich.text import Text

    verdict = judge(d)
    head, *rest = verdict.lines
    parts: list[RenderableType] = [Text(head, style="bold green" if verdict.ok else "bold red")]
    parts += [Text(f"- {line}") for line in rest]
    if d.first is not None:
        parts += [Text(""), Text(_window(d), overflow="fold"), _counts(d)]
        parts.append(Text("\n".join(_flow_lines(d))))
        if d.buckets is not None and d.buckets.top:
            parts.append(_bucket_table(d.buckets, d.limits))
    if listed is not None:
        parts.append(_listing(listed))
    return Group(*parts)


def _window(d: Debt) -> str:
    kinds = " + ".join(f"{n:,} {kind}" for kind, n in d.snapshots.items())
    every = f", one every {seconds(d.interval_s)}" if d.interval_s else ""
    return f"{d.table}\nsnapshots {d.first} to {d.last} ({kinds}), {_n(d.commits, 'commit')}{every}"


def _table(*heads: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
    return table


def _counts(d: Debt) -> Table:
    """Files made, live and retained by kind."""
    table = _table("files", "made", "", "live", "", "retained", "")
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
    table = _table("bucket", "files", "level 0", *(("runs", "mean", "most") if tree else ("mean", "most")), "bytes")
    for t in b.top[:SHOWN]:
        over_time = [f"{t.mean_files:.1f}", f"{t.max_files:,}"]
        if tree:
            over_time = [f"{t.runs:,}", f"{t.mean_runs:.1f}", f"{t.max_runs:,}"]
        name = f"{t.partition}/{t.bucket}" if t.partition else str(t.bucket)
        table.add_row(name, f"{t.files:,}", f"{t.level0:,}", *over_time, size_text(t.bytes))
    if b.count > SHOWN:
        table.add_row(f"... {b.count - SHOWN:,} more", *[""] * (len(table.columns) - 1))
    return _spaced(table)


def _spaced(table: Table) -> RenderableType:
    from rich.padding import Padding

    return Padding(table, (1, 0, 0, 0))


def _listing(p: PhysicalCount) -> RenderableType:
    table = _table("on disk", "files", "bytes")
    some_known = p.data.files > p.kinds["data"].files
    for kind, count in p.kinds.items():
        if count.files:
            label = "data, maker unknown" if kind == "data" and some_known else _LABELS[kind]
            table.add_row(label, f"{count.files:,}", size_text(count.bytes))
    table.add_section()
    table.add_row("total", f"{p.files.files:,}", size_text(p.files.bytes))
    return _spaced(table)


# ---- comparison ------------------------------------------------------------------------------------------

_ROWS: Sequence[tuple[str, str, bool]] = (  # label, key of the numbers, whether it is bytes
    ("commits", "commits", False), ("snapshots", "snapshots", False),
    ("level-0 files made", "made.level0.files", False), ("files rewritten", "made.compacted.files", False),
    ("changelog files made", "made.changelog.files", False), ("manifests made", "made.manifest.files", False),
    ("manifest lists made", "made.manifest_list.files", False), ("all files made", "made.total.files", False),
    ("all bytes written", "made.total.bytes", True), ("files a minute", "files_per_minute", False),
    ("files a commit", "files_per_commit", False), ("median new file", "flush_file_bytes_median", True),
    ("write amplification", "write_amplification", False), ("live data files", "live.files", False),
    ("live, mean per snapshot", "live.mean_files", False), ("most runs in a bucket", "buckets.max_runs", False),
    ("retained data files", "retained.data.files", False), ("retained changelog", "retained.changelog.files", False),
)  # fmt: skip


def comparison(c: Comparison) -> RenderableType:
    """A comparison for a rich console: the sentence, two columns and their ratio, what the difference is made of."""
    from rich.console import Group
    from rich.text import Text

    table = _table("", *c.names, "ratio")
    for label, key, is_bytes in _ROWS:
        row = c.ratios.get(key, Ratio(None, None))
        if not (row.a or row.b):
            continue
        shown = ["-" if v is None else size_text(v) if is_bytes else _number(v) for v in (row.a, row.b)]
        table.add_row(label, *shown, "" if row.ratio is None else f"{row.ratio:.2f}x")
    parts: list[RenderableType] = [Text(c.sentence, style="bold"), _spaced(table)]
    if c.factors:
        split = _table("files a minute = product of", *c.names, "ratio", "part")
        for f in c.factors:
            split.add_row(f.name, _number(f.a), _number(f.b), f"{f.ratio:.2f}x", f"{f.part:+,.0f}")
        both = c.ratios["files_per_minute"]
        split.add_section()
        difference = (both.a or 0) - (both.b or 0)
        ratio = "" if both.ratio is None else f"{both.ratio:.2f}x"
        split.add_row("files a minute", _number(both.a), _number(both.b), ratio, f"{difference:+,.0f}")
        parts.append(_spaced(split))
    return Group(*parts)
