# SPDX-License-Identifier: Apache-2.0
"""Ranks on any machines, over TCP: the transport of Comm.sockets."""

import hmac
import ipaddress
import os
import selectors
import socket
import struct
import time

TIMEOUT = 1800  # seconds, as the library's own
_TOKEN_BYTES = 16
_STRANGERS = 64  # connections that may wait to say who they are, beyond those of ranks
_GREETING = struct.Struct(f"<{_TOKEN_BYTES}sI")  # the group's token, the rank that connects
_ADDRESS = struct.Struct(f"<B{_TOKEN_BYTES}sH")  # 0, a token, a port; then the host's name. Or 1, and what is wrong


def own_address(towards):
    """The address of this machine on the way to another, by which others reach it, too; or that of the environment's RESHARD_HOST."""
    said = os.environ.get("RESHARD_HOST")
    try:
        return said or _address_on_the_way(towards or socket.gethostname())
    except OSError as error:
        if not towards:
            return "127.0.0.1"
        raise ConnectionError(f"this machine's address on the way to {towards}: {error}; "
                              "the environment's RESHARD_HOST may say it") from None


def _address_on_the_way(towards):
    family, _, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect(place)  # which sends nothing
        return way.getsockname()[0]


class _Flow:
    """What is still to be sent to another rank, or received from it."""

    def __init__(self, memories):
        self._left = [memoryview(memory).cast("B") for memory in memories if memoryview(memory).nbytes]

    def __bool__(self):
        return bool(self._left)

    def move(self, call):
        """Hands call what comes next, until it takes no more; it returns how much it took."""
        try:
            while self._left:
                self._left[0] = self._left[0][call(self._left[0]) :]
                if not self._left[0]:
                    del self._left[0]
        except BlockingIOError:
            pass


