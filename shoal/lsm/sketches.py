# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions whose values are bytes of a set: rbm32, rbm64, hll_sketch, theta_sketch.

Each step unites two values and writes bytes again, as Java does, so the bytes come out equal; merging is one library
call per value, so keys with a single value are left alone and the others are walked one by one.
Agrees with: FieldRoaringBitmap32Agg, FieldRoaringBitmap64Agg, FieldHllSketchAgg, FieldThetaSketchAgg (2.0.0).
Invariant: null and a value give that value, byte for byte.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from shoal.errors import BadRequest, MissingExtra, ShoalError
from shoal.format.roaring import united32
from shoal.lsm.aggregates import Aggregate, contributions
from shoal.lsm.radix_bitmap import united64
from shoal.lsm.versions import OLDER, Steps, taken

if TYPE_CHECKING:
    import pyarrow as pa


class Sketch(Aggregate):
    """Unites sketches; it cannot take one back."""

    roots = ("VARBINARY",)
    wants = "BYTES"

    @abstractmethod
    def united(self, a: bytes, b: bytes) -> bytes:
        """agg(a, b) of two values that are not null."""

    def fold(self, values: pa.Array, steps: Steps) -> pa.Array:
        import pyarrow as pa

        steps = contributions(values, steps.current)
        several = steps.counts > 1
        at = np.full(steps.size, -1, np.int64)
        owners = np.arange(steps.size) if steps.groups is None else steps.groups
        at[owners[~several]] = steps.rows[steps.starts[~several]]
        if not several.any():
            return taken(values, at)
        at[owners[several]] = len(values) + np.arange(int(several.sum()))
        made = pa.array(self._each(values, steps.only(several)), values.type)
        return taken(pa.concat_arrays([values, made]), at)

    def _each(self, values: pa.Array, steps: Steps) -> list[bytes]:
        import pyarrow as pa

        data = values.take(pa.array(steps.rows)).to_pylist()
        late = [False] * len(data) if steps.ops is None else (steps.ops == OLDER).tolist()
        out = []
        for start, end in zip(steps.starts.tolist(), (steps.ends + 1).tolist()):
            value = data[start]
            for i in range(start + 1, end):
                value = self._step(data[i], value) if late[i] else self._step(value, data[i])
            out.append(value)
        return out

    def _step(self, a: bytes, b: bytes) -> bytes:
        try:
            return self.united(a, b)
        except ModuleNotFoundError as err:
            raise MissingExtra(
                f"column '{self.column}': aggregate function '{self.function}' needs the package {err.name}",
                hint="pip install 'shoal[sketches]'",
            ) from err
        except ShoalError:
            raise
        except (ValueError, RuntimeError, IndexError) as err:  # what the libraries raise for foreign bytes
            raise BadRequest(
                f"column '{self.column}': a value is no {self.function}: {err}",
                hint="values of such a column must be written as serialised sketches",
            ) from err


class Bitmap32(Sketch):
    def united(self, a: bytes, b: bytes) -> bytes:
        return united32(a, b)


class Bitmap64(Sketch):
    def united(self, a: bytes, b: bytes) -> bytes:
        return united64(a, b)


class Hll(Sketch):
    """HyperLogLog. The C++ library behind the package agrees with Java's on every register, not on the running estimate
    when single values meet registers, so those calls are led past its shortcuts.
    """

    def united(self, a: bytes, b: bytes) -> bytes:
        import datasketches

        # Java turns the second sketch into the union, so its size is what the union starts with
        second = datasketches.hll_sketch.deserialize(b)
        union = datasketches.hll_union(second.lg_config_k)
        one_has_registers = _has_registers(a) != _has_registers(b)
        out_of_order = one_has_registers and bool((a if _has_registers(a) else b)[5] & _OUT_OF_ORDER)
        if out_of_order:  # Java goes on adding to the estimate of such a sketch
            a, b = _flagged(a, False), _flagged(b, False)
            second = datasketches.hll_sketch.deserialize(b)
        first = datasketches.hll_sketch.deserialize(a)
        if one_has_registers and _has_registers(a) and first.lg_config_k > second.lg_config_k:
            # reduced on its own first: the library adds values to registers whose sums it has not made yet
            reduced = datasketches.hll_union(second.lg_config_k)
            reduced.update(first)
            first = reduced.get_result(datasketches.tgt_hll_type.HLL_8)
        union.update(second)
        union.update(first)
        made = bytes(union.get_result(datasketches.tgt_hll_type.HLL_4).serialize_compact())
        return _flagged(made, True) if out_of_order else made


_OUT_OF_ORDER = 16


def _has_registers(sketch: bytes) -> bool:
    return sketch[7] & 3 == 2


def _flagged(sketch: bytes, out_of_order: bool) -> bytes:
    flags = sketch[5] | _OUT_OF_ORDER if out_of_order else sketch[5] & ~_OUT_OF_ORDER
    return sketch[:5] + bytes([flags]) + sketch[6:]


class Theta(Sketch):
    def united(self, a: bytes, b: bytes) -> bytes:
        import datasketches

        union = datasketches.theta_union()
        union.update(datasketches.compact_theta_sketch.deserialize(_compact(a)))
        union.update(datasketches.compact_theta_sketch.deserialize(_compact(b)))
        result = union.get_result()
        if result.is_empty():
            return bytes([1, 3, _COMPACT, 0, 0, 0x1E, 0, 0])
        made = bytes(result.serialize())
        # Java notes the sampling rate, 1.0, where there is room for it
        return made[:12] + b"\x00\x00\x80\x3f" + made[16:] if made[0] & 63 > 1 else made


_UPDATABLE, _COMPACT = 2, 3
_EMPTY = 4


def _compact(sketch: bytes) -> bytes:
    """A theta sketch as the compact form: one that can be updated is a hash table, zeros where it is free."""
    if sketch[2] != _UPDATABLE:
        return sketch
    if sketch[5] & _EMPTY:
        return bytes([1, 3, _COMPACT, 0, 0, 0x1E]) + sketch[6:8]
    table = np.frombuffer(sketch, "<u8", offset=24)
    held = np.sort(table[table != 0]).tobytes()
    count = (len(held) // 8).to_bytes(4, "little")
    return bytes([3, 3, _COMPACT, 0, 0, 0x1A]) + sketch[6:8] + count + sketch[12:24] + held
