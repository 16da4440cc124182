"""`dtfm-node doctor`: looks at everything, shows progress meanwhile, and prints what was found."""

import json
import logging
from collections.abc import Callable

from rich.console import Console

from dtfm_node.doctor.checks import invite_text, leftovers, ports, versions
from dtfm_node.doctor.doctor_options import DoctorOptions
from dtfm_node.doctor.findings import Finding, Verdict, as_json, worst
from dtfm_node.doctor.report import show
from dtfm_protocol.process import command_line
from dtfm_protocol.process.logs import log


def run(text: str, options: DoctorOptions, form: str) -> int:
    """Look at everything, print it as `form`, "plain" or "json", and return the exit code: 1 where something is bad."""
    log.handlers[:] = [logging.NullHandler()]  # what parts of the program would log of faults, findings say
    log.propagate = False
    said = Console(stderr=True, highlight=False)
    if not said.is_terminal:
        said.print("looking, for half a minute at most")
    with said.status("reading the libraries") as status:
        findings = _examine(text, options, lambda what: status.update(f"looking at {what}" if what else "looking"))
    if form == "json":
        print(json.dumps(as_json(findings)))
    else:
        show(findings)
    return int(worst(findings) is Verdict.bad)


def _examine(text: str, options: DoctorOptions, progress: Callable[[str], None]) -> list[Finding]:
    try:
        from dtfm_node.doctor.examine import Examination
    except (ImportError, OSError) as error:  # a library that is missing, or not for this system
        return [
            invite_text.look(text)[1],
            *ports.judge(ports.look(options.listen or "0.0.0.0", options.port)),
            *leftovers.judge(leftovers.look(options.state_dir)),
            *versions.judge(*versions.look(), fault=str(error)),
        ]
    examination = Examination(text, options, progress)
    command_line.run(examination.run())
    return examination.findings
