"""Terms of taking part: one screen on what a node does with the machine, keeps, sends, and shows to others."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from dtfm_node.commands.chosen_limits import ChosenLimits, in_mbit
from dtfm_node.commands.gpu_look import gpu_here
from dtfm_node.commands.kept_contributions import records_folder
from dtfm_node.doctor.checks.leftovers import nearest
from dtfm_node.state.disk_budget import most_disk
from dtfm_protocol.bounds import printable
from dtfm_protocol.process.memory_limit import MARGIN_BYTES, TIMES_OFFERED
from dtfm_protocol.process.quantities import GB, bytes_in_words

MOST_SPANS = 26
"""Characters of the hours that fit their line."""
MOST_GPU = 24
"""Characters of a GPU's name that fit their line."""

SCREEN = """\
You are about to lend this machine to the swarm with the id {swarm},
run by whoever is at {entrance}. Once in, it names what it trains.
WHAT IT DOES until the model is trained or you stop it (options that limit it)
  Computes  on {device}
  Memory    {memory}
  Disk      {disk}
  Network   {network}
  When      {when}
WHAT IT KEEPS in {folder}
  The training text (piece by piece, in the end all of it, as token numbers),
  parts of the model, and a key. Other users of this machine cannot read them.
  A record of your part stays in {records}
WHAT IT SENDS, all of it encrypted
  To the coordinator and the members: the addresses of this machine, its device,
  free memory and speed, how fast its links are, what it does and what fails.
  To members also its share of the work, and text and parts of the model.
  It sends none of your own files, and runs no program of the owner's.
WHAT OTHERS SEE
  Members can read the text, the model and each other's addresses. The owner
  sees what {name} does and when, and may publish it.
TO STOP    Ctrl+C, or: dtfm-node leave{option}
TO REMOVE  dtfm-node remove{option}; the record: dtfm-node contribution --delete"""


@dataclass(frozen=True)
class Terms:
    """What differs from one machine, swarm or choice of options to another."""

    swarm: str
    entrance: str
    """HOST:PORT of the coordinator."""
    folder: Path
    option: str
    """What `leave` and `remove` need behind their names to find the folder."""
    limits: ChosenLimits
    memory_free: int
    """Bytes that are free on the machine."""
    disk_most: int
    """Bytes that the node keeps at most."""
    gpu: str = ""
    """Name of the machine's GPU; "": none was found."""
    records: Path = Path()
    """Folder in which the record of its contribution stays when the rest is removed."""

    def screen(self) -> str:
        """Return the terms in plain words, on one screen of 80 columns (but for a long path)."""
        return SCREEN.format(
            swarm=self.swarm,
            entrance=printable(self.entrance),
            folder=printable(str(self.folder)),
            name=printable(self.limits.name) or "its key (or --name)",
            records=printable(str(self.records)),
            device=self._device(),
            memory=self._memory(),
            disk=self._disk(),
            network=self._network(),
            when=self._when(),
            option=printable(self.option),
        )

    def _device(self) -> str:
        device, threads = self.limits.device, self.limits.threads
        processor = (
            "all of the processor" if threads is None else f"{threads} thread{'s'[: threads != 1]} of the processor"
        )
        if "," in device:
            devices = device.split(",")
            return f"{len(devices)} devices, from {printable(devices[0])} to {printable(devices[-1])} (--device)"
        if device == "cpu":
            return f"{processor} (--threads)"
        if device == "auto":
            if not self.gpu:
                return f"{processor}; no GPU was found (--device)"
            return f"the GPU {printable(self.gpu)[:MOST_GPU].strip()}, if torch can use it (--device)"
        return f"the device {printable(device)} (--device)"

    def _memory(self) -> str:
        asked = self.limits.memory_gb
        if asked is None:
            gpu = ", or what the GPU has free" if self.gpu and self.limits.device != "cpu" else ""
            return f"all that is free: {bytes_in_words(self.memory_free)} now{gpu} (--memory)"
        offered, twice = bytes_in_words(asked * GB), bytes_in_words(TIMES_OFFERED * asked * GB)
        return f"at most {offered} to train, {twice} for moments; {bytes_in_words(MARGIN_BYTES)} for the program"

    def _disk(self) -> str:
        why = ", half of what is free" if self.limits.disk_gb is None else ""
        return f"at most {bytes_in_words(self.disk_most)}{why} (--disk)"

    def _network(self) -> str:
        up, down = self.limits.upload, self.limits.download
        if math.isinf(up) and math.isinf(down):
            return "all that your line has, most of the time (--upload, --download)"
        sends = "as fast as it can" if math.isinf(up) else f"at most {in_mbit(up)}"
        receives = "as fast as it can" if math.isinf(down) else f"at most {in_mbit(down)}"
        return f"sends {sends}, receives {receives}"

    def _when(self) -> str:
        rules = self.limits.rules
        spans = ", ".join(map(str, rules.hours))
        hours = (spans if len(spans) <= MOST_SPANS else "in your --hours") if spans else "at any time"
        chosen = {"when idle": rules.when_idle, "not on battery": rules.not_on_battery}
        chosen |= {"not metered": rules.not_metered}
        others = ", ".join(words for words, asked in chosen.items() if asked)
        return f"{hours}; {others}" if others else f"{hours} (--hours, --when-idle; dtfm-node pause)"


def terms_here(swarm: str, entrance: str, folder: Path, option: str, limits: ChosenLimits) -> Terms:
    """Return the terms on this machine, as it is now."""
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    disk_most = most_disk(limits.disk_gb, shutil.disk_usage(nearest(folder)).free, held)
    free, gpu = int(psutil.virtual_memory().available), "" if limits.device == "cpu" else gpu_here()
    return Terms(swarm, entrance, folder, option, limits, free, disk_most, gpu, records_folder())
