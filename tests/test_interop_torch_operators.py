"""Operators of PyTorch beyond its layers, beside PyTorch itself: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from neurenix._nnx import nnx  # noqa: E402  after the skip
from neurenix.interop.torch import from_torch  # noqa: E402

pytestmark = pytest.mark.interop
fft = torch.fft


def numbers(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Calls(torch.nn.Module):
    """Functions of one scaled tensor, all in one module."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.1))
        self.functions = functions

    def forward(self, x: Any) -> dict[str, Any]:
        return {name: function(self.scale * x) for name, function in self.functions.items()}


INDEX = torch.tensor([0, 2, 2])
WINDOW = torch.hann_window(8)
POSITIVE = "positive definite"
GROUPS: dict[str, tuple[Any, dict[str, Callable[..., Any]]]] = {
    "Fourier transforms": (
        numbers(4, 6),
        {
            "fft": lambda x: torch.view_as_real(fft.fft(x)),
            "ortho": lambda x: fft.fft2(x, norm="ortho").abs(),
            "inverse": lambda x: fft.ifft(fft.fft(x, norm="forward")).real,
            "rfft": lambda x: torch.view_as_real(fft.rfft(x, norm="ortho")),
            "rfft2": lambda x: fft.rfft2(x).imag,
            "irfft": lambda x: fft.irfft(fft.rfft(x) * 2, n=6),
            "irfft odd": lambda x: fft.irfft(torch.complex(x, x.sin()), n=7, norm="forward"),
            "irfft2": lambda x: fft.irfft2(fft.rfft2(x) ** 2, s=(4, 6), norm="ortho"),
            "hfft": lambda x: fft.hfft(torch.complex(x, x * 0)),
            "shift": lambda x: fft.fftshift(x),
            "polar": lambda x: torch.polar(x.abs(), x).real,
        },
    ),
    "short-time Fourier transforms": (
        numbers(2, 32),
        {
            "stft": lambda x: torch.stft(x, 8, 4, window=WINDOW, return_complex=True).abs(),
            "both": lambda x: torch.istft(
                torch.stft(x, 8, 4, window=WINDOW, return_complex=True), 8, 4, window=WINDOW),
        },
    ),
    "special functions": (
        torch.tensor([0.3, 0.9, 1.7, 2.5]),
        {
            "i0": torch.i0,
            "i0e": torch.special.i0e,
            "i1": torch.special.i1,
            "i1e": torch.special.i1e,
            "ndtri": lambda x: torch.special.ndtri(x / 4),
            "erfcx": lambda x: torch.special.erfcx(3 * x - 1),
            "polygamma": lambda x: torch.polygamma(2, x),
            "digamma": lambda x: torch.polygamma(0, x),
            "gammainc": lambda x: torch.special.gammainc(torch.full_like(x, 1.5).detach(), x),
            "gammaincc": lambda x: torch.special.gammaincc(torch.full_like(x, 2.5).detach(), x),
            "ldexp": lambda x: torch.ldexp(x, torch.tensor([1, 2, 0, 3])),
            "frexp": lambda x: torch.frexp(x.detach())[1].float() * x,
            "signbit": lambda x: torch.where(torch.signbit(x - 1), x, 2 * x),
            "zeta": lambda x: torch.special.zeta(x.detach() + 2, 1.5) * x,
        },
    ),
    "indices": (
        numbers(4, 5),
        {
            "mean": lambda x: x.index_reduce(0, INDEX, x[:3] * 2, "mean"),
            "mean alone": lambda x: x.index_reduce(0, INDEX, x[1:], "mean", include_self=False),
            "amax": lambda x: x.index_reduce(1, INDEX, x[:, :3] * 2, "amax"),
            "nanmedian": lambda x: torch.where(x > 0.8, torch.nan, x).nanmedian(1).values,
            "nanmedian of all": lambda x: torch.where(x > 0.8, torch.nan, x).nanmedian(),
            "repeated": lambda x: torch.repeat_interleave(
                x, torch.tensor([1, 0, 3, 2]), 0, output_size=6),
            "mode": lambda x: torch.mode((x * 2).round().detach(), 1).values * x[:, 0],
            "gcd": lambda x: x[0] * torch.gcd(torch.arange(5) * 6, torch.tensor(9)),
            "lcm": lambda x: x[0] * torch.lcm(torch.arange(5), torch.tensor(6)),
            "shifts": lambda x: x[0] * ((torch.arange(5) << 2) + (torch.arange(5) >> 1)),
        },
    ),
    POSITIVE: (
        numbers(4, 4) @ numbers(4, 4).T + 3 * torch.eye(4),
        {
            "slogdet": lambda x: torch.linalg.slogdet(x).logabsdet,
            "cholesky": lambda x: torch.cholesky(x),
            "cholesky_solve": lambda x: torch.cholesky_solve(
                torch.ones(4, 2), torch.linalg.cholesky(x)),
            "cholesky_inverse": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(x)),
            "triangular_solve": lambda x: torch.triangular_solve(torch.ones(4, 2), x)[0],
            "lu_factor": lambda x: torch.linalg.lu_factor(x).LU,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of old names
def test_outputs_and_gradients_are_those_of_pytorch(group: str) -> None:
    x, functions = GROUPS[group]
    net = Calls(functions)
    model = from_torch(net, (x,), dynamic_shapes=({},), check=False)
    wanted = net(x)
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    for name, theirs in wanted.items():
        (slope,) = torch.autograd.grad(theirs.sum(), net.scale, retain_graph=True)

        def both(parameters: Any, name: str = name) -> Any:
            found = nnx.merge(graph, parameters, rest)(x.numpy())[name]
            return found.sum(), found

        (_, ours), found = jax_value_and_grad(both)(parameters)
        np.testing.assert_allclose(ours, theirs.detach(), rtol=2e-5, atol=2e-5, err_msg=name)
        ours = np.asarray(found["scale"].get_value())
        np.testing.assert_allclose(ours, slope, rtol=1e-4, atol=1e-4, err_msg=name)


def jax_value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    return jax.jit(jax.value_and_grad(function, has_aux=True))
