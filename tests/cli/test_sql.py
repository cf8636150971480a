# SPDX-License-Identifier: Apache-2.0
"""`shoal sql`: where the SQL comes from, what the rows go out as, and the prompt on a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.cli import interrupt
from shoal.cli.prompt import ended

COUNT = "SELECT count(*) AS n FROM shop.orders"


def test_the_sql_may_stand_on_the_line(run, warehouse):
    ran = run("sql", COUNT, "-w", warehouse, "-o", "jsonl")
    assert (ran.code, ran.out, ran.err) == (0, '{"n":4000}\n', "")


def test_the_sql_may_come_from_a_file_or_a_pipe(run, warehouse, tmp_path, monkeypatch):
    (tmp_path / "q.sql").write_text(f"\ufeff-- how many\n{COUNT};\n", encoding="utf-8")
    expected = run("sql", COUNT, "-w", warehouse, "-o", "csv").out
    assert run("sql", "-f", str(tmp_path / "q.sql"), "-w", warehouse, "-o", "csv").out == expected
    for line in ([], ["-f", "-"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(COUNT))
        assert run("sql", *line, "-w", warehouse, "-o", "csv").out == expected


def test_names_without_a_database_are_looked_up_in_the_one_given(run, warehouse):
    assert run("sql", "SELECT count(*) FROM staff", "-d", "hr", "-w", warehouse).code == 0


def test_several_statements_run_in_order_until_the_first_error(run, warehouse):
    ran = run("sql", "SELECT 1 AS a; SELECT x FROM shop.orders; SELECT 3 AS c", "-w", warehouse, "-o", "jsonl")
    assert ran.code == 2 and ran.out == '{"a":1}\n' and "[SH-BAD-REQUEST]" in ran.err


@pytest.mark.parametrize("output", ["table", "jsonl", "csv", "json"])
def test_every_text_format_says_the_same_rows(run, warehouse, output):
    ran = run(
        "sql", "SELECT id, dt FROM shop.orders WHERE id IN (1000, 1001) ORDER BY id, dt", "-w", warehouse, "-o", output
    )
    assert (ran.code, ran.err) == (0, "")
    for value in ("2026-11-01", "2026-11-02"):
        assert ran.out.count(value) == 2
    if output == "json":
        assert len(json.loads(ran.out)) == 4


@pytest.mark.parametrize("output", ["arrow", "parquet"])
def test_bytes_go_to_a_file(shell, warehouse, tmp_path, output):
    path = tmp_path / "out"
    with open(path, "wb") as file:
        done = shell("sql", "SELECT id FROM shop.orders ORDER BY id", "-w", warehouse, "-o", output, stdout=file)
    assert (done.returncode, done.stderr) == (0, "")
    found = pq.read_table(path) if output == "parquet" else pa.ipc.open_stream(path.read_bytes()).read_all()
    assert found.num_rows == 4000


def test_one_document_holds_one_result(run, warehouse):
    for output in ("json", "arrow", "parquet"):
        ran = run("sql", "SELECT 1; SELECT 2", "-w", warehouse, "-o", output)
        assert (ran.code, ran.out) == (2, "") and "here are 2" in ran.err


def test_a_drawn_table_says_on_stderr_when_rows_are_left_out(run, warehouse):
    ran = run("sql", "SELECT id FROM shop.orders", "--rows", "5", "-w", warehouse)
    assert ran.code == 0 and ran.out.splitlines()[-1].startswith("first 5 of ")
    assert ran.err.startswith("drew 5 of ")
    assert (
        len(run("sql", "SELECT id FROM shop.orders LIMIT 300", "--rows", "0", "-w", warehouse).out.splitlines()) == 303
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["SELECT 1", "-f", "x"], "SQL was given on the line and with -f"),
        (["-f", "/nowhere/x.sql"], "no file /nowhere/x.sql"),
        (["-f", "/"], "cannot read /: Is a directory"),
        ([" ; -- nothing"], "there is no statement"),
        (["SELECT 1", "-o", "xml"], "'xml' is not an output format"),
        (["SELECT", "1"], "shoal sql does not take '1'"),
        (["SELEC 1"], "'SELEC' does not begin a statement"),
        (["SELECT * FROM shop.order"], "unknown table 'shop.order'"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_one_line(run, warehouse, line, message):
    ran = run("sql", *line, "-w", warehouse)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0].startswith(f"shoal: error: {message}")


def test_sql_that_is_not_utf8_is_refused(run, warehouse, tmp_path):
    (tmp_path / "latin.sql").write_bytes(b"SELECT 'caf\xe9'")
    assert "is not UTF-8: byte 11" in run("sql", "-f", str(tmp_path / "latin.sql"), "-w", warehouse).err


def test_a_reader_that_leaves_early_ends_a_long_result_quietly(warehouse):
    line = [sys.executable, "-m", "shoal.cli", "sql", "-w", warehouse, "-o", "csv"]
    line.append("SELECT a.id FROM shop.orders a, shop.orders b")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        assert done.stdout is not None and done.stderr is not None
        assert done.stdout.readline() == "id\n"
        done.stdout.close()
        assert (done.stderr.read(), done.wait(60)) == ("", 0)


# ---- interrupting


def test_work_beside_the_main_thread_gives_its_error_back():
    def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        interrupt.interruptible(work, lambda: None)
    assert not interrupt._busy


def test_ctrl_c_cancels_the_work_and_does_not_wait_for_it(monkeypatch):
    monkeypatch.setattr(interrupt, "_GRACE_S", 0.01)
    # tests that a shell runs in its background are born deaf to Ctrl-C
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    started, over, cancelled = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert over.wait(60)

    def press() -> None:
        assert started.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt.interruptible(work, cancelled.set)
    finally:
        signal.signal(signal.SIGINT, old)
    presser.join()
    assert cancelled.is_set() and interrupt._busy
    over.set()
    while interrupt._busy:
        pass


# ---- the prompt


@pytest.mark.parametrize(
    ("typed", "statements", "rest"),
    [
        ("SELECT 1;\n", ["SELECT 1"], ""),
        ("SELECT 1\n", [], "SELECT 1\n"),
        ("SELECT 1; SELECT\n", ["SELECT 1"], "SELECT\n"),
        ("SELECT ';\n", [], "SELECT ';\n"),
        ("SELECT 'a\n;b' x; -- done\n", ["SELECT 'a\n;b' x"], ""),
        ("-- only words;\n", [], ""),
        (";;\n", [], ""),
    ],
)
def test_a_statement_ends_at_its_semicolon(typed, statements, rest):
    assert ended(typed) == (statements, rest)


class Screen:
    """`shoal` on a terminal of its own: type, and wait for what it shows."""

    # the child's first step makes the terminal its own, so that Ctrl-C reaches it
    OWN = (
        "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.executable, [sys.executable, '-m', 'shoal.cli', *sys.argv[1:]])"
    )

    def __init__(self, *argv: str, home: str) -> None:
        self._fd, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.OWN, *argv], stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, env={**os.environ, "XDG_STATE_HOME": home, "TERM": "xterm", "NO_COLOR": "1"},
        )  # fmt: skip
        os.close(terminal)
        self.text = ""

    def type(self, text: str) -> None:
        self.text = ""
        os.write(self._fd, text.encode())

    def until(self, wanted: str, seconds: float = 60) -> str:
        end = time.monotonic() + seconds
        while wanted not in self.text:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"never saw {wanted!r} in {self.text!r}"
            try:
                self.text += os.read(self._fd, 4096).decode()
            except OSError:  # the other end has closed the terminal
                break
        return self.text

    def code(self) -> int:
        self.until("\0")
        return self._process.wait(60)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


@pytest.fixture
def on_terminal(warehouse, tmp_path):
    """Opens `shoal sql` on the warehouse; `tmp_path` keeps its history."""
    opened: list[Screen] = []

    def open_(*argv: str) -> Screen:
        opened.append(Screen("sql", *argv, "-w", warehouse, home=str(tmp_path)))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_the_prompt_answers_survives_errors_and_keeps_its_history(on_terminal, tmp_path):
    screen = on_terminal()
    screen.until("shoal> ")
    screen.type("SELECT count(*) AS n\n")
    screen.until("...> ")
    screen.type("FROM shop.orders;\n")
    screen.until("1 row")
    screen.until("shoal> ")
    screen.type("SELECT nothing FROM shop.orders;\n")
    assert "SH-BAD-REQUEST" in screen.until("shoal> ")
    screen.type(".tables\n")
    assert "shop.items" in screen.until("shop.orders")
    screen.until("shoal> ")
    screen.type(".tabels\n")
    screen.until("did you mean '.tables'?")
    screen.until("shoal> ")
    screen.type("SELECT half a stat\x03")
    screen.type("\n")  # some kernels hand Ctrl-C to another thread; then the next key brings it in
    screen.until("shoal> ")
    screen.type("SELECT 42 AS after;\n")
    screen.until("\n   42")
    screen.until("shoal> ")
    screen.type("\x04")
    assert screen.code() == 0
    assert "FROM shop.orders;" in (tmp_path / "shoal" / "sql_history").read_text().splitlines()


def test_quit_leaves_the_prompt(on_terminal, tmp_path):
    screen = on_terminal()
    screen.until("shoal> ")
    screen.type(".quit\n")
    assert screen.code() == 0


def test_bytes_are_refused_on_a_terminal(on_terminal, tmp_path):
    screen = on_terminal("SELECT 1", "-o", "parquet")
    text = screen.until("hint: ")
    assert "parquet is bytes, not for a terminal [SH-BAD-REQUEST]" in text
    assert screen.code() == 2


def test_ctrl_c_stops_a_query_that_runs_in_the_library(on_terminal, tmp_path):
    screen = on_terminal("SELECT 'begun' AS a; SELECT count(*) FROM range(1000000000000)")
    screen.until("1 row")
    time.sleep(0.5)  # into the second statement; too early only makes the test easier
    screen.type("\x03")
    screen.until("shoal: interrupted")
    assert screen.code() == 130
