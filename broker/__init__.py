"""What travels between the tiers, and how: topics, wire format, chunks, the buses and the brokers.

This package must not know what a round, a bandit or a network is: it moves bytes under names. paho-mqtt
is imported by `mqtt.py` alone, iotcore by `embedded.py` alone; torch by none.
"""
