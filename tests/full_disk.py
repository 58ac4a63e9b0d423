"""Makes writing fail with "File too large" where a file would grow beyond a size."""


def full_disk(size: int) -> str:
    """Returns Python code for the process. It turns bytecode off: importlib would keep what such a disk cuts short."""
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    return f"import resource, sys; sys.dont_write_bytecode = True; {limit}\n"
