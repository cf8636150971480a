# SPDX-License-Identifier: Apache-2.0
"""Which checks a commit passes before it goes on top of the newest snapshot, and what they must read for it.

Agrees with: FileStoreCommitImpl.tryCommitOnce, CommitScanner, StrictModeChecker (2.0.0). Rows appended by a stream are
not checked against files: two such commits never conflict. They are held against the bucket count of their partitions
all the same, which Java does for write-only jobs alone: keys must not be split over two layouts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from shoal.errors import BadRequest, Conflict, NotFound
from shoal.format.datafile import ADD
from shoal.format.snapshot import Snapshot
from shoal.table import conflicts, placed_keys
from shoal.table.base_files import MOST_SNAPSHOTS, BaseFiles, bucket_counts, changes_of, live_in
from shoal.table.conflicts import Base, Facts, WrittenColumns
from shoal.table.looked_up import LookedUp
from shoal.table.numbered_rows import NumberedRows, Overwrites
from shoal.table.partition_choice import only
from shoal.table.placed_keys import PlacedKeys
from shoal.table.staged import Content
from shoal.table.strict_mode import OPTION, StrictMode

if TYPE_CHECKING:
    from shoal.table.table import Table


class Checks:
    """The checks of one committer."""

    def __init__(self, table: Table, user: str, mine: Collection[int]) -> None:
        self.table = table
        self._meta = table.metadata
        self._user = user
        self._mine = mine  # snapshots of this committer: it knows what they hold
        o = table.options
        self.facts = Facts(
            table.name,
            table.bounds if table.primary_key and not table.clustered else None,
            o.deletion_vectors and not table.primary_key and o.bucket == -1,
            o.data_evolution,
        )
        safe = cast("int | None", o.get(OPTION))
        self.strict = None if safe is None else StrictMode(table.name, self._meta, user, safe)
        self._overwrites = Overwrites(table, user, mine)
        self._keys_seen = 0  # snapshots up to here placed no keys that a writer did not know of
        self._drops_duplicates = bool(o.get("commit.discard-duplicate-files"))

    def of(
        self, content: Content, since: int | None, *, checked: bool, rows_from: int | None = None,
        placed: PlacedKeys | None = None,
    ) -> OneCheck:  # fmt: skip
        """The checks of one commit through all its tries. `since`: the snapshot that it was planned on, if known."""
        whole = rows_from is not None or self.facts.vectors_by_file or self.facts.evolution
        drops = self._drops_duplicates and content.kind == "APPEND"
        seen = since if content.kind == "COMPACT" and not whole else None
        files = BaseFiles(self.table, content, seen) if checked or drops else None
        rows = None
        if since is not None and not self.facts.vectors_by_file:
            rows = LookedUp(self.table, content, since, self._user)
        # what a restart finds prepared has the numbers it has
        numbered = None if since is None or checked else NumberedRows(self.table, content, since, self._overwrites)
        return OneCheck(self, files, since or 0, drops, rows_from, rows, placed, numbered)

    def keys_placed(self, placed: PlacedKeys, latest: Snapshot) -> None:
        """Nobody else has placed keys that the writer did not know of."""
        placed_keys.check(self.table, placed, latest, self._user, self._mine, self._keys_seen)
        self._keys_seen = latest.id

    def field_ids(self, schema_id: int) -> dict[str, int]:
        """Ids of the columns of a schema, by name."""
        return {f.name: f.id for f in self._meta.schema(schema_id).fields}


class OneCheck:
    """The checks of one commit."""

    def __init__(
        self, checks: Checks, files: BaseFiles | None, since: int, drops: bool, rows_from: int | None,
        looked_up: LookedUp | None, placed: PlacedKeys | None, numbered: NumberedRows | None,
    ) -> None:  # fmt: skip
        self._checks = checks
        self._numbered = numbered
        self._looked_up = looked_up
        self._placed = placed
        self._files = files
        self._since = since
        self._drops = drops
        self._rows_from = rows_from

    def __call__(self, content: Content, latest: Snapshot | None) -> Content:
        """The content as it may go on top of `latest`: without files that are there already, if the table says so."""
        if latest is None:
            return content
        checks = self._checks
        if checks.strict is not None:
            checks.strict.check(latest, content)
        if self._looked_up:
            self._looked_up.check(latest, checks._mine)
        if self._placed is not None:
            checks.keys_placed(self._placed, latest)
        if self._files is None:
            if content.kind == "APPEND":
                self._bucket_counts(content, latest)
            if self._numbered:
                self._numbered.check(latest)
            return content
        base = self._files.upon(latest, checks._mine)
        if self._drops:
            there = {e.identity for e in base}
            content = replace(content, entries=tuple(e for e in content.entries if e.identity not in there))
        name = latest.index_manifest
        indexes = checks._meta.index_entries(name) if name is not None and checks.facts.vectors_by_file else ()
        try:
            conflicts.check(
                checks.facts, Base(tuple(base), indexes, latest.next_row_id), content,
                rows_checked=self._rows_from is not None,
            )  # fmt: skip
            if self._rows_from is not None and checks.facts.evolution:
                self._columns(content, self._rows_from, latest)
        except Conflict as err:
            raise type(err)(
                f"{err.message} (the newest snapshot is {latest.id}, by {latest.commit_user})", hint=err.hint
            ) from err
        if self._numbered:
            self._numbered.check(latest)
        self._files.checked(latest)
        return content

    def _bucket_counts(self, content: Content, latest: Snapshot) -> None:
        """What others did since must not have given a partition another number of buckets."""
        mine = {e.partition: e.total_buckets for e in content.entries if e.kind == ADD and e.total_buckets > 0}
        if not mine or self._since >= latest.id:
            return
        for partition, count in self._counts(latest, mine).items():
            if count != mine[partition]:
                raise conflicts.bucket_count_conflict(self._checks.table.name, count, mine[partition])
        self._since = latest.id

    def _counts(self, latest: Snapshot, partitions: Collection[bytes]) -> dict[bytes, int]:
        import pyarrow as pa
        import pyarrow.compute as pc

        checks, wanted = self._checks, frozenset(partitions)
        ids = [i for i in range(self._since + 1, latest.id + 1) if i not in checks._mine]
        if len(ids) > MOST_SNAPSHOTS:
            return bucket_counts(live_in(checks.table, latest, wanted))
        found: dict[bytes, int] = {}
        try:
            for i in ids:
                snap = latest if i == latest.id else checks._meta.snapshot(i)
                for m in checks._meta.delta(snap):
                    entries = only(pa.Table.from_batches([checks._meta.entries(m)]), wanted)
                    found |= bucket_counts(entries.filter(pc.equal(entries.column("kind"), ADD)))
        except NotFound:
            return bucket_counts(live_in(checks.table, latest, wanted))
        return found

    def _columns(self, content: Content, rows_from: int, latest: Snapshot) -> None:
        """Nobody may have written the same columns of the same rows since they were read."""
        checks = self._checks
        written = WrittenColumns((e.file for e in content.entries), checks.field_ids)
        if not written:
            return
        known = checks._meta.snapshot(rows_from).next_row_id
        if known is None:
            raise BadRequest(f"{checks.table.name}: snapshot {rows_from} has no row ids")
        for i in range(rows_from + 1, latest.id + 1):
            snap = latest if i == latest.id else checks._meta.snapshot(i)
            if snap.commit_kind == "COMPACT":
                continue
            for e in changes_of(checks._meta, snap, content.partitions):
                first = e.file.first_row_id
                if first is not None and first < known and written.meet(e.file):
                    raise conflicts.column_conflict(checks.table.name, e.file, snap.id, snap.commit_user)
