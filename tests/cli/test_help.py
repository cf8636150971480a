# SPDX-License-Identifier: Apache-2.0
"""Finding the way: help, examples, words that are nearly right, and what a start costs."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import shoal
from shoal.cli.failure import EXIT_CODES
from shoal.cli.main import NOUNS, _commands, main

COMMANDS = [command for noun in NOUNS for command in _commands(noun)]
HEAVY = ("pyarrow", "numpy", "duckdb", "sqlglot", "rich", "msgspec", "obstore")


def test_help_alone_names_every_command_and_every_exit_code(run):
    for line in ([], ["--help"], ["-h"], ["help"]):
        ran = run(*line)
        assert (ran.code, ran.err) == (0, "")
        for command in COMMANDS:
            assert f"shoal {command.words}" in ran.out
        for code, meaning in EXIT_CODES:
            assert str(code) in ran.out and meaning in ran.out


def test_the_exit_codes_have_a_page_of_their_own(run):
    assert run("help", "exit-codes").out.splitlines()[0].split() == ["0", "fine"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.words)
def test_help_of_a_command_shows_an_example_and_fits_80_columns(run, command):
    ran = run(*command.words.split(), "--help")
    assert ran.code == 0
    assert f"usage: shoal {command.words}" in ran.out
    assert command.example.splitlines()[0] in ran.out.partition("example:")[2]
    assert max(map(len, ran.out.splitlines())) <= 80
    assert run("help", *command.words.split()).out == ran.out


@pytest.mark.parametrize("noun", ["table", "compact", "job", "doctor"])
def test_help_of_a_noun_lists_its_verbs_with_examples(run, noun):
    ran = run(noun, "--help")
    assert ran.code == 0
    for command in _commands(noun):
        assert command.summary in ran.out and command.example.splitlines()[0] in ran.out
    assert run("help", noun).out == ran.out


def test_no_help_is_wider_than_80_columns(run):
    for line in ([], ["table", "-h"], ["help", "exit-codes"]):
        assert max(map(len, run(*line).out.splitlines())) <= 80


def test_version_is_the_package_version(run):
    assert run("--version").out == f"shoal {shoal.__version__}\n"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("tabel list", "did you mean 'table'?"),
        ("show", "did you mean 'shoal table show'?"),
        ("xyzzy", "see 'shoal --help'"),
        ("table lst", "did you mean 'list'?"),
        ("table xyzzy", "it has list, show, files, snapshots"),
        ("table", "it has list, show, files, snapshots; see 'shoal table --help'"),
        ("table list --outptu json", "did you mean '--output'?"),
        ("table list --full", "it has --debug, --help, --output, --store-option, --warehouse"),
        ("table list -o jsn", "did you mean 'json'?"),
        ("table list a b", "a name or SQL with spaces needs quotes; see 'shoal table list --help'"),
        ("table show", "see 'shoal table show --help'"),
        ("compact run a.b --ful", "did you mean '--full'?"),
        ("--versoin", "did you mean '--version'?"),
        ("-w lake", "see 'shoal --help'"),
        ("help tabel", "did you mean 'table'?"),
        ("table list --store-option x", None),
        ("job run --from a --into b.c --speed fast", "see 'shoal job run --help'"),
        ("job run --from a --into b.c --start -1", None),
    ],
)
def test_a_line_that_is_nearly_right_gets_a_hint_and_exit_code_2(run, line, hint):
    ran = run(*line.split())
    assert (ran.code, ran.out) == (2, "")
    first, *rest = ran.err.splitlines()
    assert first.startswith("shoal: error: ") and first.endswith("[SH-BAD-REQUEST]")
    if hint is not None:
        assert rest == [f"hint: {hint}"]


def test_options_are_never_abbreviated(run):
    assert "has no option --warehous" in run("table", "list", "--warehous", "x").err


@pytest.mark.parametrize("line", [["--help"], ["table", "list", "--help"], ["help", "exit-codes"], ["table", "list"]])
def test_a_light_command_imports_nothing_heavy(warehouse, line):
    script = (
        "import sys; from shoal.cli.main import main; code = main(sys.argv[1:]); "
        f"sys.stderr.write(','.join(m for m in {HEAVY!r} if m in sys.modules)); sys.exit(code)"
    )
    more = ["-w", warehouse] if line[-1] == "list" else []
    done = subprocess.run([sys.executable, "-c", script, *line, *more], text=True, capture_output=True, check=True)
    assert done.stderr == ""
    assert done.stdout


def test_a_process_of_a_command_finds_no_pandas(monkeypatch):
    """Arrow imports pandas at the first list it is given, for a third of a second and for nothing."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", ["shoal", "--version"])
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    assert main() == 0
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pandas")
