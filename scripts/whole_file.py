"""Files that appear whole or not at all."""

import os
import secrets
import stat


def replace_file(path, contents):
    """Puts a new file in the place of `path` in one step, with the old one's permissions. Threads and
    processes may write into one folder: no two calls share a temporary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(0, "the file that is there is read-only")
    temporary = path.with_name(f".{secrets.token_hex(16)}.partial")
    try:
        with open(temporary, "xb") as file:
            file.write(contents)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
