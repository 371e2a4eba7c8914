"""How a running campaign looks: rows that fit the terminal, a progress bar, JSON lines."""
