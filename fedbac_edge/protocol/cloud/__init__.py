"""The cloud's state machine: rounds, clusters of sites, the averages of all parts, releases."""
