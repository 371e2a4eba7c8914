"""Reports on runs of the laboratory: figures of merit, tables, pictures, one page.

Only `figures` (and `page`, which asks it) needs matplotlib. Nothing here runs a simulation or loads torch.
"""
