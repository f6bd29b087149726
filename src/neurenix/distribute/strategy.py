"""Strategies: which devices compute, and how batches and parameters are sharded over them.

Owns the choice of devices, the scope, and the entry points of custom loops. By default parameters
are replicated and the batch is sharded; a mesh with the axes ``"fsdp"`` or ``"tensor"`` also shards
parameters. Does not own the training step, which does not depend on the strategy, or the sharding
rules (``rules``).
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, Self

import jax

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
)
from neurenix._core.names import OptionsExplained
from neurenix._jit.recompilation import AnewWatch
from neurenix.device import Device, DeviceType, devices, from_jax
from neurenix.distribute.batch_input import (
    DistributedDataset,
    InputContext,
    PerReplicaDataset,
    per_replica_batch_size,
)
from neurenix.distribute.cluster import TPUClusterResolver
from neurenix.distribute.device_list import checked_devices, gpus, gpus_or_cpu
from neurenix.distribute.mesh import (
    BATCH_AXES,
    DATA_AXIS,
    MESH_AXES,
    axes_over,
    batch_sharded,
    data_mesh,
    device_mesh,
    replicated,
)
from neurenix.distribute.replica import get_replica_context
from neurenix.distribute.rules import Rule, ShardingRules, as_rules
from neurenix.distribute.run_replicas import ReplicatedFunction
from neurenix.distribute.scope import Scope
from neurenix.distribute.state_sharding import Placement
from neurenix.distribute.values import reduced

_REMEMBERED_FUNCTIONS = 64


class Strategy(OptionsExplained):
    """Computation on ``devices``, with one replica on each unless ``mesh`` is given.

    Args:
        devices: distinct devices of one type, or their names.
        mesh: names and sizes of the mesh's axes, whose product must equal the device count; one
            axis ``"data"`` by default. Batches are sharded over ``"data"`` and ``"fsdp"``,
            parameters and optimizer state over ``"fsdp"`` (gathered on use) and ``"tensor"``.
        rules: sharding rules for parameters; by default those of the model's ``sharding_rules()``,
            or the largest axis that ``"fsdp"`` divides. ``fit`` applies them; with ``nx.jit`` and
            ``run``, parameters stay replicated.

    Attributes:
        num_replicas_in_sync: number of replicas, each of which processes one share of a batch.

    Raises:
        DeviceNotFoundError: ``devices`` is empty, or a device does not exist.
        ShapeError: the product of the sizes is not the device count.
        ArgumentError: a device occurs twice, the devices are of several types, or an axis name is
            unknown.
        ArgumentTypeError: ``devices`` is not a sequence of devices.

    Example:
        >>> strategy = nx.distribute.Strategy(nx.devices(nx.DeviceType.TPU))
        >>> strategy.num_replicas_in_sync
        8
        >>> strategy.run(lambda x: x * 2, args=(3.0,))[0]
        Array(6., dtype=float32, weak_type=True)
    """

    def __init__(
        self,
        devices: Sequence[Device | str],
        *,
        mesh: Mapping[str, int] | None = None,
        rules: ShardingRules | Sequence[Rule] | None = None,
    ) -> None:
        found = [device.jax_device for device in checked_devices(devices)]
        self._set_up(found, mesh, None if rules is None else as_rules(rules))

    def _set_up(
        self, devices: list[Any], mesh: Mapping[str, int] | None, rules: ShardingRules | None
    ) -> None:
        self._jax_devices, self.rules = devices, rules
        self._axes = None if mesh is None else axes_over(mesh, len(devices))
        sizes = self._axes or {DATA_AXIS: len(devices)}
        self.num_replicas_in_sync = math.prod(sizes.get(name, 1) for name in BATCH_AXES)
        self._functions: OrderedDict[Any, ReplicatedFunction] = OrderedDict()
        self._anew = AnewWatch()

    @classmethod
    def _over(cls, devices: Iterable[Any], mesh: Mapping[str, int] | None = None) -> Self:
        """Return the strategy for devices of JAX: they exist, so nothing is looked up."""
        strategy = cls.__new__(cls)
        strategy._set_up(list(devices), mesh, None)
        return strategy

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices, one for each replica where there is no mesh."""
        return tuple(map(from_jax, self._jax_devices))

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices as a mesh, by default with one axis, ``"data"``."""
        devices = self._jax_devices
        return data_mesh(devices) if self._axes is None else device_mesh(devices, self._axes)

    @property
    def state_sharding(self) -> jax.sharding.Sharding:
        """The sharding of state without a rule: replicated."""
        if len(self._jax_devices) == 1:
            return jax.sharding.SingleDeviceSharding(self._jax_devices[0])
        return replicated(self.mesh)

    def mesh_axes(self, num_devices: int) -> dict[str, int]:
        """Return the mesh's axes for ``num_devices``, with the batch axis resized.

        Raises:
            ShapeError: the product of the other axes does not divide ``num_devices``.
        """
        axes = dict(self._axes or {DATA_AXIS: len(self._jax_devices)})
        grown = next((name for name in BATCH_AXES if name in axes), next(iter(axes)))
        others = math.prod(size for name, size in axes.items() if name != grown)
        if num_devices % others:
            raise ShapeError(
                f"The strategy's mesh {axes} cannot be laid over {num_devices} devices: {others} "
                f"does not divide them. Say how with mesh=."
            )
        return axes | {grown: num_devices // others}

    @property
    def may_shard_state(self) -> bool:
        """Whether ``placement`` may shard the state of a model: there is a mesh of devices."""
        return self._axes is not None and len(self._jax_devices) > 1

    def placement(self, parameters: Any, rules: ShardingRules | None = None) -> Placement | None:
        """Return the shardings of a model's state, or None if all of it is replicated.

        Args:
            parameters: of the model, arrays or shapes.
            rules: of the model, used if the strategy has none.
        """
        if not self.may_shard_state:
            return None
        placement = Placement(self.mesh, parameters, self.rules or rules)
        return placement if placement.divides else None

    def batch_sharding(self, *, leading: int = 0) -> jax.sharding.Sharding:
        """Return the sharding of a batch: axis ``leading`` is sharded over the replicas."""
        if len(self._jax_devices) == 1:
            return jax.sharding.SingleDeviceSharding(self._jax_devices[0])
        return batch_sharded(self.mesh, leading=leading)

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return ``global_batch_size`` divided by the number of replicas.

        Raises:
            ShapeError: there is a remainder.
        """
        return per_replica_batch_size(global_batch_size, self.num_replicas_in_sync)

    def scope(self) -> Scope[Strategy]:
        """Return a context in which models and steps use this strategy.

        A model made in the scope and compiled outside uses it too, as in Keras. The scope of
        ``compile`` takes precedence, then that of ``fit``, then that in which the model was made,
        until ``model.to`` moves it.
        """
        return Scope(_scope, self)

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``function`` on every replica. It is compiled at the first call.

        Sharded arguments (``PerReplica``, batches of ``distribute``) arrive as the replica's share.
        All others are replicated: *every* replica gets a whole NumPy batch and computes the same.
        Modules and optimizers are updated in place and must be arguments, not entries of a tuple or
        a dict. Functions (such as a loss), strings, enums and dataclasses of these are static and
        compared by value.

        Inside a function that ``nx.jit`` compiles, the arguments of that function are sharded or
        replicated as outside. Values computed from a share raise there, as does any array inside
        ``jax.jit``, because their sharding is unknown.

        Batch statistics that replicas change are averaged, and metric states are summed. All other
        variables must be equal on every replica, as parameters are after ``Optimizer.update``. The
        program is checked for that before its first run. Variables that are equal by coincidence
        raise, too.

        Args:
            function: a function, a module, its method, or a ``functools.partial``. Create it once:
                a new function is compiled again. A partial can fix static arguments.
            args: positional arguments.
            kwargs: keyword arguments.

        Returns:
            The function's result, with a ``PerReplica`` for each array.

        Raises:
            ArgumentError: the function captures a module, a variable may differ between replicas, a
                metric's states cannot be summed, a batch belongs to another strategy, or ``run`` is
                called inside ``run``.
            ArgumentTypeError: a module is inside a tuple or a dict, an argument can be neither
                traced nor static, a result is not an array, or ``args`` is not a tuple.
            ShapeError: the length of a ``PerReplica`` is not the number of replicas.
        """
        if not callable(function):
            raise ArgumentTypeError(f"strategy.run: function is {function!r}, not a function.")
        if not isinstance(args, (tuple, list)):
            raise ArgumentTypeError(
                f"strategy.run: args is {type(args).__name__}, expected a tuple of arguments. For "
                "one argument write args=(value,), with a comma."
            )
        if self._axes is not None and set(self._axes) != {DATA_AXIS}:
            raise ArgumentError(
                f"strategy.run is for data parallelism; this strategy's mesh is {self._axes}. Use "
                "fit, or a step compiled by nx.jit over batches of strategy.distribute."
            )
        if get_replica_context().is_running:
            raise ArgumentError(
                "strategy.run is called by a function that strategy.run runs, which is one replica "
                "already. Call the inner function itself."
            )
        # The compiled function holds an unhashable function, so its id stays valid
        key = function if _has_hash(function) else id(function)
        compiled = self._functions.pop(key, None)
        if compiled is None:
            compiled = ReplicatedFunction(function, self.mesh)
            self._anew.first_call(function)
        else:
            self._anew.next_call(function)
        self._functions[key] = compiled
        if len(self._functions) > _REMEMBERED_FUNCTIONS:
            self._functions.popitem(last=False)
        return compiled(args, kwargs or {})

    def reduce(self, op: str, value: Any, *, axis: int | None = None) -> Any:
        """Return the ``"sum"``, ``"mean"``, ``"max"`` or ``"min"`` of ``value`` over replicas.

        Args:
            op: the reduction.
            value: ``PerReplica`` or a tree of them.
            axis: an axis of each replica's value that is reduced, too; negative numbers count from
                the last axis. None keeps the shape.

        Raises:
            UnknownNameError: unknown reduction.
            ArgumentError: a replica's value has no such axis.
            ArgumentTypeError: a value is not a ``PerReplica``, or ``axis`` is not an integer.

        Example:
            >>> strategy = nx.distribute.Strategy(nx.devices(nx.DeviceType.TPU))
            >>> ones = strategy.run(lambda: nx.ones((2, 3)))
            >>> strategy.reduce("sum", ones, axis=-1)
            Array([24., 24.], dtype=float32)
        """
        return reduced(op, value, axis)

    def distribute(self, dataset: Iterable[Any]) -> DistributedDataset:
        """Return ``dataset`` with every (global) batch sharded over the replicas.

        Args:
            dataset: iterable of batches, each an array or a tree of arrays whose first axis is the
                example axis. For one batch, a list of it.

        Raises:
            ArgumentTypeError: ``dataset`` is one batch: an array, a tuple or a dict.
            ShapeError: when iterated, if the replicas do not divide a batch.

        Example:
            >>> strategy = nx.distribute.Strategy(nx.devices(nx.DeviceType.TPU))
            >>> batch = next(iter(strategy.distribute([nx.arange(16.0)])))
            >>> strategy.run(lambda share: share, args=(batch,))[1]
            Array([2., 3.], dtype=float32)
        """
        return DistributedDataset(dataset, self)

    def distribute_from_function(
        self, function: Callable[[InputContext], Iterable[Any]]
    ) -> PerReplicaDataset:
        """Return a dataset of ``PerReplica`` batches.

        Args:
            function: takes an ``InputContext`` and returns a dataset of *per-replica* batches, of
                which each replica takes the next one in turn. The dataset repeats, or its length is
                a multiple of the number of replicas; otherwise iterating raises DataError.
                (``tf.distribute`` yields empty batches, which a compiled program cannot take.)
        """
        context = InputContext(jax.process_count(), jax.process_index(), self.num_replicas_in_sync)
        return PerReplicaDataset(function(context), self)

    def __repr__(self) -> str:
        names = f"{self.devices[0]}" + (f" … {self.devices[-1]}" if len(self.devices) > 1 else "")
        mesh = "" if self._axes is None else f", mesh {self._axes}"
        return f"{type(self).__name__}({self.num_replicas_in_sync} replicas: {names}{mesh})"


class TPUStrategy(Strategy):
    """One replica on every device of a TPU slice, real or simulated.

    Args:
        resolver: the slice; by default the slice of this process.
        mesh: as for :class:`Strategy`, such as ``{"fsdp": 8}``.
        rules: as for :class:`Strategy`.

    Raises:
        DeviceNotFoundError: no TPU was found.
        ArgumentTypeError: ``resolver`` is not a TPUClusterResolver.

    Example:
        >>> nx.distribute.TPUStrategy(mesh={"data": 2, "fsdp": 4}).num_replicas_in_sync
        8
    """

    migration_options: ClassVar[Mapping[str, str]] = {"tpu": "resolver=TPUClusterResolver(tpu=…)"}

    def __init__(
        self,
        resolver: TPUClusterResolver | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
        rules: ShardingRules | Sequence[Rule] | None = None,
    ) -> None:
        if not isinstance(resolver, TPUClusterResolver | None):
            raise ArgumentTypeError(
                f"TPUStrategy: resolver is {resolver!r}, expected a TPUClusterResolver. For the "
                "slice of this machine write TPUStrategy(); for some of its devices, "
                'Strategy(["tpu:0", …]).'
            )
        self.resolver = resolver or TPUClusterResolver()
        super().__init__(self.resolver.devices(), mesh=mesh, rules=rules)


class MirroredStrategy(Strategy):
    """One replica on every GPU of this machine, or on every device given.

    Args:
        devices: names such as ``"cuda:0"``, as for :class:`Strategy`; by default all GPUs. Without
            a GPU, the CPU is used and a line is written to standard error.
        mesh: as for :class:`Strategy`, such as ``{"fsdp": 8}``.
        rules: as for :class:`Strategy`.

    Raises:
        DeviceNotFoundError: a device does not exist.
        ShapeError: the product of the sizes of ``mesh`` is not the device count.
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
        rules: ShardingRules | Sequence[Rule] | None = None,
    ) -> None:
        if devices is None:
            devices = gpus_or_cpu()
        super().__init__(devices, mesh=mesh, rules=rules)


