"""The product's own machines in a simulated world: one run is one federation."""
