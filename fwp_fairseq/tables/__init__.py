"""Makes tables and plots from records. The only table defined here is the one of a user's own trainings."""
