"""Training needs no private or experimental name of JAX and Flax; what does need one says so."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import _jax, _jaxlib, _nnx
from neurenix._core import unstable_names

pytestmark = [pytest.mark.newest]

NAME = re.compile(r"(jax|jaxlib|flax|libtpu)(\.\w+)*:[\w.]*")
TORUS = "jax.experimental.mesh_utils:create_device_mesh"  # which loads JAX
PROGRAM = Path(__file__).with_name("unstable_names_program.py")


def names_of(module: Any) -> set[str]:
    """Return the names that a module looks up, but attributes of objects, which it is given."""
    tree = ast.parse(Path(module.__file__).read_text())
    of_objects = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("need_attribute", "missing")
        for part in ast.walk(node)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if NAME.fullmatch(node.value) and id(node) not in of_objects
    }


NAMES = sorted(set().union(*map(names_of, (_jax, _jaxlib, _nnx))))


@pytest.mark.parametrize("name", NAMES)
def test_the_name_exists(name: str) -> None:
    """A name that is gone has been replaced in a tested version by another, or by none."""
    assert unstable_names.find(name) is not None


def test_the_names_of_the_compiler_are_found_without_jax(run_python: Any) -> None:
    code = (
        "import sys\nfrom neurenix._core.unstable_names import find\n"
        f"names = {sorted(names_of(_jaxlib) - {TORUS})!r}\n"
        "print([name for name in names if find(name) is None], 'jax' in sys.modules)"
    )
    assert run_python(code=code).stdout.split() == ["[]", "False"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("names") / "found.json"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(NAMES), str(out)],
        env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_models_train_without_the_names(cases: dict[str, Any]) -> None:
    failed = {name: case["error"] for name, case in cases.items() if "error" in case}
    assert not failed, "\n".join(f"{name}:\n{error}" for name, error in failed.items())
    expected = cases["nothing"]["losses"]
    assert set(expected) == {"Linear", "CNN", "transformer"}
    for name, case in cases.items():
        for model, losses in expected.items():
            np.testing.assert_allclose(case["losses"][model], losses, rtol=1e-5, err_msg=name)


def test_the_names_that_training_looks_up_were_hidden(cases: dict[str, Any]) -> None:
    needed = {*cases["nothing"]["looked_up"]} & {*NAMES}
    one_by_one, lowerings = cases["one by one"]["hidden"], cases["lowerings"]["hidden"]
    assert needed == {*one_by_one, *lowerings}
    assert {
        "jax._src.core:trace_state_clean",
        "jax._src.lax.windowed_reductions:select_and_scatter_add_p",
        "flax.nnx:Variable._raw_value",
    } <= {*one_by_one}
    assert len(lowerings) == 4


def test_one_setting_turns_the_tunings_of_the_cpu_off(cases: dict[str, Any]) -> None:
    ours = [f"neurenix._cpu.{n}" for n in ("convolution", "weight_gradient", "max_pool_gradient")]
    assert cases["nothing"]["lowerings"] == ours
    assert cases["nothing"]["options"]
    for name in ("tunings", "lowerings"):
        assert not any("neurenix" in module for module in cases[name]["lowerings"]), name
    assert cases["tunings"]["options"] is None
    assert cases["one by one"]["options"] is None  # where XLA does not know one


def test_pallas_is_not_loaded_by_training(cases: dict[str, Any]) -> None:
    assert cases["nothing"]["pallas"] == []


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``hide(name)``: this version does not have the name, for those who look it up now."""

    def hide(hidden: str) -> None:
        resolve = pkgutil.resolve_name

        def found(name: str) -> Any:
            if name == hidden:
                raise AttributeError(name)
            return resolve(name)

        monkeypatch.setattr(pkgutil, "resolve_name", found)

    return hide


def double(x: Any) -> Any:
    return 2 * x


@pytest.mark.cpu8
@pytest.mark.parametrize(
    ("name", "feature", "use"),
    [
        (
            "jax.interpreters.mlir:LoweringParameters",
            "Compiling for devices",
            lambda: nx.preflight(double, nx.spec((8, 8)), on="v5e-1"),
        ),
        (
            "jax.extend.backend:get_compile_options",
            "Compiling for devices",
            lambda: nx.preflight(double, nx.spec((8, 8)), on="v5e-1"),
        ),
        (
            "jaxlib.xla_client:make_cpu_client",
            "Simulating a slice",
            _jax.check_simulation,
        ),
        (
            "jax._src.pjit:_cpp_pjit",
            "Preflight of a function",
            lambda: nx.preflight(
                jax.jit(double, compiler_options={"xla_tpu_x": "1"}), nx.spec((8,)), on="v5e-1"
            ),
        ),
        (
            "jax.interpreters.mlir:_lowerings",
            "numerics",
            lambda: _jax.needed_cpu_lowering(jax.lax.dot_general_p),
        ),
        (
            "jax.experimental.multihost_utils:process_allgather",
            "several processes",
            lambda: _jax.process_allgather(jnp.ones(2)),
        ),
        (
            "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask:",
            "Attention",
            _jax.splash_attention,
        ),
    ],
    ids=lambda part: part if isinstance(part, str) and ":" in part else "",
)
def test_a_feature_without_its_name_says_so(
    without: Any, name: str, feature: str, use: Any
) -> None:
    without(name)
    shown = re.escape(name.replace(":", ".").rstrip("."))
    with pytest.raises(nx.IncompatibleVersionError, match=f"{feature}.*{shown}.*pip install"):
        use()


def test_public_names_say_what_private_ones_say(without: Any) -> None:
    state = _jax._public_trace_state_clean()
    seen = []
    for transform in (jax.jit, jax.grad, jax.vmap):
        argument = jnp.ones(2) if transform is jax.vmap else 1.0
        transform(lambda x: (seen.append((state(), _jax.trace_state_clean())), x)[1])(argument)
    assert seen == [(False, False)] * 3
    assert state() and _jax.trace_state_clean()

    devices = _jax.devices_of_platform("tpu"), _jax.devices_of_platform("cuda")
    without("jax.extend.backend:backends")
    assert (_jax.devices_of_platform("tpu"), _jax.devices_of_platform("cuda")) == devices
    without("jax._src.xla_bridge:_backend_errors")
    assert "cuda" in (_jax.backend_error("cuda") or "")
    assert _jax.backend_error("tpu") is None


@pytest.mark.parametrize(
    "name", ["_lowerings", "_platform_specific_lowerings", "lower_fun", "register_lowering"]
)
def test_without_one_name_no_lowering_is_replaced(
    without: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    primitive = _jax.convolution_primitive
    before = _jax.cpu_lowering(primitive)
    assert before is not None
    without(f"jax.interpreters.mlir:{name}")
    _jax.replace_cpu_lowering(primitive, before, len)
    monkeypatch.undo()
    assert _jax.cpu_lowering(primitive) is before


def test_whether_backends_are_started(run_python: Any) -> None:
    code = (
        "import jax\nfrom neurenix import _jax\n_jax._backends_are_initialized = None\n"
        "before = _jax.backends_are_started(), _jax.backends_are_started()\n"
        "print(*before, len(jax.devices('cpu')), _jax.backends_are_started())"
    )
    done = run_python(code=code, env={"JAX_PLATFORMS": "cpu"})
    assert done.stdout.split() == ["False", "False", "1", "True"], done.stderr
