"""Architectures. `catalog` describes them (tensor names, shapes, initial weights) with numpy alone, so that
the cloud and the gateways need no torch; the torch modules are built from the same descriptions."""
