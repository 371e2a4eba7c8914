"""`federation.toml`: read and checked, written with every setting explained, ready-made ones."""
