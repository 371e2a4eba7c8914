"""The laboratory of half-labelled federations: HASSLE and the methods that it is compared with.

One server, flat clients, no network: a method is a file that reads like its paper, and all of them get the
same split, the same draws of clients, the same optimiser and the same passes over the data. Comparison
methods live here and nowhere else; nothing here enters the fleet's protocol.
"""
