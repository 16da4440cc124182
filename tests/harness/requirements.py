"""Programs that some tests call and a machine may lack: those tests are then skipped, and say what to install."""

import os
import shutil

import pytest

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
"""Where daemons lie, too."""
_PACKAGES = {
    "cc": "gcc libc6-dev",
    "mosquitto": "mosquitto",
    "mosquitto_passwd": "mosquitto",
    "openssl": "openssl",
    "systemd-analyze": "systemd",
}
"""Debian's."""


def needs(*programs: str) -> pytest.MarkDecorator:
    """A mark that skips a test on a machine without all of these programs."""
    missing = [program for program in programs if shutil.which(program, path=PATH) is None]
    packages = " ".join(dict.fromkeys(_PACKAGES[program] for program in missing))
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} missing: apt-get install {packages}")
