"""Walks through the tables of an LMDB environment and writes what it finds, for `disk_dump.py`, which runs
this as a program of its own: a damaged file may end it. It imports next to nothing, and so starts quickly.

Arguments: the folder, `dump` or `walk` (which writes no records), and the names of the tables. Written is,
for each record: the table's place in the arguments and the lengths of name and record (one byte, two u32),
and these two. FAULT stands for a table that can't be read further, with its name and why; REFUSED for a file
that can't be read now, whatever is in it; END is the last.
"""

import os
import resource
import struct
import sys
from itertools import islice
from typing import IO

import lmdb

HEAD = struct.Struct(">BII")
REFUSED, FAULT, END = 253, 254, 255
# What LMDB says of a file that isn't whole. MemoryError: it should be longer than could ever be mapped.
DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.MemoryError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
# In a leaf of LMDB no entry is shorter. More of them than the file has room for go round in a circle.
ENTRY_BYTES_MIN = 12


def walk(folder: str, tables: list[str], out: IO[bytes], *, dump: bool) -> None:
    def put(table: int, name: bytes, record: bytes) -> None:
        out.write(HEAD.pack(table, len(name), len(record)) + name + record)

    try:
        size = os.stat(os.path.join(folder, "data.mdb")).st_size
        count_max = size // ENTRY_BYTES_MIN
        if not size:
            raise lmdb.InvalidError("empty")
        env = lmdb.open(folder, readonly=True, lock=False, create=False, max_dbs=len(tables))
    except DAMAGE as error:
        put(FAULT, b"all", str(error).encode())
        tables = []
    except (lmdb.Error, OSError) as error:
        put(REFUSED, b"", str(error).encode())
        tables = []
    for number, table in enumerate(tables):
        try:
            db = env.open_db(table.encode(), create=False)
            with env.begin() as txn:
                count = 0
                for name, record in islice(txn.cursor(db=db), count_max + 1):
                    count += 1
                    if dump:
                        put(number, name, record)
            if count > count_max:
                put(FAULT, table.encode(), b"its pages lead in a circle")
        except (lmdb.Error, OSError, MemoryError) as error:
            put(FAULT, table.encode(), str(error).encode())
        # What was read before the page that ends it is not lost.
        out.flush()
    put(END, b"", b"")
    out.flush()


if __name__ == "__main__":
    # What ends it is foreseen.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    walk(sys.argv[1], sys.argv[3:], sys.stdout.buffer, dump=sys.argv[2] == "dump")
    # Not by way of LMDB's own end, which may stumble over the same page.
    os._exit(0)
