"""A file run as Python runs a script: as the module ``__main__``, which stays there.

``runpy.run_path`` takes the module away as soon as the code has ended; threads and exit handlers of
the script would then miss it.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import pkgutil
import runpy
import sys
import types

FILES = (__file__, runpy.__file__, "<frozen runpy>")
"""What stands in a traceback above the script's own frames."""


def run_script(path: str | os.PathLike[str]) -> None:
    """Run a script as ``__main__``; of a folder or an archive, its ``__main__.py``.

    Args:
        path: of the script; ``__file__`` is absolute, as in a script that Python started.

    Raises:
        BaseException: whatever the script raises.
    """
    whole = os.path.abspath(path)
    if whole.endswith(".pyc") or pkgutil.get_importer(whole) is not None:
        runpy.run_path(whole, run_name="__main__")
        return
    loader = importlib.machinery.SourceFileLoader("__main__", whole)
    code = loader.source_to_code(loader.get_data(whole), whole)
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=whole, __loader__=loader, __cached__=None, __builtins__=builtins
    )
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
