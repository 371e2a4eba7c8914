"""The gateway's state machine: which devices are asked, which updates count, the site's average."""
