"""Whole systems on top of Redrive: ``redrive up NAME`` runs one. They use nothing that is not open to everybody."""
