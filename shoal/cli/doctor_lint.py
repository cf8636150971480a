# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor lint`: what is wrong with options of a table, a file of SQL, or a Flink configuration. Reads only."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.cli.failure import reads
from shoal.cli.output import DIM, RED, YELLOW, note, paint, show_json
from shoal.cli.parser import Command, Parser, one_of
from shoal.cli.warehouse import open_lake
from shoal.errors import BadRequest, Corrupt, NotFound, StorageFailed, near

if TYPE_CHECKING:
    from shoal.doctor.finding import Finding
    from shoal.doctor.lint.rules import Choice
    from shoal.doctor.lint.subject import Around, Setting

_STDIN = "-"
_STYLES = {"error": RED, "warn": YELLOW, "info": DIM, "dim": DIM}


def _lint(args: Namespace) -> int:
    from shoal.doctor.finding import exit_code
    from shoal.doctor.lint.output import line, summary, to_json, to_sarif

    if args.name is not None:
        return _name(args)
    if not args.sources:
        raise BadRequest("shoal doctor lint needs a table, a file or -", hint="see 'shoal doctor lint --help'")
    choice, around, job = _choice(args), _around(args), _job(args)
    found: list[Finding] = []
    for source in args.sources:
        found += _one(args, source, choice, around, job)
    if args.output == "json":
        show_json(to_json(args.sources, found))
    elif args.output == "sarif":
        import shoal

        show_json(to_sarif(found, shoal.__version__))
    else:
        for one in found:
            print(line(one, lambda text, style: paint(text, _STYLES[style], sys.stdout)))
        note(summary(found))
    return exit_code(found, args.fail_on)


def _one(args: Namespace, source: str, choice: Choice, around: Around, job: Mapping[str, Setting]) -> list[Finding]:
    from shoal.doctor.lint.sources import lint_table, lint_text

    if source == _STDIN:
        return lint_text(sys.stdin.read(), "stdin", around=around, job=job, choice=choice)
    if os.path.isfile(source):
        return lint_text(_text(source), source, around=around, job=job, choice=choice)
    if os.path.sep in source or source.count(".") != 1 or source.endswith((".sql", ".yaml", ".yml", ".json")):
        raise NotFound(f"no file {source}", hint=_beside(source))
    if not (args.warehouse or os.environ.get("SHOAL_WAREHOUSE")):
        raise NotFound(f"no file {source}", hint=_beside(source) or "a table needs -w WAREHOUSE")
    table = open_lake(args).table(source)
    window = None
    from shoal.table.format_table import FormatTable

    if not args.no_samples and not isinstance(table, FormatTable):  # a format table has no snapshots
        from shoal.clock import SystemClock
        from shoal.doctor.take import take

        window = take(table.metadata, name=source, clock=SystemClock())
    return lint_table(table, around=around, window=window, job=job, choice=choice)


def _name(args: Namespace) -> int:
    """What one name is."""
    from shoal.doctor.lint.names import judge

    verdict = judge(args.name)
    if args.output == "text":
        right = verdict.use == verdict.name
        print(f"{verdict.name}: {verdict.verdict} ({verdict.what})" + ("" if right else f"; {verdict.use}"))
    else:
        show_json({"name": verdict.name, "what": verdict.what, "verdict": verdict.verdict, "use": verdict.use})
    return int(not verdict.verdict.startswith(("real", "deprecated")) or verdict.verdict == "real, wrong value")


def _choice(args: Namespace) -> Choice:
    from shoal.doctor.lint.rules import Choice, find

    only, ignore = ([i for text in texts for i in text.split(",") if i] for texts in (args.rule, args.ignore))
    return Choice(frozenset(find(i).id for i in only), frozenset(find(i).id for i in ignore))


def _around(args: Namespace) -> Around:
    from shoal.doctor.lint.subject import Around
    from shoal.option_values import parse_duration

    return Around(slo_ms=None if args.slo is None else parse_duration(args.slo, "--slo"), cdc=args.cdc)


def _job(args: Namespace) -> dict[str, Setting]:
    if args.flink_conf is None:
        return {}
    from shoal.doctor.lint.sources import job_settings

    if not os.path.isfile(args.flink_conf):
        raise NotFound(f"no file {args.flink_conf}", hint=_beside(args.flink_conf))
    return job_settings(_text(args.flink_conf), args.flink_conf)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except UnicodeDecodeError as err:
        raise Corrupt(f"{path} is no text: {err.reason}", hint="a file of SQL, YAML or JSON in UTF-8") from err
    except OSError as err:
        raise StorageFailed(f"{path} cannot be read: {err.strerror}") from err


def _beside(path: str) -> str | None:
    """Files with a near name in the same folder."""
    folder = os.path.dirname(path) or "."
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return f"there is no folder {folder} either"
    return near(os.path.basename(path), names)


def _arguments(parser: Parser) -> None:
    parser.add_argument("sources", metavar="TABLE|FILE", nargs="*", help="DB.TABLE, a file of SQL, YAML or JSON, or -")
    parser.add_argument("--name", help="say what one name is instead: an option, a metric, a statement")
    parser.add_argument("--rule", metavar="ID", action="append", default=[], help="only these rules; may be repeated")
    parser.add_argument("--ignore", metavar="ID", action="append", default=[], help="without these; may be repeated")
    parser.add_argument(
        "--fail-on", metavar="SEVERITY", type=one_of("a severity", "error", "warn", "info"), default="error",
        help="error, warn or info: exit code 1 from here on (default: error)",
    )  # fmt: skip
    parser.add_argument("--flink-conf", metavar="FILE", help="the configuration that the jobs run with")
    parser.add_argument("--slo", metavar="TIME", help="how fresh readers want rows, such as '10 s'")
    parser.add_argument("--cdc", action="store_true", help="the tables are written by CDC actions")
    parser.add_argument("--no-samples", action="store_true", help="look at a table's options only, at no snapshot")


LINT = Command(
    "doctor lint", "check the options of tables, SQL files and Flink jobs",
    "shoal doctor lint -w /data/warehouse shop.orders\n"
    "shoal doctor lint ddl.sql config.yaml --fail-on warn\n"
    "shoal doctor lint ddl.sql -o sarif > lint.sarif",
    reads(_lint), _arguments, outputs=("text", "json", "sarif"),
    about="Check options against what Paimon 2.0.0 does with them: keys that do not exist,\n"
    "values that it cannot read, and combinations that it refuses, or ignores, or\n"
    "that cost more than they give. Exit code 1: a finding reaches --fail-on.",
)  # fmt: skip
