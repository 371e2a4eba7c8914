"""Settings of a federation: types, what may change in mid-life, faults of types in words. Knows no file."""
