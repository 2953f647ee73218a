"""The meaning of envelopes. `legacy` and `modern` never import each other; both make values of the class in `era`."""
