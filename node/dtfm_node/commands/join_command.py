"""The command `join` before its options are looked at: which invite, which folder, and what the config file says."""

from typing import Any

from dtfm_node.commands.config_file import CONFIG, ConfiguredCommand
from dtfm_node.commands.kept_invite import check_swarm, given_or_kept
from dtfm_node.commands.state_folders import default_folder
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.process import command_line
from dtfm_protocol.process.logs import LogFormat, log, set_up
from dtfm_protocol.process.product_version import product_version


class JoinCommand(ConfiguredCommand):
    """The command `join`, whose config file lies in the state folder of the invite's swarm."""

    def invoke(self, ctx: Any) -> Any:
        """Settle the options, and run the command with them."""
        given = ctx.params
        with command_line.guarded():
            set_up(LogFormat(given["log_format"]).value, given["verbose"])
            # Before imports that take a second, or ten on a busy machine, and before anybody is asked anything.
            log.info("dtfm-node %s starts", product_version())
            given["invite"], is_kept = given_or_kept(given["invite"], given["state_dir"])
            swarm = Invite.decode(given["invite"]).swarm
            folder = given["state_dir"] or default_folder(swarm)
            check_swarm(swarm, folder)
            self.set_from(given["config"] or folder / CONFIG, ctx, must_exist=given["config"] is not None)
            set_up(LogFormat(given["log_format"]).value, given["verbose"], given["log_file"])
            if is_kept:
                log.info("joining the swarm %s again; for another one, give its invite", swarm)
        return super().invoke(ctx)
