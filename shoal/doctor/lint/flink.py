# SPDX-License-Identifier: Apache-2.0
"""Rules about the configuration of a Flink job, alone and together with a table.

Agrees with: ExecutionCheckpointingOptions of Flink 2.0 (the keys), the changelog producer and write performance pages
(2.0.0). Invariant: only keys under `execution.checkpointing` can be unknown, since these are all listed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.lint.rules import Say, rule
from shoal.doctor.lint.subject import INTERVAL, Subject
from shoal.doctor.lint.texts import duration
from shoal.doctor.lint.words import JOB_WORDS
from shoal.errors import BadRequest, near
from shoal.option_table import lookup
from shoal.option_values import parse_duration

HEAD = "execution.checkpointing."
CONCURRENT, TIMEOUT, PAUSE = f"{HEAD}max-concurrent-checkpoints", f"{HEAD}timeout", f"{HEAD}min-pause"


def _words(text: str) -> list[str]:
    return text.split()


# Flink 2.0, and what 1.x called them
CHECKPOINTING = frozenset(
    HEAD + tail
    for tail in _words("""
        interval mode timeout min-pause max-concurrent-checkpoints tolerable-failed-checkpoints
        externalized-checkpoint-retention unaligned unaligned.enabled unaligned.forced
        unaligned.interruptible-timers.enabled unaligned.max-subtasks-per-channel-state-file aligned-checkpoint-timeout
        alignment-timeout checkpoints-after-tasks-finish checkpoints-after-tasks-finish.enabled interval-during-backlog
        incremental dir storage savepoint-dir num-retained data-inline-threshold write-buffer-size snapshot-compression
        local-backup.enabled local-backup.dirs create-subdir cleaner.parallel-mode force-unaligned
        prefer-checkpoint-for-recovery recover-without-channel-state.checkpoint-id file-merging.enabled
        file-merging.across-checkpoint-boundary file-merging.max-file-size file-merging.max-space-amplification
        file-merging.pool-blocking file-merging.max-subtasks-per-file
    """)
)
_DURATIONS = (INTERVAL, TIMEOUT, PAUSE, f"{HEAD}interval-during-backlog", f"{HEAD}aligned-checkpoint-timeout")
_PAGE = "primary-key-table/changelog-producer.md"


@rule(
    "L-56",
    "warn",
    "checkpoints wait for lookups",
    "lookup with max-concurrent-checkpoints = 1; min-pause > interval; timeout < interval",
    page=_PAGE,
    kinds=("table", "job"),
)
def waits(subject: Subject) -> Iterator[Say]:
    if subject.kind == "job":
        yield from _pause(subject)
        return
    if not subject.job or subject.producer != "lookup" or subject.options.write_only or not subject.flag("lookup-wait"):
        return
    setting = subject.job.get(CONCURRENT)
    if INTERVAL in subject.job and (setting is None or setting.value.strip() == "1"):
        written = f"'{CONCURRENT}' = '1'" if setting is not None else f"'{CONCURRENT}' is 1 by default"
        yield Say(
            f"{written}, and 'changelog-producer' = 'lookup' lets each checkpoint wait for its compaction: no flush "
            "starts "
            "meanwhile",
            "changelog-producer",
            (f"SET '{CONCURRENT}' = '3'", "or 'lookup-wait' = 'false' where changelog may come later"),
            place=None if setting is None else setting.place,
        )


def _pause(subject: Subject) -> Iterator[Say]:
    pause, interval, timeout = (subject.job_ms(k) for k in (PAUSE, INTERVAL, TIMEOUT))
    if pause and interval and pause > interval:
        yield Say(
            f"'{PAUSE}' = '{subject.settings[PAUSE].value}' is longer than '{INTERVAL}' = "
            f"'{subject.settings[INTERVAL].value}': "
            f"checkpoints come every {duration(pause)} or later",
            PAUSE,
            (f"lower it below {duration(interval)}, or leave it out",),
            evidence={"pause_ms": pause, "interval_ms": interval},
        )
    if timeout and interval and timeout < interval:
        yield Say(
            f"'{TIMEOUT}' = '{subject.settings[TIMEOUT].value}' is shorter than '{INTERVAL}' = "
            f"'{subject.settings[INTERVAL].value}': a compaction that takes that long fails its checkpoint",
            TIMEOUT,
            ("10 minutes is the default; full compactions may need an hour",),
            evidence={"timeout_ms": timeout, "interval_ms": interval},
        )


@rule(
    "L-64",
    "error",
    "job setting that Flink does not know",
    "a key under execution.checkpointing that Flink has not, an unreadable duration; info: a table option for the "
    "whole job",
    page="maintenance/write-performance.md",
    kinds=("job",),
)
def unknown(subject: Subject) -> Iterator[Say]:
    for key, setting in subject.settings.items():
        pair = f"'{key}' = '{setting.value}'"
        if job := JOB_WORDS.get(key):
            yield Say(f"{pair}: Flink has no such key", key, (f"use '{job}'",))
        elif key.startswith(HEAD) and key not in CHECKPOINTING:
            yield Say(
                f"{pair}: Flink has no such key",
                key,
                (near(key, CHECKPOINTING) or "see Flink's checkpointing options",),
            )
        elif key in _DURATIONS:
            try:
                parse_duration(setting.value, key)
            except BadRequest as err:
                yield Say(err.message, key, (err.hint or "write it as '60 s'",))
        elif (spec := lookup(key)) is not None and {"table", "flink"} & set(spec.scope.split(",")):
            yield Say(
                f"{pair} in the job's settings acts on every Paimon table that the job reads or writes", key,
                (f"set it on the table, or SET 'paimon.CATALOG.DATABASE.TABLE.{key}'",), severity="info",
            )  # fmt: skip
