"""A process that has loaded what a node loads, and holds no model: `python -m benchmarks.loaded JOB` says its peak.

It imports what a node imports, at its start and when it first builds a model of the job and an optimizer. In a module
of its own, for it must not load what only the coordinator needs.
"""

import contextlib
import os
import sys
from pathlib import Path


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held (VmHWM); 0 once it has ended."""
    return _status_bytes(pid, "VmHWM:")


def own_bytes(pid: int) -> int:
    """The memory that a process holds now, without the pages of files (RssAnon); 0 once it has ended."""
    return _status_bytes(pid, "RssAnon:")


def _status_bytes(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def load(path: Path) -> None:
    """Import all, and have torch and transformers load what they load at first use."""
    import torch

    import dtfm_node.control.display
    import dtfm_node.daemon  # noqa: F401
    from dtfm_node.engine.adamw import AdamW
    from dtfm_node.engine.elementwise_update import UpdateSettings
    from dtfm_protocol.data.tokenizer import vocabulary_size
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.model.model_config import resolve_config
    from dtfm_protocol.model.model_sizes import model_sizes

    torch.set_num_threads(1)
    job = Job.load(path)
    model_sizes(resolve_config(job.model, vocabulary_size(job.data), job.training.sequence_length))
    parameter = torch.nn.Parameter(torch.ones(64, 64))
    (parameter @ parameter).sum().backward()
    AdamW({"parameter": parameter}, UpdateSettings(0.0)).update(1, 0.0)


if __name__ == "__main__":
    load(Path(sys.argv[1]))
    print(peak_bytes(os.getpid()))
