# SPDX-License-Identifier: Apache-2.0
"""Which snapshots and decoupled changelogs are old enough to go: a decision over ids and times, without any file.

Agrees with: ExpireSnapshotsImpl.expire, ExpireChangelogImpl.expire, ExpireConfig, CoreOptions.expireConfig (2.0.0).
Invariant: what goes is a range from the oldest id on; the newest `least` always stay, and so does every snapshot that
a consumer still needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from shoal.errors import BadRequest
from shoal.options import Options

# Epoch milliseconds of a snapshot by id; None when it is not there (another expiry was faster).
Times = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a history stays: at most `most`, at least `least`, the last `time_ms`; `limit` go at once."""

    most: int
    least: int
    time_ms: int
    limit: int


@dataclass(frozen=True, slots=True)
class Retention:
    """What a table's options say about its past."""

    snapshots: Keep
    changelogs: Keep
    decoupled: bool  # changelogs live longer than their snapshots
    consumers_hold_snapshots: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The ids `begin` to `end - 1` go; `reason` is what keeps `end`, `young` whether that is its age."""

    begin: int
    end: int
    reason: str
    young: bool = False

    @property
    def ids(self) -> range:
        return range(self.begin, self.end)


@dataclass(frozen=True, slots=True)
class First:
    """The oldest that stays, and the time that must be over before it goes: None when that is not known."""

    id: int
    time_ms: int | None


@dataclass(frozen=True, slots=True)
class Quiet:
    """What a look left behind: as long as it holds, there is nothing to expire, and no need to look."""

    retention: Retention
    snapshot: First
    changelog: First | None

    def holds(self, newest: int, now_ms: int) -> bool:
        """Whether nothing can be due once snapshot `newest` is there. A table that went back is looked at anew."""
        if newest < self.snapshot.id or _due(self.snapshot, self.retention.snapshots, newest, now_ms):
            return False
        return self.changelog is None or not _due(self.changelog, self.retention.changelogs, newest, now_ms)


def _due(first: First, keep: Keep, newest: int, now_ms: int) -> bool:
    if first.id > newest - keep.least:
        return False
    return first.id <= newest - keep.most or first.time_ms is None or first.time_ms < now_ms - keep.time_ms


def retention_of(
    options: Options, *, retain_max: int | None = None, retain_min: int | None = None, max_deletes: int | None = None
) -> Retention:
    """The retention of a table, with what the caller wants otherwise for its snapshots.

    Changelogs that live longer than the snapshots keep the retention of the table's options whatever is given here.
    """
    own = Keep(
        cast(int, options.get("snapshot.num-retained.max")),
        cast(int, options.get("snapshot.num-retained.min")),
        cast(int, options.get("snapshot.time-retained")),
        cast(int, options.get("snapshot.expire.limit")),
    )
    longer = Keep(
        _or(options.get("changelog.num-retained.max"), own.most),
        _or(options.get("changelog.num-retained.min"), own.least),
        _or(options.get("changelog.time-retained"), own.time_ms),
        own.limit if max_deletes is None else max_deletes,
    )
    decoupled = longer.most > own.most or longer.least > own.least or longer.time_ms > own.time_ms
    most, least = _or(retain_max, own.most), _or(retain_min, own.least)
    wanted = replace(own, most=most, least=least, limit=_or(max_deletes, own.limit))
    for what, keep in (("snapshot", wanted), ("changelog", longer)):
        _check(what, keep)
    only_changelogs = bool(options.get("consumer.changelog-only")) and decoupled
    return Retention(wanted, longer, decoupled, not only_changelogs)


def _or(value: object, default: int) -> int:
    return default if value is None else cast(int, value)


def _check(what: str, keep: Keep) -> None:
    if keep.least < 1 or keep.most < keep.least:
        raise BadRequest(
            f"{what}.num-retained.max ({keep.most}) must not be less than {what}.num-retained.min ({keep.least}), "
            "and that not less than 1",
            hint="raise the maximum or lower the minimum",
        )
    if keep.limit < 0:
        raise BadRequest(f"max_deletes is {keep.limit}", hint="take 0 or more")


def plan_snapshots(
    earliest: int, latest: int, times: Times, keep: Keep, before_ms: int, consumer: int | None = None
) -> Plan:
    """Which of the snapshots `earliest` to `latest` go.

    A snapshot may go once its successor is older than `before_ms`: until then it was the newest. Those beyond `most`
    go whatever their age. `consumer` is the oldest snapshot that a consumer needs.
    """
    end, reason, young = latest - keep.least + 1, f"the newest {keep.least} are kept", False
    if consumer is not None and consumer < end:
        end, reason = consumer, f"a consumer has not read snapshot {consumer}"
    if earliest + keep.limit < end:
        end, reason = earliest + keep.limit, f"{keep.limit} go at once"
    for i in range(max(latest - keep.most + 1, earliest), end):
        time = times(i + 1)
        if time is not None and before_ms <= time:
            end, reason, young = i, f"snapshot {i + 1} is not old enough", True
            break
    return Plan(earliest, max(end, earliest), reason, young)


def plan_changelogs(
    earliest: int, last: int, latest: int, times: Times, keep: Keep, before_ms: int, consumer: int | None = None
) -> Plan:
    """Which of the decoupled changelogs `earliest` to `last` go; `latest` is the newest snapshot.

    Unlike a snapshot, a changelog goes by its own age; the newest one always stays.
    """
    end, reason, young = latest - keep.least + 1, f"the newest {keep.least} are kept", False
    if consumer is not None and consumer < end:
        end, reason = consumer, f"a consumer has not read snapshot {consumer}"
    if earliest + keep.limit < end:
        end, reason = earliest + keep.limit, f"{keep.limit} go at once"
    if last < end:
        end, reason = last, "the newest changelog is kept"
    if end > earliest:
        for i in range(max(latest - keep.most + 1, earliest), end + 1):
            time = times(i)
            if time is not None and before_ms <= time:
                end, reason, young = i, f"changelog {i} is not old enough", True
                break
    return Plan(earliest, max(end, earliest), reason, young)
