# SPDX-License-Identifier: Apache-2.0
"""URIs and options: which store they give, and what is said about the ones that give none."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.clock import ManualClock
from shoal.errors import BadRequest, Unsupported
from shoal.store import LocalStore, MemoryStore, open_store
from shoal.store.s3 import s3_config


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("file:/data/lake", "/data/lake"),
        ("file:///data/lake/", "/data/lake"),
        ("file://localhost/data", "/data"),
        ("FILE:/data/a b%20c", "/data/a b%20c"),
        ("/data/../lake", "/lake"),
        ("lake", "{here}/lake"),
        ("./a:b", "{here}/a:b"),
        ("file:lake", "{here}/lake"),
        ("~/lake", "{here}/lake"),
    ],
)
def test_local_paths(uri: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store(uri)
    assert isinstance(store, LocalStore)
    assert store.uri == "file:" + root.format(here=tmp_path)


def test_a_path_object_is_a_local_path(tmp_path: Path) -> None:
    assert open_store(tmp_path).uri == f"file:{tmp_path}"


def test_memory_stores_are_shared_by_name() -> None:
    open_store("memory:one").put("a", b"x")
    assert open_store("memory://one/").read("a") == b"x"
    assert open_store("memory:two").list_dir("") == ([], [])
    assert open_store("memory:one").uri == "memory:one"


def test_a_memory_store_takes_its_times_from_the_clock() -> None:
    clock = ManualClock(1_000)
    store = MemoryStore(clock=clock)
    store.put("a", b"x")
    clock.sleep(2)
    store.put("b", b"x")
    assert {i.path: i.modified_ms for i in store.list("")} == {"a": 1_000, "b": 3_000}


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_s3_uris_have_one_spelling(scheme: str) -> None:
    assert open_store(f"{scheme}://bucket/ware/house/").uri == "s3://bucket/ware/house"
    assert open_store(f"{scheme}://bucket").uri == "s3://bucket"


@pytest.mark.parametrize(
    ("uri", "message", "hint"),
    [
        ("s3b://bucket/x", "unknown scheme 's3b'", "'s3'"),
        ("fil:/x", "unknown scheme 'fil'", "did you mean 'file'?"),
        ("ftp://host/x", "unknown scheme 'ftp'", "local path"),
        ("s3:bucket", "names no bucket", "s3://bucket/prefix"),
        ("s3:///x", "names no bucket", "s3://bucket/prefix"),
        ("file://server/share", "names the host 'server'", "file:/server/share"),
        ("", "names no folder", "file:/data/warehouse"),
        ("file:", "names no folder", "file:/data/warehouse"),
    ],
)
def test_a_bad_uri_is_refused_with_a_way_out(uri: str, message: str, hint: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        open_store(uri)
    assert hint in str(caught.value.hint)


def test_oss_is_refused_because_commits_need_a_conditional_create() -> None:
    with pytest.raises(Unsupported, match="conditional put"):
        open_store("oss://bucket/warehouse", {"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com"})
    with pytest.raises(Unsupported, match="HDFS"):
        open_store("hdfs://namenode/warehouse")


def test_local_and_s3_stores_travel_to_other_processes(tmp_path: Path) -> None:
    local = LocalStore(tmp_path)
    local.put("a", b"x")
    assert pickle.loads(pickle.dumps(local)).read("a") == b"x"
    s3 = open_store("s3://bucket/x", {"s3.endpoint": "http://127.0.0.1:1"})
    assert pickle.loads(pickle.dumps(s3)).uri == "s3://bucket/x"


@pytest.mark.parametrize(
    "names",
    [
        ("s3.endpoint", "s3.access-key", "s3.secret-key", "s3.region", "s3.path.style.access"),
        ("s3a.endpoint", "s3a.access.key", "s3a.secret.key", "s3a.endpoint.region", "s3a.path-style-access"),
        (
            "fs.s3a.endpoint",
            "fs.s3a.access.key",
            "fs.s3a.secret.key",
            "fs.s3a.endpoint.region",
            "fs.s3a.path.style.access",
        ),
        ("fs.s3.endpoint", "fs.s3.accessKeyId", "fs.s3.accessKeySecret", "fs.s3.region", "fs.s3.path.style.access"),
        ("endpoint", "access_key_id", "secret_access_key", "region", "path_style_access"),
    ],
)
def test_options_have_the_names_of_paimon_hadoop_pypaimon_and_aws(names: tuple[str, ...]) -> None:
    options = dict(zip(names, ("http://minio:9000/", "key", "secret", "eu-west-1", "true")))
    assert s3_config("lake", options, {}) == (
        {
            "endpoint": "http://minio:9000",
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "eu-west-1",
        },
        True,
    )


def test_an_endpoint_without_scheme_is_https_unless_ssl_is_off() -> None:
    assert s3_config("lake", {"s3.endpoint": "minio:9000"}, {}) == ({"endpoint": "https://minio:9000"}, False)
    without = {"s3.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"}
    assert s3_config("lake", without, {}) == ({"endpoint": "http://minio:9000"}, True)


def test_the_endpoint_of_the_environment_is_the_fallback() -> None:
    environ = {"AWS_ENDPOINT_URL_S3": "http://env:1", "AWS_ENDPOINT_URL": "http://env:2"}
    assert s3_config("lake", {}, environ)[0]["endpoint"] == "http://env:1"
    assert s3_config("lake", {}, {"AWS_ENDPOINT_URL": "http://env:2"}) == ({"endpoint": "http://env:2"}, True)
    config, _ = s3_config("lake", {"s3.endpoint": "https://given"}, environ)
    assert {config["endpoint"], config["aws_endpoint_url_s3"]} == {"https://given"}


def test_virtual_hosted_style_puts_the_bucket_in_front_of_the_host() -> None:
    expected = {"endpoint": "https://lake.store.example", "virtual_hosted_style_request": "true"}
    for options in ({"s3.path.style.access": "false"}, {"virtual_hosted_style": "true"}):
        assert s3_config("lake", {"s3.endpoint": "https://store.example", **options}, {})[0] == expected
    assert s3_config("lake", {"s3.endpoint": "https://lake.store.example", **options}, {})[0] == expected


def test_a_misspelled_option_is_refused_and_a_foreign_one_is_passed_over() -> None:
    with pytest.raises(BadRequest, match=r"unknown option 's3.acess-key'") as caught:
        s3_config("lake", {"s3.acess-key": "x"}, {})
    assert caught.value.hint == "did you mean 's3.access-key-id'?"
    foreign = {"warehouse": "s3://lake", "token": "x", "s3.connection.maximum": "100", "fs.s3a.endpoint.fips": "true"}
    assert s3_config("lake", foreign, {}) == ({}, False)


def test_a_flag_is_true_or_false() -> None:
    with pytest.raises(BadRequest, match="path_style"):
        s3_config("lake", {"s3.path.style.access": "yes"}, {})


def test_importing_the_stores_imports_neither_pyarrow_nor_obstore() -> None:
    code = (
        "import sys, shoal.store, shoal.store.faults, shoal.store.s3\n"
        "shoal.store.open_store('/tmp').list_dir('no such folder')\n"
        "print([m for m in ('pyarrow', 'obstore') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
