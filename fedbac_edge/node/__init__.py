"""One machine with its store, and what carries its effects out in real time over MQTT."""
