"""The method and the three tiers.

Devices train, gateways select and average, the cloud clusters and averages. The tiers are pure state
machines (`protocol`); `runtime` runs one of them over MQTT, `simulation` runs all of them in memory.
Only `models` and `learning` may import torch.
"""

__version__ = "0.1.0"
