"""The loss of a decoder, computed in tiles of positions to bound the memory of the logits."""

from __future__ import annotations

import functools
import math

import jax
from jax.sharding import PartitionSpec

from neurenix._core.errors import ShapeError
from neurenix.losses import SparseCategoricalCrossentropy
from neurenix.models.decoder import Decoder, DecoderConfig, logits
from neurenix.models.layers import BATCH

_LOSS = SparseCategoricalCrossentropy(from_logits=True)


class TokenLosses(Decoder):
    """A decoder that returns the loss of each token: two (N, T) integers → (N, T) float32.

    Parameters and their names are those of ``Decoder``. The positions are processed in
    ``config.loss_tiles`` parts: only the logits of one part are in memory, and they are recomputed
    for the gradient, as MaxText's ``num_vocab_tiling`` does. For a vocabulary of 262,144 and 32,768
    positions, the logits take 16 GiB in bfloat16.

    Raises:
        ShapeError: when called: targets and tokens differ in shape, or ``loss_tiles`` does not
            divide T.

    Example:
        >>> model = nx.models.TokenLosses(nx.models.get("tiny").replace(loss_tiles=4))
        >>> tokens = nx.zeros((2, 16), nx.int32)
        >>> model(tokens, tokens).shape
        (2, 16)
        >>> model = model.compile(optimizer="adam", loss=lambda targets, losses: losses)
        >>> history = model.fit((tokens, tokens), tokens, verbose=0)
    """

    def __call__(self, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the cross-entropy of each target, the token that follows a position."""
        tiles = self.config.loss_tiles
        if targets.shape != tokens.shape or tokens.shape[1] % tiles:
            raise ShapeError(
                f"{self.config.name} takes tokens and targets of one shape (N, T), T a multiple "
                f"of loss_tiles={tiles}; got {tokens.shape} and {targets.shape}."
            )
        losses = functools.partial(_tiled, config=self.config)
        return _on_each_share(losses)(self.states(tokens), targets, self.kernel())


def _tiled(
    states: jax.Array, targets: jax.Array, kernel: jax.Array, *, config: DecoderConfig
) -> jax.Array:
    """Return the losses of (N, T, E), (N, T) and (E, V), one tile of T at a time."""

    @jax.checkpoint
    def of_tile(states: jax.Array, targets: jax.Array, kernel: jax.Array) -> jax.Array:
        return _LOSS.elementwise(targets, logits(config, states, kernel))

    def body(carry: None, tile: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        return carry, of_tile(*tile, kernel)

    def divided(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], config.loss_tiles, -1, *x.shape[2:]).swapaxes(0, 1)

    _, losses = jax.lax.scan(body, None, (divided(states), divided(targets)))
    return losses.swapaxes(0, 1).reshape(targets.shape)


def _on_each_share(function):
    """Return ``function`` on each device's share of the batch, if the mesh is known.

    The gradient of the kernel is then summed over the devices once instead of once per tile.
    """

    def shared(states: jax.Array, targets: jax.Array, kernel: jax.Array) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        axes = tuple(name for name in BATCH if mesh.shape.get(name, 1) > 1)
        parts = math.prod(mesh.shape[name] for name in axes)
        if mesh.manual_axes or not axes or states.shape[0] % parts:
            return function(states, targets, kernel)
        batch = PartitionSpec(axes)
        return jax.shard_map(
            function,
            in_specs=(batch, batch, PartitionSpec()),
            out_specs=batch,
            axis_names={*axes},
            check_vma=False,
        )(states, targets, kernel)

    return shared
