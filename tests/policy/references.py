"""The classic policies as their papers have them, one block at a time, plain and slow.

A key is used by `access`; room is made by `evict`, as in the replay, when a request is over.
"""

from dataclasses import dataclass, field


@dataclass
class SlowLru:
    capacity: int
    order: list[int] = field(default_factory=list)

    def access(self, key: int) -> None:
        if key in self.order:
            self.order.remove(key)
        self.order.append(key)

    def evict(self) -> set[int]:
        gone = self.order[: max(0, len(self.order) - self.capacity)]
        self.order = self.order[len(gone) :]
        return set(gone)


@dataclass
class SlowLfu:
    """LFU-DA: a block's key is the age at its last use plus its uses since it came; ties by recency."""

    capacity: int
    age: int = 0
    clock: int = 0
    uses: dict[int, int] = field(default_factory=dict)
    rank: dict[int, tuple[int, int]] = field(default_factory=dict)

    def access(self, key: int) -> None:
        self.clock += 1
        self.uses[key] = self.uses.get(key, 0) + 1
        self.rank[key] = (self.age + self.uses[key], self.clock)

    def evict(self) -> set[int]:
        gone = set()
        while len(self.rank) > self.capacity:
            key = min(self.rank, key=lambda each: self.rank[each])
            self.age = max(self.age, self.rank.pop(key)[0])
            del self.uses[key]
            gone.add(key)
        return gone


@dataclass
class SlowArc:
    """T1, T2, B1, B2 and p of the paper."""

    c: int
    p: float = 0.0
    t1: list[int] = field(default_factory=list)
    t2: list[int] = field(default_factory=list)
    b1: list[int] = field(default_factory=list)
    b2: list[int] = field(default_factory=list)

    def access(self, key: int) -> None:
        if key in self.t1 or key in self.t2:
            (self.t1 if key in self.t1 else self.t2).remove(key)
            self.t2.append(key)
        elif key in self.b1:
            self.p = min(float(self.c), self.p + max(len(self.b2) / len(self.b1), 1.0))
            self.b1.remove(key)
            self.t2.append(key)
        elif key in self.b2:
            self.p = max(0.0, self.p - max(len(self.b1) / len(self.b2), 1.0))
            self.b2.remove(key)
            self.t2.append(key)
        else:
            self.t1.append(key)

    def trim(self) -> None:
        while self.b1 and len(self.t1) + len(self.b1) > self.c:
            self.b1.pop(0)
        while self.b2 and len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) > 2 * self.c:
            self.b2.pop(0)

    def evict(self) -> set[int]:
        self.trim()
        gone = set()
        while len(self.t1) + len(self.t2) > self.c:
            if self.t1 and (len(self.t1) > self.p or not self.t2):
                key = self.t1.pop(0)
                self.b1.append(key)
            else:
                key = self.t2.pop(0)
                self.b2.append(key)
            gone.add(key)
        return gone


@dataclass
class SlowS3Fifo:
    """S, M and G of the paper, as lists of [key, uses]."""

    capacity: int
    small: list[list[int]] = field(default_factory=list)
    main: list[list[int]] = field(default_factory=list)
    ghost: list[int] = field(default_factory=list)

    @property
    def small_size(self) -> int:
        return max(1, self.capacity // 10)

    def access(self, key: int) -> None:
        for entry in self.small + self.main:
            if entry[0] == key:
                entry[1] = min(3, entry[1] + 1)
                return
        if key in self.ghost:
            self.ghost.remove(key)
            self.main.append([key, 0])
        else:
            self.small.append([key, 0])

    def evict(self) -> set[int]:
        gone = set()
        while len(self.small) + len(self.main) > self.capacity:
            if self.small and (len(self.small) >= self.small_size or not self.main):
                key, uses = self.small.pop(0)
                if uses > 1:
                    self.main.append([key, 0])
                    continue
                self.ghost.append(key)
            else:
                key, uses = self.main.pop(0)
                if uses:
                    self.main.append([key, uses - 1])
                    continue
            gone.add(key)
        main_size = max(1, self.capacity - self.small_size)
        self.ghost = self.ghost[max(0, len(self.ghost) - main_size) :]
        return gone
