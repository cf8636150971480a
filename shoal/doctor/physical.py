# SPDX-License-Identifier: Apache-2.0
"""A table's files counted by listing them: the second opinion on what the metadata says.

Invariant: nothing is written, every file below the folder is counted once, and its kind comes from its name alone,
but for data files, whose maker only manifests know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.doctor.debt import VERSION, dicts, total
from shoal.doctor.window import FLUSH, NOTHING, REWRITE, Count, SchemaFacts
from shoal.format import paths
from shoal.format.compacted_changelog import PREFIX as SHARED
from shoal.options import Options
from shoal.store.base import Store
from shoal.store.wrappers import ReadOnlyStore

if TYPE_CHECKING:
    import pyarrow as pa

PHYSICAL = (
    "level0", "compacted", "data", "changelog", "sidecar", "manifest", "manifest_list", "index_manifest", "index",
    "snapshot", "schema", "hint", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhysicalCount:
    """Files below the table's folder by kind of name; "data" are data files whose maker is not known."""

    kinds: Mapping[str, Count]

    @property
    def data(self) -> Count:
        return self.kinds["level0"] + self.kinds["compacted"] + self.kinds["data"]

    @property
    def files(self) -> Count:
        return total(self.kinds.values())

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, "kinds": dicts(self.kinds), "total": self.files.to_dict()}


def physical(store: Store, schema: SchemaFacts | None = None, files: pa.Table | None = None) -> PhysicalCount:
    """Count the files on disk by listing all of them; with the `files` of `take_named`, say who made data files.

    `schema` tells how data files and changelog files are called.
    """
    import pyarrow.compute as pc

    makers: dict[str, str] = {}
    if files is not None:
        for cls, kind in ((FLUSH, "level0"), (REWRITE, "compacted")):
            names = files.column("file_name").filter(pc.equal(files.column("class"), cls))
            makers |= dict.fromkeys(names.to_pylist(), kind)
    options = Options({} if schema is None else schema.options, strict=False)
    data, changelog = (str(options.get(f"{kind}.prefix")) for kind in ("data-file", "changelog-file"))
    kinds = dict.fromkeys(PHYSICAL, NOTHING)
    for info in ReadOnlyStore(store).list(""):
        kind = _kind_of(info.path, data, changelog)
        kind = makers.get(info.path.rpartition("/")[2], kind) if kind == "data" else kind
        kinds[kind] += Count(1, info.size)
    return PhysicalCount(kinds)


def _kind_of(path: str, data: str, changelog: str) -> str:
    """The kind of a file by its name. Tags, branches, consumers, statistics are "other"."""
    folder, _, name = path.rpartition("/")
    parent = folder.rpartition("/")[2]
    match folder:
        case "manifest":
            for prefix, kind in (("manifest-list-", "manifest_list"), ("index-manifest-", "index_manifest")):
                if name.startswith(prefix):
                    return kind
            return "manifest" if name.startswith("manifest-") else "other"
        case "snapshot":
            return "snapshot" if paths.snapshot_ids([name]) else "hint" if name in ("EARLIEST", "LATEST") else "other"
        case "schema":
            return "schema" if paths.schema_ids([name]) else "other"
        case "index":
            return "index"
    if parent.startswith("bucket-") and not folder.startswith("branch/"):
        if name.endswith(".index"):
            return "sidecar"
        for prefix, kind in ((changelog, "changelog"), (SHARED, "changelog"), (data, "data")):
            if name.startswith(prefix):
                return kind
    return "other"
