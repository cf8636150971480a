# SPDX-License-Identifier: Apache-2.0
"""`shoal doctor fix` and `verify`: a plan that is printed, or done step by step when asked; and what came of it.

Invariant: without `--apply` nothing here can write to a table; with it, only `Treatment` can, and only after a yes.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from shoal.cli.doctor_check import (
    checkup_of,
    judge_arguments,
    look_arguments,
    one_to_stdout,
    witness_arguments,
    write_text,
)
from shoal.cli.failure import reads
from shoal.cli.output import is_terminal, note, show_json
from shoal.cli.parser import Command, Parser, number_of, table_argument
from shoal.cli.warehouse import open_lake, open_table
from shoal.errors import BadRequest, Corrupt, NotFound

if TYPE_CHECKING:
    from shoal.doctor.fix import Plan, Step
    from shoal.doctor.fix_apply import Applied, Treatment
    from shoal.doctor.history_store import HistoryStore

_KEY = "plan"


def _fix(args: Namespace) -> int:
    one_to_stdout(args, "plan")
    table = open_table(args)
    found = checkup_of(args, table)
    plan = found.plan
    if args.plan is not None:
        write_text(args.plan, json.dumps({**plan.to_dict(), "applied": []}, indent=2) + "\n")
    if args.apply:
        return _apply(args, plan)
    if args.output == "json" or args.json:
        show_json(plan.to_dict())
    elif args.plan != "-":
        from shoal.doctor.checkup_text import plan_lines

        print("\n".join(plan_lines(plan)))
    return found.verdict.code


# ---- apply -----------------------------------------------------------------------------------------------


def _apply(args: Namespace, plan: Plan) -> int:
    from shoal.doctor.fix_apply import Treatment

    if args.output == "json" or args.json:
        raise BadRequest("--apply asks for each step, so it goes with text only", hint="leave out -o json")
    from shoal.doctor.history_file import check_outside
    from shoal.doctor.history_store import HistoryStore

    lake = open_lake(args)
    treatment = Treatment(lambda: lake.table(args.table), plan, lambda: checkup_of(args, lake.table(args.table)).plan)
    applied: list[Applied] = []
    with HistoryStore(args.history) as history:  # before anything is done: no step without a trace
        check_outside(history.path, plan.table)
        _ask_and_apply(args, treatment, history, applied)
    note(f"{len(applied)} of {len(plan.steps)} steps done; 'shoal doctor verify {plan.name}' tells what came of them")
    return 0


def _ask_and_apply(args: Namespace, treatment: Treatment, history: HistoryStore, applied: list[Applied]) -> None:
    from shoal.doctor.checkup_text import step_lines

    plan = treatment.plan
    for number, step in enumerate(plan.steps, 1):
        print("\n".join(["", f"-- {step.block}", *step_lines(step, f"{number}/{len(plan.steps)} ")]), flush=True)
        if step.action is None:
            print("-- not one that shoal can do: do it by hand")
            continue
        typed = _asked(step, plan.name)
        if typed is None:
            print("-- left out")
            continue
        done = treatment.apply(step, typed=typed)
        applied.append(done)
        print(f"-- done: {done.what}", flush=True)
        _keep(args, history, plan, applied)


def _asked(step: Step, name: str) -> str | None:
    """What was typed when the step may be done, None for a no. The end of the input is a no."""
    question = f"type {name} to do it: " if step.typed_name else "do it? [y/N] "
    print(question, end="", flush=True, file=sys.stderr)
    typed = sys.stdin.readline().strip()
    if not is_terminal(sys.stdin):
        print(file=sys.stderr)
    if step.typed_name:
        return typed if typed == name else None
    return typed if typed.lower() in ("y", "yes") else None


def _keep(args: Namespace, history: HistoryStore, plan: Plan, applied: list[Applied]) -> None:
    """What was done, in the history and in the plan's file."""
    from shoal.doctor.window import Event

    done = applied[-1]
    value = {**plan.to_dict(), "applied": [a.to_dict() for a in applied]}
    if args.plan is not None and args.plan != "-":
        write_text(args.plan, json.dumps(value, indent=2) + "\n")
    history.record(plan.table, "fix", plan.taken_ms, _KEY, value)
    history.tell(plan.table, plan.name, [Event(done.time_ms, "fix", f"{done.step}: {done.what}", done.snapshot)])


# ---- verify ----------------------------------------------------------------------------------------------


