"""One epoch of training: dispatch the steps, limit the calls in flight, read the results.

The host never waits for the newest result. Also runs the step on trial batches for
``padding_check.py``. Does not own epochs, validation or the order of callbacks (``fit.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._jit.random_keys import like, numbers_of
from neurenix._processes import concatenated
from neurenix.distribute import Strategy
from neurenix.distribute.batch_input import place_batch, replicas_per_process
from neurenix.train.batch import Batch
from neurenix.train.compiled_steps import CompiledStep
from neurenix.train.epoch_iterator import Chunk

_CHANGES = np.random.default_rng(0).uniform(-0.1, 0.1, 1009)

# Maximum number of dispatched calls. More do not hide more latency, and each holds its batch.
MAX_IN_FLIGHT = 16
# Maximum number of steps in them. Two long calls hide the host's work as well as 16 do, and their
# batches stay in a CPU's caches: a tiny model with 50 steps a call takes 14.0 µs a step, not 16.0.
_STEPS_IN_FLIGHT = 128
# Maximum memory of their batches on each device: 2 % of a v5e's. One call always computes while the
# next batch is transferred.
_IN_FLIGHT_BYTES = 256 * 2**20
_LEAST_IN_FLIGHT = 2


class Diverged(Exception):
    """A step had a loss or a gradient that is not finite.

    Args:
        chunk: the call's batch.
        before: optimizer steps of the epoch before the call.
    """

    def __init__(self, chunk: Chunk, before: int) -> None:
        super().__init__()
        self.chunk, self.before = chunk, before


class LazyLogs(Mapping[str, float]):
    """A mapping of names to the entries of a vector on the device; reading one waits for it."""

    def __init__(self, names: tuple[str, ...], vector: jax.Array) -> None:
        self._names, self._vector = names, vector

    def __getitem__(self, name: str) -> float:
        if name not in self._names:
            raise KeyError(name)
        return float(self._vector[1 + self._names.index(name)])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass
class EpochRun:
    """Runs the steps of an epoch.

    Attributes:
        step: the compiled step.
        strategy: the devices.
        names: names of the entries of the logs.
        on_batch_end: called with (optimizer steps so far in the epoch, logs), or None; True ends
            the epoch. It may set another state in ``step.train``.
        check: called with every host batch, before it is dispatched.
        process_local: whether each process has its own share of every batch.
    """

    step: CompiledStep
    strategy: Strategy
    names: tuple[str, ...]
    on_batch_end: Callable[[int, Mapping[str, float]], bool] | None
    check: Callable[[Batch, int], None]
    process_local: bool = False

    def run(
        self,
        chunks: Iterator[Chunk],
        show: Callable[[int, jax.Array, tuple[str, ...]], None],
    ) -> tuple[dict[str, float], int]:
        """Train on ``chunks``, starting from the newest state in ``step.train``.

        Args:
            chunks: the batches.
            show: called after every dispatch with its steps, its (pending) logs, and their names.

        Returns:
            the logs of the epoch, and its optimizer steps.

        Raises:
            Diverged: a loss or a gradient is not finite.
        """
        in_flight: deque[tuple[Any, Chunk, int]] = deque()
        done, logs, most = 0, None, MAX_IN_FLIGHT
        train, takes_count = self.step.train, self.step.takes_count
        for chunk in chunks:
            self.check(chunk.batch, self.step.steps)
            if logs is None:
                most = calls_in_flight(chunk.batch, self.strategy, self.step.steps)
            batch = self._placed(chunk.batch)
            extra = (np.int32(chunk.count),) if takes_count else ()
            _, logs = train(train.leaves, batch, *extra)
            in_flight.append((logs, chunk, done))
            done += chunk.count
            if len(in_flight) > most:
                # Several at once, because a wait takes 80 µs on a CPU whose cores are all busy.
                _look([in_flight.popleft() for _ in range(most // 2)])
            show(chunk.count, logs, self.names)
            if self.on_batch_end is not None:
                if self.on_batch_end(done, LazyLogs(self.names, logs)):
                    break
        _look(list(in_flight))
        if logs is None:
            return {}, 0
        return dict(zip(self.names, map(float, np.asarray(logs)[1:]), strict=True)), done

    def _placed(self, batch: Batch) -> Batch:
        stacked, local = self.step.steps > 1, self.process_local
        return to_devices(batch, self.strategy, stacked=stacked, process_local=local)

    @contextmanager
    def trial(self) -> Iterator[Callable[[Batch], list[np.ndarray] | None]]:
        """Run the step on trial batches; the state is restored afterwards.

        Yields a function that returns the state after one step on a batch, or None if it diverges.
        The parameters are changed slightly first, because a parameter of 0 hides its factor.
        """
        train, steps = self.step.train, self.step.steps
        kept: list[HostCopy] = []
        held, trained = train.leaves, len(jax.tree.leaves(train.state.parameters))
        extra = (np.int32(1),) if self.step.takes_count else ()

        def attempt(batch: Batch) -> list[np.ndarray] | None:
            changed = [one.changed_array() for one in kept[:trained]]
            leaves = changed + [one.array() for one in kept[trained:]]
            if steps > 1:
                batch = jax.tree.map(lambda leaf: np.stack([leaf] * steps), batch)
            batch = self._placed(batch)
            leaves, logs = train(leaves, batch, *extra)
            return None if np.asarray(logs)[0] else list(map(numbers_here, leaves))

        try:
            for leaf in held:
                kept.append(HostCopy(leaf))
            for leaf in held:  # the devices may have memory for one state only
                leaf.delete()
            yield attempt
        finally:
            train.go_on_from([one.array() for one in kept] + held[len(kept) :])


def calls_in_flight(batch: Any, strategy: Strategy, steps: int = 1) -> int:
    """Return the maximum number of dispatched calls for a batch of this size.

    Example:
        >>> from neurenix.distribute import OneDeviceStrategy
        >>> images = np.zeros((64, 512, 512, 3), np.float32)  # 192 MiB
        >>> [calls_in_flight(batch, OneDeviceStrategy()) for batch in (images[:1], images)]
        [16, 2]
    """
    leaves = jax.tree.leaves(batch)
    size = sum(leaf.nbytes for leaf in leaves) / strategy.num_replicas_in_sync
    most = min(MAX_IN_FLIGHT, _STEPS_IN_FLIGHT // steps, _IN_FLIGHT_BYTES // max(size, 1))
    return int(max(_LEAST_IN_FLIGHT, most))


def to_devices(
    batch: Any, strategy: Strategy, *, stacked: bool, process_local: bool = False
) -> Any:
    """Put a batch on the devices.

    A host batch for one device is returned unchanged: the compiled call transfers it faster.

    Args:
        batch: the batch, or this process's share of it.
        strategy: the devices.
        stacked: whether batches are stacked, so that the axis of the examples is the second.
        process_local: whether ``batch`` is a share.
    """
    if strategy.num_replicas_in_sync == 1 and all(map(_on_host, jax.tree.leaves(batch))):
        return batch
    axis = int(stacked)
    rows = np.shape(jax.tree.leaves(batch)[0])[axis]
    replicas = strategy.num_replicas_in_sync
    if rows % (replicas_per_process(strategy) if process_local else replicas) == 0:
        return place_batch(batch, strategy, leading=axis, process_local=process_local)
    # A batch that must not be padded is replicated.
    whole = concatenated(batch, axis=axis) if process_local else batch
    return jax.device_put(whole, strategy.state_sharding)


def _on_host(leaf: Any) -> bool:
    """Return whether a leaf is a NumPy array, or a JAX array that is not committed to a device."""
    return not getattr(leaf, "committed", False)


def _look(dispatched: list[tuple[jax.Array, Chunk, int]]) -> None:
    """Wait for the last of these results, and raise if one diverged; the flag is never reset."""
    if dispatched and np.asarray(dispatched[-1][0])[0]:
        found = ((chunk, before) for vector, chunk, before in dispatched if np.asarray(vector)[0])
        raise Diverged(*next(found))


class HostCopy:
    """A copy of one array on the host.

    An array that is sharded over processes, or has a weak dtype (which NumPy does not have), is
    copied on its devices instead.

    Args:
        leaf: the array.

    Example:
        >>> leaf = jnp.arange(3.0)
        >>> copy = HostCopy(leaf)
        >>> leaf.delete()
        >>> copy.array().tolist(), bool((copy.changed_array()[1:] != copy.array()[1:]).all())
        ([0.0, 1.0, 2.0], True)
    """

    def __init__(self, leaf: jax.Array) -> None:
        self._like, self._sharding = leaf, leaf.sharding
        kept = leaf.is_fully_addressable and not numbers_of(leaf).weak_type
        self._held: Any = np.array(numbers_of(leaf)) if kept else jnp.copy(leaf)

    def array(self) -> jax.Array:
        """Return a new array with the original values."""
        if isinstance(self._held, jax.Array):
            return jnp.copy(self._held)
        return self._put(self._held)

    def changed_array(self) -> jax.Array:
        """Return it with floating-point values changed by up to 10 %, and zeros by up to 0.1."""
        held = self._held
        if isinstance(held, jax.Array) or not jnp.issubdtype(held.dtype, jnp.floating):
            return self.array()
        by = np.resize(_CHANGES, held.shape).astype(np.float32)
        wide = held.astype(np.float32)
        return self._put(np.where(wide == 0, by, wide * (1 + by)).astype(held.dtype))

    def _put(self, numbers: np.ndarray) -> jax.Array:
        # On a CPU, JAX may alias NumPy's memory, which a step would donate.
        return jax.device_put(like(self._like, jnp.array(numbers)), self._sharding)


def numbers_here(leaf: Any) -> np.ndarray:
    """Return an array on the host; of an array sharded over processes, the local shards.

    Example:
        >>> numbers_here(jax.random.key(7)).tolist()
        [0, 7]
    """
    leaf = numbers_of(leaf)
    if leaf.is_fully_addressable:
        return np.array(leaf)
    return np.concatenate([np.ravel(np.asarray(one.data)) for one in leaf.addressable_shards])
