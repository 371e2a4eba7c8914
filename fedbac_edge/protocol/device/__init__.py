"""The device's state machine: take a task, train or score, answer until it has counted."""
