# SPDX-License-Identifier: Apache-2.0
"""The commands of dev/fuzz."""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def histories(made: Path, tables: str) -> Iterator[dict[str, Any]]:
    """Histories of the tables that Java made (a planned refusal makes none)."""
    for path in sorted((made / "history").glob("*.json")):
        if any(fnmatch.fnmatch(path.stem, t) for t in tables.split(",")):
            history = json.loads(path.read_text(encoding="utf-8"))
            if not history.get("refused"):
                yield history


def read(a: argparse.Namespace) -> int:
    return dump_views(a, a.dir / "warehouse", a.to or a.dir / "shoal")


def dump_views(a: argparse.Namespace, warehouse: Path, to: Path) -> int:
    from fuzz_report import crash_texts
    from fuzz_views import Dump

    started = time.monotonic()
    dump = Dump(warehouse, to, a.views.split(",") if a.views else ())
    tables: list[str] = []
    for history in histories(a.dir, a.tables):
        for old in to.glob(f"{history['table']}.*.jsonl"):
            if not a.views or old.name.split(".")[1].split("-")[0] in dump.only:
                old.unlink()
        dump.table(history)
        tables.append(history["table"])
    # crashes of views and tables that were not read this time stay known
    known = [f"CRASH {text}" for text in crash_texts(to) if not again(text, tables, dump.only)]
    (to / "crashes.txt").write_text("\n".join([*known, *map(str, dump.crashes)]))
    took = time.monotonic() - started
    print(
        f"{len(tables)} tables, {dump.views} views in {took:.1f} s: {dump.errors} refused, {len(dump.crashes)} crashed -> {to}"
    )
    return 1 if dump.crashes else 0


def again(crash: str, tables: list[str], views: Sequence[str]) -> bool:
    table, view = crash.split("\n")[0].split()
    return table in tables and (not views or view == "open" or view.split("-")[0] in views)


def compare(a: argparse.Namespace) -> int:
    from fuzz_report import triage

    counts, text = triage(a.dir, a.out or a.dir / "shoal", full=a.full)
    print(text)
    print(json.dumps(counts))
    return 1 if counts["left"] else 0


def check(a: argparse.Namespace) -> int:
    read(a)
    a.out = a.to
    return compare(a)


def roundtrip(a: argparse.Namespace) -> int:
    """What Java made of shoal's own tables (`fuzz roundtrip`), read by shoal and compared with what Java reads."""
    from fuzz_report import triage

    made = a.dir / "roundtrip"
    crashed = 0
    left = 0
    for name in ("product", "java"):
        to = a.to / name if a.to else made / f"shoal-{name}"
        crashed += dump_views(a, made / name, to)
        counts, text = triage(a.dir, to, full=a.full, expected=made / f"expected-{name}")
        print(f"{name}: {json.dumps(counts)}\n{text}".rstrip())
        left += counts["left"]
    return 1 if crashed or left else 0


def filters(a: argparse.Namespace) -> int:
    from fuzz_properties import check_table

    import shoal

    lake = shoal.open(str(a.dir / "warehouse"), wide_timestamps=True)
    found = queries = 0
    unread = []
    for history in histories(a.dir, a.tables):
        name = history["table"]
        try:
            done = list(check_table(lake.table(f"fuzz.{name}"), a.seed, a.count))
        except Exception as err:  # noqa: BLE001 - told by `read`
            done = []
            print(f"{name}: cannot be read: {type(err).__name__}: {str(err)[:200]}")
        unread += [] if done else [name]
        for one in done:
            queries += 1
            found += bool(one.problem)
            if one.problem:
                print(f"{name}: {one}")
    print(f"{queries} queries, {found} wrong; {len(unread)} tables not read: {' '.join(unread)}")
    return 1 if found else 0


def replay(a: argparse.Namespace) -> int:
    """Apply the histories of DIR to a new warehouse OTHER, as their writer."""
    from fuzz_replay import Replay

    (a.other / "fuzz.db").mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    done = Replay(a.other)
    tables = 0
    for path in sorted((a.dir / "history").glob("*.json")):
        if any(fnmatch.fnmatch(path.stem, t) for t in a.tables.split(",")):
            shutil.rmtree(a.other / "fuzz.db" / path.stem, ignore_errors=True)
            done.table(json.loads(path.read_text(encoding="utf-8")))
            tables += 1
    for f in done.findings:
        print(f)
    took = time.monotonic() - started
    print(
        f"{tables} histories, {done.ops} operations in {took:.1f} s: {done.agreed} refused as in Java, {len(done.findings)} otherwise"
    )
    return 1 if done.findings else 0


