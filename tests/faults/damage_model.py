# SPDX-License-Identifier: Apache-2.0
"""Damage to one file of a table that Java wrote: which file, how, and what reading then does.

`Damage(kind, table folder)` holds the table in memory; `outcome(data)` reads it with the file replaced by `data`.
As a program (`python damage_model.py KIND FOLDER CUTS FLIPS`) it runs under a limit of address space and prints its
outcomes, so that a reader that eats memory, hangs or kills the process is seen as just that.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import fastavro
import pyarrow as pa

import shoal
from shoal import Lake
from shoal.store.memory import MemoryStore

Read = Callable[[Any], Any]

SECONDS = 20  # of one read; a whole read of these tables takes some milliseconds
GROWTH = 256 << 20  # bytes of memory that one damaged file of some kilobytes may take
ADDRESS_SPACE = 6 << 30


def scanned(**wanted: Any) -> Read:
    return lambda table: multiset(table.scan(**wanted).to_arrow())


def multiset(rows: pa.Table) -> Any:
    try:
        return Counter(map(repr, rows.to_pylist()))
    except (OverflowError, ValueError) as err:
        return f"values that Python does not have: {err}"  # years above 9999, from flips that no checksum covers


def inspected(what: str) -> Read:
    return lambda table: getattr(table.inspect, what)().to_pylist()


def changelog(table: Any) -> Any:
    ids = table.inspect.snapshots().column("snapshot_id").to_pylist()
    return multiset(table.changes(ids[0], ids[-1], mode="changelog").to_arrow())


@dataclass(frozen=True)
class Kind:
    """A kind of file: the golden table that has one, the newest file of it, what reads it."""

    table: str
    find: Callable[[Path], str]
    read: Read = field(default_factory=scanned)
    needed: bool = True
    """Without this file there is no answer. Hints and the indexes of writers can go without a change of rows."""


def named(pattern: str) -> Callable[[Path], str]:
    """The last file of a pattern, by name."""
    return lambda folder: str(max(folder.glob(pattern), key=lambda p: (len(p.name), p.name)).relative_to(folder))


def newest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / named("snapshot/snapshot-*")(folder)).read_text())


def from_snapshot(key: str) -> Callable[[Path], str]:
    return lambda folder: f"manifest/{newest(folder)[key]}"


def manifest(folder: Path) -> str:
    return "manifest/" + records((folder / from_snapshot("deltaManifestList")(folder)).read_bytes())[0]["_FILE_NAME"]


def index_file(folder: Path) -> str:
    """The file of deletion vectors that the newest snapshot uses."""
    entries = records((folder / from_snapshot("indexManifest")(folder)).read_bytes())
    return "index/" + next(e["_FILE_NAME"] for e in entries if e["_INDEX_TYPE"] == "DELETION_VECTORS")


def data_file(ending: str) -> Callable[[Path], str]:
    """A data file that the newest snapshot holds: no later entry deletes it."""

    def find(folder: Path) -> str:
        gone = set()
        for path in folder.glob("manifest/manifest-*"):
            if "list" not in path.name:
                gone |= {e["_FILE"]["_FILE_NAME"] for e in records(path.read_bytes()) if e["_KIND"] == 1}
        live = [p for p in folder.rglob(f"data-*{ending}") if p.name not in gone]
        return str(max(live, key=lambda p: p.name).relative_to(folder))

    return find


KINDS: dict[str, Kind] = {
    "schema": Kind("engines.dd_seq", named("schema/schema-*")),
    "snapshot": Kind("engines.dd_seq", named("snapshot/snapshot-*")),
    "latest hint": Kind("engines.dd_seq", named("snapshot/LATEST"), needed=False),
    "earliest hint": Kind("engines.dd_seq", named("snapshot/EARLIEST"), inspected("snapshots"), needed=False),
    "manifest list": Kind("engines.dd_seq", from_snapshot("deltaManifestList")),
    "manifest": Kind("engines.dd_seq", manifest),
    "orc manifest": Kind("formats.manifest_orc", from_snapshot("deltaManifestList")),
    "parquet manifest": Kind("formats.manifest_parquet", from_snapshot("deltaManifestList")),
    "index manifest": Kind("dv.ap_dv", from_snapshot("indexManifest")),
    "deletion vectors": Kind("dv.ap_dv", index_file),
    "64-bit deletion vectors": Kind("dv.pk_dv_bitmap64", index_file),
    "hash index": Kind("bucket_modes.pk_dynamic", named("index/index-*"), needed=False),
    "tag": Kind("maint.tagged", named("tag/tag-keep-1"), scanned(tag="keep-1")),
    "consumer": Kind("maint.consumed", named("consumer/consumer-c1"), inspected("consumers")),
    "statistics": Kind("maint.analyzed", lambda f: f"statistics/{newest(f)['statistics']}", inspected("statistics")),
    "parquet": Kind("formats.pk_parquet", data_file(".parquet")),
    "orc": Kind("formats.pk_orc", data_file(".orc")),
    "avro": Kind("formats.pk_avro", data_file(".avro")),
    "append parquet": Kind("formats.append_parquet_snappy", data_file(".parquet")),
    "append orc": Kind("formats.append_orc_zlib", data_file(".orc")),
    "append avro": Kind("formats.append_avro_null", data_file(".avro")),
    "bitmap index": Kind("formats.append_index_bitmap_separate", named("**/*.index"), scanned(where="id = 42")),
    "range-bitmap index": Kind(
        "formats.append_index_range_bitmap_separate", named("**/*.index"), scanned(where="id >= 20 AND id < 25")
    ),
    "bloom index": Kind("formats.append_index_bloom_filter_separate", named("**/*.index"), scanned(where="id = 42")),
    "bsi index": Kind("formats.append_index_bsi_separate", named("**/*.index"), scanned(where="id > 42")),
    "blob": Kind("tracking.blobs", named("**/*.blob")),
    "changelog": Kind("changelog.dd_input", named("**/changelog-*.parquet"), changelog),
    "avro changelog": Kind("changelog.dd_input_avro", named("**/changelog-*.avro"), changelog),
}


class Hang(BaseException):
    """A read that did not end in time. Not an Exception: nothing may swallow it."""


@dataclass
class Outcomes:
    """How reads ended, and one example of each ending that is a fault."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, how: str, what: str) -> None:
        self.counts[how] += 1
        self.examples.setdefault(how, []).append(what)


