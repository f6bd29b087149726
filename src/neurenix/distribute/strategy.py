"""Strategies: which devices compute, and how a batch is shared among them.

Owns the choice of devices, the scope, and the entrances for custom loops. Every strategy here is
data parallel: parameters are whole on every replica, the batch is split. It does not own the
training step, which is the same program for every strategy.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceNotFoundError,
    unknown_name,
)
from neurenix.device import Device, DeviceType, device_of, devices, from_jax
from neurenix.distribute.cluster import TPUClusterResolver
from neurenix.distribute.input import (
    DistributedDataset,
    InputContext,
    PerReplicaDataset,
    per_replica_batch_size,
)
from neurenix.distribute.mesh import batch_sharded, data_mesh, replicated
from neurenix.distribute.run import ReplicatedFunction
from neurenix.distribute.values import PerReplica

_REDUCTIONS = {"sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min}
_REMEMBERED_FUNCTIONS = 64


class Strategy:
    """Data-parallel computation on ``devices``: one replica on each.

    Args:
        devices: the devices, all of one type.

    Example:
        >>> strategy = Strategy(devices(DeviceType.TPU))
        >>> strategy.num_replicas_in_sync
        8
        >>> strategy.run(lambda x: x * 2, args=(3.0,))[0]
        Array(6., dtype=float32, weak_type=True)
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        if not devices:
            raise DeviceNotFoundError("A strategy needs at least one device, got none.")
        self.devices = tuple(devices)
        self._functions: OrderedDict[Any, ReplicatedFunction] = OrderedDict()

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices as a mesh with the axis ``"data"``."""
        return data_mesh([device.jax_device for device in self.devices])

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas, each of which computes a share of every batch."""
        return len(self.devices)

    @property
    def state_sharding(self) -> jax.sharding.Sharding:
        """Where parameters and optimizer state lie: whole, on every device."""
        if len(self.devices) == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0].jax_device)
        return replicated(self.mesh)

    def batch_sharding(self, *, leading: int = 0) -> jax.sharding.Sharding:
        """Where a batch lies: axis number ``leading`` split over the replicas."""
        if len(self.devices) == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0].jax_device)
        return batch_sharded(self.mesh, leading=leading)

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return ``global_batch_size`` divided by the replicas.

        Raises:
            ShapeError: it does not divide.
        """
        return per_replica_batch_size(global_batch_size, self.num_replicas_in_sync)

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Make this the strategy of every model that is compiled, and of every step, inside."""
        token = _scope.set(self)
        try:
            yield self
        finally:
            _scope.reset(token)

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``function`` on every replica, compiled at its first call.

        Arguments that are split over the replicas (``PerReplica``, batches of ``distribute``)
        arrive as the replica's share, others whole: a plain NumPy batch goes whole to *every*
        replica, which then all compute the same. Modules and optimizers are updated in place.

        Returns:
            ``PerReplica`` for each array that the function returns.
        """
        if not callable(function):
            raise ArgumentTypeError(f"strategy.run: function is {function!r}, not a function.")
        compiled = self._functions.pop(function, None)
        if compiled is None:
            compiled = ReplicatedFunction(function, self.mesh)
        self._functions[function] = compiled
        if len(self._functions) > _REMEMBERED_FUNCTIONS:
            self._functions.popitem(last=False)
        return compiled(args, kwargs or {})

    def reduce(self, op: str, value: Any, *, axis: int | None = None) -> Any:
        """Return the ``"sum"``, ``"mean"``, ``"max"`` or ``"min"`` of ``value`` over replicas.

        Args:
            op: the reduction.
            value: ``PerReplica`` or a tree of them.
            axis: an axis of each replica's value to reduce too; None keeps its shape.

        Raises:
            UnknownNameError: there is no such reduction.
        """
        if op not in _REDUCTIONS:
            raise unknown_name("reduction", op, _REDUCTIONS)
        axes = (0,) if axis is None else (0, axis + 1)

        def reduce_one(item: Any) -> Any:
            if not isinstance(item, PerReplica):
                raise ArgumentTypeError(
                    f"strategy.reduce: expected PerReplica values, got {type(item).__name__}."
                )
            return jax.tree.map(lambda x: _REDUCTIONS[op](x, axis=axes), item.stacked)

        return jax.tree.map(reduce_one, value, is_leaf=lambda item: isinstance(item, PerReplica))

    def distribute(self, dataset: Iterable[Any]) -> DistributedDataset:
        """Return ``dataset`` with every (global) batch split over the replicas."""
        return DistributedDataset(dataset, self)

    def distribute_from_function(
        self, function: Callable[[InputContext], Iterable[Any]]
    ) -> PerReplicaDataset:
        """Return a dataset of ``PerReplica`` batches.

        Args:
            function: called with an ``InputContext``; returns a dataset of *per-replica* batches,
                of which each replica takes the next one in turn.
        """
        context = InputContext(jax.process_count(), jax.process_index(), self.num_replicas_in_sync)
        return PerReplicaDataset(function(context), self)

    def __repr__(self) -> str:
        names = f"{self.devices[0]}" + (f" … {self.devices[-1]}" if len(self.devices) > 1 else "")
        return f"{type(self).__name__}({self.num_replicas_in_sync} replicas: {names})"


class TPUStrategy(Strategy):
    """One replica on every device of a TPU slice, real or simulated.

    Args:
        resolver: the slice; by default the one that this process is part of.

    Raises:
        DeviceNotFoundError: there is no TPU.
    """

    def __init__(self, resolver: TPUClusterResolver | None = None) -> None:
        self.resolver = resolver or TPUClusterResolver()
        super().__init__(self.resolver.devices())


class MirroredStrategy(Strategy):
    """One replica on every GPU of this machine, or on every device given.

    Args:
        devices: names such as ``"cuda:0"``; by default all GPUs.

    Raises:
        DeviceNotFoundError: there is no GPU, or a device given is not there.
    """

    def __init__(self, devices: Sequence[str | Device] | None = None) -> None:
        chosen = _gpus() if devices is None else [Device(device) for device in devices]
        if devices is None and not chosen:
            Device(DeviceType.CUDA, 0).jax_device  # noqa: B018  raises, saying what is there
        super().__init__(chosen)


class OneDeviceStrategy(Strategy):
    """Everything on one device.

    Args:
        device: the device, by default the CPU.
    """

    def __init__(self, device: str | Device = "cpu") -> None:
        super().__init__([Device(device)])


def auto() -> Strategy:
    """Return the strategy for what is there: the TPU slice, else all GPUs, else the CPU.

    The choice is said on the standard error stream.

    Example:
        >>> auto().num_replicas_in_sync
        8
    """
    if devices(DeviceType.TPU):
        strategy: Strategy = TPUStrategy()
    elif _gpus():
        strategy = MirroredStrategy()
    else:
        strategy = OneDeviceStrategy()
    sys.stderr.write(f"neurenix: {strategy}\n")
    return strategy


_scope: ContextVar[Strategy | None] = ContextVar("neurenix_strategy", default=None)


def get_strategy() -> Strategy | None:
    """Return the strategy whose scope the program is in, or None.

    Example:
        >>> get_strategy() is None
        True
    """
    return _scope.get()


def strategy_for(array: jax.Array) -> Strategy:
    """Return the strategy for a model outside of any scope: the devices that ``array`` lies on.

    Raises:
        ArgumentError: it is divided over several devices.
    """
    sharding = array.sharding
    if len(sharding.device_set) == 1:
        return OneDeviceStrategy(device_of(array))
    if not sharding.is_fully_replicated:
        raise ArgumentError(
            f"The parameters are divided over {len(sharding.device_set)} devices and no strategy "
            "says how: train inside of strategy.scope(), or give TrainOptions(strategy=…)."
        )
    held = sorted(sharding.device_set, key=lambda device: device.id)
    mesh = getattr(sharding, "mesh", None)
    if isinstance(mesh, jax.sharding.Mesh):
        held = list(mesh.devices.flat)  # in the order of the strategy that put it there
    return Strategy([from_jax(device) for device in held])


def _gpus() -> list[Device]:
    return devices(DeviceType.CUDA) or devices(DeviceType.ROCM)
