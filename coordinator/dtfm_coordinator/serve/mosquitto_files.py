"""Files with which Mosquitto keeps to the rules of the embedded broker: whom it lets in, and who may write what."""

import ssl
from collections.abc import Iterable
from pathlib import Path

from dtfm_coordinator.serve.topic_rules import COORDINATORS_READ, OWNER_READS, TopicRules
from dtfm_protocol.control.messages import TOPICS
from dtfm_protocol.process.state_dir import write_atomically

FOLDER = "broker"
"""Name of the folder, in a coordinator's state folder, in which the owner finds them."""
AUTHORITIES, ACL = "members.crt", "acl"


def write_mosquitto_files(folder: Path, rules: TopicRules, authorities: Iterable[bytes]) -> None:
    """Write what `deploy/mosquitto/mosquitto.conf` names beside the broker's own certificate.

    Args:
        folder: where to; made if need be. None of it is secret.
        rules: of the swarm.
        authorities: certificates of the coordinators, DER: whose members are let in.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pem = "".join(ssl.DER_cert_to_PEM_cert(authority) for authority in authorities)
    write_atomically(folder / AUTHORITIES, pem)
    write_atomically(folder / ACL, access_list(rules))
    for name in (AUTHORITIES, ACL):
        (folder / name).chmod(0o644)


def access_list(rules: TopicRules) -> str:
    """Return the rules as Mosquitto's access control list; its users are peer ids, out of their certificates."""
    root = f"dtfm/{rules.swarm}"
    lines = ["# Who may read and write what in this swarm; a member's user name is the peer id in its certificate."]
    for topic in TOPICS.values():
        if topic.author == "coordinator":
            lines.append(f"pattern read {root}/{topic.name}")
        else:
            lines.append(f"pattern write {root}/{topic.name}/%u")
            if topic.name not in COORDINATORS_READ:
                lines.append(f"pattern read {root}/{topic.name}/{'%u' if topic.name in OWNER_READS else '+'}")
    for peer in rules.coordinators:
        lines += ["", f"user {peer}", f"topic read {root}/#"]
        lines += [f"topic write {root}/{topic.name}" for topic in TOPICS.values() if topic.author == "coordinator"]
    return "\n".join(lines) + "\n"
