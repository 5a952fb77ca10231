"""The event files of one run, for TensorBoard: what they hold, and what is added to them."""

import fcntl
import logging
import os
import socket
import time
from contextlib import contextmanager

from console import ScriptError
from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

FILE_NAME = "events.out.tfevents."
EVERYTHING = 0  # of an EventAccumulator's size guidance


@contextmanager
def quiet():
    """TensorBoard warns of each cut, which is nothing unusual here."""
    logger = logging.getLogger("tensorboard")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class EventFolder:
    """A folder of event files. Opening it reads what TensorBoard shows of them; what is added goes into a new
    file. Only one process at a time can have it open."""

    def __init__(self, path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ScriptError(f"{path}: another export_tensorboard.py writes there") from None
        self._writer = None
        self.scalars = {}  # {step: {tag: value}}
        self.wall_times = {}  # {step: seconds since 1970}
        self.texts = {}  # {tag: (step, text)}, the latest of each
        self._read()

    def _read(self):
        found = EventAccumulator(str(self.path), size_guidance={SCALARS: EVERYTHING, TENSORS: EVERYTHING})
        with quiet():
            found.Reload()
        for tag in found.Tags()[SCALARS]:
            for event in found.Scalars(tag):
                self.scalars.setdefault(event.step, {})[tag] = event.value
                self.wall_times[event.step] = event.wall_time
        for tag in found.Tags()[TENSORS]:
            event = found.Tensors(tag)[-1]
            self.texts[tag] = (event.step, event.tensor_proto.string_val[0].decode())

    def _add(self, wall_time, **contents):
        if self._writer is None:
            self._writer = RecordWriter(open(self._new_file(), "xb"))  # noqa: SIM115
            self._add(time.time(), file_version="brain.Event:2")
            if not self.scalars and not self.texts:  # TensorBoard takes the first start for no restart
                self._start(step=0)
        self._writer.write(Event(wall_time=wall_time, **contents).SerializeToString())

    def _new_file(self):
        """A name after those of all other files: TensorBoard reads them in the order of their names."""
        names = (path.name.removeprefix(FILE_NAME) for path in self.path.glob(f"{FILE_NAME}*"))
        stamps = [int(stamp) for stamp in (name.partition(".")[0] for name in names) if stamp.isdecimal()]
        stamp = max([int(time.time()), *(stamp + 1 for stamp in stamps)])
        return self.path / f"{FILE_NAME}{stamp:010}.{socket.gethostname()}.{os.getpid()}.0"

    def _start(self, step):
        """TensorBoard forgets what came before from this step on."""
        self._add(time.time(), step=step, session_log=SessionLog(status=SessionLog.START))

    def add_scalars(self, step, wall_time, values):
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])
        self._add(wall_time, step=step, summary=summary)
        self.scalars[step], self.wall_times[step] = values, wall_time

    def add_text(self, step, wall_time, tag, text):
        """`text` as a block of code."""
        text = "".join(f"    {line}\n" for line in text.splitlines())
        if self.texts.get(tag, (None, None))[1] != text:
            self._add(wall_time, step=step, summary=text_pb(tag, text))
            self.texts[tag] = (step, text)

    def cut(self, step):
        """Takes back what was added for this step and those after it."""
        self._start(step)
        self.scalars = {at: values for at, values in self.scalars.items() if at < step}
        self.wall_times = {at: self.wall_times[at] for at in self.scalars}
        self.texts = {tag: (at, text) for tag, (at, text) in self.texts.items() if at < step}

    def flush(self):
        if self._writer:
            self._writer.flush()

    def close(self):
        if self._writer:
            self._writer.close()
        os.close(self._lock)
