# SPDX-License-Identifier: Apache-2.0
"""Running jobs: groups of ranks, saving and loading together, in the background, and from rank to rank."""

import array
import atexit
import contextlib
import json
import os
import weakref
from dataclasses import dataclass, field

from . import _reshard
from ._errors import DroppedWarning, Error, UsageError, warn
from ._options import convert_options, given, map_options, open_options, run_options, split_run, takes
from ._shards import shard_tuples, sharded_tuples
from ._sockets import SocketTransport
from ._states import flatten, items_taken
from ._values import content, values_of_files


class Comm:
    """One rank's end of a group. The ranks of a group make the same calls in the same order, each with its own Comm, one thread at a time.

    Comm.processes   processes of one machine, over shared memory
    Comm.threads     threads of this process
    Comm.sockets     processes of any machines, over TCP; reshard.torch.comm and reshard.paddle.comm make one of a process group
    Comm.host        whatever an object of yours can do

    A rank that fails makes the call fail on all, with its number in the message, and the group goes on: also if its arguments are wrong, or
    Ctrl-C comes while they are looked at. One that dies or is late breaks the group.
    """

    def __init__(self, handle, transport=None):
        self._handle, self._transport = handle, transport

    @classmethod
    def processes(cls, name, rank, size, *, timeout=0):
        """This process's end of a group of at most 256 processes of one machine and one user. Returns when all have come. timeout: seconds
        that a call waits for a rank that does not come, as one that writes its part of a save for longer than the others; 0: 1800. One that
        dies is noticed at once."""
        return cls(_reshard.comm_processes(name, rank, size, timeout))

    @classmethod
    def threads(cls, count, *, timeout=0):
        """The ends of a group of threads: a list, one for each."""
        return [cls(handle) for handle in _reshard.comm_threads(count, timeout)]

    @classmethod
    def sockets(cls, rank, size, gather, *, host, timeout=0):
        """This process's end of a group of processes of any machines, connected by TCP, without encryption: for networks that are trusted.
        A rank that ends ends the calls of the others.

        gather   gather(bytes) -> list of bytes of all ranks: called once, here, with addresses; by what the job has already (mpi4py's
                 allgather, a store). What comes of it is trusted
        host     the name or address by which the others reach this machine, or a function that gives it
        timeout  seconds that a call waits for a rank from which nothing comes, as one that writes its part of a save for longer than the
                 others; 0: 1800. One that dies is noticed at once, but not if its whole machine does
        """
        if not 0 <= rank < size or timeout < 0:
            raise UsageError(f"rank {rank} of {size}, timeout {timeout}: no such rank of a group, or no time")
        transport = SocketTransport(rank, size, gather, host, timeout)
        try:
            return cls(_reshard.comm_host(transport, rank, size, timeout), transport)
        except BaseException:
            transport.close()
            raise

    @classmethod
    def host(cls, transport, *, timeout=0):
        """A group over an object with `rank`, `size` and these methods, each of which may raise:

        all_gather(bytes) -> list of bytes, of all ranks in order, of any sizes
        submit_send(to, memory), submit_recv(from, memory)   memoryviews that stay until run() returns
        run()   returns when all that was submitted is done
        abort(reason)   may be there: wakes the other ranks out of their calls, which fail. From any thread
        failures   may be there: what they raise if the transport fails, an exception class or a tuple of such; else Exception. All else,
                   as handlers of signals raise it within them, breaks the group too, and comes out of the call as it is
        """
        return cls(_reshard.comm_host(transport, transport.rank, transport.size, timeout))

    @property
    def rank(self):
        return self._handle.rank

    @property
    def size(self):
        return self._handle.size

    def barrier(self):
        """Returns when all ranks have called it."""
        self._handle.barrier()

    def all_gather(self, data):
        """Every rank's bytes, as a list."""
        return self._handle.all_gather(bytes(data))

    def redistribute(self, source, target, *, scratch=0, **mapping):
        """Fills every rank's target from all ranks' source, whatever the two layouts: {key: array, Shard or list of Shards} each, or None.
        Each element moves once, and not at all where the rank has it. map, rules, config, constants and strict as in reshard.convert:
        names, shapes and types under which sources come. scratch: bytes of memory beyond the arrays', 0: 16 MiB. Returns how many bytes
        were kept, sent, received, and moved by all."""
        with contextlib.ExitStack() as held:
            return _reshard.redistribute(self._handle, lambda: _moved(held, source, target, mapping, scratch))

    def plan(self, source, target, *, scratch=0, **mapping):
        """The plan of redistribute for these layouts, as Transfers that can be run as often as values change. All ranks call it."""
        return Transfers(self, source, target, mapping, scratch)

    def abort(self, reason):
        """Breaks the group, for a rank that cannot go on. Any thread may."""
        self._handle.abort(reason)

    def close(self):
        """Leaves the group."""
        self._handle.close()
        if self._transport:
            self._transport.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        return f"<reshard.Comm: rank {self.rank} of {self.size}>"


