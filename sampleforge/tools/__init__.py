"""The workshop: what works on a finished or running folder, and what starts runs. Nothing
that a run itself needs is here."""
