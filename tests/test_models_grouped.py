"""Products of groups of rows and their gradients: XLA's, and the kernels of the TPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec

import neurenix as nx
from neurenix import chips, models
from neurenix._jit.target_device import tracing_for
from neurenix.models.grouped import grouped_dot, rows_of_tile
from neurenix.preflight import CompileOptions, PreflightOptions

RNG = np.random.default_rng(0)
SIZES = (100, 0, 156, 128)


def arrays(dtype: Any, sizes: tuple[int, ...] = SIZES, depth: int = 64, columns: int = 200):
    made = RNG.normal(size=(sum(sizes), depth)), RNG.normal(size=(len(sizes), depth, columns))
    return *(jnp.asarray(x, dtype) for x in made), jnp.asarray(sizes, jnp.int32)


def reference(rows, matrices, sizes, cotangent):
    """The product, and the gradients of rows and matrices, group by group in float64."""
    rows, matrices, cotangent = (np.asarray(x, np.float64) for x in (rows, matrices, cotangent))
    out, of_rows = np.zeros(cotangent.shape), np.zeros(rows.shape)
    of_matrices, first = np.zeros(matrices.shape), 0
    for group, size in enumerate(np.asarray(sizes)):
        part = slice(first, first + size)
        out[part] = rows[part] @ matrices[group]
        of_rows[part] = cotangent[part] @ matrices[group].T
        of_matrices[group] = rows[part].T @ cotangent[part]
        first += size
    return out, of_rows, of_matrices


def both(rows, matrices, sizes, cotangent):
    """The product and its gradients."""
    out, pull = jax.vjp(lambda rows, matrices: grouped_dot(rows, matrices, sizes), rows, matrices)
    return out, *pull(cotangent)


def kernels_of(function: Any, *args: Any) -> int:
    return str(jax.make_jaxpr(function)(*args)).count("pallas_call[")


def mesh_of(*sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(sizes, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.cpu8
def test_a_grouped_product_and_its_gradients_are_those_of_each_group() -> None:
    operands = arrays(jnp.float32)
    cotangent = jnp.asarray(RNG.normal(size=(384, 200)), jnp.float32)
    assert kernels_of(both, *operands, cotangent) == 0
    pairs = zip(both(*operands, cotangent), reference(*operands, cotangent), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.cpu8
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_kernels_of_a_tpu_give_the_same(dtype: Any) -> None:
    operands = arrays(dtype)
    cotangent = jnp.asarray(RNG.normal(size=(384, 200)), dtype)
    of_each = jax.shard_map(
        both, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    with jax.set_mesh(mesh_of(2, 2)), tracing_for("TPU v5 lite"):
        with pltpu.force_tpu_interpret_mode():
            assert kernels_of(of_each, *operands, cotangent) == 2
            found = jax.jit(of_each)(*operands, cotangent)
    tolerance = 1e-4 if dtype == jnp.float32 else 0.02
    for one, other in zip(found, reference(*operands, cotangent), strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(np.float64(one) / scale, other / scale, atol=tolerance)


WHOLE, ODD = SIZES, (3, 4, 2)


@pytest.mark.cpu8
@pytest.mark.parametrize(
    ("devices", "kind", "dtype", "sizes", "kernels"),
    [
        ((1, 1), "TPU v5 lite", jnp.bfloat16, WHOLE, 2),
        ((2, 2), "TPU v5 lite", jnp.bfloat16, WHOLE, 0),  # the rows may be divided
        ((1, 1), "TPU v5 lite", jnp.bfloat16, ODD, 0),  # no tile divides them
        ((1, 1), "TPU v5 lite", jnp.float16, WHOLE, 0),
        ((1, 1), "TPU v3", jnp.bfloat16, WHOLE, 0),  # whose kernels have no such products
        ((1, 1), "TPU v3", jnp.float32, WHOLE, 2),
        ((1, 1), "cpu", jnp.bfloat16, WHOLE, 0),
    ],
)
def test_kernels_are_taken_where_they_can_be(
    devices: tuple[int, int], kind: str, dtype: Any, sizes: tuple[int, ...], kernels: int
) -> None:
    operands = arrays(dtype, sizes)
    cotangent = jnp.ones((operands[0].shape[0], 200), dtype)
    with jax.set_mesh(mesh_of(*devices)), tracing_for(kind):
        assert kernels_of(both, *operands, cotangent) == kernels


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "rows", "groups", "wanted"),
    [
        ("v6e", 65536, 8, 1024),  # each fetched matrix serves many rows
        ("v5p", 65536, 8, 256),  # whose memory is faster beside its unit
        ("v5p", 32768, 128, 128),  # a larger tile would be half empty
        ("v6e", 384, 8, 128),  # what divides the rows
    ],
)
def test_tiles_have_few_rows_for_many_groups(
    name: str, rows: int, groups: int, wanted: int
) -> None:
    assert rows_of_tile(rows, groups, 2, chips.generation(name)) == wanted


@pytest.mark.tpu_compile
def test_a_training_step_multiplies_each_row_with_the_matrix_of_its_expert_alone(tmp_path) -> None:
    """The compiler's own gradient of the matrices takes as many products as there are experts."""
    options = PreflightOptions(compiler=CompileOptions(cache_directory=tmp_path))
    model = models.abstract(
        "qwen3-30b-a3b", num_layers=1, embed_dim=256, num_heads=4, num_kv_heads=2, vocab_size=512,
        mlp_dim=384, num_experts=16, experts_per_token=2,
    )  # fmt: skip
    model.compile(optimizer="sgd", loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = nx.spec((8, 256), "int32")
    report = nx.preflight(model, tokens, on="v5e-4", mesh={"fsdp": 4}, options=options)
    experts = [o for o in report.operations if "gmm" in o.name or "ragged" in o.name]
    forward = 3 * 2 * (8 * 256 * 2 / 4) * 256 * 384  # matrices, rows of a device
    assert sum(o.flops for o in experts) == pytest.approx(3 * forward)
    assert max(o.flops for o in report.operations if o.products) < forward