class Damage:
    """One table in memory, one file of it to be damaged."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        database, short = kind.table.split(".")
        root = folder / f"{database}.db" / short
        self.kind = kind
        self.files = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        self.prefix = f"{database}.db/{short}/"
        self.path = kind.find(root)
        self.whole = self.files[self.path]
        self.right = self.read(self.whole)

    def read(self, data: bytes | None, also: Mapping[str, bytes] | None = None) -> Any:
        """What the table gives with the file's bytes replaced; None: the file is missing. `also`: more files replaced."""
        store = MemoryStore()
        for path, whole in (self.files | dict(also or {})).items():
            if path != self.path:
                store.put(self.prefix + path, whole)
        if data is not None:
            store.put(self.prefix + self.path, data)
        with deadline():
            return self.kind.read(Lake(store).table(self.kind.table))

    def of_size(self, size: int) -> dict[str, bytes]:
        """The metadata that says how long the newest manifest list or manifest is, made to say `size`."""
        path = max((p for p in self.files if p.startswith("snapshot/snapshot-")), key=lambda p: (len(p), p))
        snap = json.loads(self.files[path])
        if Path(self.path).name == snap.get("indexManifest"):
            return {}
        list_path, out = f"manifest/{snap['deltaManifestList']}", {}
        if list_path != self.path:
            name, whole = Path(self.path).name, self.files[list_path]
            out[list_path] = rewritten(whole, lambda r: {"_FILE_SIZE": size} if r["_FILE_NAME"] == name else {})
            size = len(out[list_path])
        return {**out, path: json.dumps({**snap, "deltaManifestListSize": size}).encode()}

    def outcome(self, data: bytes | None) -> tuple[str, str]:
        """How a read ends:

        right    the right rows
        named    a typed error that names the file
        other    a typed error that names something else (a file that damaged metadata points to)
        silent   other rows, no error
        crash, hang, memory
        """
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            got = self.read(data)
        except shoal.ShoalError as err:
            result = (
                ("named" if Path(self.path).name in err.message else "other"),
                f"{type(err).__name__}: {err.message}",
            )
            if "\n" in err.message:
                result = "crash", f"an error of more than one line: {err.message}"
        except Hang:
            result = "hang", f"no answer within {SECONDS} s"
        except Exception as err:  # noqa: BLE001 - any other exception is what this looks for
            result = "crash", f"{type(err).__name__}: {err} at {where(err)}"
        else:
            result = ("right", "") if got == self.right else ("silent", "other rows")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        return ("memory", f"{grown >> 20} MB more, then {result}") if grown > GROWTH else result

    def cuts(self, count: int) -> Iterator[tuple[str, bytes]]:
        """Truncations: the empty file, one byte less, and random places."""
        n = len(self.whole)
        rnd = random.Random(f"cut {self.kind.table}")
        places = dict.fromkeys([0, n - 1] + [rnd.randrange(n) for _ in range(count)])
        # nothing tells how long an index manifest is: cut between two blocks it is a whole one of fewer entries
        unseen = block_ends(self.whole) if "index-manifest" in self.path else []
        for at in [p for p in places if p not in unseen][:count]:
            yield f"cut to {at} of {n} bytes", self.whole[:at]

    def flips(self, count: int) -> Iterator[tuple[str, bytes]]:
        """One bit turned over."""
        rnd = random.Random(f"flip {self.kind.table}")
        for _ in range(count):
            at, bit = rnd.randrange(len(self.whole)), rnd.randrange(8)
            bad = bytearray(self.whole)
            bad[at] ^= 1 << bit
            yield f"bit {bit} of byte {at} of {len(bad)}", bytes(bad)


