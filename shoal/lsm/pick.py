# SPDX-License-Identifier: Apache-2.0
"""When a bucket compacts, which runs it merges, and what of them is rewritten: pure functions of values.

Agrees with: UniversalCompaction, EarlyFullCompaction, ForceUpLevel0Compaction, OffPeakHours, CompactStrategy,
MergeTreeCompactManager, MergeTreeCompactTask (2.0.0). Invariant: a plan takes the newest n runs, never a run without
all that are newer, and never writes to level 0; so every key keeps its versions in order of age across levels. What a
Java writer remembers between picks is the `Memory` that goes in and comes out.

The way: `pick` says which files and to which level, `task` says which of them are merged and which only move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from shoal.errors import BadRequest
from shoal.format.datafile import DataFile
from shoal.lsm.levels import Files, Levels, Run
from shoal.lsm.sections import Section, sections


@dataclass(frozen=True, slots=True)
class OffPeak:
    """Local hours, `end` excluded and possibly past midnight, in which runs may differ more in size."""

    start: int
    end: int
    ratio: int

    def ratio_at(self, hour: int) -> int:
        wraps = self.start > self.end
        inside = (hour >= self.start or hour < self.end) if wraps else self.start <= hour < self.end
        return self.ratio if inside else 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers a pick depends on, already derived from the options: see `policy_of`."""

    trigger: int = 5
    stop_trigger: int = 8
    num_levels: int = 6
    size_ratio: int = 1
    max_size_amplification: int = 200
    min_file_size: int = 93_952_409
    optimization_interval_ms: int | None = None
    total_size_threshold: int | None = None
    incremental_size_threshold: int | None = None
    offpeak: OffPeak | None = None
    need_lookup: bool = False
    gentle_interval: int | None = None  # None is radical: level 0 goes up at every call
    force_up_level0: bool = False
    force_rewrite_all: bool = False
    deletion_vectors: bool = False
    keep_deletes: bool = False  # chain tables
    full_changelog: bool = False  # compactions to the highest level make the changelog
    last_wins: bool = False  # the newest version alone is the result: deduplicate without sequence fields
    level_formats: tuple[tuple[int, str], ...] = ()  # levels whose files have another format than the rest

    def __post_init__(self) -> None:
        if self.trigger < 1:
            raise BadRequest(f"num-sorted-run.compaction-trigger is {self.trigger}", hint="set it to 1 or more")

    def format_at(self, level: int) -> str | None:
        """The format of a level's files; None is that of the rest."""
        return dict(self.level_formats).get(level)

    def ratio_at(self, hour: int) -> int:
        """Per cent by which the next run may be larger, at this local hour."""
        return self.size_ratio + (self.offpeak.ratio_at(hour) if self.offpeak else 0)


