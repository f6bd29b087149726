"""Look up names of other packages that are private or experimental, at run time.

The next version of a package may rename or remove such a name, which must not stop a program that
does not need it. Owns the lookup and the error. Which names are used, and for what, is decided in
``neurenix._jax``, ``neurenix._jaxlib`` and ``neurenix._nnx``, and nowhere else.
"""

from __future__ import annotations

import importlib.metadata
import pkgutil
from typing import Any

from neurenix._core.errors import IncompatibleVersionError


def find(name: str) -> Any:
    """Return the object that ``"package.module:attribute"`` names; None where it does not exist.

    ``"package.module:"`` names the module, and imports it.

    Example:
        >>> find("math:pi"), find("math:tau_squared"), find("no_such_module:x")
        (3.141592653589793, None, None)
    """
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return None


def need(name: str, feature: str) -> Any:
    """Return the object that ``"package.module:attribute"`` names.

    Args:
        name: as ``find`` takes it.
        feature: what uses it, for the error message.

    Raises:
        IncompatibleVersionError: it does not exist.
    """
    found = find(name)
    if found is None:
        raise missing(name, feature)
    return found


def need_attribute(owner: Any, name: str, feature: str) -> Any:
    """Return the attribute ``"package.module:Class.attribute"`` of ``owner``, an instance.

    Raises:
        IncompatibleVersionError: ``owner`` has no such attribute.
    """
    try:
        return getattr(owner, name.replace(":", ".").rpartition(".")[2])
    except AttributeError as error:
        raise missing(name, feature) from error


def missing(name: str, feature: str) -> IncompatibleVersionError:
    """Build the error for a name that the installed version of a package does not have.

    Example:
        >>> print(str(missing("numpy.linalg:no_such", "This feature")).partition(" of ")[0])
        This feature uses numpy.linalg.no_such, an internal name
    """
    package = name.partition(":")[0].partition(".")[0]
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    shown = name.replace(":", ".").rstrip(".")
    return IncompatibleVersionError(
        f"{feature} uses {shown}, an internal name of {package} that {package} {version} does not "
        "have. Run `pip install --upgrade neurenix`, which installs versions of jax, flax and "
        "libtpu that work together."
    )
