# SPDX-License-Identifier: Apache-2.0
"""Tables drawn at random: for each cause some that have it, and some that only look like it.

A draw is a function of its cause and number alone.
"""

from __future__ import annotations

import random
from dataclasses import replace

import drawn_first as first
import drawn_second as second
from drawing import Draw, Drawn

PLANTS: dict[str, tuple[Draw, Draw]] = {
    "D1": (first.often, first.not_often), "D2": (first.many, first.not_many), "D3": (first.doubled, first.not_doubled), "D4": (first.skewed, first.not_skewed),
    "D5": (first.starved, first.not_starved), "D6": (first.behind, first.not_behind), "D7": (first.nobody, first.not_nobody), "D8": (first.late, first.not_late),
    "D9": (second.small, second.not_small), "D10": (second.conflict, second.not_conflict), "D11": (second.bloated, second.not_bloated),
    "D12": (second.stale, second.not_stale), "D13": (second.overflowing, second.not_overflowing), "D14": (second.idle, second.not_idle), "D15": (second.held, second.not_held),
    "D16": (second.restarting, second.not_restarting), "D17": (second.deep, second.not_deep), "any": (first.any_table, first.any_table),
}  # fmt: skip


def sick(cause: str, n: int) -> Drawn:
    """The n-th table with this cause."""
    r = random.Random(f"sick {cause} {n}")
    name, setting = PLANTS[cause][0](r)
    return Drawn(cause, name, replace(setting, seed=f"sick {cause} {n}"))


def well(like: str, n: int) -> Drawn:
    """The n-th table that only looks like one with this cause."""
    r = random.Random(f"well {like} {n}")
    name, setting = PLANTS[like][1](r)
    return Drawn(None, name, replace(setting, seed=f"well {like} {n}"))