def policy_of(
    *,
    trigger: int = 5,
    stop_trigger: int | None = None,
    num_levels: int | None = None,
    size_ratio: int = 1,
    max_size_amplification: int = 200,
    target_file_size: int = 128 << 20,
    small_file_ratio: float = 0.7,
    optimization_interval_ms: int | None = None,
    total_size_threshold: int | None = None,
    incremental_size_threshold: int | None = None,
    offpeak_start: int = -1,
    offpeak_end: int = -1,
    offpeak_ratio: int = 0,
    need_lookup: bool = False,
    lookup_gentle: bool = False,
    lookup_max_interval: int | None = None,
    force_up_level0: bool = False,
    force_rewrite_all: bool = False,
    deletion_vectors: bool = False,
    keep_deletes: bool = False,
    full_changelog: bool = False,
    last_wins: bool = False,
    level_formats: Mapping[int, str] | None = None,
) -> Policy:
    """Parsed option values to a policy; None is an option that was not set, defaults are Paimon's."""
    no_offpeak = -1 in (offpeak_start, offpeak_end) or offpeak_start == offpeak_end
    gentle = max(trigger, 2 * trigger if lookup_max_interval is None else lookup_max_interval)
    return Policy(
        trigger=trigger,
        stop_trigger=max(trigger, trigger + 3 if stop_trigger is None else stop_trigger),
        # one level more than the trigger, so that runs do not have to share a level below it
        num_levels=trigger + 1 if num_levels is None else num_levels,
        size_ratio=size_ratio,
        max_size_amplification=max_size_amplification,
        min_file_size=int(target_file_size * small_file_ratio),
        optimization_interval_ms=optimization_interval_ms,
        total_size_threshold=total_size_threshold,
        incremental_size_threshold=incremental_size_threshold,
        offpeak=None if no_offpeak else OffPeak(offpeak_start, offpeak_end, offpeak_ratio),
        need_lookup=need_lookup,
        gentle_interval=gentle if need_lookup and lookup_gentle else None,
        force_up_level0=force_up_level0,
        force_rewrite_all=force_rewrite_all,
        deletion_vectors=deletion_vectors,
        keep_deletes=keep_deletes,
        full_changelog=full_changelog,
        last_wins=last_wins,
        level_formats=tuple(sorted((level_formats or {}).items())),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """What the writer of a bucket remembers from pick to pick; it is lost when the writer restarts."""

    last_full_ms: int | None = None
    calls: int = 0  # gentle lookup: picks without result since level 0 was last forced up

    @classmethod
    def at_start(cls, files: Iterable[DataFile], policy: Policy) -> Memory:
        """The memory of a writer that restores these files: the last full compaction made the newest top file.

        Creation times are local wall clock, so the `now_ms` of a pick must be too: `clock.local_ms`.
        """
        made = (f.creation_ms for f in files if f.level == policy.num_levels - 1 and f.creation_ms is not None)
        return cls(last_full_ms=max(made, default=None))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to merge: these files, in run order, into `output_level`. `rule` and `reason` are for people."""

    output_level: int
    files: Files
    drop_delete: bool  # nothing older is left below: a row that ends as a delete is not written
    rule: str
    reason: str
    each_alone: bool = False  # rewrite every file by itself, whatever its size

    @property
    def changes_nothing(self) -> bool:
        """Nothing to do: no file, or one that is where it would go."""
        return not self.each_alone and all(f.level == self.output_level for f in self.files) and len(self.files) < 2


class Picked(NamedTuple):
    plan: Plan | None
    memory: Memory


def pick(
    levels: Levels,
    policy: Policy,
    memory: Memory,
    *,
    now_ms: int,
    hour: int,
    full: bool = False,
    deleted_in: Collection[str] = (),
    expired: Collection[str] = (),
) -> Picked:
    """Choose what to compact next; the plan is None when the bucket is healthy.

    `full` is a person's wish: everything goes to the highest level. `deleted_in` and `expired` name files with a
    deletion vector, and with rows past `record-level.expire-time`: a bucket that is full already rewrites only those.
    """
    if full:
        return Picked(_asked(levels, policy, {*deleted_in, *expired}), memory)
    plan, memory = choose(levels, policy, memory, now_ms=now_ms, hour=hour)
    return Picked(None if plan is None or plan.changes_nothing else plan, memory)


# How many of the newest runs to take, by which rule, and why.
_Choice = tuple[int, str, str]


_EARLY, _ASKED = "early full", "asked for"


def choose(levels: Levels, policy: Policy, memory: Memory, *, now_ms: int, hour: int) -> Picked:
    """The strategy alone: like `pick`, but the plan may change nothing, and is remembered all the same.

    Order of reasons: early full compaction, too much space, similar sizes, too many runs, level 0 forced up.
    """
    runs = levels.runs()
    sizes = [run.size for run in runs]
    ratio = policy.ratio_at(hour)
    calls = memory.calls
    choice = (
        _early(runs, sizes, levels.max_level, policy, memory, now_ms)
        or _by_space(sizes, policy)
        or _by_size(sizes, policy, ratio)
        or _by_count(sizes, policy, ratio)
    )
    if choice is None and (policy.need_lookup or policy.force_up_level0):
        if policy.gentle_interval is not None:
            calls = (calls + 1) % policy.gentle_interval
        if policy.gentle_interval is None or calls == 0:
            choice = _level0(runs, sizes, ratio)
    if choice is None:
        return Picked(None, Memory(memory.last_full_ms, calls))
    count, output_level = _target(runs, choice[0], levels.max_level)
    files = tuple(f for run in runs[:count] for f in run.files)
    last_full_ms = now_ms if count == len(runs) else memory.last_full_ms
    return Picked(_plan(levels, policy, output_level, files, choice[1:]), Memory(last_full_ms, calls))


def choose_runs(runs: Sequence[Run], num_levels: int, policy: Policy) -> Plan | None:
    """The strategy for runs whose files may overlap, as those of clustered tables: by space, size and count alone."""
    sizes = [run.size for run in runs]
    ratio = policy.size_ratio
    choice = _by_space(sizes, policy) or _by_size(sizes, policy, ratio) or _by_count(sizes, policy, ratio)
    if choice is None:
        return None
    count, output_level = _target(runs, choice[0], num_levels - 1)
    return Plan(output_level, tuple(f for run in runs[:count] for f in run.files), False, *choice[1:])


def _early(
    runs: Sequence[Run], sizes: Sequence[int], max_level: int, policy: Policy, memory: Memory, now_ms: int
) -> _Choice | None:
    """A full compaction before the sizes ask for one."""
    if len(runs) == 1:
        return None
    interval, last = policy.optimization_interval_ms, memory.last_full_ms
    if interval is not None and last is None:
        return len(runs), _EARLY, "no full compaction known"
    if interval is not None and last is not None and now_ms - last > interval:
        return len(runs), _EARLY, f"last full compaction {_minutes(now_ms - last)} ago, over {_minutes(interval)}"
    total, small = sum(sizes), policy.total_size_threshold
    if small is not None and total < small:
        return len(runs), _EARLY, f"bucket of {_bytes(total)} is under {_bytes(small)}"
    above = sum(size for run, size in zip(runs, sizes, strict=True) if run.level != max_level)
    limit = policy.incremental_size_threshold
    if limit is not None and above > limit:
        return len(runs), _EARLY, f"{_bytes(above)} outside the last level, over {_bytes(limit)}"
    return None


def _by_space(sizes: Sequence[int], policy: Policy) -> _Choice | None:
    """Too many bytes for what the oldest run holds, even if that is a level-0 file."""
    if len(sizes) < policy.trigger:
        return None
    newer, oldest = sum(sizes[:-1]), sizes[-1]
    if newer * 100 <= policy.max_size_amplification * oldest:
        return None
    percent = f"{newer * 100 // oldest} %" if oldest else "without bound"
    return len(sizes), "space", f"size amplification {percent} over {policy.max_size_amplification} %"


def _by_size(sizes: Sequence[int], policy: Policy, ratio: int) -> _Choice | None:
    if len(sizes) < policy.trigger:
        return None
    count = _similar(sizes, 1, ratio)
    return (count, "size ratio", f"{count} newest runs of similar size, ratio {ratio} %") if count > 1 else None


def _by_count(sizes: Sequence[int], policy: Policy, ratio: int) -> _Choice | None:
    if len(sizes) <= policy.trigger:
        return None
    return (
        _similar(sizes, len(sizes) - policy.trigger + 1, ratio),
        "run count",
        f"{len(sizes)} runs over trigger {policy.trigger}",
    )


def _level0(runs: Sequence[Run], sizes: Sequence[int], ratio: int) -> _Choice | None:
    """All of level 0, with level 1: a result may not stay on level 0, so level 1 has to come along anyway."""
    level0 = sum(run.level == 0 for run in runs)
    if level0 == 0:
        return None
    with_level1 = level0 + (level0 < len(runs) and runs[level0].level == 1)
    return _similar(sizes, with_level1, ratio), "level 0", f"{level0} level-0 file{'s' if level0 > 1 else ''} forced up"


def _similar(sizes: Sequence[int], count: int, ratio: int) -> int:
    """Extend the first `count` runs by every next one that is not much larger than all before it together."""
    taken = sum(sizes[:count])
    # In floats, as Java does: near the threshold the rounding decides.
    while count < len(sizes) and not taken * (100.0 + ratio) / 100.0 < float(sizes[count]):
        taken += sizes[count]
        count += 1
    return count


def _target(runs: Sequence[Run], count: int, max_level: int) -> tuple[int, int]:
    """The runs to take and their output level: right above the next run, but never level 0."""
    if count < len(runs) and runs[count].level > 1:
        return count, runs[count].level - 1
    # The next run is on level 0 or 1: take level 0 to its end and the first run behind it, and stay on its level.
    while count < len(runs):
        count += 1
        if runs[count - 1].level > 0:
            break
    return count, max_level if count == len(runs) else runs[count - 1].level


def _asked(levels: Levels, policy: Policy, stale: Collection[str]) -> Plan | None:
    """A full compaction on request."""
    runs = levels.runs()
    if not runs:
        return None
    if len(runs) > 1 or runs[0].level != levels.max_level:
        return _plan(levels, policy, levels.max_level, levels.files, (_ASKED, "full compaction asked for"))
    files = tuple(f for f in runs[0].files if policy.force_rewrite_all or f.file_name in stale)
    reason = f"full compaction asked for: {len(files)} of {len(levels.files)} files to rewrite"
    return _plan(levels, policy, levels.max_level, files, (_ASKED, reason), each_alone=True) if files else None


def _plan(
    levels: Levels, policy: Policy, output_level: int, files: Files, why: tuple[str, str], *, each_alone: bool = False
) -> Plan:
    # With deletion vectors an old row is marked when it is replaced, so a delete has nothing left to hide.
    oldest = output_level >= levels.non_empty_highest_level or policy.deletion_vectors
    drop_delete = oldest and output_level != 0 and not policy.keep_deletes
    return Plan(output_level, files, drop_delete, *why, each_alone)


class Wait(NamedTuple):
    """What a writer should wait for, before it goes on."""

    flush: bool  # a flush waits for the running compaction
    commit: bool  # so does a checkpoint
    unfinished: bool  # a lookup table still has level-0 files: keep the writer open, it has work to do


def should_wait(levels: Levels, policy: Policy) -> Wait:
    """Back pressure: a bucket with too many runs stops its writer."""
    runs = levels.run_count
    return Wait(runs > policy.stop_trigger, runs > policy.stop_trigger + 1, policy.need_lookup and bool(levels.level0))


@dataclass(frozen=True, slots=True)
class Task:
    """How a plan is carried out. Each rewrite is one merge of consecutive sections; upgrades change the level only."""

    output_level: int
    drop_delete: bool
    rewrites: tuple[tuple[Section, ...], ...]
    upgrades: Files


def task(plan: Plan, levels: Levels, policy: Policy, *, expired: Collection[str] = ()) -> Task:
    """Merge what overlaps or is small; move a large file that overlaps nothing.

    For the plain rewriter. One that makes a changelog looks at `upgrades` again: some of those it must read.
    """
    if plan.each_alone:
        return Task(plan.output_level, plan.drop_delete, tuple((((f,),),) for f in plan.files), ())

    def must_rewrite(f: DataFile) -> bool:
        # The last level holds no deletes. An unknown count may be one.
        deletes = plan.output_level == levels.max_level and f.delete_row_count != 0
        return deletes or policy.force_rewrite_all or f.file_name in expired

    rewrites: list[tuple[Section, ...]] = []
    upgrades: list[DataFile] = []
    for group in _groups(sections(plan.files, levels.bounds), policy.min_file_size):
        lone = group[0][0][0] if len(group) == len(group[0]) == 1 else None
        if lone is None or must_rewrite(lone):
            rewrites.append(group)
        elif lone.level != plan.output_level:
            upgrades.append(lone)
    return Task(plan.output_level, plan.drop_delete, tuple(rewrites), tuple(upgrades))


class Upgrade(Enum):
    """What becomes of a file that could just move to the output level."""

    MOVE = "move"
    CHANGELOG = "changelog"  # it is read for the changelog, and moves
    REWRITE = "rewrite"  # it is merged with what lies above, by itself


def upgrade(file: DataFile, output_level: int, policy: Policy) -> Upgrade:
    """How the table's changelog, lookups and formats let a file move up.

    Agrees with: FullChangelogMergeTreeCompactRewriter, LookupMergeTreeCompactRewriter.upgradeStrategy (2.0.0).
    """
    highest = output_level == policy.num_levels - 1
    if policy.full_changelog:
        return Upgrade.CHANGELOG if highest else Upgrade.MOVE
    if not policy.need_lookup or file.level != 0:
        return Upgrade.MOVE
    if policy.format_at(0) != policy.format_at(output_level):
        return Upgrade.REWRITE
    if policy.deletion_vectors and file.delete_row_count != 0:
        return Upgrade.REWRITE  # its deletes are done by marking: none may stay
    if highest or policy.last_wins:
        return Upgrade.CHANGELOG
    return Upgrade.REWRITE  # a row of another engine holds what lies above it


def tells_changes(group: Sequence[Section], output_level: int, policy: Policy) -> bool:
    """Whether a rewrite looks rows up or makes a changelog, or just merges."""
    if policy.full_changelog:
        return output_level == policy.num_levels - 1
    if not policy.need_lookup or output_level == 0:
        return False
    return any(f.level == 0 for section in group for run in section for f in run)


def _groups(parts: Iterable[Section], min_file_size: int) -> Iterator[tuple[Section, ...]]:
    """Neighbouring sections that become one merge; a large file that overlaps nothing stands alone between them."""
    pending: list[Section] = []
    for section in parts:
        if len(section) > 1:
            pending.append(section)
            continue
        for file in section[0]:
            alone = ((file,),)
            if file.file_size < min_file_size:
                pending.append(alone)
                continue
            if pending:
                yield tuple(pending)
                pending = []
            yield (alone,)
    if pending:
        yield tuple(pending)


def _bytes(n: int) -> str:
    size, unit = float(n), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.3g} {unit}"


def _minutes(ms: int) -> str:
    return f"{ms / 60_000:.3g} min"
