# SPDX-License-Identifier: Apache-2.0
"""What goes wrong is one line with a code, a hint, and an exit code; a traceback only when it is asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import shoal.cli.table
from shoal.cli.failure import EXIT_CODES
from shoal.errors import CommitUnknown, Conflict, Corrupt, ShoalError, StorageFailed


def test_no_warehouse_says_how_to_give_one(run):
    ran = run("table", "list")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "shoal: error: no warehouse was given [SH-BAD-REQUEST]\n"
        "hint: say -w FOLDER (or -w s3://bucket/prefix), or set SHOAL_WAREHOUSE\n"
    )


def test_a_missing_warehouse_names_a_near_folder(run, warehouse):
    ran = run("table", "list", "-w", warehouse.replace("warehouse", "warehose"))
    assert ran.code == 2 and "[SH-NOT-FOUND]" in ran.err
    assert ran.err.endswith("hint: did you mean 'warehouse'?\n")


def test_a_missing_warehouse_without_a_near_folder_says_how_it_comes_to_be(run, tmp_path):
    assert (
        "hint: its first table creates it, e.g. with 'shoal job run'"
        in run("table", "list", "-w", str(tmp_path / "x")).err
    )
    assert "is not there either" in run("table", "list", "-w", str(tmp_path / "y" / "x")).err


@pytest.mark.parametrize(("below", "way_out"), [("shop.db", "shop.TABLE"), ("shop.db/orders", "shop.orders")])
def test_a_database_or_table_is_not_a_warehouse(run, warehouse, below, way_out):
    ran = run("table", "list", "-w", f"{warehouse}/{below}")
    assert ran.code == 2 and f"say -w {warehouse} " in ran.err and way_out in ran.err


def test_a_file_is_not_a_warehouse(run, tmp_path):
    (tmp_path / "f").write_text("")
    assert "is a file, not a warehouse" in run("table", "list", "-w", str(tmp_path / "f")).err


def test_a_missing_table_or_database_names_near_ones(run, warehouse):
    assert "hint: did you mean 'orders'?" in run("table", "show", "shop.order", "-w", warehouse).err
    assert "hint: did you mean 'shop'?" in run("table", "show", "shp.orders", "-w", warehouse).err
    assert "hint: tables are named DATABASE.TABLE" in run("table", "show", "orders", "-w", warehouse).err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Conflict("taken\nby another", hint="plan\nagain"), 3),
        (CommitUnknown("who knows"), 3),
        (StorageFailed("disk full"), 3),
        (Corrupt("bad bytes"), 4),
    ],
)
def test_an_error_is_one_line_with_its_code_and_exits_with_it(run, warehouse, monkeypatch, error, code):
    monkeypatch.setattr(shoal.cli.table, "open_lake", lambda args: (_ for _ in ()).throw(error))
    ran = run("table", "list", "-w", warehouse)
    assert (ran.code, ran.out) == (code, "")
    lines = ran.err.splitlines()
    assert lines[0] == f"shoal: error: {' '.join(error.message.split())} [{error.code}]"
    assert lines[1:] == ([f"hint: {' '.join(error.hint.split())}"] if error.hint else [])


def test_a_defect_says_so_and_shows_its_traceback_only_with_debug(run, warehouse, monkeypatch):
    monkeypatch.setattr(shoal.cli.table, "open_lake", lambda args: {}["nothing"])
    ran = run("table", "list", "-w", warehouse)
    assert ran.code == 70 and len(ran.err.splitlines()) == 2 and "KeyError: 'nothing' [SH-INTERNAL]" in ran.err
    for line in (["--debug", "table", "list"], ["table", "--debug", "list"], ["table", "list", "--debug"]):
        assert "Traceback (most recent call last)" in run(*line, "-w", warehouse).err


def test_running_out_of_memory_is_no_defect(run, warehouse, monkeypatch):
    monkeypatch.setattr(shoal.cli.table, "open_lake", lambda args: (_ for _ in ()).throw(MemoryError()))
    assert run("table", "list", "-w", warehouse).code == 3


def test_every_kind_of_error_has_an_exit_code_in_the_table():
    kinds = [ShoalError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.exit_code for kind in kinds} <= {code for code, _ in EXIT_CODES}


def test_ctrl_c_is_one_line_and_130(run, warehouse, monkeypatch):
    monkeypatch.setattr(shoal.cli.table, "open_lake", lambda args: (_ for _ in ()).throw(KeyboardInterrupt))
    ran = run("table", "list", "-w", warehouse)
    assert (ran.code, ran.out, ran.err) == (130, "", "shoal: interrupted\n")


# ---- real processes


def test_the_module_is_the_command(shell, warehouse):
    done = shell("table", "list", "-w", warehouse)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hr.staff\nshop.items\nshop.orders\n", "")


def test_a_full_disk_under_stdout_is_one_line_and_3(shell, warehouse):
    with open("/dev/full", "w") as full:
        done = shell("table", "list", "-w", warehouse, stdout=full)
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "shoal: error: cannot write the output: No space left on device [SH-STORAGE]"
    assert len(done.stderr.splitlines()) == 2


def test_a_reader_that_leaves_ends_the_command_quietly(shell, warehouse):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = shell("table", "list", "-w", warehouse, stdout=pipe)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_job_commits_what_it_took_before_ctrl_c_ends_it(tmp_path):
    lake = str(tmp_path / "lake")
    line = [
        sys.executable,
        "-m",
        "shoal.cli",
        "job",
        "run",
        "--from",
        "flights:2013-01-03..2013-01-04",
        "--speed",
        "50",
    ]
    line += ["--into", "demo.f", "--checkpoint", "1h", "--option", "bucket=1", "-w", lake, "-o", "json"]
    job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # the table is made when the job begins; its signal handlers are set before
        for _ in range(3000):
            if os.path.exists(f"{lake}/demo.db/f/schema/schema-0"):
                break
            with pytest.raises(subprocess.TimeoutExpired):
                job.wait(0.01)
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 130
    assert '"ended": false' in out and '"checkpoints": 1' in out
    assert "shoal: stopping: committing what was taken; again to stop at once" in err
    assert "Traceback" not in err


def test_a_name_that_is_not_text_is_printed_as_its_bytes(shell, tmp_path):
    folder = os.fsencode(tmp_path) + b"/shop.db/caf\xe9/schema"
    os.makedirs(folder)
    with open(folder + b"/schema-0", "w") as file:
        file.write("{}")
    done = shell("table", "list", "-w", str(tmp_path), text=False, env={**os.environ, "PYTHONUTF8": "1"})
    assert (done.returncode, done.stdout) == (0, b"shop.caf\xe9\n")