def _moved(held, source, target, mapping, scratch):
    """What the extension takes of a rank that moves values; held keeps their memory."""
    sources, source_owners = shard_tuples(source or {})
    targets, target_owners = shard_tuples(target or {}, writable=True)
    held.enter_context(source_owners)
    held.enter_context(target_owners)
    return sources, targets, map_options(**mapping), scratch


class Transfers:
    """What goes from which rank to which, planned once (Comm.plan). run() moves values without planning and without exchanging
    descriptions; all ranks call it."""

    def __init__(self, comm, source, target, mapping, scratch):
        self._comm, self._source, self._target = comm, source, target
        with contextlib.ExitStack() as held:
            self._plan = _reshard.transfers_new(comm._handle, lambda: _moved(held, source, target, mapping, scratch))

    def run(self, source=None, target=None):
        """Fills every rank's target: the arrays that it was planned with, or others of the same keys, shapes and types in the same order.
        Returns how many bytes were kept, sent, received, and moved by all."""
        source = self._source if source is None else source
        target = self._target if target is None else target
        with contextlib.ExitStack() as held:
            return _reshard.transfers_run(self._plan, self._comm._handle, lambda: _moved(held, source, target, {}, 0))


@dataclass
class Cell:
    """An object that each rank has one of: cell `offset` of a grid. A checkpoint has all of them under one key ("rng_state"); who loads
    asks for the same grid. value is what an item is, or a TorchFile."""

    value: object = None
    grid: tuple = (1,)
    offset: tuple = (0,)
    replica: int = 0


@dataclass
class Loaded:
    """What load() found beside the tensors. items: common values, as Checkpoint.items has them; cells: {(key, offset): value}; missing:
    keys of the checkpoint that no rank asked for, unexpected: keys that this rank asked for in vain, both as far as `strict` says."""

    items: dict = field(default_factory=dict)
    cells: dict = field(default_factory=dict)
    missing: list = field(default_factory=list)
    unexpected: list = field(default_factory=list)
    warnings: list = field(default_factory=list)


def _cells(cells, with_values):
    return [(key, cell.grid, cell.offset, (cell.replica,), content(cell.value) if with_values else "null")
            for key, cell in (cells or {}).items()]


def _state_of_rank(tensors, items, cells):
    """What the extension takes of a rank of a group, and the owners of the memory."""
    tuples, owners = sharded_tuples(tensors)
    return (tuples, _cells(cells, True), [(_ANY_RANK, key, content(value)) for key, value in items.items()]), owners


_ANY_RANK = 5  # RESHARD_VALUE_ANY_RANK


def agree(ranks, make):
    """What make returns on each rank; a rank on which it fails, or is interrupted, makes it fail on all, so that none waits for it. ranks:
    None of one. Calls of the extension that take a function do the same with it, and with what they make of what it returns."""
    return _reshard.agree(ranks and ranks._handle, make)


def may_replace(path, ranks):
    """Whether rank 0 finds an empty folder there, as jobs make one before they save; the same on all ranks."""
    try:
        is_empty = ranks.rank == 0 and os.path.isdir(path) and not os.listdir(path)
    except OSError:
        is_empty = False  # the save says what is wrong
    return ranks.all_gather(bytes([is_empty]))[0] == b"\1"


