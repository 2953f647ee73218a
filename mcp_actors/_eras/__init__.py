"""What envelopes mean. `legacy` and `modern` never import each other; `era` is what both are values of."""
