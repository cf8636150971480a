"""What Java's commits made of some statements, for `test_commit_sequences.py`.

oracle-sql -DKEEP_GOING=1 -DWAREHOUSE=file:DIR commit_sequences.sql     # the text that `python -m ... sql` prints
python -m tests.table.commit_truth DIR > tests/table/data/commit_sequences.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

import shoal
from shoal.format.manifest import entries_of
from shoal.table.table import Table

SQL = """
CREATE CATALOG p WITH ('type'='paimon', 'warehouse'='${WAREHOUSE}');
USE CATALOG p; CREATE DATABASE IF NOT EXISTS d; USE d;
SET 'execution.runtime-mode'='batch';
CREATE TABLE keyed (p STRING, k INT, v BIGINT, PRIMARY KEY (p, k) NOT ENFORCED) PARTITIONED BY (p) WITH ('bucket'='1');
INSERT INTO keyed VALUES ('a',1,1),('a',2,2),('b',1,1);
INSERT OVERWRITE keyed VALUES ('a',7,7),('c',1,1);
INSERT OVERWRITE keyed PARTITION (p='b') SELECT 5, CAST(5 AS BIGINT);
ALTER TABLE keyed DROP PARTITION (p='a');
CALL sys.compact_manifest(`table` => 'd.keyed');
TRUNCATE TABLE keyed;
CREATE TABLE fixed (p STRING, k INT, v BIGINT) PARTITIONED BY (p)
  WITH ('bucket'='-1', 'dynamic-partition-overwrite'='false');
INSERT INTO fixed VALUES ('a',1,1),('b',1,1),(CAST(NULL AS STRING),3,3);
INSERT OVERWRITE fixed PARTITION (p='a') SELECT k, v FROM fixed WHERE k > 99;
INSERT OVERWRITE fixed PARTITION (p='b') SELECT 5, CAST(5 AS BIGINT);
ALTER TABLE fixed DROP PARTITION (p='__DEFAULT_PARTITION__');
INSERT OVERWRITE fixed VALUES ('z',1,1);
CREATE TABLE tracked (k INT, v BIGINT) WITH ('bucket'='-1', 'row-tracking.enabled'='true');
INSERT INTO tracked VALUES (1,1),(2,2),(3,3);
INSERT INTO tracked VALUES (4,4),(5,5);
INSERT OVERWRITE tracked VALUES (6,6);
INSERT INTO tracked VALUES (7,7);
CREATE TABLE ordered (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)
  WITH ('bucket'='1', 'write-only'='true', 'sequence.snapshot-ordering'='true');
INSERT INTO ordered VALUES (1,1),(2,2);
INSERT INTO ordered VALUES (1,10);
CREATE TABLE looked (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED)
  WITH ('bucket'='1', 'write-only'='true', 'write.sequence-number-init-mode'='snapshot');
INSERT INTO looked VALUES (1,1),(2,2);
INSERT INTO looked VALUES (1,10);
"""
TABLES = ("keyed", "fixed", "tracked", "ordered", "looked")


def sequence(t: Table) -> list[dict[str, Any]]:
    """Each snapshot, but for names, sizes and times. Entries: kind, partition, bucket, its count, level, rows, ids."""
    out = []
    for s in map(t.metadata.snapshot, t.metadata.snapshot_ids()):
        entries = []
        for m in t.metadata.delta(s):
            for e in entries_of(t.metadata.entries(m)):
                f = e.file
                entries.append([
                    e.kind, t.partition_path(e.partition), e.bucket, e.total_buckets, f.level, f.row_count,
                    f.first_row_id, f.min_sequence, f.max_sequence, f.file_source,
                ])  # fmt: skip
        out.append({
            "kind": s.commit_kind, "identifier": s.commit_identifier, "operation": s.operation,
            "total": s.total_record_count, "delta": s.delta_record_count, "changelog": s.changelog_record_count,
            "next_row_id": s.next_row_id, "properties": s.properties and dict(s.properties), "watermark": s.watermark,
            "schema": s.schema_id, "indexed": s.index_manifest is not None, "manifests": len(t.metadata.base(s)),
            "entries": sorted(entries, key=str),
        })  # fmt: skip
    return out


if __name__ == "__main__":
    if sys.argv[1] == "sql":
        print(SQL)
    else:
        lake = shoal.open(sys.argv[1])
        lines = [f"{json.dumps(n)}: [\n" + ",\n".join(
            json.dumps(s) for s in sequence(lake.table(f"d.{n}"))) + "\n]" for n in TABLES]  # fmt: skip
        print("{\n" + ",\n".join(lines) + "\n}")
