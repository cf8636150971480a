"""A damaged or missing file ends in one typed error that names it; never in wrong rows."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import shoal

SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.string()), ("v", pa.float64())])
KINDS = ["snapshot/snapshot-3", "schema/schema-0", "manifest/manifest-list-", "manifest/manifest-", "bucket-0/data-"]


@pytest.fixture(scope="module")
def table_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse = tmp_path_factory.mktemp("warehouse")
    table = shoal.open(str(warehouse)).create_table(
        "d.t", SCHEMA, primary_key=["k"], options={"bucket": 1, "write-only": True}
    )
    with table.write() as w:
        for c in range(3):
            w.upsert([{"k": i, "s": f"row {i} of commit {c}", "v": i / 7} for i in range(c * 3, c * 3 + 50)])
            w.commit(checkpoint=c)
    return warehouse


def rows(warehouse: Path) -> list[dict[str, object]]:
    return sorted(shoal.open(str(warehouse)).table("d.t").scan().to_arrow().to_pylist(), key=lambda r: r["k"])


def victim(warehouse: Path, kind: str) -> Path:
    """The newest file of a kind that the newest snapshot needs."""
    table = shoal.open(str(warehouse)).table("d.t")
    snap = table.metadata.latest()
    assert snap is not None
    names = {
        "manifest/manifest-list-": f"manifest/{snap.delta_manifest_list}",
        "manifest/manifest-": f"manifest/{table.metadata.manifests(snap)[0].file_name}",
        "bucket-0/data-": f"bucket-0/{table.metadata.live(snap).column('file_name')[0].as_py()}",
    }
    return warehouse / "d.db" / "t" / names.get(kind, kind)


def copy_of(table_dir: Path, tmp_path: Path) -> Path:
    target = tmp_path / "w"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(table_dir, target)
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_names_the_file(kind: str, table_dir: Path, tmp_path: Path) -> None:
    warehouse = copy_of(table_dir, tmp_path)
    path = victim(warehouse, kind)
    whole = path.read_bytes()
    rnd = random.Random(1)
    for cut in {0, 1, len(whole) - 1, *(rnd.randrange(len(whole)) for _ in range(40))}:
        path.write_bytes(whole[:cut])
        with pytest.raises(shoal.Corrupt) as caught:
            rows(warehouse)
        assert path.name in caught.value.message
        assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.startswith("schema")])
def test_a_bit_flip_is_an_error_or_changes_values_only_where_no_checksum_could_tell(
    kind: str, table_dir: Path, tmp_path: Path
) -> None:
    warehouse = copy_of(table_dir, tmp_path)
    path = victim(warehouse, kind)
    whole, right = path.read_bytes(), rows(warehouse)
    rnd = random.Random(2)
    silent = 0
    for _ in range(60):
        bad = bytearray(whole)
        bad[rnd.randrange(len(bad))] ^= 1 << rnd.randrange(8)
        path.write_bytes(bytes(bad))
        try:
            got = rows(warehouse)
        except shoal.ShoalError as err:
            assert "\n" not in err.message
        else:
            silent += got != right
    # compressed pages and Avro blocks mostly notice; what cannot be seen at all stays the exception
    assert silent <= 6


@pytest.mark.parametrize("kind", ["manifest/manifest-list-", "manifest/manifest-", "bucket-0/data-"])
def test_a_missing_file_is_named(kind: str, table_dir: Path, tmp_path: Path) -> None:
    warehouse = copy_of(table_dir, tmp_path)
    path = victim(warehouse, kind)
    path.unlink()
    with pytest.raises((shoal.Corrupt, shoal.NotFound)) as caught:
        rows(warehouse)
    assert path.name in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "kind, field", [("snapshot/snapshot-3", b'"version" : 3'), ("schema/schema-0", b'"version" : 3')]
)
def test_a_newer_format_version_is_refused(kind: str, field: bytes, table_dir: Path, tmp_path: Path) -> None:
    warehouse = copy_of(table_dir, tmp_path)
    path = victim(warehouse, kind)
    path.write_bytes(path.read_bytes().replace(field, b'"version" : 99'))
    with pytest.raises(shoal.Corrupt, match="newer") as caught:
        rows(warehouse)
    assert path.name in caught.value.message
