"""Each rule on real programs: one that triggers it and one that must not, by the TPU compiler.

All programs are compiled once, before the first test; a rule's pair differs in little more than
what the rule is about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import io_callback, pallas
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from neurenix import chips
from neurenix.compiler.analysis import Analysis, analyse
from neurenix.compiler.compile import CompileOptions, compile_all
from neurenix.compiler.findings import REFUSALS, RULES, Finding
from neurenix.compiler.program import TraceOptions, abstract_mesh, spec, trace
from neurenix.compiler.target import Target
from neurenix.models.grouped import grouped_dot

pytestmark = pytest.mark.tpu_compile

HERE = Path(__file__)
BATCH = ("data",)
# Of ragged_dot's matrices: libtpu 0.0.42 has none, 0.0.50 has one.
GRADIENT_HAS_A_KERNEL = jax.__version_info__ >= (0, 11)
# By rule: whether this libtpu does well what that speaks of. 0.0.42 cuts 8,192 rows of fp8 badly.
MENDED = {"grouped-gradient": GRADIENT_HAS_A_KERNEL, "badly-tiled": jax.__version_info__ >= (0, 11)}


def product(x: Any, w: Any) -> Any:
    return jax.nn.relu(x @ w)


def product_at_highest(x: Any, w: Any) -> Any:
    return jax.nn.relu(jnp.dot(x, w, precision="highest"))


def product_of_integers(x: Any, w: Any) -> Any:
    return jnp.dot(x, w, preferred_element_type=jnp.int32)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k)
    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores, axis=-1), v)


def attention_gradient(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *a: attention(*a).astype(jnp.float32).sum(), argnums=(0, 1, 2))(q, k, v)


TABLE = np.random.default_rng(0).random((4096, 1024), np.float32)


@jax.jit
def looks_up(x: Any) -> Any:
    return jnp.tanh(x @ TABLE)


def looked_up(x: Any) -> Any:
    return jax.lax.scan(lambda total, part: (total + looks_up(part).sum(), None), 0.0, x)[0]


def turned(x: Any) -> Any:
    return x.transpose(0, 2, 1), x.sum()


def kept(x: Any) -> Any:
    return x + 1, x.sum()


def normalised(axes: tuple[int, ...]) -> Callable[..., Any]:
    def step(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            h = jnp.einsum("nhwc,cd->nhwd", x, w)
            for _ in range(2):
                mean = h.mean(axes, keepdims=True)
                variance = ((h - mean) ** 2).mean(axes, keepdims=True)
                h = jax.nn.relu((h - mean) * jax.lax.rsqrt(variance + 1e-5))
                h = jnp.einsum("nhwc,cd->nhwd", h, w)
            return (h**2).mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    return step


def unrolled(x: Any, weights: Any) -> Any:
    def loss(weights: Any) -> Any:
        h = x
        for up, down in weights:
            h = jax.nn.relu(h @ up) @ down + h
        return (h**2).mean()

    return jax.grad(loss)(weights)


def scanned(x: Any, weights: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        return jax.nn.relu(h @ w[0]) @ w[1] + h, None

    return jax.grad(lambda w: (jax.lax.scan(layer, x, w)[0] ** 2).mean())(weights)


def prints(x: Any, w: Any) -> Any:
    jax.debug.print("largest {}", x[0, 0])
    return product(x, w)


def asks(x: Any, w: Any) -> Any:
    def layer(h: Any, _: Any) -> Any:
        shape = jax.ShapeDtypeStruct((8,), "float32")
        told = jax.pure_callback(lambda a: np.asarray(a), shape, h[0, :8].astype("float32"))
        io_callback(lambda a: None, None, h[0, 0])
        return product(h, w) + told[0].astype(h.dtype), None

    return jax.lax.scan(layer, x, None, length=3)[0]


def widened(state: dict[str, Any], x: Any) -> Any:
    return {"w": state["w"] + x.astype("float32"), "step": state["step"] + 1}, x.sum()


def scaled(x: Any, w: Any, factor: Any) -> Any:
    return product(x, w) * factor


def looped_thrice(x: Any) -> Any:
    for _ in range(3):
        x = jax.lax.while_loop(lambda v: v.sum() > 0, lambda v: jnp.sin(v) - 1, x)
    return x


def summed_in_parts(x: Any) -> Any:
    inside = jax.shard_map(
        lambda part: jax.lax.psum(part @ part.T, "data"),
        mesh=abstract_mesh({"data": 8}),
        in_specs=P("data"),
        out_specs=P(),
    )
    return inside(x)


def updated(state: Any) -> Any:
    return state + 1


ADAM = optax.adam(1e-3)


def trained(weights: Any, state: Any) -> Any:
    updates, state = ADAM.update(weights, state, weights)
    return optax.apply_updates(weights, updates), state


def moments(weights: Any, partition: Any = None) -> Any:
    state = jax.eval_shape(ADAM.init, weights)
    return jax.tree.map(lambda leaf: f32(*leaf.shape, partition=leaf.shape and partition), state)


def doubled(block: tuple[int, int] | None) -> Callable[[Any], Any]:
    def body(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def call(x: Any) -> Any:
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        if block is None:
            return pallas.pallas_call(body, out_shape=kind, name="double_it")(x)
        blocks = pallas.BlockSpec(block, lambda i: (i, 0))
        return pallas.pallas_call(
            body,
            out_shape=kind,
            name="double_it",
            grid=(x.shape[0] // block[0],),
            in_specs=[blocks],
            out_specs=blocks,
        )(x)

    return call


def gradient_of(grouped: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(rows: Any, matrices: Any, sizes: Any) -> Any:
        def loss(rows: Any, matrices: Any) -> Any:
            return (grouped(rows, matrices, sizes).astype(jnp.float32) ** 2).sum()

        return jax.grad(loss, argnums=(0, 1))(rows, matrices)

    return gradient


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    on: str = "v5e-1"
    donate: tuple[int, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


def bf16(*shape: int, partition: Any = None, dtype: str = "bfloat16") -> Any:
    return spec(shape, dtype, partition=partition)


def fp8(*shape: int) -> Any:
    return spec(shape, "float8_e4m3fn")


def f32(*shape: int, partition: Any = None) -> Any:
    return spec(shape, "float32", partition=partition)


WEIGHTS = f32(8192, 8192, partition=BATCH)
HEADS_64, HEADS_128 = (bf16(4, 8, 1024, 64),) * 3, (bf16(4, 4, 1024, 128),) * 3
WHOLE, NARROW = bf16(2048, 2048), bf16(2048, 144)
X, X_DIVIDED = bf16(8192, 2048), bf16(65536, 2048, partition=BATCH)
LAYER = (bf16(256, 1024), bf16(1024, 256))
STACK = (bf16(8, 256, 1024), bf16(8, 1024, 256))
IMAGES = f32(256, 8, 8, 128, partition=BATCH)
NO_WINDOWS = (("xla_jf_spmd_threshold_for_windowed_einsum_mib", 1000000),)
COLUMNS = (bf16(8192, 4096, partition=BATCH), bf16(4096, 8192, partition=(None, "data")))
GROUPED = (bf16(8192, 1024), bf16(16, 1024, 512), spec((16,), "int32"))
STATE = {"w": f32(1024, 1024), "step": spec((), "int32")}

CASES = {
    "clean": Case(product, (X_DIVIDED, WHOLE), "v5e-8"),
    "undivided": Case(product, (X, WHOLE), "v5e-8"),
    "divided inside": Case(summed_in_parts, (bf16(8192, 2048),), "v5e-8"),
    "sorted": Case(jnp.sort, (f32(2**17, 32),)),
    "loops": Case(looped_thrice, (f32(256, 256),)),
    "narrow": Case(product, (X, NARROW)),
    "float32": Case(product, (f32(8192, 2048), f32(2048, 512))),
    "highest": Case(product_at_highest, (f32(2048, 512), f32(512, 512))),
    "int8 tpu7x": Case(product_of_integers, (bf16(1024, 1024, dtype="int8"),) * 2, "tpu7x-2x2x1"),
    "int8 v6e": Case(product_of_integers, (bf16(1024, 1024, dtype="int8"),) * 2, "v6e-1"),
    "few rows": Case(product, (bf16(64, 4096, partition=BATCH), bf16(4096, 16384)), "v5e-8"),
    "attention 64": Case(attention_gradient, HEADS_64),
    "attention 128": Case(attention, HEADS_128),
    "turned": Case(turned, (f32(64, 1024, 1000),)),
    "kept": Case(kept, (f32(64, 1024, 1000),)),
    "batch norm": Case(normalised((0, 1, 2)), (IMAGES, f32(128, 128)), "v5e-8"),
    "layer norm": Case(normalised((3,)), (IMAGES, f32(128, 128)), "v5e-8"),
    "rotated": Case(product, COLUMNS, "v5e-8"),
    "gathered": Case(product, COLUMNS, "v5e-8", options=NO_WINDOWS),
    "unrolled": Case(unrolled, (bf16(512, 256), [LAYER] * 8)),
    "scanned": Case(scanned, (bf16(512, 256), STACK)),
    "prints": Case(prints, (X, WHOLE)),
    "asks": Case(asks, (X, WHOLE)),
    "widened": Case(widened, ({**STATE, "w": bf16(1024, 1024)}, f32(1024, 1024)), donate=(0,)),
    "kept types": Case(widened, (STATE, f32(1024, 1024)), donate=(0,)),
    "number": Case(scaled, (X, WHOLE, 0.5)),
    "given away": Case(updated, (f32(512, 1024, 1024),), donate=(0,)),
    "held": Case(updated, (f32(512, 1024, 1024),)),
    "state whole": Case(trained, (WEIGHTS, moments(WEIGHTS)), "v5e-8", donate=(0, 1)),
    "state divided": Case(trained, (WEIGHTS, moments(WEIGHTS, BATCH)), "v5e-8", donate=(0, 1)),
    "captured": Case(looked_up, (f32(4, 64, 4096),)),
    "padded": Case(updated, (f32(3, 100, 100, 100, 100),), donate=(0,)),
    "kernel blocks": Case(doubled((512, 4096)), (f32(4096, 4096),)),
    "kernel whole": Case(doubled(None), (f32(4352, 8192),)),
    "kernel small": Case(doubled((256, 1024)), (f32(4096, 1024),)),
    "grouped": Case(gradient_of(jax.lax.ragged_dot), GROUPED),
    "fp8": Case(product, (fp8(8192, 4096), fp8(4096, 256)), "tpu7x-2"),
    "fp8, more rows": Case(product, (fp8(8320, 4096), fp8(4096, 256)), "tpu7x-2"),
    "grouped by kernels": Case(gradient_of(grouped_dot), GROUPED),
    "too large": Case(product, (f32(65536, 65536), f32(65536, 65536))),
}

PAIRS = {
    "padded-matmul": ("narrow", "clean"),
    "head-dimension": ("attention 64", "attention 128"),
    "float32-matmul": ("float32", "clean"),
    "unsupported-type": ("int8 tpu7x", "int8 v6e"),
    "small-batch": ("few rows", "clean"),
    "grouped-gradient": ("grouped", "grouped by kernels"),
    "badly-tiled": ("fp8", "fp8, more rows"),
    "materialised-attention": ("attention 64", "attention 128"),
    "copy": ("turned", "kept"),
    "donation": ("held", "given away"),
    "undivided-state": ("state whole", "state divided"),
    "padded-arguments": ("padded", "given away"),
    "captured-constants": ("captured", "clean"),
    "exposed-collective": ("gathered", "clean"),
    "sync-batchnorm": ("batch norm", "layer norm"),
    "collective-matmul": ("rotated", "gathered"),
    "undivided": ("undivided", "clean"),
    "host-bound": ("kernel small", "clean"),
    "host-callback": ("asks", "clean"),
    "small-operations": ("layer norm", "clean"),
    "unrolled-layers": ("unrolled", "scanned"),
    "recompile": ("widened", "kept types"),
}


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    directory = tmp_path_factory.mktemp("cache")
    answers: dict[str, Analysis] = {}
    for options in ((), NO_WINDOWS):
        group = {name: case for name, case in CASES.items() if case.options == options}
        programs = []
        for case in group.values():
            where = chips.resolve(case.on)
            program = trace(
                case.function,
                case.args,
                axes={"data": where.num_devices},
                options=TraceOptions(
                    donate_argnums=case.donate, device_kind=where.generation.device_kind
                ),
            )
            programs.append((program, where))
        compiled = compile_all(
            [(program, Target.of(where)) for program, where in programs],
            CompileOptions(dict(options), cache_directory=directory, workers=2),
        )
        for name, (program, where), answer in zip(group, programs, compiled, strict=True):
            answers[name] = analyse(program, where, answer)
    return answers


def of(analysis: Analysis, rule: str) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.rule == rule]


def test_every_rule_has_its_pair() -> None:
    assert set(PAIRS) == set(RULES)


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_speaks_of_its_program_and_not_of_the_other(analyses, rule: str) -> None:
    guilty, innocent = (analyses[name] for name in PAIRS[rule])
    found = of(guilty, rule)
    if MENDED.get(rule):
        assert found == [] == of(innocent, rule)
        return
    assert found, [f.rule for f in guilty.findings]
    assert of(innocent, rule) == []
    for finding in found:
        assert finding.message and finding.fix
        assert 0 <= finding.effect_share <= 1
        assert finding.page == f"neurenix rule {rule}"
        assert finding.effect_seconds > 0 or finding.effect_bytes > 0 or rule == "recompile"
    placed = {
        "padded-matmul", "head-dimension", "float32-matmul", "materialised-attention",
        "exposed-collective", "sync-batchnorm", "collective-matmul", "host-callback",
        "unrolled-layers", "small-batch", "grouped-gradient", "unsupported-type",
        "captured-constants",
    }  # fmt: skip
    if jax.__version_info__ >= (0, 11) and found[0].source is None:
        placed -= {"exposed-collective"}  # its all-reduces carry no line there
    if rule in placed:
        assert found[0].source is not None
        assert Path(found[0].source.file) == HERE


def test_a_clean_program_has_no_findings(analyses) -> None:
    assert [f.rule for f in analyses["clean"].findings] == []


def line_of(function: Callable[..., Any], text: str) -> int:
    first = function.__code__.co_firstlineno
    lines = HERE.read_text().split("\n")
    return next(n for n in range(first, first + 20) if text in lines[n - 1])


def test_float32_at_highest_precision_is_told_from_plain(analyses) -> None:
    assert "six passes" in of(analyses["highest"], "float32-matmul")[0].message
    assert "six passes" not in of(analyses["float32"], "float32-matmul")[0].message


def test_a_captured_array_is_named_with_its_line_and_counted(analyses) -> None:
    analysis = analyses["captured"]
    (found,) = of(analysis, "captured-constants")
    assert "an array of 16.00 MiB, float32[4096,1024], that it was not given" in found.message
    assert found.source.line == line_of(looks_up.__wrapped__, "x @ TABLE")
    assert found.severity == "note"
    assert found.effect_bytes == analysis.memory.roles["constants"] > 2**22


def test_callbacks_are_named_with_line_and_count(analyses) -> None:
    (printed,) = of(analyses["prints"], "host-callback")
    assert printed.message.startswith("jax.debug.print calls Python on the host 1×")
    assert printed.source.line == line_of(prints, "jax.debug.print")
    answered, told = sorted(of(analyses["asks"], "host-callback"), key=lambda f: -f.source.line)
    assert told.source.line == line_of(asks, "pure_callback")
    assert answered.source.line == line_of(asks, "io_callback")
    for finding in (answered, told):
        assert "3× a step" in finding.message
        assert finding.severity == "warning"


def test_work_that_the_program_divides_itself_is_divided(analyses) -> None:
    assert of(analyses["divided inside"], "undivided") == []
    mesh = abstract_mesh({"data": 2, "tensor": 4})

    def constrained(x: Any) -> Any:
        whole = NamedSharding(mesh, P(None, ("data", "tensor")))
        return jax.lax.with_sharding_constraint(x @ x, whole)

    program = trace(constrained, (f32(64, 64),), axes=dict(mesh.shape))
    assert program.traits.divided_axes == ("data", "tensor")


@pytest.mark.skipif(MENDED["badly-tiled"], reason="this libtpu has good tiles for it")
def test_bad_tiles_are_told_with_what_they_cost(analyses) -> None:
    (found,) = of(analyses["fp8"], "badly-tiled")
    bad, good = (sum(o.seconds for o in analyses[n].operations) for n in ("fp8", "fp8, more rows"))
    assert found.severity == "warning" and found.effect_share > 0.9
    assert 15 < bad / good < 80
    assert "A product of (8192 × 4096) · (4096 × 256) fills the matrix unit" in found.message
    (slow,) = (o for o in analyses["fp8"].operations if o.products)
    assert f"takes {slow.seconds / slow.floor_seconds:.0f} times" in found.message


def test_the_work_of_all_groups_is_counted(analyses) -> None:
    work = sum(o.flops for o in analyses["grouped"].operations)
    once = 2 * 8192 * 1024 * 512
    assert work == pytest.approx((3 if GRADIENT_HAS_A_KERNEL else 2 + 16) * once)
    if GRADIENT_HAS_A_KERNEL:
        return
    (found,) = of(analyses["grouped"], "grouped-gradient")
    assert "takes 16 times the work" in found.message and found.severity == "warning"
    assert found.source.line == line_of(gradient_of, "grouped(rows, matrices, sizes)")
    masked = max(analyses["grouped"].operations, key=lambda o: o.flops)
    assert masked.flops == 16 * once
    factor = analyses["grouped"].time.device_seconds / sum(
        o.seconds for o in analyses["grouped"].operations
    )
    assert found.effect_seconds == pytest.approx(masked.seconds * 15 / 16 * factor, rel=0.05)


def test_a_note_is_said_once(analyses) -> None:
    (note,) = analyses["loops"].notes
    assert "depends on data; it counts once" in note


def test_what_is_counted_too_low_is_said_to_be(analyses) -> None:
    (note,) = analyses["sorted"].notes
    assert "no cycles for sort. It counts as one pass over its bytes, a lower bound" in note
    sorting = sum(o.seconds for o in analyses["sorted"].operations if o.opcode == "sort")
    share = sorting / sum(o.seconds for o in analyses["sorted"].operations)
    assert f"({share:.1%} of the device's time)" in note


def test_what_remains_without_callbacks_is_the_program(analyses) -> None:
    printing = analyses["prints"].program.model_flops
    assert printing == analyses["undivided"].program.model_flops
    assert analyses["prints"].time.seconds > 0.5 * analyses["undivided"].time.seconds


def test_the_changed_leaf_of_a_state_is_named(analyses) -> None:
    (found,) = of(analyses["widened"], "recompile")
    assert "0.w goes in as bfloat16[1024,1024] and comes back as float32[1024,1024]" in (
        found.message
    )
    assert found.severity == "warning"


def test_a_python_number_is_a_note_and_keeps_its_weak_type(analyses) -> None:
    (found,) = of(analyses["number"], "recompile")
    assert "argument 2 (0.5)." in found.message
    assert found.severity == "note"
    assert of(analyses["number"], "float32-matmul") == []
    assert analyses["number"].program.output_bytes == 8192 * 2048 * 2  # bfloat16, as under jit


@pytest.mark.parametrize(
    ("name", "needed", "limit"), [("kernel blocks", 32, 16), ("kernel whole", 136, 128)]
)
def test_a_kernel_that_is_too_large_is_named_with_its_sizes(analyses, name, needed, limit) -> None:
    (found,) = analyses[name].findings
    assert found.rule == "refused-vmem"
    assert f"The kernel double_it needs {needed}.0 MiB of VMEM" in found.message
    assert f"may have {limit}.0 MiB" in found.message
    assert found.effect_bytes == (needed - limit) * 2**20
    assert Path(found.source.file) == HERE
    assert found.fix == REFUSALS["vmem"]
    assert [f for f in analyses["kernel small"].findings if f.severity == "error"] == []


def test_a_branch_is_counted_once_and_its_callback_seen() -> None:
    def chooses(x: Any, w: Any) -> Any:
        def dear(x: Any) -> Any:
            return (x @ w) @ w

        def cheap(x: Any) -> Any:
            jax.debug.print("cheap {}", x[0, 0])
            return x @ w

        return jax.lax.cond(x[0, 0] > 0, dear, cheap, x)

    traits = trace(chooses, (f32(64, 64), f32(64, 64)), axes={"data": 1}).traits
    assert [p.flops for p in traits.products] == [2.0 * 64**3] * 2
    (printed,) = traits.callbacks
    assert printed.source is not None
    assert Path(printed.source.file) == HERE


def test_products_of_a_kernel_have_the_line_that_calls_it() -> None:
    x = bf16(4, 2, 256, 64)
    traits = trace(flash_attention, (x, x, x), axes={"data": 1}).traits
    inside = [p for p in traits.products if p.in_kernel]
    # Scores and values: all heads and examples, each block once.
    assert sum(p.flops for p in inside) == 2 * 2.0 * 4 * 2 * 256 * 256 * 64


def test_a_program_that_does_not_fit_says_by_how_much(analyses) -> None:
    (found,) = analyses["too large"].findings
    assert found.rule == "refused-hbm"
    assert found.effect_bytes > 2**30


def test_a_model_of_the_library_trains_without_recompiling() -> None:
    from neurenix import nn, optim

    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm(16), nn.Linear(16, 4))
    model.compile(optimizer=optim.Adam(1e-3), loss="mse")
    axes = {"data": 8}
    step = model.trainer.step_program(abstract_mesh(axes), spec((64, 16)), spec((64, 4)))
    program = trace(
        step.function,
        (step.state, step.batch),
        axes=axes,
        options=TraceOptions(donate_argnums=tuple(step.donate_argnums)),
    )
    assert program.traits.recompiles == ()
    assert program.traits.callbacks == ()
