"""Files of datasets on the Hugging Face hub for prepare.py, read over the network without a copy on the disk.

The hub is the one of $HF_ENDPOINT (https://huggingface.co); a login or $HF_TOKEN opens gated datasets.
"""

import contextlib
import fnmatch
import io
import os

from console import DataError, ScriptError, UsageError

BLOCK_BYTES = 1 << 24  # of one request
RETRIES = {"max_retries": 8, "base_wait_time": 1, "max_wait_time": 60}  # 3 minutes
TIMEOUT = 30  # seconds without a byte
REPOSITORY_TYPE = "dataset"


def hub():
    """The library, which otherwise asks the hub for what it counts its users by."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub

    return huggingface_hub


def endpoint():
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


class Dataset:
    """A dataset at a commit: the one that a revision (branch, tag or commit) is now, unless it is given."""

    def __init__(self, name, revision=None, commit=None):
        self.name = name
        self.api = hub().HfApi(endpoint=endpoint())
        self.commit = commit or self._commit(revision or "main")

    def _commit(self, revision):
        with errors_named(f"dataset {self.name}", f"revision {revision!r}"):
            about = self.api.dataset_info(self.name, revision=revision, expand=["sha"], timeout=TIMEOUT)
        return about.sha

    def files(self, pattern):
        """Those that a pattern names, in order. Its * stays within a folder."""
        wanted = pattern.split("/")
        folders = wanted[:-1]
        fixed = next((i for i, part in enumerate(folders) if set(part) & set("*?[")), len(folders))
        folder = "/".join(folders[:fixed])
        with errors_named(f"dataset {self.name}", f"revision {self.commit}", f"folder {folder!r}"):
            entries = list(
                self.api.list_repo_tree(
                    self.name,
                    folder or None,
                    recursive=fixed < len(folders),
                    revision=self.commit,
                    repo_type=REPOSITORY_TYPE,
                )
            )
        found = [e for e in entries if hasattr(e, "size") and matches(e.path.split("/"), wanted)]
        if not found:
            holds = ", ".join(sorted(entry.path for entry in entries)[:5]) or "nothing"
            place = folder or "its top"
            raise DataError(f"dataset {self.name}: no file {pattern}; {place} holds {holds}, ...")
        return [HubFile(self, entry.path, entry.size) for entry in sorted(found, key=lambda e: e.path)]


def matches(parts, wanted):
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


class HubFile:
    """A file of a dataset, as prepare_storage.LocalFile."""

    def __init__(self, dataset, path, size):
        self.name = self.place = f"hf://datasets/{dataset.name}/{path}"
        self.size = size
        self.commit = dataset.commit
        self.url = hub().hf_hub_url(
            dataset.name, path, repo_type=REPOSITORY_TYPE, revision=dataset.commit, endpoint=endpoint()
        )

    def identity(self):
        return [self.name, self.commit, self.size]

    def open(self, progress=None):
        return HubReader(self, progress)


class HubReader(io.RawIOBase):
    """Reads a file of the hub block by block; a request that is cut short is repeated."""

    def __init__(self, file, progress):
        self.file, self.progress = file, progress
        self.position = 0
        self.start, self.block = 0, b""

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.file.size}[whence]
        self.position = base + offset
        return self.position

    def readinto(self, buffer):
        if not self.start <= self.position < self.start + len(self.block):
            end = min(self.position + max(BLOCK_BYTES, len(buffer)), self.file.size)
            self.start, self.block = self.position, b""
            if self.position < end:
                self.block = self._fetch(self.position, end)
        first = self.position - self.start
        data = self.block[first : first + len(buffer)]
        buffer[: len(data)] = data
        self.position += len(data)
        if self.progress:
            self.progress(len(data))
        return len(data)

    def _fetch(self, start, end):
        from huggingface_hub import utils

        headers = utils.build_hf_headers() | {"Accept-Encoding": "identity"}
        headers["Range"] = f"bytes={start}-{end - 1}"
        with errors_named(self.file.name, f"revision {self.file.commit}"):
            answer = utils.http_backoff("GET", self.file.url, headers=headers, timeout=TIMEOUT, **RETRIES)
            utils.hf_raise_for_status(answer)
        if len(answer.content) != end - start:
            raise ScriptError(
                f"{self.file.name}: {endpoint()} sent {len(answer.content):,} bytes (status "
                f"{answer.status_code}) where {end - start:,} from byte {start:,} on were asked for; is "
                "$HF_ENDPOINT a mirror that cannot send parts of a file?"
            )
        return answer.content


@contextlib.contextmanager
def errors_named(what, revision, entry=None):
    """What the hub answers, or that it does not, as a ScriptError."""
    from huggingface_hub import errors

    try:
        yield
    except ScriptError:
        raise
    except errors.HFValidationError:
        raise UsageError(f"{what}: not a name of the hub, such as allenai/c4") from None
    except errors.GatedRepoError:
        raise ScriptError(
            f"{what}: is gated: accept its terms on its page at {endpoint()}, then log in: hf auth login, or "
            "set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ScriptError(
            f"{what}: does not exist at {endpoint()}, or is private or gated; for those log in: hf auth "
            "login, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise ScriptError(f"{what}: has no {revision}: give a branch, a tag or a whole commit hash") from None
    except errors.EntryNotFoundError:
        raise ScriptError(f"{what}: has no {entry or 'such file'} at {revision}") from None
    except Exception as error:  # whatever the network, the proxy or the server come up with
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            advice = "is the token ($HF_TOKEN, hf auth login) right, and may it read this?"
            raise ScriptError(f"{what}: {endpoint()} refuses access (status {status}); {advice}") from None
        reason = f"status {status}" if status else f"{type(error).__name__}: {error}"
        raise ScriptError(
            f"{what}: cannot be read from {endpoint()} ({reason}). If the network is away, come back with "
            "the same command, or give files on this disk: --input FILE..."
        ) from None
