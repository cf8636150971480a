# SPDX-License-Identifier: Apache-2.0
"""A job in a process of its own, to be killed: `kill_job.py WAREHOUSE FIRST END SPEED CHECKPOINT`.

Prints `running` before the first row is taken, a position after every checkpoint, and `ended` at the end.
"""

from __future__ import annotations

import sys

import shoal
from shoal.flow.job import Job, parse_interval, parse_source, run


def main(warehouse: str, first: str, end: str, speed: str, checkpoint: str) -> None:
    source = parse_source(f"flights:{first}..{end}", speed=float(speed))
    source.take(0, until_s=-1, max_rows=1)  # reads the CSV before the clock starts
    job = Job(
        shoal.open(warehouse), source, "d.flights", name="job", checkpoint_s=parse_interval(checkpoint),
        options={"bucket": 2, "num-sorted-run.compaction-trigger": 3},
    )  # fmt: skip
    print("running", flush=True)
    run(job, on_progress=lambda now: print(now.position, flush=True))
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
