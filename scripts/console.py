"""How the scripts end: exit codes, one line on stderr for each error, and output that cannot be written.

0 done; 1 failure (disk, memory, interrupted, missing package); 2 wrong use; 3 bad data.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().with_name("requirements.txt")
FAILURE, WRONG_USE, BAD_DATA = 1, 2, 3
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ScriptError(Exception):
    """Something the user can act on: what, where and what to do. The script ends with `code`."""

    code = FAILURE


class UsageError(ScriptError):
    """Wrong arguments."""

    code = WRONG_USE


class DataError(ScriptError):
    """Files that cannot be used."""

    code = BAD_DATA


class ReaderLeft(Exception):
    """The reader of standard output has closed it: there is nobody left to print to."""


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments as UsageError."""

    def error(self, message):
        raise UsageError(f"{message} (see {self.prog} --help)")

    def print_help(self, file=None):
        """argparse's own does not notice that it cannot print."""
        say(self.format_help().rstrip())


def one_line(text):
    """Line ends and whatever else cannot be printed, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(names, most=20):
    """Names in a message: the first of them, and how many more there are."""
    names = list(names)
    rest = [f"... ({len(names) - most:,} more)"] if len(names) > most else []
    return ", ".join(names[:most] + rest)


def warn(script, message):
    """A line on stderr. Nothing happens if that cannot be written: there is no other place to say so."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"{script}: {one_line(message)}\n")
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream):
    """What is still buffered goes nowhere, or the interpreter would complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text=""):
    """Prints `text`, a part of the result. Without text, makes sure that all of the result is out."""
    if sys.stdout is None:
        raise ScriptError("standard output is closed")
    try:
        if text:
            print(text)
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise ReaderLeft from None
        raise ScriptError(f"cannot write to standard output: {error.strerror}") from None


def interrupt(_signal, _frame):
    raise KeyboardInterrupt


def ignore_stops():
    """From here on Ctrl-C and the like do nothing: what is left takes no time."""
    for stop in STOPS:
        signal.signal(stop, signal.SIG_IGN)


def catch_stops():
    """SIGTERM and a closed terminal clean up as Ctrl-C does. What the caller ignores stays ignored."""
    for stop in STOPS:
        if signal.getsignal(stop) == signal.SIG_DFL:
            signal.signal(stop, interrupt)


def run_script(script, body, aftermath=""):
    """Runs body(), the whole of a script, and returns the exit code. Errors are said in one line.

    `aftermath` says what a failure or an interruption anywhere in body() leaves behind.
    """
    aftermath = aftermath and f"; {aftermath}"
    try:
        catch_stops()
        if sys.stdout is not None:
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            body()
        except SystemExit:  # --help
            pass
        say()
        return 0
    except ReaderLeft:
        return 0
    except ScriptError as error:
        warn(script, error)
        return error.code
    except ImportError as missing:
        warn(script, f"{missing}. Install what it needs: pip install -r {REQUIREMENTS}")
    except OSError as error:
        warn(script, f"{error}{aftermath}")
    except MemoryError:
        warn(script, f"out of memory{aftermath}")
    except KeyboardInterrupt:
        ignore_stops()
        warn(script, f"interrupted{aftermath}")
    return FAILURE