def save_together(path, state, comm, cells, check, spread, options):
    """reshard.save of the ranks of a group."""
    def make():
        run, rest = split_run(options)
        state_of_rank, owners = _state_of_rank(*flatten(state() if callable(state) else state), cells)
        held.enter_context(owners)
        return path, state_of_rank, convert_options(**rest), not check, not spread, run

    with contextlib.ExitStack() as held:
        return _reshard.save(comm and comm._handle, make)


def loading_options(*, format=None, iteration=None, follow_links=None, lenient=None, limits=None, map=None, rules=None, config=None,
                    constants=None, strict_map=None, memory=None, threads=None, io=None, progress=None):
    """(open options, a mapping, run options) of the keywords of a load."""
    opened = open_options(format=format, iteration=iteration, follow_links=follow_links, lenient=lenient, limits=limits)
    mapping = map_options(map, rules=rules, config=config, constants=constants, strict=strict_map)
    return opened, mapping, run_options(memory=memory, threads=threads, io=io, progress=progress)


@takes(loading_options)
def load(path, state, *, comm=None, cells=None, strict="assume_ok_unexpected", check=False, exchange=True, **options):
    """Fills the arrays of a state, together with the other ranks of comm, whatever the layout on disk; each byte is read once.

    state     {key: array, Shard or list of Shards}; nested dicts and lists too. Arrays are filled where they lie, and cast to their type.
              What has no arrays in it is not looked at: items come in what is returned, all that the checkpoint has
    cells     {key: Cell}: objects that this rank asks for
    strict    what becomes of keys that the checkpoint lacks: "assume_ok_unexpected" (an error), "log_all", "raise_all", "return_all",
              "ignore_all", … (Megatron Core's StrictHandling); True is "raise_all", False "return_all", in what is returned
    check     look whether what the ranks ask for is one whole, as saving does
    exchange  what several ranks ask for is read by one and sent to the others; False: each reads what it wants
    map, rules, config, constants, strict_map   under which names, shapes and types tensors come; map=[]: recognised names become those of
              the state
    format, iteration, follow_links, lenient, limits   as in reshard.open
    memory, threads, io   as everywhere

    Returns a Loaded.
    """
    return load_as(values_of_files, path, state, comm=comm, cells=cells, strict=strict, check=check, exchange=exchange, **options)


def load_as(read, path, state, *, comm=None, cells=None, strict="assume_ok_unexpected", check=False, exchange=True, **options):
    """load with another way to read items: read(files, limits) gives what files of torch.save hold."""
    if isinstance(strict, bool):
        strict = "raise_all" if strict else "return_all"
    limits = given(limits=options.get("limits"))

    def make():
        opened, mapping, run = loading_options(**options)
        tuples, owners = sharded_tuples(flatten(state() if callable(state) else state)[0], writable=True)
        held.enter_context(owners)
        return path, (tuples, _cells(cells, False), []), opened, mapping, strict, not check, not exchange, _FILES_OR_JSON, run

    with contextlib.ExitStack() as held:
        objects, values = _reshard.load(comm and comm._handle, make)
    loaded = Loaded()
    items = [(key, value) for kind, key, value in values if kind == 0]
    contents = _contents([value for *_, value in objects] + [value for _, value in items], read, limits)
    loaded.cells = {(key, offset): value for (key, _, offset, _), value in zip(objects, contents)}
    loaded.items = {key: value for (key, _), value in zip(items, contents[len(objects):])}
    for kind, key, _ in values:
        if kind in (2, 3):
            (loaded.missing if kind == 2 else loaded.unexpected).append(key)
        elif kind == 4:
            loaded.warnings.append(key)
    return loaded


_FILES_OR_JSON = 2  # reshard_load_options.as_files


def _contents(stored, read, limits):
    """Values of what the extension gives: bytes of files, or JSON text."""
    values = iter(read([one for one in stored if isinstance(one, bytes)], limits))
    return [next(values) if isinstance(one, bytes) else json.loads(one) if one else None for one in stored]


def _close_at_exit(saver):
    """While other threads still run. A child that was forked ends without what its parent has begun."""
    def close():
        left = reference()
        if left is not None and os.getpid() == owner:
            left.close()
    owner = os.getpid()
    reference = weakref.ref(saver, lambda _: atexit.unregister(close))
    atexit.register(close)


