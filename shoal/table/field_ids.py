# SPDX-License-Identifier: Apache-2.0
"""The ids of members of ROW types, given anew when a column is created, and the order of options in a schema file.

Agrees with: ReassignFieldId, RowType.Builder, java.util.HashMap (2.0.0, Java 17). Invariant: members of an inner ROW
get their ids before the member that holds them, as Java's builder happens to do, so both make the same schema file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.format.types import DataType


def numbered(t: DataType, highest: int) -> tuple[DataType, int]:
    """The type with member ids from `highest` + 1 on, and the highest id given."""
    if t.root == "ROW":
        members = []
        for f in t.fields:
            inner, highest = numbered(f.type, highest)
            highest += 1
            members.append(replace(f, id=highest, type=inner))
        return replace(t, fields=tuple(members)), highest
    if t.key is not None and t.value is not None:
        key, highest = numbered(t.key, highest)
        value, highest = numbered(t.value, highest)
        return replace(t, key=key, value=value), highest
    if t.element is not None:
        element, highest = numbered(t.element, highest)
        return replace(t, element=element), highest
    return t, highest


def java_order(options: Mapping[str, str], added: Iterable[str] = ()) -> dict[str, str]:
    """The options in the order in which Java walks its HashMap of them, when `added` were put in last."""
    last = set(added)
    keys = [k for k in options if k not in last]
    slots = _slots(len(keys)) if keys else 16
    keys += [k for k in options if k in last]
    while len(keys) * 4 > slots * 3:
        slots *= 2
    keys = sorted(keys, key=lambda k: _spread(k) & (slots - 1))
    slots = _slots(len(keys))  # and copied once more
    return {k: options[k] for k in sorted(keys, key=lambda k: _spread(k) & (slots - 1))}


def _slots(count: int) -> int:
    slots = 1
    while slots < int(count / 0.75 + 1):
        slots *= 2
    return slots


def _spread(text: str) -> int:
    """String.hashCode, its upper half mixed into the lower."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2]):
        h = (31 * h + (high << 8 | low)) & 0xFFFFFFFF
    return h ^ (h >> 16)
