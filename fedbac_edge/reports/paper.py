"""Figures of the Fed-BAC paper (arXiv 2605.11815), as its text gives them. In percent.

They hold for 10 servers with 10 clients each and for all its rounds (CIFAR-10 200, SVHN 150, Fashion-MNIST
100); which of the two forms of partition it used, it does not say.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Distributed accuracy after the last round, deviation over servers, worst server."""

    accuracy: str = ""
    """As a number, or as the text has it: "under 85"."""
    sigma: str = ""
    worst: str = ""

    @property
    def number(self) -> float | None:
        """The accuracy, where the paper gives it as a number."""
        try:
            return float(self.accuracy)
        except ValueError:
            return None


FIGURES: dict[tuple[str, float, str], Figures] = {
    ("cifar10", 0.5, "hierfavg"): Figures("57.53", "2.10"),
    ("cifar10", 0.5, "hierfavg-wide"): Figures("65.02"),
    ("cifar10", 0.5, "ifca"): Figures("65.31"),
    ("cifar10", 0.5, "fedbac"): Figures("73.71", worst="69.54"),
    ("cifar10", 0.1, "hierfavg"): Figures("49.33", "6.38"),
    ("cifar10", 0.1, "ifca"): Figures("77.04"),
    ("cifar10", 0.1, "fedbac"): Figures("84.8", "3.96", "80.43"),
    ("fashion-mnist", 0.5, "hierfavg"): Figures("80.13", "4.64"),
    ("fashion-mnist", 0.5, "ifca"): Figures("under 85"),
    ("fashion-mnist", 0.5, "fedbac"): Figures("86.6", "2.05"),
    ("fashion-mnist", 0.5, "random"): Figures(sigma="3.55"),
    ("fashion-mnist", 0.1, "hierfavg"): Figures("73.33", "9.22"),
    ("fashion-mnist", 0.1, "ifca"): Figures("89.4"),
    ("fashion-mnist", 0.1, "fedbac"): Figures("94.5", "2.45"),
    ("svhn", 0.5, "fedbac"): Figures(sigma="1.41"),
    ("svhn", 0.1, "hierfavg"): Figures("about 80.5"),
    ("svhn", 0.1, "ifca"): Figures("about 89"),
    ("svhn", 0.1, "fedbac"): Figures("about 93"),
}
"""(data set, alpha of the servers, method) -> figures. SVHN's follow from differences that the text names."""

THOMPSON_GAIN: dict[tuple[str, float], str] = {("cifar10", 0.5): "+2.8", ("fashion-mnist", 0.5): "+1.5"}
"""Points of accuracy of Thompson sampling over random selection, both at p = 0.8."""

ROUNDS_TO: dict[tuple[str, float, str, float], int] = {
    ("cifar10", 0.5, "fedbac", 0.5): 15,
    ("cifar10", 0.5, "hierfavg", 0.5): 72,
    ("cifar10", 0.1, "fedbac", 0.8): 40,
}
"""(data set, alpha, method, target) -> rounds."""

SERVERS, CLIENTS = 10, 10
ALPHA_CLIENT = 0.5
