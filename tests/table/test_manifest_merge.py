"""Which manifests are merged at a commit: every state that Java was asked about gets Java's answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import shoal
from shoal.format.datafile import ADD, DELETE, Stats
from shoal.format.manifest import ManifestMeta
from shoal.table.manifest_merge import Coded, MergeOptions, cancel, merge_manifests

TRUTH = Path(__file__).parent / "data" / "manifest-merges.jsonl.gz"


def states() -> Iterator[tuple[MergeOptions, dict[str, object]]]:
    sets: dict[str, MergeOptions] = {}
    with gzip.open(TRUTH, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if "set" in row:
                e = row["effective"]
                sets[row["set"]] = MergeOptions(e["target"], e["full_threshold"], e["min_count"])
            else:
                yield sets[row["o"]], row


def coded(number: int) -> Coded:
    """Entry n+1 is the ADD of file n, -(n+1) its DELETE."""
    kind = ADD if number > 0 else DELETE
    return Coded(kind, (b"", 0, 0, abs(number)), b"", 0, 0, 0, None, str(number).encode())


def merged(options: MergeOptions, manifests: Sequence[Sequence[object]]) -> list[object]:
    metas, entries = [], {}
    for i, (size, added, deleted, numbers) in enumerate(manifests):
        metas.append(ManifestMeta(str(i), size, added, deleted, Stats(), 0))  # type: ignore[arg-type]
        entries[str(i)] = [coded(n) for n in numbers]  # type: ignore[attr-defined]
    new: dict[str, list[int]] = {}

    def write(some: Sequence[Coded]) -> list[ManifestMeta]:
        name = f"new-{len(new)}"
        new[name] = [int(e.data) for e in some]
        return [ManifestMeta(name, 0, 0, 0, Stats(), 0)]

    out: list[object] = []
    for m in merge_manifests(metas, options, [], lambda m: entries[m.file_name], write):
        if m.file_name not in new:
            out.append(int(m.file_name))
        elif out and isinstance(out[-1], list):
            out[-1] = out[-1] + new[m.file_name]  # where new manifests roll depends on encoded bytes
        else:
            out.append(new[m.file_name])
    return out


def test_every_state_gets_the_merge_that_java_makes() -> None:
    count = 0
    for options, row in states():
        assert merged(options, row["m"]) == row["out"], row  # type: ignore[arg-type]
        count += 1
    assert count == 1407


def test_an_entry_added_twice_is_corrupt() -> None:
    with pytest.raises(shoal.Corrupt, match="added twice"):
        cancel([coded(1), coded(1)])
