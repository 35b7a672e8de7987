"""Fair shares between users, by tokens served: the virtual token counter.

Each user has a counter of what was computed for them, and among those who wait the one with the least goes
first. Who comes, or comes back after a pause, is lifted to the least of those who are there: nobody saves up
claims by asking for nothing (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). What was
found in the cache counts for nothing. Requests without a user are together one user.
Tests: tests/engine/test_fairness.py.
"""

from collections.abc import Iterable

__all__ = ["Shares"]

# What a token costs, as in the paper: of a prompt, and of an answer.
PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 2


class Shares:
    def __init__(self) -> None:
        self._served: dict[str, int] = {}

    def join(self, user: str, peers: Iterable[str], others: Iterable[str]) -> None:
        """A request has come. `others`: who has unfinished ones; `peers`: who of them in its priority."""
        active = set(others)
        if not active:
            # Nobody waits for anybody: all begin anew.
            self._served = {user: 0}
        elif user not in active:
            least = min(self._served[each] for each in set(peers) or active)
            self._served[user] = max(self._served.get(user, 0), least)
            self._forget(active | {user})

    def served(self, user: str) -> int:
        return self._served.get(user, 0)

    def note_prompt(self, user: str, token_count: int) -> None:
        """So many tokens of a prompt are to be computed for them."""
        self._served[user] = self.served(user) + PROMPT_WEIGHT * token_count

    def note_answers(self, users: Iterable[str]) -> None:
        """One token each."""
        for user in users:
            self._served[user] = self.served(user) + ANSWER_WEIGHT

    def _forget(self, active: set[str]) -> None:
        """Who is away, and would be lifted when they come back anyhow: so the table stays small."""
        least = min(self._served[each] for each in active)
        self._served = {
            user: served for user, served in self._served.items() if user in active or served > least
        }
