"""Programs as data: what is traced, how it is divided, how many FLOPs it has, what is refused."""

from __future__ import annotations

import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.megablox import gmm

from neurenix._core.errors import ArgumentError, ArgumentTypeError, CompilationError, ShapeError
from neurenix.compiler import jaxpr_facts
from neurenix.compiler import program as program_module
from neurenix.compiler.abstract_placement import UnplacedSpec, abstract_mesh
from neurenix.compiler.fingerprint import fingerprint
from neurenix.compiler.flops import model_flops, without_dead_code
from neurenix.compiler.program import TraceOptions, spec, trace
from program_helpers import module_text, signature

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]


def flops(function, *args) -> float:
    return model_flops(jax.jit(function).trace(*args).jaxpr)


def test_leaves_are_divided_as_their_partition_says() -> None:
    program = trace(
        lambda p, x: x @ p["w"] + p["b"],
        ({"w": spec((64, 32)), "b": spec((32,))}, spec((16, 64), "bfloat16", partition=("data",))),
        axes={"data": 8},
        options=TraceOptions(leaf_roles=("parameters", "parameters", "batch")),
    )
    assert [(leaf.path, leaf.role) for leaf in program.leaves] == [
        ("0.b", "parameters"),
        ("0.w", "parameters"),
        ("1", "batch"),
    ]
    assert [leaf.device_bytes for leaf in program.leaves] == [32 * 4, 64 * 32 * 4, 2 * 64 * 2]
    assert program.num_devices == 8
    assert program.output_bytes == 16 * 32 * 4


def test_arguments_that_are_not_used_are_left_out_and_donation_follows() -> None:
    program = trace(
        lambda unused, x: x + 1,
        (spec((8,)), spec((4,))),
        axes={"data": 1},
        options=TraceOptions(donate_argnums=(0, 1)),
    )
    assert [leaf.path for leaf in program.leaves] == ["1"]
    assert program.donated == (0,)


def test_arrays_and_scalars_are_described_and_not_stored() -> None:
    program = trace(lambda x, k: x * k, (np.ones((1000, 1000), "float32"), 3.0), axes={"data": 1})
    assert len(program.lowered.module) < 20_000 and not program.serialized
    assert program.leaves[1].dtype == "float32"


def test_a_program_is_the_same_wherever_it_is_asked_about_from() -> None:
    def function(x):
        return jnp.sin(x) + jax.lax.scan(lambda c, _: (c * 2, None), x, length=3)[0]

    def ask(size: int = 8):
        return trace(function, (spec((size,)),), axes={"data": 1}).fingerprint

    def from_deeper() -> str:
        return ask()

    assert ask() == from_deeper()
    assert ask() != ask(size=9)


def test_a_line_inside_of_a_program_is_part_of_it() -> None:
    source = "import jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x)\n"
    prints = set()
    for text in (source, source, "\n" + source):
        names: dict = {}
        exec(compile(text, "/home/me/train.py", "exec"), names)
        prints.add(trace(names["f"], (spec((8,)),), axes={"data": 1}).fingerprint)
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("shape", "partition", "message"),
    [
        ((10, 4), ("data",), r"10 over 8 devices leaves 2.*such as 8"),
        ((8,), (None, "data"), "a partition of 2 axes"),
        ((8,), ("model",), "mesh axis 'model'; the mesh has data=8"),
    ],
)
def test_what_cannot_be_divided(shape, partition, message) -> None:
    with pytest.raises(ShapeError, match=message):
        trace(jnp.sin, (spec(shape, partition=partition),), axes={"data": 8})


