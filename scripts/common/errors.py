"""The exception that ends an experiment."""


class RecipeError(Exception):
    """Ends an experiment; the message is for the user."""
