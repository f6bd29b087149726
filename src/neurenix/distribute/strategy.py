"""Strategies: which devices compute, and how a batch is shared among them.

Owns the choice of devices, the scope, and the entrances for custom loops. By default parameters are
whole on every replica and the batch is split; a mesh with the axes ``"fsdp"`` or ``"tensor"``
divides parameters, too. It does not own the training step, which is the same program for every
strategy, nor the rules of division (``rules``).
"""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    ShapeError,
    unknown_name,
)
from neurenix._core.names import OptionsExplained
from neurenix._jit.recompilation import AnewWatch
from neurenix.device import Device, DeviceType, device_of, devices, from_jax
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
from neurenix.distribute.values import PerReplica

_REDUCTIONS = {"sum": jnp.sum, "mean": jnp.mean, "max": jnp.max, "min": jnp.min}
_REMEMBERED_FUNCTIONS = 64


class Strategy(OptionsExplained):
    """Computation on ``devices``: one replica on each, unless a mesh says otherwise.

    Args:
        devices: the devices or their names, all of one type, each once.
        mesh: names and sizes of the mesh's axes, which multiply to the number of devices; one axis
            ``"data"`` by default. A batch is divided over ``"data"`` and ``"fsdp"``; parameters and
            optimizer state over ``"fsdp"`` (gathered when they are used) and ``"tensor"``.
        rules: how parameters are divided; by default as the model's ``sharding_rules()`` say, or
            along the largest axis that ``"fsdp"`` divides. ``fit`` follows them; ``nx.jit`` and
            ``run`` keep parameters whole.

    Raises:
        DeviceNotFoundError: there is no device, or one of them is not here.
        ShapeError: the sizes do not multiply to the number of devices.
        ArgumentError: a device is given twice, they are of several types, or the mesh has an axis
            of another name.
        ArgumentTypeError: ``devices`` is no sequence of devices.

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
        self.devices = checked_devices(devices)
        self._axes = None if mesh is None else axes_over(mesh, len(self.devices))
        self.rules = as_rules(rules)
        self._functions: OrderedDict[Any, ReplicatedFunction] = OrderedDict()
        self._anew = AnewWatch()

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices as a mesh, by default with the one axis ``"data"``."""
        devices = [device.jax_device for device in self.devices]
        return data_mesh(devices) if self._axes is None else device_mesh(devices, self._axes)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas, each of which computes a share of every batch."""
        axes = self._axes
        if axes is None:
            return len(self.devices)
        return math.prod(axes.get(name, 1) for name in BATCH_AXES)

    @property
    def state_sharding(self) -> jax.sharding.Sharding:
        """Where state lies that no rule divides: whole, on every device."""
        if len(self.devices) == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0].jax_device)
        return replicated(self.mesh)

    def mesh_axes(self, num_devices: int) -> dict[str, int]:
        """Return the mesh's axes, grown or shrunk along the batch to ``num_devices``.

        Raises:
            ShapeError: the axes do not divide ``num_devices``.
        """
        axes = dict(self._axes or {DATA_AXIS: len(self.devices)})
        grown = next((name for name in BATCH_AXES if name in axes), next(iter(axes)))
        others = math.prod(size for name, size in axes.items() if name != grown)
        if num_devices % others:
            raise ShapeError(
                f"The strategy's mesh {axes} cannot be laid over {num_devices} devices: {others} "
                f"does not divide them. Say how with mesh=."
            )
        return axes | {grown: num_devices // others}

    def placement(self, parameters: Any, rules: ShardingRules | None = None) -> Placement | None:
        """Return where each array of a model's state lies; None when all are whole everywhere.

        Args:
            parameters: the model's, as arrays or shapes.
            rules: the model's own, for a strategy that was given none.
        """
        if self._axes is None or len(self.devices) == 1:
            return None
        placement = Placement(self.mesh, parameters, self.rules or rules)
        return placement if placement.divides else None

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

    def scope(self) -> Scope[Strategy]:
        """Make this the strategy of every model, and of every step, inside.

        Of a model that is made inside and compiled elsewhere, too, as in Keras. Where several say
        something, it is the scope of ``compile`` that counts, then that of ``fit``, then that in
        which a model of ``nx.nn`` was made, until ``model.to`` moves it.
        """
        return Scope(_scope, self)

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``function`` on every replica, compiled at its first call.

        Arguments that are split over the replicas (``PerReplica``, batches of ``distribute``)
        arrive as the replica's share, others whole: a plain NumPy batch goes whole to *every*
        replica, which then all compute the same. Modules and optimizers are updated in place; they
        are arguments of their own, not entries of a tuple or a dict. A loss or another function, a
        string, an enum or a dataclass of such is part of the program, compared by value.

        In a function that ``nx.jit`` compiles, its arguments as they are given are shares or whole
        as they are outside of it. What is computed from a share is refused there, and any array in
        a function of ``jax.jit``: whether it is split is not known.

        Of the variables that replicas change, batch statistics are averaged, and the states of
        metrics summed. All others must come out the same on every replica, as parameters do after
        ``Optimizer.update``; whether they do is read from the program before its first call, and
        costs the calls nothing. What only happens to be the same is refused as well.

        Args:
            function: a function, a module, its method, or a ``functools.partial``, made once:
                another one is compiled anew. A partial fixes what is no array.
            args: its arguments by position.
            kwargs: its arguments by name.

        Returns:
            ``PerReplica`` for each array that the function returns.

        Raises:
            ArgumentError: the function uses a module that it is not given, leaves a variable that
                may differ between the replicas, or a metric whose states are no sums; a batch is
                split by another strategy; or ``run`` is called inside of ``run``.
            ArgumentTypeError: a module is inside a tuple or a dict, an argument is neither an array
                nor part of the program, a result is no array, or ``args`` is no tuple.
            ShapeError: a ``PerReplica`` has not one entry for each replica.
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
        # What has no hash, such as a dataclass, is held by what is compiled: its id stays its own
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
            axis: an axis of each replica's value to reduce too, a negative one counted from its
                last; None keeps its shape.

        Raises:
            UnknownNameError: there is no such reduction.
            ArgumentError: a replica's value has no such axis.
            ArgumentTypeError: ``value`` is not of ``PerReplica``, or ``axis`` no whole number.

        Example:
            >>> strategy = nx.distribute.Strategy(nx.devices(nx.DeviceType.TPU))
            >>> ones = strategy.run(lambda: nx.ones((2, 3)))
            >>> strategy.reduce("sum", ones, axis=-1)
            Array([24., 24.], dtype=float32)
        """
        if op not in _REDUCTIONS:
            raise unknown_name("reduction", op, _REDUCTIONS)

        def reduce_one(item: Any) -> Any:
            if not isinstance(item, PerReplica):
                raise ArgumentTypeError(
                    f"strategy.reduce: expected PerReplica values, got {type(item).__name__}."
                )
            return jax.tree.map(
                lambda x: _REDUCTIONS[op](x, axis=_reduced_axes(axis, np.ndim(x))), item.stacked
            )

        return jax.tree.map(reduce_one, value, is_leaf=lambda item: isinstance(item, PerReplica))

    def distribute(self, dataset: Iterable[Any]) -> DistributedDataset:
        """Return ``dataset`` with every (global) batch split over the replicas.

        Args:
            dataset: goes through batches, each an array or a tree of arrays whose first axis is
                that of the examples; for one batch, a list of it.

        Raises:
            ArgumentTypeError: it is one batch: an array, or a tuple or a dict of them.
            ShapeError: when iterated, a batch does not divide by the replicas.

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
            function: called with an ``InputContext``; returns a dataset of *per-replica* batches,
                of which each replica takes the next one in turn. It repeats, or has a multiple of
                the replicas: iterating raises DataError where some replicas would have none.
                (``tf.distribute`` gives those an empty batch, which one compiled program cannot.)
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
        resolver: the slice; by default the one that this process is part of.
        mesh: as for :class:`Strategy`, such as ``{"fsdp": 8}``.
        rules: as for :class:`Strategy`.

    Raises:
        DeviceNotFoundError: there is no TPU.
        ArgumentTypeError: ``resolver`` is none.

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
        devices: names such as ``"cuda:0"``, as for :class:`Strategy`; by default all GPUs, or the
            CPU where there is none, which standard error says.
        mesh: as for :class:`Strategy`, such as ``{"fsdp": 8}``.
        rules: as for :class:`Strategy`.

    Raises:
        DeviceNotFoundError: a device given is not there.
        ShapeError: the sizes of ``mesh`` do not multiply to the number of devices.
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
        mesh: as for :class:`Strategy`; every axis is of size 1.
        rules: as for :class:`Strategy`; there is nothing to divide.

    Raises:
        DeviceNotFoundError: it is not there.
        ShapeError: the sizes of ``mesh`` do not multiply to 1.
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
    """Return the strategy for what is there: the TPU slice, else all GPUs, else the CPU.

    The choice is said on the standard error stream.

    Args:
        mesh: as for :class:`Strategy`; its sizes multiply to the number of the devices chosen, so a
            program that must run on any of them leaves it out.
        rules: as for :class:`Strategy`.

    Raises:
        ShapeError: the sizes of ``mesh`` do not multiply to the number of devices.

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
    """Return the strategy whose scope the program is in, or None.

    Example:
        >>> nx.distribute.get_strategy() is None
        True
    """
    return _scope.get()