def test_a_function_that_needs_values_names_its_line() -> None:
    def branching(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(
        ArgumentError, match=r"(?s)test_compiler_program.py:\d+ \(if x.sum\(\) > 0:"
    ):
        trace(branching, (spec((4,)),), axes={"data": 1})


def test_shapes_that_do_not_go_together_name_the_line() -> None:
    with pytest.raises(ArgumentError, match=r"contracting.*test_compiler_program.py:\d+"):
        trace(lambda x, w: x @ w, (spec((4, 3)), spec((4, 3))), axes={"data": 1})


@pytest.mark.parametrize("compiled", [lambda function: function, jax.jit])
def test_an_error_of_the_functions_own_is_told_with_its_line(compiled) -> None:
    def broken(batch):
        return batch["image"] + 1

    with pytest.raises(
        ArgumentError, match=r"broken failed.*test_compiler_program.py:\d+ .*KeyError: 'image'"
    ) as told:
        trace(compiled(broken), ({"x": spec((4,))},), axes={"data": 1})
    assert isinstance(told.value.__cause__, KeyError)


def test_a_collective_without_its_axis_is_told_how_to_get_one() -> None:
    with pytest.raises(ArgumentError, match=r"the axis 'i' at .*mesh=\{'i': …\}"):
        trace(lambda x: jax.lax.psum(x, "i"), (spec((4,)),), axes={"data": 1})


def test_programs_are_divided_by_shardy_whatever_the_process_was_told() -> None:
    def traced() -> Any:
        x = spec((8, 4), partition=("data",))
        return trace(lambda x, y: x + y, (x, x), axes={"data": 8})

    program = traced()
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        without = traced()
        options = without.lowered.options({})
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert without.fingerprint == program.fingerprint
    assert b"sdy" in without.lowered.module
    assert options == program.lowered.options({})


def test_a_program_is_the_same_wherever_neurenix_lies(monkeypatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(program_module, "fingerprint", lambda text: texts.append(text) or "")
    trace(lambda x: jnp.sin(x) @ x, (spec((8, 8)),), axes={"data": 1})
    (text,) = texts
    # By its whole path: the folder of a clone may be called neurenix, too.
    package = re.escape(str(Path(program_module.__file__).parents[1]))
    other = re.sub(rf'"{package}(/[^"]+)":\d+', r'"/elsewhere/neurenix\1":1', text)
    assert other != text and fingerprint(other) == fingerprint(text)
    assert fingerprint(text.replace(__file__, "/another.py")) != fingerprint(text)


def test_a_kernel_is_lowered_for_what_is_not_here() -> None:
    """JAX writes kernels in the version of Mosaic that it has, or in one for any TPU."""

    def kernel(x: Any, y: Any, out: Any) -> None:
        over = (((0,), (0,)), ((), ()))
        out[...] = jax.lax.dot_general(x[...], y[...], over, preferred_element_type=jnp.float32)

    def product(x: Any, y: Any) -> Any:
        return pallas.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32),
            compiler_params=pltpu.CompilerParams(fuse_transposed_lhs_in_matmul=True),
        )(x, y)

    x = spec((128, 128), "bfloat16")
    program = trace(product, (x, x), axes={"data": 1}, options=TraceOptions(device_kind="TPU v5e"))
    assert "tpu_custom_call" in module_text(program)


def test_a_captured_array_is_no_argument() -> None:
    table = np.arange(8.0, dtype="float32")
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        program = trace(lambda x, y: y + table, (spec((4,)), spec((8,))), axes={"data": 1})
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", False)
    assert [leaf.path for leaf in program.leaves] == ["1"]
    assert signature(program).count("%arg") == 1


def test_a_mesh_of_another_size_is_told_from_that_of_the_slice() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("i",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))

    def of_nothing() -> Any:
        return jax.lax.with_sharding_constraint(jnp.ones((8, 8)), rows)

    assert trace(of_nothing, (), axes={"data": 4}).lowered.num_devices == 4
    with pytest.raises(ArgumentError, match="mesh of its own with 4 devices, and .* is for 8"):
        trace(of_nothing, (), axes={"data": 8})


def test_what_nobody_placed_and_is_donated_is_given_to_the_compiler() -> None:
    """JAX, which lowers for one device then, would name the results that take its memory."""
    divided = jax.sharding.PartitionSpec("data")
    rows = jax.sharding.NamedSharding(abstract_mesh({"data": 8}), divided)
    unused, x, y = (UnplacedSpec((64, size), "float32") for size in (8, 16, 32))

    def step(_: Any, x: Any, y: Any) -> Any:
        return 2 * x, jax.lax.with_sharding_constraint(y, rows).sum()

    options = TraceOptions(donate_argnums=(0, 1, 2))
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        told = signature(trace(step, (unused, x, y), axes={"data": 8}, options=options))
    assert told.count("jax.buffer_donor = true") == 2 and "tf.aliasing_output" not in told


