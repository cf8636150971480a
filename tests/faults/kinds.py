# SPDX-License-Identifier: Apache-2.0
"""The kinds of table whose histories are cut off everywhere."""

from __future__ import annotations

from tests.faults.histories import Kind, added, first, partial

SMALL = {"bucket": 1, "num-sorted-run.compaction-trigger": 3, "manifest.merge-min-count": 4}
EXPIRES = {"snapshot.num-retained.min": 2, "snapshot.num-retained.max": 4, "snapshot.time-retained": "1 ms"}
SHARES = {"bucket": 3, "changelog-producer": "lookup", "precommit-compact": True}
APART = {"row-tracking.enabled": True, "data-evolution.enabled": True, "deletion-vectors.enabled": True}
MIXED = "w, f, w, tag x, w, full, w, over a, w, compact, w, drop b, w"
CHANGES = "w, f, w, w, w, full, w, w, full"
# where rows show once they are compacted, a death between a commit's two snapshots hides them until the next one
LATE = "w, f, w, full, tag x, w, over a, w, compact, w, drop b, w, full"
# a compactor beside a writer that does not compact: changes are told once it has been there
DEDICATED = "w, f, compact, w, w, full, w, full, w, f, compact"
FULL = "w, f, full, w, w, full, w, full"
WRITES = SMALL | {"write-only": True}
OTHER_ORDER = {"pk-clustering-override": True, "clustering.columns": "w,v"}
MARKED_ORDER = {**OTHER_ORDER, "deletion-vectors.enabled": True}

