# SPDX-License-Identifier: Apache-2.0
"""What every line is given: where to work, how large, how often, and the peers if they are there."""

from __future__ import annotations

from dataclasses import dataclass

from bench.measure import Case
from bench.peers import Peers


@dataclass(frozen=True, slots=True)
class Context:
    """`rows` is the size of the tables; `rust_tables` also measures reads of tables that the Rust writer made."""

    root: str
    rows: int
    repeat: int
    quick: bool
    kinds: tuple[str, ...]
    peers: Peers | None
    rust_tables: bool

    def peer(self, verb: str, **arguments: object) -> Case | None:
        """The peers' case, or None where there are no peers."""
        return self.peers.case(verb, root=self.root, **arguments) if self.peers else None
