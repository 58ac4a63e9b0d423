"""Lines of cells as text."""


def in_columns(lines: list[list[str]]) -> list[str]:
    """Returns a text for each line of cells: each column as wide as its widest cell, with two spaces between."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
