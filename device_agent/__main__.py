"""`python -m device_agent`: the same as `fedbac-agent`."""

from device_agent.cli import main

main(prog_name="fedbac-agent")