def test_bad_specs() -> None:
    with pytest.raises(ShapeError, match="sizes of 0 or more"):
        spec((-1, 2))
    with pytest.raises(ShapeError):
        spec((1.5,))
    with pytest.raises(ArgumentTypeError, match="Unknown dtype 'float33'"):
        spec((1,), "float33")
    with pytest.raises(ArgumentTypeError, match=r"one mesh axis or a tuple .*got \{'data'\}"):
        spec((8, 8), partition=({"data"}, None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="Argument 0 is a str"):
        trace(lambda x: x, ("text",), axes={"data": 1})


def test_flops_of_a_training_step_leave_recomputation_out() -> None:
    m, k, n, layers = 8, 16, 16, 5
    x, w = jnp.ones((m, k)), jnp.ones((layers, k, n))

    def loss(w, x, remat):
        layer = (
            jax.checkpoint(lambda h, w: jnp.tanh(h @ w)) if remat else lambda h, w: jnp.tanh(h @ w)
        )
        return jax.lax.scan(lambda h, w: (layer(h, w), None), x, w)[0].sum()

    forward = 2 * m * k * n * layers
    plain = flops(lambda w, x: jax.grad(loss)(w, x, False), w, x)
    recomputed = flops(lambda w, x: jax.grad(loss)(w, x, True), w, x)
    assert plain == recomputed == 3 * forward


def test_flops_of_a_complex_product_are_four_real_ones() -> None:
    x = jax.ShapeDtypeStruct((8, 8), "complex64")
    assert flops(jnp.matmul, x, x) == 4 * 2 * 8**3


@pytest.mark.parametrize(
    ("start", "goes_on", "advance"),
    [
        (0, lambda i: i < 10, lambda i: i + 1),
        (10, lambda i: i > 0, lambda i: i - 1),
        (0, lambda i: i != 20, lambda i: i + 2),
        (1, lambda i: i < 1024, lambda i: i * 2),
    ],
)
def test_ten_turns_are_ten_in_flops(start, goes_on, advance) -> None:
    def turn(x, w):
        def body(carry):
            return advance(carry[0]), jnp.tanh(carry[1] @ w)

        return jax.lax.while_loop(lambda carry: goes_on(carry[0]), body, (start, x))[1]

    x = jax.ShapeDtypeStruct((8, 8), "float32")
    assert flops(turn, x, x) == 10 * 2 * 8**3


def in_a_row(layer, w, x):
    for i in range(len(w)):
        x = layer(x, w[i])
    return (x**2).mean()


def scanned(layer, w, x):
    return (jax.lax.scan(lambda h, w: (layer(h, w), None), x, w)[0] ** 2).mean()


def attended(layer, w, x):
    scores = jax.nn.softmax((x @ w[0]) @ (x @ w[1]).T)
    return (layer(jax.nn.gelu(scores @ (x @ w[2])), w[3]) ** 2).mean()


@jax.custom_vjp
def with_own_gradient(x, w):
    return jnp.tanh(x @ w)


def _forward(x, w):
    y = jnp.tanh(x @ w)
    return y, (x, w, y)


def _backward(kept, g):
    x, w, y = kept
    g = g * (1 - y * y)
    return g @ w.T, x.T @ g


with_own_gradient.defvjp(_forward, _backward)


@pytest.mark.parametrize("loss", [in_a_row, scanned, attended])
@pytest.mark.parametrize("layer", [lambda x, w: jnp.tanh(x @ w), with_own_gradient])
@pytest.mark.parametrize("gradient", [jax.grad, jax.value_and_grad])
def test_flops_of_a_checkpointed_loss_are_those_of_the_loss(loss, layer, gradient) -> None:
    """Its forward pass is dead code where nobody asks for its value, and still recomputed."""
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((5, 16, 16), (16, 16))]

    def counted(around_loss, around_layer) -> float:
        step = gradient(around_loss(partial(loss, around_layer(layer))))
        return model_flops(without_dead_code(jax.jit(step).trace(*shapes).jaxpr))

    def plain(function):
        return function

    saving = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    wanted = counted(plain, plain)
    for outer, inner in product((plain, jax.checkpoint, saving), repeat=2):
        assert counted(outer, inner) == wanted
    assert counted(lambda f: jax.checkpoint(jax.checkpoint(f)), jax.checkpoint) == wanted


def test_flops_of_checkpoints_within_checkpoints_count_no_level_twice() -> None:
    def group(x, w):
        return jax.lax.scan(jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None)), x, w)[0]

    w, x = jnp.ones((2, 3, 16, 16)), jnp.ones((16, 16))
    for gradient in (jax.grad, jax.value_and_grad):
        plain, twice = (
            trace(gradient(partial(scanned, layer)), (w, x), axes={"data": 1}).model_flops
            for layer in (group, jax.checkpoint(group))
        )
        assert plain == twice == 3 * 6 * 2 * 16**3


def test_flops_of_a_solver_are_those_that_run() -> None:
    """It holds the products with its matrix too, which only its gradients need."""
    x = jnp.ones((64, 64))
    assert flops(jnp.linalg.inv, x) == flops(jnp.linalg.solve, x, x) == 0
    assert jaxpr_facts.read(jax.jit(jnp.linalg.inv).trace(x).jaxpr).products == ()

    def iterated(a, b):
        return jax.lax.custom_linear_solve(
            lambda x: a @ x, b, lambda matvec, b: matvec(matvec(b)), symmetric=True
        )

    assert flops(iterated, x, x[0]) == 2 * 2 * 64**2


