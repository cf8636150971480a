# SPDX-License-Identifier: Apache-2.0
"""The four stocks as rows for people: now, over the window, which way, and who pays. Text and HTML print these.

Invariant: the stocks are never added together; a number that the window cannot give is None.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.doctor.debt import Limits
from shoal.doctor.model import Model, Trend
from shoal.doctor.report import brief


@dataclass(frozen=True, slots=True)
class StockRow:
    """One stock. `per_hour`: slope with its 95 % interval at equal phase."""

    key: str
    name: str
    now: float | None
    mean: float | None  # per snapshot, what readers meet
    most: float | None
    bytes: int | None
    per_hour: tuple[float, float, float] | None
    rising: bool
    note: str
    paid_by: str

    @property
    def direction(self) -> str:
        """`rising`, `rising slowly` (surely, but by less than a file a cycle), `falling`, `steady`.

        `not known` where each window has a slope to know, else nothing.
        """
        if self.per_hour is None:
            return "not known" if self.key in ("merge_debt", "excess_files") else ""
        if self.per_hour[1] > 0:
            return "rising" if self.rising else "rising slowly"
        return "falling" if self.per_hour[2] < 0 else "steady"


def stock_rows(m: Model, limits: Limits | None) -> list[StockRow]:
    """Merge debt, excess files, retained debt, metadata debt; tables without a primary key have no merge debt."""
    rows = []
    if m.merge is not None:
        a = m.merge.read_amplification
        opened = f"a read opens {m.merge.files_opened:,} files"
        note = "" if a is None else f"{opened}, {brief(a)}x those after a full compaction"
        level = m.merge.runs_to_merge
        rows.append(
            _row(
                "merge_debt", "merge debt", level.now, level.mean_per_snapshot, level.most,
                m.merge.overlapping_bytes, m.trends.get("merge_debt"), note, "compaction",
            )
        )  # fmt: skip
    if m.excess is not None:
        share = m.excess.small_share
        note = f"{m.excess.live.now:,} live files" + ("" if share is None else f", {share:.0%} of them small")
        level = m.excess.excess
        rows.append(
            _row(
                "excess_files", "excess files", level.now, level.mean_per_snapshot, level.most, None,
                m.trends.get("excess_files"), note, "compaction",
            )
        )  # fmt: skip
    rows += [_retained(m), _metadata(m)]
    return rows


def _row(
    key: str, name: str, now: float | None, mean: float | None, most: float | None, size: int | None,
    trend: Trend | None, note: str, paid_by: str,
) -> StockRow:  # fmt: skip
    per_hour = None if trend is None or trend.slope is None else trend.slope.over(60)
    return StockRow(
        key, name, now, mean, most, size, per_hour, trend is not None and trend.rising, note, paid_by
    )  # fmt: skip


def _retained(m: Model) -> StockRow:
    r, files, size = m.retained, None, None
    if r.dead is not None and r.changelog is not None:
        files, size = r.dead.files + r.changelog.files, r.dead.bytes + r.changelog.bytes
    note = "not counted: not every retained snapshot was seen"
    if files is not None:
        note = f"{r.snapshots or 0:,} snapshots hold them"
        if m.steady is not None and m.steady.dead_files.value is not None:
            goal = m.steady.dead_files.value + (m.steady.changelog_files.value or 0)
            note += f"; at this rate they settle at {goal:,.0f}"
        if any(h.kind == "overdue snapshots" for h in r.holders):
            note += "; expiry is behind"
    trend = m.trends.get("retained_files")
    return _row("retained_files", "retained files", files, None, None, size, trend, note, "expiry")


def _metadata(m: Model) -> StockRow:
    d = m.metadata
    if d is None:
        return _row("manifests", "manifests", None, None, None, None, None, "", "manifest merges")
    ratio = d.dead_ratio
    note = f"{d.entries:,} entries" + ("" if ratio is None else f", {brief(ratio)} dead for each live one")
    return _row(
        "manifests", "manifests", d.manifests.files, None, None, d.manifests.bytes, m.trends.get("manifests"), note,
        "manifest merges",
    )  # fmt: skip
