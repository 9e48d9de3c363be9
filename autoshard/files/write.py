"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Put `data` at `path`; a file that is there is replaced only once the new one is whole.

    A symbolic link stays one, and the file that it names is replaced.

    Raises:
      OSError: the folder is not there, may not be written, or is full; nothing has changed then.
    """
    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # Opened by number, so that it gets the permissions of any new file.
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
