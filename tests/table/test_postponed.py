# SPDX-License-Identifier: Apache-2.0
"""`postpone.merge-on-read`: postponed rows meet the real buckets as in Flink's batch reads, whatever the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from options_truth import java, multiset, opened, rows

from shoal.errors import BadRequest, Corrupt, Unsupported
from shoal.table import postponed

OFF = {"postpone.merge-on-read": "false"}
Unpacked = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(unpacked: Unpacked) -> Path:
    return unpacked("options")


# deduplicate, sequence.field, aggregation, partial-update, first-row, deletion vectors, ignore-delete, four buckets,
# and a listagg in the order of a sequence field, which shows that each side is merged by itself first
@pytest.mark.parametrize("table", ["dd", "seqf", "agg", "pu", "fr", "dv", "ig", "mb", "agseq"])
def test_every_engine_gives_what_flink_gives(folder: Path, table: str) -> None:
    t = opened(folder, f"late.{table}")
    assert rows(t) == java(folder, table)
    assert rows(t) != rows(t.with_options(OFF))


@pytest.mark.parametrize(
    ("dump", "table", "what"),
    [
        ("dd.where_v", "dd", {"where": "v >= 30", "columns": ["k", "w"]}),
        ("dd.where_k", "dd", {"where": "k IN (2, 3, 14)"}),
        ("dd.where_p", "dd", {"where": "dt = 'c'"}),
        ("dd.columns", "dd", {"columns": ["w"]}),
        ("dd.first", "dd", {"snapshot": 1}),
        ("mb.where", "mb", {"where": "k = 9"}),
        # the real row that does not match is newer by its sequence field, or the first: it must be read all the same
        ("seqf.where_v", "seqf", {"where": "v = 'older'"}),
        ("fr.where_v", "fr", {"where": "v = 'late1'"}),
    ],
)
def test_filters_and_columns(folder: Path, dump: str, table: str, what: dict[str, object]) -> None:
    assert rows(opened(folder, f"late.{table}"), **what) == java(folder, dump)


@pytest.mark.parametrize(
    ("dump", "table", "options"),
    [
        ("dd.plain", "dd", OFF),
        ("dv.plain", "dv", OFF),
        ("dv.compact_scan", "dv", {**OFF, "batch-scan-mode": "compact"}),
        ("dd.compacted", "dd", {"scan.mode": "compacted-full"}),
        # the greatest of the partitions that a plain read sees: one with postponed rows only is none of them
        ("dd.maxpt", "dd", {"scan.partitions": "max_pt()"}),
    ],
)
def test_reads_that_merge_nothing_or_a_part(folder: Path, dump: str, table: str, options: dict[str, str]) -> None:
    assert rows(opened(folder, f"late.{table}", options)) == java(folder, dump)


@pytest.mark.parametrize("table", ["dd", "seqf", "agseq", "pu", "mb"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_any_number_of_chunks_gives_the_same_rows(
    folder: Path, table: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bool] = []
    sort = postponed._Chunks._sort

    def counted(self: postponed._Chunks, *a: object, aside: bool) -> None:
        kept.append(aside)
        sort(self, *a, aside=aside)  # type: ignore[arg-type]

    monkeypatch.setattr(postponed, "_READ_ROWS", step)
    monkeypatch.setattr(postponed, "_CHUNK_SHARE", 0.0)  # every batch is a chunk of its own, on disk
    monkeypatch.setattr(postponed._Chunks, "_sort", counted)
    assert rows(opened(folder, f"late.{table}")) == java(folder, table)
    assert len(kept) > 1
    assert all(kept)


def test_memory_is_given_back(folder: Path) -> None:
    t = opened(folder, "late.dd")
    budget = t.budget()
    t.budget = lambda: budget  # type: ignore[method-assign]
    t.scan().to_arrow()
    assert budget.peak > 0
    assert budget.used == 0


def test_a_limit_ends_the_read(folder: Path) -> None:
    assert opened(folder, "late.dd").scan(limit=3).to_arrow().num_rows == 3


def test_the_rows_of_two_writers_stand_side_by_side(folder: Path) -> None:
    """The seventh row of one writer comes after the first of another, whichever was committed first."""
    found = opened(folder, "late.dd").scan(where="k IN (5, 14)", columns=["k", "w"]).to_arrow().to_pylist()
    assert multiset(found) == multiset([{"k": 5, "w": "second"}, {"k": 14, "w": "order 6"}])


def test_explain_counts_a_partition_with_postponed_rows_as_one(folder: Path) -> None:
    on, off = (opened(folder, "late.dd", o).scan().explain() for o in (None, OFF))
    assert [b.bucket for b in on.by_bucket if b.partition in ("dt=a", "dt=c")] == [-2, -2]
    assert off.dropped["postponed bucket"] == 4
    assert "postponed bucket" not in on.dropped
    assert on.rows > off.rows


def test_what_flink_refuses(folder: Path) -> None:
    t = opened(folder, "late.dd")
    with pytest.raises(Unsupported, match="not for streams"):
        t.follow()
    for options in ({"incremental-between": "1,2"}, {"scan.file-creation-time-millis": "1"}):
        with pytest.raises(Unsupported, match="batch reads of one snapshot"):
            t.with_options(options).scan()
    with pytest.raises(BadRequest, match=r"scan\.bucket"):
        t.with_options({"scan.bucket": "1"}).scan().to_arrow()


def test_the_option_means_nothing_elsewhere(folder: Path) -> None:
    on = {"postpone.merge-on-read": "true"}
    assert rows(opened(folder, "late.ptk", on)) == rows(opened(folder, "late.ptk"))
    assert len(list(opened(folder, "late.flat", on).follow(until="latest"))) == 1


def test_files_of_unknown_writers_are_refused(folder: Path) -> None:
    t = opened(folder, "late.dd")
    plan = t.scan().plan()
    late = next(s for s in plan.splits if s.postponed)
    nameless = [f._replace(file_name="data-1.avro") for f in late.files]
    with pytest.raises(Corrupt, match="does not name its writer"):
        postponed._by_writer(t, nameless)
