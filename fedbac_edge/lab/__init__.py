"""The laboratory: whole federations on one machine or a Ray cluster, in virtual time."""