def _verify(args: Namespace) -> int:
    table = open_table(args)
    from shoal.doctor.checkup import SICK, TOO_LITTLE, WELL
    from shoal.doctor.diagnose.case import case
    from shoal.doctor.fix import Plan
    from shoal.doctor.take import take
    from shoal.doctor.verify import verify
    from shoal.doctor.watch import metadata_of

    metadata = metadata_of(table)
    value, where = _plan_value(args, metadata.store.uri, table.name)
    try:
        plan = Plan.of(value, where)
    except Corrupt as err:
        if args.plan is None:
            raise
        raise BadRequest(err.message, hint=err.hint) from err  # another file was named
    if plan.table != metadata.store.uri:
        raise BadRequest(f"{where} is a plan for {plan.table}, not for {metadata.store.uri}")
    applied = value.get("applied") or []
    since = max([plan.snapshot or 0, *(a["snapshot"] or 0 for a in applied)])
    window = take(metadata, name=table.name, clock=table.clock, since=since)
    found = verify(
        plan, case(window, slo_ms=plan.slo_ms), steps=[a["step"] for a in applied] or None,
        since_ms=max((a["time_ms"] for a in applied), default=None), cycles=args.cycles,
    )  # fmt: skip
    if args.output == "json" or args.json:
        show_json(found.to_dict())
    else:
        print("\n".join(found.lines()))
    if found.too_early:
        return TOO_LITTLE
    return WELL if found.holds else SICK


def _plan_value(args: Namespace, address: str, name: str) -> tuple[dict[str, Any], str]:
    """The plan as it was kept, and where."""
    from shoal.doctor.history_store import HistoryStore

    if args.plan is not None:
        try:
            with open(args.plan, encoding="utf-8") as file:
                value = json.load(file)
        except FileNotFoundError as err:
            raise NotFound(f"no file {args.plan}", hint=f"'shoal doctor fix {name} --plan FILE' writes it") from err
        except ValueError as err:
            raise BadRequest(f"{args.plan} is not JSON: {err}") from err
        return value if isinstance(value, dict) else {}, args.plan
    with HistoryStore(args.history) as history:
        kept = history.records(address, "fix")
        if not kept:
            raise NotFound(
                f"{history.path} holds no plan for {name}",
                hint=f"'shoal doctor fix {name} --apply' keeps one, or name a file with --plan",
            )
        return kept[-1][2], str(history.path)


def _fix_arguments(parser: Parser) -> None:
    table_argument(parser)
    judge_arguments(parser)
    witness_arguments(parser)
    look_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the same as -o json")
    parser.add_argument("--plan", metavar="FILE", help="also write the plan, for 'shoal doctor verify'")
    parser.add_argument("--apply", action="store_true", help="ask for each step, and do it")


def _verify_arguments(parser: Parser) -> None:
    table_argument(parser)
    parser.add_argument("--plan", metavar="FILE", help="the plan; else the last one that the history keeps")
    parser.add_argument("--history", metavar="FILE", help="where 'fix --apply' kept its plan")
    parser.add_argument(
        "--cycles",
        metavar="N",
        type=number_of("a number of cycles", below=1e6),
        default=2.0,
        help="compaction cycles to wait (default: 2)",
    )
    parser.add_argument("--json", action="store_true", help="the same as -o json")


FIX_COMMANDS = (
    Command(
        "doctor fix", "the SQL that mends a table; --apply does it",
        "shoal doctor fix -w /data/warehouse shop.orders --slo 10s > orders.sql\n"
        "shoal doctor fix -w /data/warehouse shop.orders --apply",
        reads(_fix), _fix_arguments,
        about="Print what would mend a table as SQL in two blocks: first aid, which can be\n"
        "taken back, and the root fix. Each step says what it loses, what it should do,\n"
        "how to undo it and what will confirm it. Nothing is changed without --apply,\n"
        "which asks for each step. Exit codes as of 'doctor check'; 3 also when the table\n"
        "moved meanwhile.",
    ),
    Command(
        "doctor verify", "whether a fix did what it was meant to",
        "shoal doctor verify -w /data/warehouse shop.orders\n"
        "shoal doctor verify -w /data shop.orders --plan orders.json --cycles 3",
        reads(_verify), _verify_arguments,
        about="Compare the forecasts of a fix with the snapshots after it. Exit codes: 0 as\n"
        "forecast or better, 1 not, 4 too early: fewer than --cycles compaction cycles.",
    ),
)  # fmt: skip
