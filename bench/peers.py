# SPDX-License-Identifier: Apache-2.0
"""pypaimon and pypaimon-rust, in a child process of the interpreter that has them (`SHOAL_PEERS_PYTHON`).

One JSON request a line to the child, one JSON answer back; the child measures its own CPU seconds, so a peer can take
its turn among shoal's cases.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bench.measure import Case

_REPOSITORY = Path(__file__).resolve().parent.parent


class Peers:
    """The peers' process. `close` ends it."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "bench.peer_worker"],
            cwd=_REPOSITORY,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.versions: dict[str, str] = self._ask("versions")

    def _ask(self, verb: str, **arguments: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"verb": verb, **arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the peers' process ended at '{verb}' with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"the peers failed at '{verb}': {answer['error']}")
        return answer["result"]

    def case(self, verb: str, **arguments: object) -> Case:
        """A case that gives the CPU seconds which the child measured."""
        return lambda: float(self._ask(verb, **arguments))

    def make_merge_table(self, root: str, name: str, kind: str, count: int, runs: int) -> None:
        self._ask("make_merge_table", root=root, name=name, kind=kind, count=count, runs=runs)

    def commits(self, root: str, count: int, native: bool) -> list[float]:
        """CPU seconds of each of `count` commits of 100 rows."""
        times: list[float] = self._ask("commits", root=root, count=count, native=native)
        return times

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def find_peers() -> Peers | None:
    """The peers, when an interpreter is named and has them."""
    python = os.environ.get("SHOAL_PEERS_PYTHON")
    if not python:
        return None
    there = subprocess.run([python, "-c", "import pypaimon, pypaimon_rust"], capture_output=True, check=False)
    return Peers(python) if there.returncode == 0 else None
