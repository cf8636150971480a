# SPDX-License-Identifier: Apache-2.0
"""BLOB columns whose files hold descriptors: where a blob is instead of its bytes.

Agrees with: Blob.fromBytes, BlobRef, CoreOptions.blobInlineField (2.0.0). Invariant: only columns that lie inline in
data files are looked at, since the bytes of a blob file may look like a descriptor and are none; bytes that are no
descriptor are the blob itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.format.blob import Descriptor, check_size, resolve
from shoal.format.schema import Schema
from shoal.table.external_paths import Places

if TYPE_CHECKING:
    import pyarrow as pa

_INLINE = ("blob-descriptor-field", "blob.stored-descriptor-fields", "blob-view-field")


def inline_blobs(schema: Schema) -> tuple[str, ...]:
    """Columns whose descriptors a reader follows; none with `blob-as-descriptor`."""
    options = schema.options
    if options.get("blob-as-descriptor", "").lower() == "true":
        return ()
    blobs = [f.name for f in schema.fields if f.type.root == "BLOB"]
    if schema.primary_keys:  # tables with a primary key keep all blobs so
        return tuple(blobs)
    named = {n.strip() for key in _INLINE for n in options.get(key, "").split(",")}
    return tuple(n for n in blobs if n in named)


def with_blobs(batch: pa.RecordBatch, names: Sequence[str], schema: Schema, places: Places) -> pa.RecordBatch:
    """The batch with the bytes that the descriptors in these columns point to."""
    views = schema.options.get("blob-view.resolve.enabled", "").lower() != "false"

    def fetch(d: Descriptor) -> bytes:
        store, path = places.locate("", "", d.uri)
        length = store.size(path) - d.offset if d.length < 0 else d.length
        check_size(length, d.uri)
        return store.read_range(path, d.offset, length)

    for name in names:
        at = batch.schema.get_field_index(name)
        if at >= 0:
            column = resolve(batch.column(at), fetch, f"column '{name}'", views=views)
            batch = batch.set_column(at, batch.schema.field(at), column)
    return batch
