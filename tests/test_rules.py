"""The pages of the rules: read from the package, printed by the command, shown on the page."""

from __future__ import annotations

import html
import re
import subprocess
import sys

import pytest

from neurenix import UnknownNameError, rules
from neurenix.preflight.page.findings_section import rule_page

pytestmark = pytest.mark.pure


def neurenix(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neurenix", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_command_prints_a_rule() -> None:
    answer = neurenix("rule", "sync-batchnorm")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("# sync-batchnorm\n")
    assert "## Example" in answer.stdout and "```python" in answer.stdout


def test_the_command_lists_every_rule_without_links() -> None:
    answer = neurenix("rule")
    assert answer.returncode == 0, answer.stderr
    listed = re.findall(r"^\| ([\w-]+) \|", answer.stdout, re.MULTILINE)
    assert sorted(listed) == sorted({"rule", *rules.names()})
    assert ".md" not in answer.stdout


def test_a_rule_that_does_not_exist_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="padded-matmul"):
        rules.page("padded-matmull")
    answer = neurenix("rule", "padded-matmull")
    assert answer.returncode == 2
    assert "Did you mean 'padded-matmul'" in answer.stderr and "Traceback" not in answer.stderr


def test_the_command_loads_no_jax() -> None:
    code = (
        "import sys, neurenix.cli.app as app; sys.argv = ['neurenix', 'rule', 'copy']\n"
        "try: app.app()\nexcept SystemExit: print('jax' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.splitlines()[-1] == "False", answer.stderr


@pytest.mark.parametrize("rule", rules.names())
def test_a_page_as_html_keeps_every_line_and_no_mark_of_markdown(rule: str) -> None:
    page = rule_page(rule)
    assert page.count("<pre>") == rules.page(rule).count("```") // 2
    assert page.count("<h4>") == rules.page(rule).count("\n## ")
    outside = re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert not re.search(r"```|^#|\*\*|`|\]\(", outside, re.MULTILINE)
    _, text = rules.unlinked(rules.page(rule)).split("\n", 1)  # below its name
    written = re.sub(r"^## |^- |```\w*|`|\*\*", " ", text, flags=re.MULTILINE)
    shown = re.sub(r"<summary>.*?</summary>|<[^>]+>", " ", page)
    assert "".join(html.unescape(shown).split()) == "".join(written.split())
