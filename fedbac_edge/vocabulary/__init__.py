"""Words that every package uses, and that use no package of ours."""
