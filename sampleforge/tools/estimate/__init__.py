"""Off-policy estimates: the value of a policy from recorded episodes."""