class Saver:
    """Saves in the background: save() copies the arrays and returns, and the job may change them.

    by       "thread", or "process": the program reshard-saver, which finishes what was begun even if the job crashes
    depth    saves that may be under way at once, each with memory for its copy; one more waits for the oldest
    comm     the ranks that save the same checkpoints together, each with a saver: what reshard.save does with comm. By a thread; the Comm
             is the saver's until it is closed
    program  where reshard-saver is, if not where it was installed

    Failures of a save are raised by the next wait() or close(). One thread at a time uses a saver. One that is still open when the program
    ends, by an exception too, is closed then.
    """

    def __init__(self, by="thread", *, depth=1, program=None, comm=None):
        kinds = {"thread": 0, "process": 1}
        if by not in kinds:
            raise ValueError(f"by is 'thread' or 'process', not {by!r}")
        self._rank = comm.rank if comm else None
        self._handle = _reshard.Saver(kinds[by], program, depth, comm and comm._handle)
        _close_at_exit(self)

    def save(self, path, state, *, cells=None, **options):
        """Begins to save a state as reshard.save does, with its options but for check, spread, progress, resume, part and mappings. Returns
        the save's number. Items that the format does not hold are DroppedWarnings, of rank 0's in a group; nothing tells how those of other
        ranks differ."""
        run, rest = background_options(options)
        tensors, items = flatten(state)
        is_sharded = self._rank is not None or bool(cells)
        if is_sharded:
            state, owners = _state_of_rank(tensors, items, cells)
        else:
            tuples, owners = shard_tuples(tensors)
            state = (tuples, *items_taken(items))
        if not self._rank:
            _tell_dropped(tensors, items, path, rest)
        with owners:
            return self._handle.save(state, is_sharded, path, convert_options(**rest), run)

    def unfinished(self):
        """How many saves are under way; does not wait."""
        return self._handle.test()

    def wait(self, number=-1):
        """Waits for a save and those before it, or for all. Ctrl-C ends the waiting, not what is saved."""
        self._handle.wait(number)

    def close(self):
        """Waits for all; raises the first failure that nobody has heard of. Ctrl-C ends the waiting: saves of this process alone go on, and
        the saver stays open; those with other ranks fail on all."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


_NOT_BEHIND = {"check": (True, "what ranks have is always looked at"), "spread": (True, "copies are always spread"),
               "progress": (None, "they go on when the call has returned"), "comm": (None, "their group is the saver's")}


def background_options(options):
    """(run options, the rest) of the keywords of a save in the background; UsageError for those that it cannot have."""
    for name, (usual, why) in _NOT_BEHIND.items():
        if options.pop(name, usual) is not usual:
            raise UsageError(f"{name}= is not for saves in the background: {why}")
    return split_run(options)


def _tell_dropped(tensors, items, path, options):
    """Warns of items for which the format has no place: what a report would say of them, without planning the save."""
    if not items or options.get("drop_items") or options.get("like"):
        return
    one = array.array("B", [0])
    tuples, owners = shard_tuples({key: one for key in list(tensors)[:1]})
    try:
        held = _reshard.open_state(tuples, *items_taken(items), "memory", {}, owners)
        notes = _reshard.plan(held, path, convert_options(to=options.get("to")), {})["notes"]
    except Error:
        return  # the save says what is wrong
    for text in [note[-1] for note in notes if note[0] == 0]:
        warn(text, DroppedWarning)


class OwningSaver(Saver):
    """A Saver whose group, if there is one, is its own and closed with it. A rank that cannot begin a save ends the group: the others are
    saving already, and would wait for it."""

    def __init__(self, by, comm, **options):
        self._comm = comm
        try:
            super().__init__(by, comm=comm, **options)
        except BaseException:
            if comm is not None:
                comm.close()
            raise

    @contextlib.contextmanager
    def group_ends_if_it_fails(self):
        try:
            yield
        except BaseException as error:
            if self._comm is not None:
                self._comm.abort(f"{type(error).__name__}: {error}")
            raise

    def close(self):
        try:
            super().close()
        finally:
            if self._comm is not None:
                self._comm.close()