KINDS = [
    Kind("fixed buckets", {**SMALL, "bucket": 2}, MIXED),
    Kind("fixed buckets, expiry", SMALL | EXPIRES, MIXED),
    Kind("dynamic buckets", {**SMALL, "bucket": -1, "dynamic-bucket.target-row-num": 3}, MIXED),
    Kind("dynamic buckets, sorted", {**SMALL, "bucket": -1, "dynamic-bucket.target-row-num": 3},
         "w, f, sort, w, tag x, sort, f, over a, w, sort, drop b, w"),
    Kind("dynamic buckets, sorted, lookup changelog", {
        **SMALL, "bucket": -1, "dynamic-bucket.target-row-num": 3, "changelog-producer": "lookup"},
        "w, f, sort, w, w, sort, f, w, full", changelog="lookup"),
    Kind("dynamic buckets, sorted, deletion vectors", {
        **SMALL, "bucket": -1, "dynamic-bucket.target-row-num": 3, "deletion-vectors.enabled": True},
        "w, f, sort, w, sort, tag x, f, full, over a, w, sort"),
    Kind("cross partition", {**SMALL, "bucket": -1}, "w, f, w, tag x, w, full, w, w, compact, w, drop b, w", key=("k",)),
    Kind("postponed", {**SMALL, "bucket": -2}, "w, f, tag x, w, over a, w, w, drop b, w",
         reads={"postpone.merge-on-read": True}),
    Kind("partial update", {**SMALL, "merge-engine": "partial-update"}, MIXED, fold=partial, deletes=False),
    Kind("aggregation", {**SMALL, "merge-engine": "aggregation", "fields.v.aggregate-function": "sum",
                         "fields.w.aggregate-function": "max"}, MIXED, fold=added, deletes=False),
    Kind("first row", {**SMALL, "merge-engine": "first-row", "changelog-producer": "lookup"}, CHANGES, fold=first,
         deletes=False, changelog="lookup"),
    Kind("input changelog", SMALL | {"changelog-producer": "input"}, CHANGES, changelog="input"),
    Kind("lookup changelog", SMALL | {"changelog-producer": "lookup"}, CHANGES, changelog="lookup"),
    Kind("lookup changelog, expiry", SMALL | EXPIRES | {"changelog-producer": "lookup"}, MIXED),
    Kind("decoupled changelogs", SMALL | EXPIRES | {
        "changelog-producer": "lookup", "changelog.num-retained.min": 8, "changelog.num-retained.max": 8,
        "changelog.time-retained": "1 h"}, MIXED),
    Kind("full-compaction changelog", SMALL | {"changelog-producer": "full-compaction"}, CHANGES,
         changelog="full-compaction"),
    Kind("shared changelog files", SMALL | SHARES, CHANGES, changelog="lookup", late=True),
    Kind("shared changelog files, input", SMALL | SHARES | {"changelog-producer": "input"}, CHANGES, changelog="input"),
    Kind("shared changelog files, expiry", SMALL | EXPIRES | SHARES, MIXED),
    Kind("deletion vectors", SMALL | {"deletion-vectors.enabled": True}, LATE),
    Kind("deletion vectors and lookup", SMALL | {"deletion-vectors.enabled": True, "changelog-producer": "lookup"},
         CHANGES, changelog="lookup"),
    Kind("sorted by other columns", SMALL | MARKED_ORDER, LATE),
    Kind("sorted by other columns, input changelog", SMALL | MARKED_ORDER | {"changelog-producer": "input"}, CHANGES,
         changelog="input"),
    Kind("sorted by other columns, first row", SMALL | OTHER_ORDER | {"merge-engine": "first-row"}, LATE, fold=first,
         deletes=False),
    Kind("sorted by other columns, expiry", SMALL | EXPIRES | MARKED_ORDER, LATE),
    Kind("lookup changelog, no wait", SMALL | {"changelog-producer": "lookup", "lookup-wait": False}, CHANGES,
         changelog="lookup", told_by="the end"),
    Kind("stored lookup files", SMALL | EXPIRES | {
        "changelog-producer": "lookup", "lookup.remote-file.enabled": True, "target-file-size": "1 b"}, MIXED),
    Kind("stored lookup files, deletion vectors", SMALL | {
        "deletion-vectors.enabled": True, "lookup.remote-file.enabled": True, "target-file-size": "1 b"}, LATE),
    Kind("stored lookup files, compactor", WRITES | {
        "changelog-producer": "lookup", "lookup.remote-file.enabled": True, "lookup.remote-file.level-threshold": 5},
        DEDICATED, changelog="lookup", told_by="others"),
    Kind("lookup changelog, partial update", SMALL | {"merge-engine": "partial-update", "changelog-producer": "lookup"},
         CHANGES, fold=partial, deletes=False, changelog="lookup"),
    Kind("lookup changelog, aggregation", SMALL | {
        "merge-engine": "aggregation", "fields.v.aggregate-function": "sum", "fields.w.aggregate-function": "max",
        "changelog-producer": "lookup", "changelog-producer.row-deduplicate": True},
        CHANGES, fold=added, deletes=False, changelog="lookup"),
    Kind("full-compaction changelog, every third commit", SMALL | {
        "changelog-producer": "full-compaction", "full-compaction.delta-commits": 3}, CHANGES,
        changelog="full-compaction", told_by="the end"),
    Kind("compactor, fixed buckets", {**WRITES, "bucket": 2}, DEDICATED),
    Kind("compactor, lookup changelog", WRITES | {"changelog-producer": "lookup"}, DEDICATED, changelog="lookup",
         told_by="others"),
    Kind("compactor, full-compaction changelog", WRITES | {"changelog-producer": "full-compaction"}, FULL,
         changelog="full-compaction", told_by="others"),
    Kind("compactor, first row", WRITES | {"merge-engine": "first-row", "changelog-producer": "lookup"}, DEDICATED,
         fold=first, deletes=False, changelog="lookup", told_by="others"),
    Kind("compactor, deletion vectors and lookup", WRITES | {
        "deletion-vectors.enabled": True, "changelog-producer": "lookup"}, DEDICATED, changelog="lookup",
        told_by="others"),
    Kind("compactor, sorted by other columns", WRITES | MARKED_ORDER, DEDICATED),
    Kind("compactor, dynamic buckets", {**WRITES, "bucket": -1, "dynamic-bucket.target-row-num": 3}, DEDICATED),
    Kind("compactor, postponed", {**SMALL, "bucket": -2}, "w, f, compact, w, tag x, w, over a, w, compact, w, drop b, w",
         reads={"postpone.merge-on-read": True}),
    Kind("compactor, postponed, lookup changelog", {**SMALL, "bucket": -2, "changelog-producer": "lookup"}, DEDICATED,
         changelog="lookup", told_by="others"),
    Kind("rescaled", {**SMALL, "bucket": 2}, "w, f, w, rescale 3, f, tag x, w, full, w, rescale 1, w, drop b, w"),
    Kind("rescaled, lookup changelog", SMALL | {"changelog-producer": "lookup"},
         "w, f, w, rescale 2, w, f, w, rescale 3, w, full", changelog="lookup", late=True),
    Kind("rescaled, full-compaction changelog, every third commit", SMALL | {
        "changelog-producer": "full-compaction", "full-compaction.delta-commits": 3},
        "w, w, rescale 2, f, w, rescale 3, w, f, full", changelog="full-compaction", told_by="the end"),
    Kind("rescaled, deletion vectors", {**SMALL, "deletion-vectors.enabled": True},
         "w, f, w, rescale 2, f, full, tag x, w, rescale 3, w, full"),
    Kind("compactor, rescaled, lookup changelog", WRITES | {"changelog-producer": "lookup"},
         "w, w, rescale 2, f, w, w, rescale 3, w, compact", changelog="lookup", told_by="others"),
    Kind("compactor, rescaled, full-compaction changelog", WRITES | {"changelog-producer": "full-compaction"},
         "w, w, rescale 2, f, w, w, rescale 3, w, full", changelog="full-compaction", told_by="others"),
    Kind("compactor, rescaled, first row", WRITES | {"merge-engine": "first-row", "changelog-producer": "lookup"},
         "w, w, rescale 2, f, w, rescale 3, w, compact", fold=first, deletes=False, changelog="lookup", told_by="others"),
    Kind("DELETE and UPDATE by key", SMALL, "w, w, delete, w, update, w, full, w"),
    Kind("append", {"manifest.merge-min-count": 4, "compaction.min.file-num": 3}, MIXED, key=()),
    Kind("append, expiry", {"manifest.merge-min-count": 4, "compaction.min.file-num": 3} | EXPIRES, MIXED, key=()),
    Kind("append, written together", {"compaction.min.file-num": 3, "precommit-compact": True} | EXPIRES,
         "w, f, w, tag x, f, full, w, over a, f, compact, w, drop b, f", key=()),
    Kind("append, buckets", {"bucket": 2, "bucket-key": "k", "compaction.min.file-num": 2}, MIXED, key=()),
    Kind("append, file indexes", {"file-index.bloom-filter.columns": "k,v", "compaction.min.file-num": 3,
                                  "file-index.in-manifest-threshold": "1 b"}, MIXED, key=()),
    Kind("append, copy on write", {"compaction.min.file-num": 3}, "w, w, delete, w, full, update, w, tag x, over a, w",
         key=()),
    Kind("append, deletion vectors", {"deletion-vectors.enabled": True, "compaction.min.file-num": 3},
         "w, w, delete, tag x, w, full, update, w, delete, w, compact, w", key=()),
    Kind("append, row tracking, written together",
         {"row-tracking.enabled": True, "compaction.min.file-num": 3, "precommit-compact": True},
         "w, f, tag x, f, full, delete, f, over a, f", key=()),
    Kind("append, row tracking", {"row-tracking.enabled": True, "compaction.min.file-num": 3},
         "w, w, tag x, w, full, delete, w, over a, w", key=()),
    Kind("append, sorted", {"deletion-vectors.enabled": True}, "w, w, sort, delete, w, tag x, sort, w, over a, w, sort",
         key=()),
    Kind("append, clustered", {"clustering.incremental": True, "clustering.columns": "v,k",
                               "num-sorted-run.compaction-trigger": 2}, MIXED, key=()),
    Kind("append, clustered buckets", {"clustering.incremental": True, "clustering.columns": "v", "bucket": 2,
                                       "bucket-key": "k", "bucket-append-ordered": False,
                                       "num-sorted-run.compaction-trigger": 2}, MIXED, key=()),
    Kind("append, columns apart", {**APART, "compaction.min.file-num": 3},
         "w, w, update, tag x, full, w, delete, w, compact, w, update, full", key=(), partitions=()),
    Kind("append, columns apart, new ids", {**APART, "compaction.min.file-num": 2,
                                            "data-evolution.compaction.rewrite-row-ids": True},
         "w, w, update, delete, tag x, full, w, delete, full, over a, w, update, full", key=()),
]  # fmt: skip