def made_in(module: Any) -> Strategy | None:
    """Return the strategy in whose scope a module of ``neurenix.nn`` was made, or None."""
    return getattr(module, "_made_in", None)


def strategy_for(array: jax.Array) -> Strategy:
    """Return the strategy for a model outside of any scope: the devices that ``array`` lies on.

    One that is divided tells its mesh; rules that divided it are the model's, or the default.

    Raises:
        ArgumentError: it is divided over devices in another way than a strategy does.
    """
    sharding = array.sharding
    if len(sharding.device_set) == 1:
        return OneDeviceStrategy(device_of(array))
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
        strategy = Strategy([from_jax(one) for one in mesh.devices.flat], mesh=mesh.shape)
        strategy.mesh = mesh  # another one of these sizes may have its devices in another order
        return strategy
    held = sorted(sharding.device_set, key=lambda device: device.id)
    if mesh is not None:
        held = list(mesh.devices.flat)  # in the order of the strategy that put it there
    return Strategy([from_jax(device) for device in held])


def _reduced_axes(axis: int | None, ndim: int) -> tuple[int, ...]:
    """Return the axes of the stacked array, of rank ``ndim``, that ``Strategy.reduce`` reduces."""
    if axis is None:
        return (0,)
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError(f"strategy.reduce: axis is {axis!r}, expected a whole number.")
    own = ndim - 1
    if not -own <= axis < own:
        has = f"the axes 0 to {own - 1}" if own else "no axes; leave axis out"
        raise ArgumentError(f"strategy.reduce: axis is {axis}; each replica's value has {has}.")
    return (0, int(axis) % own + 1)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
