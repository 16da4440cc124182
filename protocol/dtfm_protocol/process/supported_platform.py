"""The systems on which the programs run, and what is said on others."""


def platform_fault(platform: str) -> str:
    """Return why the programs do not run on a system, and what to do; "": they do.

    Args:
        platform: the system, as `sys.platform` names it.
    """
    if platform.startswith(("linux", "darwin")):
        return ""
    if platform in {"win32", "cygwin", "msys"}:
        return (
            "dtfm does not run on Windows itself: install it inside WSL2, the Linux that comes with Windows "
            "(`wsl --install` in a Windows terminal; docs/how-to/windows.md has the steps)"
        )
    return f"dtfm does not run on this system ({platform}): it needs Linux, or on Windows WSL2 (docs/how-to/windows.md)"
