"""The gateway's state machine: who is asked, which updates count, the site's average."""
