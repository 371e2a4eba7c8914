"""A whole federation in one process: the same nodes as in the field, an in-memory broker, a virtual clock,
seeded faults. What is measured here is what is deployed."""
