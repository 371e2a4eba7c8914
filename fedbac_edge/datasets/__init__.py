"""Labelled data: readers of the field's own file formats, and its partition over servers and clients.

Numpy only, so that a partition can be made and checked where no torch is installed.
"""
