#!/usr/bin/env python3
"""What a connection between two hosts carries: plain TCP, the same number of bytes in both directions at once.

usage: peer_wire.py listen|dial ADDRESS PORT BYTES ITERATIONS

The dialling side prints one JSON object. Started by bench/hosts.
"""
import json
import socket
import sys
import threading
import time

PIECE = 256 * 1024


def connect(side, address, port):
    if side == "listen":
        with socket.create_server((address, port)) as listener:
            return listener.accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection((address, port))
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nobody listens at {address}:{port}")


def send(connection, size):
    piece = bytes(PIECE)
    while size > 0:
        n = min(size, PIECE)
        connection.sendall(piece[:n])
        size -= n


def exchange(connection, size):
    sender = threading.Thread(target=send, args=(connection, size))
    sender.start()
    buffer = bytearray(PIECE)
    left = size
    while left > 0:
        n = connection.recv_into(buffer, min(left, PIECE))
        if n == 0:
            sys.exit("the other side left")
        left -= n
    sender.join()


def main():
    if len(sys.argv) != 6:
        print(__doc__, file=sys.stderr)
        return 2
    side, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    size, iterations = int(sys.argv[4]), int(sys.argv[5])
    connection = connect(side, address, port)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    exchange(connection, size)
    for _ in range(iterations):
        before = time.perf_counter()
        exchange(connection, size)
        times.append((time.perf_counter() - before) * 1e6)
    if side == "dial":
        times.sort()
        print(json.dumps({"op": "exchange", "transport": "wire", "bytes": size, "us_p50": times[(iterations - 1) // 2],
                          "us_p99": times[-1], "verified": True}, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
