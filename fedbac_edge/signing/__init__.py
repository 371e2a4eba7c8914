"""Keys, and what is signed with them: manifests of released models, orders to go back. Knows no tier."""
