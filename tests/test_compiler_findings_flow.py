"""Following values through the text of a program, and the sums of softmaxes in it."""

from __future__ import annotations

import pytest

from neurenix.compiler.findings.flow import Flow, count
from neurenix.compiler.hlo import parse

pytestmark = pytest.mark.pure

ADDS = """
%adds (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}
"""

FUSIONS = f"""HloModule m
{ADDS}
%makes (m.0: f32[4,8], m.1: f32[4,8]) -> (f32[4,8], f32[4,8]) {{
  %m.0 = f32[4,8]{{1,0:T(8,128)}} parameter(0)
  %m.1 = f32[4,8]{{1,0:T(8,128)}} parameter(1)
  %exp = f32[4,8]{{1,0:T(8,128)}} exponential(%m.0)
  %neg = f32[4,8]{{1,0:T(8,128)}} negate(%m.1)
  ROOT %both = (f32[4,8]{{1,0:T(8,128)}}, f32[4,8]{{1,0:T(8,128)}}) tuple(%neg, %exp)
}}

%sums (s.0: f32[4,8], s.1: f32[4,8]) -> f32[4] {{
  %s.0 = f32[4,8]{{1,0:T(8,128)}} parameter(0)
  %s.1 = f32[4,8]{{1,0:T(8,128)}} parameter(1)
  %zero = f32[]{{:T(128)}} constant(0)
  %less = f32[4,8]{{1,0:T(8,128)}} subtract(%s.0, %s.0)
  %kept = f32[4,8]{{1,0:T(8,128)}} WORK, metadata={{op_name="NAME"}}
  ROOT %total = f32[4]{{0:T(128)}} reduce(%kept, %zero), dimensions={{1}}, to_apply=%adds
}}

ENTRY %main (p: f32[4,8]) -> f32[4] {{
  %p = f32[4,8]{{1,0:T(8,128)}} parameter(0)
  %made = (f32[4,8]{{1,0}}, f32[4,8]{{1,0}}) fusion(%p, %p), kind=kLoop, calls=%makes
  %first = f32[4,8]{{1,0:T(8,128)}} get-tuple-element(%made), index=0
  %second = f32[4,8]{{1,0:T(8,128)}} get-tuple-element(%made), index=1
  ROOT %out = f32[4]{{0:T(128)}} fusion(%first, %second), kind=kInput, calls=%sums
}}
"""


def flow(work: str, name: str = "jit(f)/jvp()/mul") -> Flow:
    return Flow(parse(FUSIONS.replace("WORK", work).replace("NAME", name)))


@pytest.mark.parametrize(
    ("work", "name", "expected"),
    [
        ("copy(%s.1)", "", {(32, 4)}),
        ("copy(%s.0)", "", set()),  # the other element of the tuple
        ("multiply(%s.1, %s.0)", "jit(f)/jvp()/mul", {(32, 4)}),
        ("multiply(%s.1, %s.0)", "jit(f)/transpose(jvp())/mul", set()),
        ("add(%s.1, %s.0)", "jit(f)/jvp()/add", set()),  # 1 + exp, of a sigmoid
    ],
)
def test_sums_of_exponentials_are_found_behind_fusions(work, name, expected) -> None:
    assert flow(work, name).softmaxes == expected


def test_a_largest_exponential_is_no_sum() -> None:
    text = FUSIONS.replace("WORK", "copy(%s.1)").replace(" add(%a, %b)", " maximum(%a, %b)")
    assert Flow(parse(text)).softmaxes == set()


def test_the_compilers_own_kernel_is_a_softmax() -> None:
    text = """HloModule m

ENTRY %main (s: bf16[2,8,16], v: bf16[2,16,4]) -> bf16[2,8,4] {
  %s = bf16[2,8,16]{2,1,0:T(8,128)(2,1)} parameter(0)
  %v = bf16[2,16,4]{2,1,0:T(8,128)(2,1)} parameter(1)
  ROOT %online-softmax = bf16[2,8,4]{2,1,0} custom-call(%s, %v), custom_call_target="x"
}
"""
    assert Flow(parse(text)).softmaxes == {(256, 16)}


def test_a_value_is_followed_as_far_as_it_is_let() -> None:
    found = flow("copy(%s.0)")
    entry = found.module.entry
    start = (entry, entry.by_name["p"])
    near = [i.name for _, i in found.reached(start, lambda i: False)]
    assert near == ["exp", "neg"]
    far = [i.name for _, i in found.reached(start, lambda i: count(i) == 32)]
    assert far == ["exp", "neg", "less", "kept", "total"]
