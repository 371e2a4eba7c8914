"""What a person types: one module per command of `fedbac`, and what they share.

A command reads its options, calls the package that knows, and says what happened. Nothing else imports from
here but `demo`. Modules import only click at the top, so that `fedbac --help` answers at once.
"""
