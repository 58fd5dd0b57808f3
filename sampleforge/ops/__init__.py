"""The mathematics of the algorithms as functions of tensors, without state or configuration."""