class OneDeviceStrategy(Strategy):
    """Everything on one device.

    Args:
        device: the device, by default the CPU.
        mesh: as for :class:`Strategy`; every axis has size 1.
        rules: as for :class:`Strategy`; they have no effect.

    Raises:
        DeviceNotFoundError: the device does not exist.
        ShapeError: an axis of ``mesh`` is larger than 1.
    """

    def __init__(
        self,
        device: str | Device = "cpu",
        *,
        mesh: Mapping[str, int] | None = None,
        rules: ShardingRules | Sequence[Rule] | None = None,
    ) -> None:
        super().__init__([device], mesh=mesh, rules=rules)


def auto(
    *,
    mesh: Mapping[str, int] | None = None,
    rules: ShardingRules | Sequence[Rule] | None = None,
) -> Strategy:
    """Return a strategy for the TPU slice, else for all GPUs, else for the CPU.

    The choice is written to standard error.

    Args:
        mesh: as for :class:`Strategy`; the product of its sizes is the number of the chosen
            devices. Leave it out in a program that runs on any of them.
        rules: as for :class:`Strategy`.

    Raises:
        ShapeError: the product of the sizes of ``mesh`` is not the device count.

    Example:
        >>> nx.distribute.auto(mesh={"data": 2, "fsdp": 4}).num_replicas_in_sync
        8
    """
    if devices(DeviceType.TPU):
        strategy: Strategy = TPUStrategy(mesh=mesh, rules=rules)
    elif gpus():
        strategy = MirroredStrategy(mesh=mesh, rules=rules)
    else:
        strategy = OneDeviceStrategy(mesh=mesh, rules=rules)
    sys.stderr.write(f"neurenix: {strategy}\n")
    return strategy


