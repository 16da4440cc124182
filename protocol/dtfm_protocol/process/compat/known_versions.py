"""The check that an installed library is one for which a patch was made."""

from importlib.metadata import version

from packaging.specifiers import SpecifierSet

from dtfm_protocol.process.logs import log


def is_known(library: str, versions: str) -> bool:
    """Whether the installed version of `library` is one for which a patch was made; where it is not, warn.

    Args:
        library: a distribution's name.
        versions: versions as in requirements, e.g. ">=1.1.11,<1.2".
    """
    installed = version(library)
    if SpecifierSet(versions).contains(installed, prereleases=True):
        return True
    log.warning(
        "%s %s is not patched: what was to be mended is known of %s only (see %s)", library, installed, versions,
        "protocol/dtfm_protocol/process/compat",
    )  # fmt: skip
    return False
