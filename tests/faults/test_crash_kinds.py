# SPDX-License-Identifier: Apache-2.0
"""Every kind of table, cut off at the calls that change its store: rows, changelogs, tags and files are as they should."""

from __future__ import annotations

from typing import get_args

import pytest

from shoal.store.faults import Action, Fault
from tests.faults.histories import Kind, check, check_failure, left_over, run
from tests.faults.kinds import KINDS

ACTIONS = [a for a in get_args(Action) if a != "stall"]
BY_NAME = pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
# The changes between two cuts; all of them are the slow test below.
STRIDE = 127


def cut(kind: Kind, action: Action, at: int) -> bool:
    """Whether the history has a change number `at`."""
    what = f"{kind.name}: {action} at change {at}"
    done = run(kind, Fault(action, at), check_failure(kind))
    if done.struck is None:
        return False
    what += f" ({' '.join(done.struck)}, {'noticed' if done.failed else 'unnoticed'})"
    table = check(kind, done, what)
    if not action.startswith("die") and done.struck[0] != "delete":
        # who lives cleans up behind himself
        assert left_over(table) == [], what
    return True


@BY_NAME
def test_a_history_is_the_model_and_some_cuts_lose_and_double_nothing(kind: Kind) -> None:
    done = run(kind)
    assert done.failed == []
    assert left_over(check(kind, done, kind.name)) == []
    n = KINDS.index(kind)
    # a run is the same up to its fault, so the one without says how many changes can be cut
    for at in range(2 + n * 7 % STRIDE, done.mutations + 1, STRIDE):
        assert cut(kind, ACTIONS[n % len(ACTIONS)], at)
        n += 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("action", ACTIONS)
@BY_NAME
def test_a_cut_anywhere_loses_and_doubles_nothing(kind: Kind, action: Action) -> None:
    at = 1
    while cut(kind, action, at):
        at += 1
    assert at > 50
