"""What can go wrong in a simulation, as numbers. All draws come from one seeded generator."""

from __future__ import annotations

from dataclasses import dataclass


class Died(Exception):
    """The process is gone from one instruction to the next, as by kill -9; the message says where."""


@dataclass(frozen=True)
class Faults:
    """Probabilities per packet or job, and times in virtual seconds.

    A *drop* is a packet that is lost although the broker acknowledged it (a full queue, an expired
    session); only a second sending repairs it. Delays are drawn per packet, so they reorder as well.
    A *crash* hits a device when it starts a job; it comes back after `restart_s` and does the job again. A
    *dropout* gives a job up, and a *straggle* takes `slow_s` longer with it: such a device is missing in the
    round, when it is past its deadline.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0
    """Longest extra delay of a packet."""
    crash: float = 0.0
    cut: float = 0.0
    """Probability per packet that the client's link is cut right then."""
    dropout: float = 0.0
    straggle: float = 0.0
    slow_s: float = 600.0
    restart_s: float = 5.0
    reconnect_s: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Faults:
        """From "drop=0.1,crash=0.02,delay=0.5"; raises ValueError with the names that exist."""
        names = {"drop": "drop", "duplicate": "duplicate", "delay": "delay_s", "crash": "crash", "cut": "cut"}
        names |= {"dropout": "dropout", "straggle": "straggle", "slow": "slow_s"}
        names |= {"restart": "restart_s", "reconnect": "reconnect_s"}
        values: dict[str, float] = {}
        for piece in filter(None, text.split(",")):
            name, _, number = piece.partition("=")
            if name not in names:
                raise ValueError(f"no fault is called {name!r}; there are: {', '.join(names)}")
            try:
                values[names[name]] = float(number)
            except ValueError:
                raise ValueError(f"{piece}: give a number, for example {name}=0.1") from None
            if not values[names[name]] >= 0 or (not names[name].endswith("_s") and values[names[name]] > 1):
                raise ValueError(f"{piece}: probabilities lie in 0..1, seconds are not negative")
        return cls(**values)


NONE = Faults()
