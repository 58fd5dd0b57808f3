"""MARWIL: learning from recorded actions."""
