"""What TRL imports for structured outputs."""


class StructuredOutputsParams:
    """Not used."""