class SocketTransport:
    """What Comm.host needs. Of two ranks the lower one connects to the higher one, which it tells who it is: those that all_gather has
    speak with each other at once, so that one that leaves is noticed, others when they first have something for each other. What they send
    has no frames: both know what comes."""

    failures = OSError  # a connection that ends, a rank that is late

    def __init__(self, rank, size, gather, host, timeout):
        """host: a name or address, or a function that gives it. What goes wrong on one rank is told on all."""
        self.rank, self.size, self._timeout = rank, size, timeout or TIMEOUT
        self._listener = None
        self._sockets, self._strangers = {}, {}  # by rank; those who have not said who they are: what they have said so far
        self._sends, self._receives = {}, {}
        try:
            told = [bytes(one) for one in gather(self._address(host))]
            for other, one in enumerate(told):
                if one[:1] != b"\0":
                    raise ConnectionError(f"rank {other}: {one[1:].decode(errors='replace')}; the environment's RESHARD_HOST may say by "
                                          "which address others reach it")
            self._token = told[0][1 : 1 + _TOKEN_BYTES]
            self._addresses = [(one[_ADDRESS.size :].decode(), _ADDRESS.unpack_from(one)[2]) for one in told]
            neighbours = {(rank + way) % size for step in range(size.bit_length()) if 1 << step < size for way in (1 << step, -(1 << step))}
            self._exchange({other: [b"\0"] for other in neighbours}, {other: [bytearray(1)] for other in neighbours})
        except BaseException:
            self.close()
            raise

    def _address(self, host):
        """What this rank tells the others: where it listens, or why it cannot."""
        try:
            host = host() if callable(host) else host
            self._listener = _listener(host, min(self.size + _STRANGERS, 4096))
            return _ADDRESS.pack(0, os.urandom(_TOKEN_BYTES), self._listener.getsockname()[1]) + host.encode()
        except OSError as error:
            return b"\1" + str(error).encode()

    # ---- what Comm.host calls ----

    def all_gather(self, data):
        """In each step a rank sends what it has to one below it, by as many ranks, and gets as much from one above it."""
        blocks = [bytes(data)]
        while len(blocks) < self.size:
            step = len(blocks)
            count = min(step, self.size - step)
            below, above = (self.rank - step) % self.size, (self.rank + step) % self.size
            lengths = bytearray(8 * count)
            self._exchange({below: [struct.pack(f"<{count}Q", *map(len, blocks[:count]))]}, {above: [lengths]})
            came = [bytearray(length) for length in struct.unpack(f"<{count}Q", lengths)]
            self._exchange({below: blocks[:count]}, {above: came})
            blocks += came
        return [bytes(blocks[(rank - self.rank) % self.size]) for rank in range(self.size)]

    def submit_send(self, to, memory):
        self._sends.setdefault(to, []).append(memory)

    def submit_recv(self, from_, memory):
        self._receives.setdefault(from_, []).append(memory)

    def run(self):
        """A failure breaks the group, whose abort tells the others."""
        sends, self._sends, receives, self._receives = self._sends, {}, self._receives, {}
        self._exchange(sends, receives)

    def abort(self, reason):
        """Others who wait for this rank see that it has left, and so on. Any thread may."""
        for one in (self._listener, *list(self._sockets.values())):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is no longer connected

    def close(self):
        for one in (self._listener, *self._sockets.values(), *self._strangers):
            if one is not None:
                one.close()
        self._sockets, self._strangers = {}, {}

    def __del__(self):
        self.close()

    # ---- connections ----

    def _exchange(self, sends, receives):
        sends, receives = ({rank: _Flow(memories) for rank, memories in flows.items()} for flows in (sends, receives))
        heard = time.monotonic()
        while waited := {rank for flows in (sends, receives) for rank, flow in flows.items() if flow}:
            if self._move(waited, sends, receives):
                heard = time.monotonic()
            elif time.monotonic() - heard > self._timeout:
                ranks = ", ".join(map(str, sorted(waited)))
                raise TimeoutError(f"rank {self.rank} has waited {self._timeout:g} seconds for rank{'s' * (len(waited) > 1)} {ranks}")

    def _move(self, waited, sends, receives):
        """Moves what can be moved, and says whether there was anything."""
        for rank in sorted(waited - set(self._sockets)):
            if self.rank < rank:
                self._sockets[rank] = self._connect(rank)
        with selectors.DefaultSelector() as selector:
            if not waited <= set(self._sockets):
                selector.register(self._listener, selectors.EVENT_READ)
                for stranger in self._strangers:
                    selector.register(stranger, selectors.EVENT_READ)
            for rank in waited & set(self._sockets):
                events = (selectors.EVENT_WRITE if sends.get(rank) else 0) | (selectors.EVENT_READ if receives.get(rank) else 0)
                selector.register(self._sockets[rank], events, rank)
            ready = selector.select(min(self._timeout, 1))
        for key, events in ready:
            if key.data is None:
                self._accept() if key.fileobj is self._listener else self._hear(key.fileobj)
            else:
                self._serve(key.data, events, sends, receives)
        return any(key.data is not None for key, _ in ready)

    def _serve(self, rank, events, sends, receives):
        peer = self._sockets[rank]
        try:
            if events & selectors.EVENT_READ:
                receives[rank].move(lambda memory: _some(peer.recv_into(memory)))
            if events & selectors.EVENT_WRITE:
                sends[rank].move(peer.send)
        except OSError as error:
            raise ConnectionError(f"rank {rank} has left: {error}") from None

    def _connect(self, rank):
        host, port = self._addresses[rank]
        try:
            peer = socket.create_connection((host, port), self._timeout)
            peer.sendall(_GREETING.pack(self._token, self.rank))
            return _ready(peer)
        except OSError as error:
            raise ConnectionError(f"rank {rank} has left, or is reached elsewhere than at {host} port {port} (its environment's "
                                  f"RESHARD_HOST may say where): {error}") from None

    def _accept(self):
        """Of many who say nothing the first one has to go."""
        try:
            stranger, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        if len(self._strangers) >= self.size + _STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        self._strangers[_ready(stranger)] = b""

    def _hear(self, stranger):
        """A rank of the group says who it is; whoever says anything else is none."""
        said = self._strangers.pop(stranger)
        try:
            more = stranger.recv(_GREETING.size - len(said))
        except BlockingIOError:
            self._strangers[stranger] = said
            return
        except OSError:
            more = b""
        said += more
        if more and len(said) < _GREETING.size:
            self._strangers[stranger] = said
            return
        token, rank = _GREETING.unpack(said) if more else (b"", 0)
        if hmac.compare_digest(token, self._token) and rank < self.rank and rank not in self._sockets:
            self._sockets[rank] = stranger
        else:
            stranger.close()


def _listener(host, backlog):
    """On all interfaces, as the address that others use may be that of a gateway; on the loopback's alone, if it is that one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_loopback:
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=backlog)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    else:
        listener = socket.create_server(("", 0), backlog=backlog)
    listener.setblocking(False)
    return listener


def _some(count):
    if not count:
        raise ConnectionResetError("it has closed the connection")
    return count


def _ready(peer):
    peer.setblocking(False)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone says nothing
    return peer