def compactions(a: argparse.Namespace) -> int:
    import tempfile

    from fuzz_compactions import asked_of, left_alone
    from fuzz_compactions import compactions as again

    import shoal
    from shoal.errors import ShoalError

    count = alone = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(a.dir / "warehouse", Path(folder) / "warehouse")
        lake = shoal.open(str(copy))
        for history in histories(a.dir, a.tables):
            if not history["schema"].get("primary_keys"):
                continue
            table = lake.table(f"fuzz.{history['table']}")
            try:
                done = [d for _, d in again(table, asked_of(history))]
                idle = [d for _, d in left_alone(table, history)]
                count, alone = count + len(done), alone + len(idle)
                for differences in (*done, *idle):
                    wrong += bool(differences)
                    for d in differences:
                        print(f"{history['table']} {d}")
            except ShoalError as err:
                print(f"{history['table']}: {type(err).__name__}: {err}")
    print(f"{count} compactions and {alone} buckets that Java left alone, {wrong} differ")
    return 1 if wrong else 0


def keep(a: argparse.Namespace) -> int:
    """A made set of a few tables: history, expected and warehouse, as tests/fuzz/data holds them."""
    for name in a.names.split(","):
        for part, pattern in (("history", f"{name}.json"), ("expected", f"{name}.*")):
            (a.out / part).mkdir(parents=True, exist_ok=True)
            for path in (a.dir / part).glob(pattern):
                shutil.copy(path, a.out / part / path.name)
        shutil.copytree(a.dir / "warehouse" / "fuzz.db" / name, a.out / "warehouse" / "fuzz.db" / name)
    return 0


def pack(a: argparse.Namespace) -> int:
    """The sets below DIR as the tests' archive. The same folder gives the same bytes."""
    import tarfile

    data = Path(__file__).parent / "data"
    paths = sorted(p for p in a.dir.rglob("*") if p.is_file() and not p.name.endswith(".crc"))
    with tarfile.open(data / "made.tar.xz", "w:xz", preset=9, format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            info = tarfile.TarInfo(str(path.relative_to(a.dir)))
            info.size, info.mode, info.mtime = path.stat().st_size, 0o644, 1767225600  # any fixed time
            with path.open("rb") as f:
                tar.addfile(info, f)
    names = sorted(f"{p.parent.parent.name}.{p.stem}" for p in a.dir.glob("*/history/*.json"))
    (data / "made.txt").write_text("".join(f"{n}\n" for n in names))
    print(f"{len(names)} tables, {(data / 'made.tar.xz').stat().st_size:,} bytes")
    return 0


def main() -> int:
    p = argparse.ArgumentParser(prog="dev/fuzz", description=__doc__)
    sub = p.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("read", read, "dump shoal's views of a made set into OUT (default DIR/shoal)"),
        ("compare", compare, "compare such a dump with Java's, failures grouped by cause"),
        ("check", check, "read, then compare"),
        ("compactions", compactions, "do Java's compactions again and compare rows, changelogs and vectors"),
        (
            "roundtrip",
            roundtrip,
            "read what Java's `fuzz roundtrip` left in DIR/roundtrip, and compare as `check` does",
        ),
        ("filters", filters, "random filters and projections: the same as filtering all rows afterwards"),
        ("replay", replay, "apply DIR's histories to a new warehouse OTHER; then `fuzz verify` and `fuzz roundtrip`"),
        ("keep", keep, "copy a few tables of a made set into a new set"),
        ("pack", pack, "make tests/fuzz/data of a folder that holds such sets"),
    ):
        s = sub.add_parser(name, help=text)
        s.set_defaults(run=run)
        s.add_argument("dir", type=Path, metavar="DIR")
        if name == "replay":
            s.add_argument("other", type=Path, metavar="OTHER")
        if name in ("read", "check", "roundtrip", "filters", "compactions", "replay"):
            s.add_argument("--tables", default="*", metavar="GLOB", help="t0001,t002*")
        if name in ("read", "check", "roundtrip"):
            s.add_argument("--to", type=Path, metavar="OUT")
            s.add_argument("--views", default="", help="kinds of view only, such as rows,between,filter")
        if name == "compare":
            s.add_argument("out", type=Path, metavar="OUT", nargs="?")
        if name in ("compare", "check", "roundtrip"):
            s.add_argument("--full", action="store_true", help="every view, not the first three of a cause")
        if name == "filters":
            s.add_argument("--seed", type=int, default=1)
            s.add_argument("--count", type=int, default=20, help="queries for each table")
        if name == "keep":
            s.add_argument("names", metavar="TABLES", help="t0001,t0002")
            s.add_argument("out", type=Path, metavar="OUT")
    a = p.parse_args()
    return a.run(a)


if __name__ == "__main__":
    sys.exit(main())
