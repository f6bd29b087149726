"""Cache compilation results on disk, one file per program, target, options and versions.

Owns the key, the file format and its checksum. A damaged entry counts as absent and adds a note. If
the directory is not writable, results are not cached.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

_FORMAT = 2
_MAGIC = b"neurenix-preflight-1\n"


def default_directory() -> Path:
    """Return ``$NEURENIX_CACHE_DIR``, else ``neurenix/preflight`` in the user's cache directory."""
    own = os.environ.get("NEURENIX_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "neurenix" / "preflight"


def versions() -> dict[str, str]:
    """Return the versions that the result depends on; ``"absent"`` for a missing package."""
    return {package: _version(package) for package in ("jax", "jaxlib", "libtpu")}


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def key(fingerprint: str, request: dict[str, Any]) -> str:
    """Return the name of an entry: a digest of all inputs of the result.

    Example:
        >>> key("p", {"target": "v5e-8"}) == key("p", {"target": "v6e-8"})
        False
    """
    described = json.dumps(
        [_FORMAT, request, versions(), os.environ.get("LIBTPU_INIT_ARGS", "")], sort_keys=True
    )
    return hashlib.sha256(f"{fingerprint}\n{described}".encode()).hexdigest()


@dataclass
class Cache:
    """A directory of entries. ``notes`` collects messages for the user."""

    directory: Path
    notes: list[str] = field(default_factory=list)

    def load(self, name: str) -> dict[str, Any] | None:
        """Return the entry, or ``None`` if it is absent or damaged."""
        path = self._path(name)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.notes.append(f"The cache {self.directory} cannot be read: {error}.")
            return None
        head = len(_MAGIC) + 32
        body = content[head:]
        if content[: len(_MAGIC)] != _MAGIC or (
            hashlib.sha256(body).digest() != content[len(_MAGIC) : head]
        ):
            self.notes.append(f"The cached result {path} is damaged; compiled again.")
            return None
        return json.loads(gzip.decompress(body))

    def store(self, name: str, entry: dict[str, Any]) -> None:
        """Write an entry atomically."""
        body = gzip.compress(json.dumps(entry).encode(), compresslevel=3, mtime=0)
        content = _MAGIC + hashlib.sha256(body).digest() + body
        partial = ""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self.directory, suffix=".partial")
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(partial, self._path(name))
        except OSError as error:
            self.notes.append(f"The result could not be cached in {self.directory}: {error}.")
        finally:
            if partial:
                Path(partial).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.bin"
