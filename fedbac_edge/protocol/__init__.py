"""The round logic of the three tiers as pure state machines: `handle(event, now) -> actions`.

No sockets, no threads, no clock, no files, no torch. `engine` names the events and the actions,
`messages` what travels, `device`, `gateway` and `cloud` are the machines.
"""
