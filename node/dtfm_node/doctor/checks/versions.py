"""Check whether Python and the libraries are those that dtfm asks for."""

import platform
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from dtfm_node.doctor.findings import Finding, bad, good, warn

GROUP = "this machine"
SHOWN = ("dtfm", "torch", "hivemind", "numpy")


def look() -> tuple[dict[str, str], list[str]]:
    """Return the installed version of each library that dtfm needs ("": none), and dtfm's requirements (PEP 508)."""
    asked = [one for one in requires("dtfm") or [] if _counts(Requirement(one))]
    names = ["dtfm", *(Requirement(one).name for one in asked)]
    return {name: _version(name) for name in names}, asked


def _counts(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def judge(installed: dict[str, str], asked: list[str], fault: str = "") -> list[Finding]:
    """Judge the installed versions, by name, by what dtfm asks of them.

    Args:
        fault: why the libraries cannot be loaded; "": they can.
    """
    found = []
    for requirement in map(Requirement, asked):
        here = installed.get(requirement.name, "")
        if not here or not requirement.specifier.contains(here, prereleases=True):
            found.append(
                bad(
                    GROUP,
                    "versions",
                    f"dtfm needs {requirement.name}{requirement.specifier}, and {here or 'none'} is installed",
                    f"pip install '{requirement.name}{requirement.specifier}'",
                )
            )
    if fault and not found:
        found.append(
            bad(
                GROUP,
                "versions",
                f"a library cannot be loaded: {fault}",
                "install dtfm anew, in a virtual environment of its own",
            )
        )
    shown = ", ".join(f"{name} {installed[name]}" for name in SHOWN if installed.get(name))
    return found or [good(GROUP, "versions", f"Python {platform.python_version()}, {shown}")]


def judge_others(mine: str, others: list[str]) -> list[Finding]:
    """Judge this machine's version of dtfm by those of the peers; nothing is found where one of them has the same."""
    differing = sorted({other for other in others if other != mine})
    if not differing or mine in others:
        return []
    return [
        warn(
            GROUP,
            "versions",
            f"the swarm's nodes run dtfm {', '.join(differing[:3])}, and this machine {mine}",
            "ask the swarm's owner which version to install",
        )
    ]
