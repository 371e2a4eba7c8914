"""What the operating system gives: signals, files, locks, systemd. Knows nothing of federations."""
