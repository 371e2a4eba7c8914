"""Local training and evaluation on one device.

`settings` holds plain values that travel (no torch); `local` trains the parts of an additive model jointly on
the fastest path this machine has, `reference` is the same computation in plain PyTorch, and `evaluation`
counts. Nothing here knows of rounds, gateways or the network. Importing this package imports no torch.
"""
