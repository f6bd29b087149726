"""Pages in a real browser.

Chromium runs the page; a driver put at the end of a copy of it does what a reader would do and
leaves what it saw in the document. The policy that keeps foreign scripts out of the page is taken
out of that copy.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="there is no Chromium; on Debian: apt-get install -y chromium"
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def browse(page: str, folder: Path, driver: str = "", width: int = 1280) -> tuple[Any, str]:
    """Open a page, run ``driver`` in it, and return its ``answer`` and what the console said."""
    assert BROWSER is not None
    if driver:
        ending = (
            "const answer={};const press=e=>e.click();"
            f"{driver};document.documentElement.dataset.answer=JSON.stringify(answer)"
        )
        page = POLICY.sub("", page).replace("</body>", f"<script>{{{ending}}}</script></body>")
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND",
         f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    found = re.search(r'<html[^>]* data-answer="([^"]*)"', done.stdout)
    return json.loads(unescape(found[1])) if found else done.stdout, console


def framed(page: str, folder: Path, driver: str, width: int) -> Any:
    """Look at a page in a frame of this width: a window of Chromium has a least one.

    Returns:
        What ``driver`` left in ``answer``; the document is its ``page``.
    """
    inner = escape(POLICY.sub("", page), quote=True)
    frame = f'<iframe srcdoc="{inner}" width={width} height=800 style="border:0"></iframe>'
    script = f"""
    document.querySelector('iframe').onload=event=>{{
    const page=event.target.contentDocument,answer={{}};{driver};
    document.documentElement.dataset.answer=JSON.stringify(answer)}}
    """
    return browse(f"<body>{frame}<script>{script}</script></body>", folder, width=1400)[0]
