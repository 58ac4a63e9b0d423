"""Tables of results and their plots, made from records. That of one's own trainings is the only one defined here."""
