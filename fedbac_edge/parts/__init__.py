"""Parts of a model as bytes, their encodings on the wire, and how they are averaged. No torch, no broker."""
