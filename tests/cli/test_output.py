# SPDX-License-Identifier: Apache-2.0
"""Tables and colours: for people on a terminal, for scripts everywhere else."""

from __future__ import annotations

import io
import sys

import pytest

from shoal.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A function that makes stdout a terminal of 30 columns."""

    def put() -> Terminal:
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)  # here, since pytest changes stdout between set-up and test
        return screen

    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    return put


LONG = "x" * 60
ROWS = [["a", 1, LONG], ["b", 1234, "short"], ["c", None, None]]


def test_a_pipe_gets_every_character_and_no_colour(capsys):
    output.show_table(["name", "rows", "what"], ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "name   rows  what", f"a         1  {LONG}", "b     1,234  short", "c",
    ]  # fmt: skip


def test_a_terminal_gets_rows_that_fit_and_a_bold_head(terminal):
    screen = terminal()
    output.show_table(["name", "rows", "what"], ROWS)
    head, *lines = screen.getvalue().splitlines()
    assert head == "\x1b[1mname   rows  what\x1b[0m"
    assert lines[0] == "a         1  " + "x" * 16 + "…" and len(lines[0]) == 30


def test_no_color_and_dumb_terminals_get_no_colour(terminal, monkeypatch):
    terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.paint("a", output.BOLD, sys.stdout) == "a"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert output.paint("a", output.BOLD, sys.stdout) == "a"


def test_numbers_are_never_cut(terminal):
    screen = terminal()
    output.show_table(["a", "b"], [[LONG, 123456789012345678901234]])
    assert "123,456,789,012,345,678,901,234" in screen.getvalue()


def test_wide_and_combining_characters_are_measured_in_columns(capsys):
    output.show_table(["k", "v"], [["日本", "e\u0301"], ["ab", "z"]])
    assert capsys.readouterr().out.splitlines() == ["k     v", "日本  e\u0301", "ab    z"]


def test_control_characters_do_not_reach_the_screen(capsys):
    output.show_table(["k"], [["a\nb\x1b[31m"]])
    assert capsys.readouterr().out == "k\na\\nb\\x1b[31m\n"


def test_json_keeps_numbers_and_names_times_and_bytes_plainly(capsys):
    import datetime
    import decimal
    import json

    output.show_json({"n": 1234, "t": datetime.datetime(2026, 11, 1), "b": b"\x01\xff", "d": decimal.Decimal("1.50")})
    found = json.loads(capsys.readouterr().out)
    assert found == {"n": 1234, "t": "2026-11-01T00:00:00", "b": "01ff", "d": "1.50"}
