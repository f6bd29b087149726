"""Read and write a compiled program as one file, ``step.nxc``. Experimental: it may change.

Owns the container, its manifest and their checks. ``compile`` compiles, and ``load_compiled`` runs
what was read.

An artefact is a ZIP file with exactly three uncompressed members::

    manifest.json    what the program is, for which devices, versions, arguments and results
    executable.bin   the executable as PJRT serializes it
    program.bin      the program before it was compiled (StableHLO, as jax.export writes it)

The manifest has the sizes and SHA-256 digests of the other two; the comment of the ZIP file has the
digest of the manifest. No member is a pickle, and reading a file runs no code from it. *Running* an
executable runs its machine code: digests inside a file detect damage, not forgery. Use artefacts
from people whom you trust, or compare ``sha256`` with a digest from another channel.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neurenix._core.errors import ArgumentError, ArtefactError
from neurenix._core.files import write_whole
from neurenix._core.output_encoding import plain
from neurenix.compiler import cache, pytree_json
from neurenix.compiler.argument_arrays import Leaf, shard_shape
from neurenix.compiler.call_signature import Calling
from neurenix.compiler.compile import Compiled, CompileOptions
from neurenix.compiler.program import Program

SCHEMA = 1
"""Version of the manifest. Readers reject every other version."""

_COMMENT = b"neurenix-artefact manifest-sha256="
_MEMBERS = ("manifest.json", "executable.bin", "program.bin")
_WHEN = (1980, 1, 1, 0, 0, 0)  # the earliest ZIP date, so that equal content gives equal bytes
_ARRAY = {
    "shape": [int],
    "dtype": str,
    "partition": [(None, str, [str])],
    "memory_kind": (None, str),
}
_MACHINE = {"architecture": str, "features": [str]}
_FORM = {
    "name": str,
    "platform": str,
    "target": {"name": str, "num_devices": int},
    "versions": {},
    "axes": [[(str, int)]],  # name and size
    "device_ids": [int],
    "coordinates": [[int]],
    "machine": {},
    "arguments": [_ARRAY | {"path": str, "role": str, "device_shape": [int], "donated": bool}],
    "unused_arguments": [str],
    "outputs": [_ARRAY],
    "fingerprint": str,
    "model_flops": (int, float),
    "output_bytes": int,
    "compiler_options": {},
    "libtpu_init_args": str,
    "members": {name: {"bytes": int, "sha256": str} for name in _MEMBERS[1:]},
}
"""Types of the manifest: a list of one type, a dictionary with at least these keys, or a union."""


@dataclass(frozen=True)
class Artefact:
    """A compiled program that was written to, or read from, a file.

    Attributes:
        path: of the file.
        manifest: description of the program as JSON data. ``target`` is the slice, ``versions``
            those of jax, jaxlib, libtpu and neurenix that wrote it; ``arguments`` and ``outputs``
            have a path, shape, dtype and partition each; ``fingerprint`` is that of the program
            before compilation. ``call`` describes a call that is not of positional arrays only: see
            ``calling``.
        sha256: of the whole file, in hexadecimal digits.
        executable: PJRT's bytes.
        program: ``jax.export``'s bytes.
    """

    path: Path
    manifest: Mapping[str, Any]
    sha256: str
    executable: bytes
    program: bytes

    @property
    def target(self) -> str:
        """Name of the slice, such as ``"v5e-8"``, or ``"cpu"``."""
        return self.manifest["target"]["name"]

    @property
    def calling(self) -> Calling | None:
        """How the function was called, if not with positional arrays only."""
        call = self.manifest.get("call")
        return None if call is None else Calling.of_json(call)

    def __str__(self) -> str:
        versions = ", ".join(f"{k} {v}" for k, v in self.manifest["versions"].items())
        return plain(
            f"{self.path}: {self.manifest['name']} compiled for {self.target} with {versions}; "
            f"{len(self.manifest['arguments'])} arrays in, {len(self.manifest['outputs'])} out; "
            f"executable {len(self.executable):,} bytes\nsha256 {self.sha256}"
        )


def write(
    path: str | os.PathLike[str],
    program: Program,
    answer: Compiled,
    options: CompileOptions,
    call: Calling | None = None,
) -> Artefact:
    """Write a compiled program to a file atomically.

    Args:
        path: of the file, usually ``….nxc``; an existing file is replaced.
        program: the program before compilation.
        answer: of ``compile_all(…, executables=True)``.
        options: of the compilation.
        call: how the function is called, if not with positional arrays only.

    Raises:
        ArgumentError: the program cannot be run from a file, or the file cannot be written.
    """
    if problem := _problem(program, answer):
        raise ArgumentError(f"{program.name} cannot be written to a file: {problem}.")
    members = {"executable.bin": answer.executable, "program.bin": program.serialized}
    manifest = _manifest(program, answer, options) | (
        {} if call is None else {"call": call.as_json()}
    )
    manifest["members"] = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    }
    described = json.dumps(manifest, indent=1).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as file:
        for name, content in {"manifest.json": described, **members}.items():
            file.writestr(zipfile.ZipInfo(name, _WHEN), content)
        file.comment = _COMMENT + hashlib.sha256(described).hexdigest().encode()
    content = packed.getvalue()
    write_whole(path, content)
    return Artefact(
        path=Path(path),
        manifest=json.loads(described),
        sha256=hashlib.sha256(content).hexdigest(),
        executable=answer.executable,
        program=program.serialized,
    )


def read(path: str | os.PathLike[str], *, sha256: str | None = None) -> Artefact:
    """Read an artefact and verify it. It runs no code from the file.

    Args:
        path: of the file.
        sha256: expected digest of the whole file, if known.

    Raises:
        ArtefactError: the file is missing, not an artefact or truncated; the manifest has another
            schema; a member does not match the manifest; or ``sha256`` differs.
    """
    where = Path(path)
    try:
        content = where.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: an invalid path
        why = error.strerror if isinstance(error, OSError) else error
        raise ArtefactError(f"{str(where)!r} cannot be read: {why}.") from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256.strip().lower():
        raise ArtefactError(
            f"{where} is not the expected file: its sha256 is {found}, and {sha256} was "
            "expected. Do not run it; copy it again from its source."
        )
    members, comment = _unpack(where, content)
    described = members["manifest.json"]
    if hashlib.sha256(described).hexdigest().encode() != comment.removeprefix(_COMMENT):
        raise _damaged(where, "manifest.json")
    manifest = _checked_manifest(where, described)
    for name, expected in manifest["members"].items():
        digest = hashlib.sha256(members[name]).hexdigest()
        if (len(members[name]), digest) != (expected["bytes"], expected["sha256"]):
            raise _damaged(where, name)
    return Artefact(where, manifest, found, members["executable.bin"], members["program.bin"])


def check_versions(artefact: Artefact) -> None:
    """Check that the installed packages are those that wrote the executable.

    Raises:
        ArtefactError: a version differs; the message names both and the command that installs the
            file's version.
    """
    packages = ["jax", "jaxlib"] + ["libtpu"] * (artefact.manifest["platform"] == "tpu")
    made, here = artefact.manifest["versions"], cache.versions()
    other = [name for name in packages if made.get(name) != here[name]]
    if not other:
        return
    told = "; ".join(f"{name} {made.get(name)}, and here is {here[name]}" for name in other)
    install = " ".join(f"{name}=={made[name]}" for name in packages if name in made)
    raise ArtefactError(
        f"{artefact.path} was compiled with {told}. An executable runs with the versions that made "
        f"it only. Install them: pip install {install}\nOr compile the script or the function "
        "again with the versions installed here."
    )


def _problem(program: Program, answer: Compiled) -> str:
    if program.traits.callbacks:
        lines = ", ".join(str(c.source or c.primitive) for c in program.traits.callbacks[:3])
        return f"it calls the host ({lines}), and the file has no host code"
    if "problem" in answer.placement:
        return answer.placement["problem"]
    if not answer.executable:
        return "the compiler gave no executable"
    arrays = [(leaf.path, leaf.dtype) for leaf in program.leaves]
    arrays += [("the result", output["dtype"]) for output in answer.placement["outputs"]]
    for path, dtype in arrays:
        if dtype.startswith("key<"):
            return (
                f"{path} is a random key ({dtype}), whose representation is JAX's own; hand "
                "jax.random.key_data(key) over and wrap it with jax.random.wrap_key_data inside"
            )
    paths = [leaf.path for leaf in program.leaves] + list(program.unused)
    if twice := {path for path in paths if paths.count(path) > 1}:
        return f"two of its arguments have the same path, {min(twice)!r}; rename one"
    return ""


def _manifest(program: Program, answer: Compiled, options: CompileOptions) -> dict[str, Any]:
    placement = answer.placement
    arguments = [
        {
            "path": leaf.path,
            "role": leaf.role,
            "shape": leaf.shape,
            "dtype": leaf.dtype,
            "device_shape": _device_shape(leaf, division, program),
            "donated": index in program.donated,
            **division,
        }
        for index, (leaf, division) in enumerate(
            zip(program.leaves, placement["arguments"], strict=True)
        )
    ]
    return {
        "schema": SCHEMA,
        "name": program.name,
        "platform": program.platform,
        "target": answer.target.as_json(),
        "versions": {**cache.versions(), "neurenix": sys.modules["neurenix"].__version__},
        "axes": list(program.axes.items()),
        "device_ids": placement["device_ids"],
        "coordinates": placement["coordinates"],
        "machine": placement["machine"],
        "arguments": arguments,
        "unused_arguments": program.unused,
        "outputs": placement["outputs"],
        "output_tree": program.output_tree,
        "fingerprint": program.fingerprint,
        "model_flops": program.model_flops,
        "output_bytes": program.output_bytes,
        "compiler_options": dict(options.compiler_options),
        "libtpu_init_args": os.environ.get("LIBTPU_INIT_ARGS", ""),
    }


def _device_shape(leaf: Leaf, division: Mapping[str, Any], program: Program) -> Sequence[int]:
    """Return a leaf's per-device shape; for an uncommitted leaf, by the compiler's sharding."""
    if not leaf.is_unplaced:
        return leaf.device_shape
    return shard_shape(leaf.shape, division["partition"], program.axes)


def _unpack(where: Path, content: bytes) -> tuple[dict[str, bytes], bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            entries = file.infolist()
            if not file.comment.startswith(_COMMENT):
                raise ArtefactError(f"{where} is a ZIP file, not a Neurenix artefact.")
            # Duplicate, compressed or unknown members: not written by Neurenix.
            if sorted(entry.filename for entry in entries) != sorted(_MEMBERS) or any(
                entry.compress_type != zipfile.ZIP_STORED for entry in entries
            ):
                raise _damaged(where, "the list of members")
            members = {}
            for entry in entries:
                try:
                    members[entry.filename] = file.read(entry)
                except (zipfile.BadZipFile, EOFError, RuntimeError) as error:
                    raise _damaged(where, entry.filename) from error
            return members, file.comment
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        if content.startswith(b"PK\x03\x04"):
            raise ArtefactError(
                f"{where} is cut short or damaged: it begins as an artefact does, and its end is "
                "missing. Copy it again."
            ) from error
        raise ArtefactError(
            f"{where} is not a Neurenix artefact; `neurenix compile` writes them."
        ) from error


def _damaged(where: Path, member: str) -> ArtefactError:
    return ArtefactError(
        f"{where} is damaged or was changed: {member} is not what was written. Do not run it; copy "
        "it again from where it was made."
    )


def _checked_manifest(where: Path, described: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(described)
        schema = manifest["schema"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtefactError(f"{where} has no readable manifest.") from error
    if schema != SCHEMA:
        versions = manifest.get("versions")
        versions = versions if isinstance(versions, dict) else {}
        made = versions.get("neurenix", "another version")
        raise ArtefactError(
            f"The manifest of {where} is of schema {schema}, written by neurenix {made}; this "
            f"version reads schema {SCHEMA}. Install that version, or compile the program again."
        )
    wrong = [key for key, form in _FORM.items() if not _has_form(manifest.get(key), form)]
    if not wrong:
        try:
            leaves = pytree_json.count_leaves(manifest["output_tree"])
        except (KeyError, TypeError, ValueError, RecursionError):
            leaves = -1
        if leaves != len(manifest["outputs"]):
            wrong = ["output_tree"]
        paths = [argument["path"] for argument in manifest["arguments"]]
        if len(set(paths)) != len(paths):
            wrong = ["arguments"]
        if any(list(map(type, axis)) != [str, int] for axis in manifest["axes"]):
            wrong = ["axes"]
        if manifest["platform"] == "cpu" and not _has_form(manifest["machine"], _MACHINE):
            wrong = ["machine"]
        try:
            calling = Calling.of_json(manifest.get("call", Calling(0).as_json()))
            if calling.modules:  # their arrays are the second result
                (kind, (_, after)), count = manifest["output_tree"], len(calling.variables)
                whole = (kind, after[0], len(after[1])) == ("tuple", "list", count)
                wrong = wrong if whole else ["call"]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            wrong = ["call"]
        if len(manifest["members"]) != len(_MEMBERS[1:]):
            wrong = ["members"]
    if wrong:
        raise ArtefactError(f"The manifest of {where} is invalid: see {', '.join(wrong)}.")
    return manifest


def _has_form(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(_has_form(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(_has_form(one, form[0]) for one in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and all(_has_form(value.get(k), form[k]) for k in form)
    return value is None if form is None else type(value) is form