_scope: ContextVar[Strategy | None] = ContextVar("neurenix_strategy", default=None)


def get_strategy() -> Strategy | None:
    """Return the strategy of the current scope, or None.

    Example:
        >>> nx.distribute.get_strategy() is None
        True
    """
    return _scope.get()


def made_in(module: Any) -> Strategy | None:
    """Return the strategy in whose scope a module of ``neurenix.nn`` was made, or None."""
    return getattr(module, "_made_in", None)


def strategy_for(array: jax.Array) -> Strategy:
    """Return the strategy for a model outside any scope: the devices and mesh of ``array``.

    Raises:
        ArgumentError: ``array`` is sharded in a way that no strategy uses.
    """
    sharding = array.sharding
    if len(sharding.device_set) == 1:
        return OneDeviceStrategy._over(sharding.device_set)
    mesh = getattr(sharding, "mesh", None)
    if not isinstance(mesh, jax.sharding.Mesh):
        mesh = None
    if not sharding.is_fully_replicated:
        if mesh is None or not set(mesh.axis_names) <= set(MESH_AXES):
            raise ArgumentError(
                f"The parameters are divided over {len(sharding.device_set)} devices and no "
                "strategy says how: train inside of strategy.scope(), or give "
                "TrainOptions(strategy=…)."
            )
        strategy = Strategy._over(mesh.devices.flat, mesh.shape)
        strategy.mesh = mesh  # a new mesh may have another device order
        return strategy
    used = sorted(sharding.device_set, key=lambda device: device.id)
    if mesh is not None:
        used = list(mesh.devices.flat)  # in the order of the original strategy
    return Strategy._over(used)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
