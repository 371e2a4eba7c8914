"""The two bandits of Fed-BAC: `thompson` selects clients at the edge, `linucb` assigns clusters at the cloud.

Pure functions from old state to new state; the state is msgspec structs that go through MessagePack as they
are. This package knows nothing of models, messages, clocks or torch.
"""