def test_a_counted_while_repeats_what_stands_in_it() -> None:
    def counted(x):
        def body(state):
            jax.debug.print("{}", state[1][0, 0])
            return state[0] + 1, jnp.tanh(state[1] @ state[1])

        return jax.lax.while_loop(lambda state: state[0] < 100, body, (0, x))[1]

    program = trace(counted, (spec((16, 16)),), axes={"data": 1})
    (told,), (written,) = program.traits.callbacks, program.traits.products
    assert (told.count, written.count) == (100, 100)
    assert written.flops == program.model_flops == 100 * 2 * 16**3


@pytest.mark.parametrize(("strides", "groups"), [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_flops_of_a_convolution_and_its_gradients(strides: int, groups: int) -> None:
    x, w = jnp.ones((2, 8, 8, 4)), jnp.ones((2, 2, 4 // groups, 8))

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (strides, strides), "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip

    out = jax.eval_shape(convolve, x, w).shape
    forward = 2 * np.prod(out) * 2 * 2 * (4 // groups)
    assert flops(convolve, x, w) == forward
    by_weights = flops(jax.grad(lambda w: (convolve(x, w) ** 2).sum()), w)
    assert by_weights == 2 * forward
    by_input = flops(jax.grad(lambda x: (convolve(x, w) ** 2).sum()), x)
    assert by_input == 2 * forward


def test_flops_of_a_branch_are_those_of_the_dearest() -> None:
    x = jnp.ones((8, 8))

    def f(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert flops(f, x) == 2 * 2 * 8**3


def test_flops_and_products_leave_out_what_nothing_needs() -> None:
    def dead(x, w):
        _ = x @ w @ w @ w
        return x @ w

    program = trace(dead, (spec((8, 8)), spec((8, 8))), axes={"data": 1})
    assert program.model_flops == 2 * 8**3
    assert len(program.traits.products) == 1
    linear = jax.grad(lambda w, x: (x @ w).sum())  # whose value nobody asks for
    assert trace(linear, (spec((8, 8)), spec((8, 8))), axes={"data": 1}).model_flops == 2 * 8**3


def test_flops_of_a_kernel_whose_grid_is_data_are_those_that_its_author_states() -> None:
    rows, depth, columns, groups = 512, 256, 384, 4
    arrays = spec((rows, depth)), spec((groups, depth, columns)), spec((groups,), "int32")
    assert flops(partial(gmm, interpret=True), *arrays) == 2.0 * rows * depth * columns


def ragged(mode: str):
    dots = {
        "rows": (((1,), (1,)), ((), ())),
        "depth": (((1,), (0,)), ((), ())),
        "batch": (((2,), (1,)), ((0,), (0,))),
    }
    numbers = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=dots[mode],
        lhs_ragged_dimensions=[{"rows": 0, "depth": 1, "batch": 0}[mode]],
        rhs_group_dimensions=[0] if mode == "rows" else [],
    )
    return lambda x, w, sizes: jax.lax.ragged_dot_general(x, w, sizes, numbers)


@pytest.mark.parametrize(
    ("mode", "left", "right", "flops_of_it"),
    [
        ("rows", (16, 8), (4, 8, 32), 2 * 16 * 8 * 32),
        ("depth", (16, 8), (8, 32), 2 * 16 * 8 * 32),
        ("batch", (6, 16, 8), (6, 8, 32), 2 * 6 * 16 * 8 * 32),
    ],
)
def test_flops_of_products_in_groups(mode, left, right, flops_of_it) -> None:
    traced = jax.jit(ragged(mode)).trace(jnp.ones(left), jnp.ones(right), jnp.ones(4, "int32"))
    assert model_flops(traced.jaxpr) == flops_of_it
    (product,) = jaxpr_facts.read(traced.jaxpr).products
    assert product.flops == flops_of_it
    assert (product.depth, product.columns) == (8, 32)


def test_state_that_changes_its_type_is_seen_whoever_said_that_it_is_donated() -> None:
    def update(state, x):
        return {"m": state["m"] * 0.9 + x.mean()}

    args = ({"m": spec((), "bfloat16")}, spec((8, 8)))
    by_option = TraceOptions(donate_argnums=(0,))
    for function, options in ((update, by_option), (jax.jit(update, donate_argnums=0), None)):
        (found,) = trace(function, args, axes={"data": 1}, options=options).traits.recompiles
        assert (found.before, found.after) == ("bfloat16[]", "float32[]")


def changed(args, out, *donated) -> list[tuple[str, str, str]]:
    found = jaxpr_facts.recompiles(args, out, donate_argnums=donated)
    return [(one.path, one.before, one.after) for one in found]


WIDE, NARROW = spec((64, 1)), spec((2000, 128))
PARAMS = {"w": spec((8, 8)), "b": spec((8,))}
HALVES = {"w": spec((8, 8), "bfloat16"), "b": spec((8,), "bfloat16")}
OTHERS = {"w": spec((4, 4)), "b": spec((4,))}


@pytest.mark.parametrize(
    ("args", "out", "donated"),
    [
        ((NARROW, spec((8,)), WIDE), (NARROW, WIDE), (0, 2)),
        ((WIDE, spec((8,)), NARROW), (NARROW, WIDE), (0, 2)),
        ((PARAMS, OTHERS), (OTHERS, PARAMS), (0, 1)),
        ((PARAMS, OTHERS), (PARAMS, OTHERS), (1,)),
        ((spec((8, 4)), spec((2, 16))), (spec((8, 4), "bfloat16"), spec((2, 16))), (1,)),
        ((spec((8,)), PARAMS), (HALVES, PARAMS), (1,)),
        ((spec((8,)), PARAMS), (HALVES, {"all": [PARAMS]}), (1,)),
        ((HALVES, PARAMS), HALVES, (1,)),
        ((PARAMS, PARAMS), (PARAMS, HALVES), (1,)),
        ((PARAMS, PARAMS), (HALVES, HALVES), (0, 1)),
        ((PARAMS,), (HALVES, HALVES), (0,)),
        ((PARAMS,), OTHERS, (0,)),
        (((), PARAMS), ((), PARAMS), (0, 1)),
    ],
)
def test_results_that_are_those_of_other_arguments_are_no_change(args, out, donated) -> None:
    assert changed(args, out, *donated) == []


@pytest.mark.parametrize(
    ("args", "out", "donated"),
    [
        ((PARAMS,), (HALVES, spec(())), (0,)),
        ((OTHERS, PARAMS), (OTHERS, HALVES), (0, 1)),
        ((PARAMS,), {"loss": spec(()), "state": HALVES}, (0,)),
    ],
)
def test_the_only_result_that_can_be_the_state_is_the_state(args, out, donated) -> None:
    number = len(args) - 1
    assert changed(args, out, *donated) == [
        (f"{number}.b", "float32[8]", "bfloat16[8]"),
        (f"{number}.w", "float32[8,8]", "bfloat16[8,8]"),
    ]


def test_what_is_no_array_cannot_be_returned_and_is_named() -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"named returns a str at 1\.name, and .*arrays only"
    ):

        def named(x):
            return x, {"name": "x"}

        trace(named, (spec((8,)),), axes={"data": 1})


def test_a_function_without_arguments_is_told_how_to_give_some() -> None:
    with pytest.raises(ArgumentError, match=r"nx.preflight\(<lambda>, nx.spec\(\(8, 128\)\), on=…"):
        trace(lambda x: x, (), axes={"data": 1})


def test_an_operation_that_jax_does_not_have_for_tpu_is_named_with_its_line() -> None:
    def inner(x):
        return jnp.linalg.eigvals(x)

    def step(x):
        return jax.lax.cond(x[0, 0] > 0, inner, inner, x * 2)

    with pytest.raises(CompilationError) as caught:
        trace(step, (spec((8, 8)),), axes={"data": 1})
    message = str(caught.value)
    assert "JAX has no 'eig' for the platform tpu" in message
    assert f"test_compiler_program.py:{inner.__code__.co_firstlineno + 1}." in message
    assert "jax.pure_callback" in message


def test_what_jax_cannot_differentiate_is_told_in_its_words() -> None:
    def step(x):
        return jax.grad(lambda x: jnp.linalg.eig(x)[1].real.sum())(x)

    with pytest.raises(CompilationError, match=r"step cannot be compiled.*Derivatives of.*py:\d+"):
        trace(step, (spec((8, 8)),), axes={"data": 1})


def test_a_long_chain_and_one_of_many_ways_are_followed_in_one_pass() -> None:
    """Every step makes three ways of one: there are 3 ** 60 from the input to the end."""

    def squares(x: jax.Array) -> jax.Array:
        for _ in range(60):
            x = x * x + x
        return x

    def sums(x: jax.Array) -> jax.Array:
        for _ in range(1500):
            x = x + 1
        return x

    for function in (squares, sums):
        program = trace(function, (spec((8, 8)),), axes={"data": 1})
        assert program.traits.row_by_row == ((),)  # no loop takes the input apart