def run(damage: Damage, damaged: Iterator[tuple[str, bytes]]) -> Outcomes:
    out = Outcomes()
    for what, data in damaged:
        how, says = damage.outcome(data)
        out.add(how, f"{damage.path}: {what}: {says}")
    return out


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise Hang

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def where(err: BaseException) -> str:
    """The last place of shoal's own code in a traceback."""
    trace, place = err.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/shoal/" in file or file == "<string>":
            place = f"{file.rsplit('/shoal/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


# ---- Avro, read and written again


def records(data: bytes) -> list[dict[str, Any]]:
    """Records of an Avro file. fastavro alone has no zstd on every machine, so blocks are unpacked first."""
    schema, blocks = _container(data)
    out = []
    for count, plain in blocks:
        body = io.BytesIO(plain)
        out += [fastavro.schemaless_reader(body, schema, None) for _ in range(count)]
    return out


def rewritten(data: bytes, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """The same Avro file with every record changed."""
    schema, _ = _container(data)
    out = io.BytesIO()
    fastavro.writer(out, schema, [{**r, **change(r)} for r in records(data)])
    return out.getvalue()


def with_version(data: bytes, version: int) -> bytes:
    return rewritten(data, lambda _: {"_VERSION": version})


def block_ends(data: bytes) -> list[int]:
    """Where an Avro file could be cut and still be a whole Avro file: after its header and after each block but the last."""
    sync = data[-16:]
    first = data.index(sync) + 16
    ends, at = [], first
    while at < len(data):
        ends.append(at)
        f = io.BytesIO(data[at:])
        _long(f)
        size = _long(f)
        at += f.tell() + size + 16
    return ends


def _container(data: bytes) -> tuple[Any, list[tuple[int, bytes]]]:
    f = io.BytesIO(data)
    assert f.read(4) == b"Obj\x01"
    header = {}
    while count := _long(f):
        for _ in range(count):
            key = f.read(_long(f)).decode()
            header[key] = f.read(_long(f))
    sync, blocks = f.read(16), []
    while f.tell() < len(data):
        count, block = _long(f), f.read(_long(f))
        assert f.read(16) == sync
        assert header["avro.codec"] == b"zstandard"
        blocks.append((count, pa.input_stream(pa.BufferReader(block), compression="zstd").read()))
    return json.loads(header["avro.schema"]), blocks


def _long(f: io.BytesIO) -> int:
    shift = value = 0
    while True:
        byte = f.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)


def main() -> None:
    name, folder, cuts, flips = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    damage = Damage(KINDS[name], Path(folder))
    found = {}
    for how, damaged in (("cuts", damage.cuts(int(cuts))), ("flips", damage.flips(int(flips)))):
        out = run(damage, damaged)
        found[how] = {"counts": out.counts, "examples": {k: v for k, v in out.examples.items() if k != "right"}}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
