"""From the cloud's parts to the model that a device answers with: keys, manifests, self-tests, building.

`manifest` and `keys` are needed on both sides, `vectors` gives the self-test its inputs; only `builder`, run
in a process of its own, imports onnx. Nothing here imports torch, and cryptography is loaded on first use.
"""
