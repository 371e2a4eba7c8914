"""`fedbac`: the command group. Commands are loaded when they are asked for, so that each starts at once."""

from __future__ import annotations

import importlib

import click

from fedbac_edge.host import entry

COMMANDS = {
    "demo": "fedbac_edge.commands.demo:demo",
    "init": "fedbac_edge.commands.init:init",
    "data": "fedbac_edge.commands.data:data",
    "partition": "fedbac_edge.commands.partition:partition",
    "simulate": "fedbac_edge.commands.simulate:simulate",
    "semi": "fedbac_edge.commands.semi:semi",
    "report": "fedbac_edge.commands.report:report",
    "keys": "fedbac_edge.commands.keys:keys",
    "broker": "fedbac_edge.commands.broker:broker",
    "cloud": "fedbac_edge.commands.cloud:cloud",
    "gateway": "fedbac_edge.commands.gateway:gateway",
    "device": "fedbac_edge.commands.device:device",
    "release": "fedbac_edge.commands.release:release",
    "status": "fedbac_edge.commands.status:status",
    "backup": "fedbac_edge.commands.backup:backup",
    "restore": "fedbac_edge.commands.backup:restore",
    "doctor": "fedbac_edge.commands.doctor:doctor",
    "export": "fedbac_edge.commands.export:export",
}


class Commands(click.Group):
    """Loads a command's module on first use; none of them imports anything heavy before it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fedbac-edge", prog_name="fedbac")
def cli() -> None:
    """Federated learning for fleets of small devices: devices, gateways, a cloud, and MQTT in between.

    \b
    Example: everything at once on this machine
      fedbac demo
    Example: step by step, a terminal each
      fedbac broker run
      fedbac init --out federation.toml
      fedbac cloud run --federation federation.toml
      fedbac gateway run gw1
      fedbac-agent join --edge gw1 --data photos/
    """


def main() -> None:
    """`python -m fedbac_edge.cli`."""
    entry.run(lambda: cli, "fedbac")


if __name__ == "__main__":
    main()
