"""What is installed on a device: its identity, its data, its training worker and the command `fedbac-agent`.

Raw samples never leave this package. It speaks to its gateway through the broker, and knows nothing of other
devices, of clusters beyond the parts it is sent, or of the cloud.
"""
