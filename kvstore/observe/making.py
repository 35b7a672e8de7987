"""What a store was made of, as a heading, and a store made of a heading.

A policy is written down by the name of its class and the numbers it was made with. One that is not
listed here can't be journaled: nobody could replay it.
"""

from kvstore.core.config import StoreConfig
from kvstore.core.errors import JournalInvalid
from kvstore.core.ports import EvictionPolicy, SwapPolicy
from kvstore.core.store import Store
from kvstore.observe.records import FORMAT, Heading, Policy
from kvstore.policy.choices import EVICTION_POLICIES, make_admission, make_eviction
from kvstore.policy.cost import CostModel
from kvstore.policy.swap import LengthThreshold

__all__ = ["heading_of", "make_store"]

# By the names of their classes, the names under which they are chosen.
EVICTIONS = {policy.__name__: name for name, policy in EVICTION_POLICIES.items()}
SWAP_POLICIES: dict[str, type[CostModel | LengthThreshold]] = {
    "CostModel": CostModel,
    "LengthThreshold": LengthThreshold,
}


def heading_of(
    config: StoreConfig,
    eviction: EvictionPolicy,
    swap: SwapPolicy,
    *,
    build: str,
    store_epoch: int = 0,
    start_time: float = 0.0,
    start_wall: float = 0.0,
) -> Heading:
    """Of a run that begins: its store is made of these and has seen no event yet."""
    return Heading(
        format=FORMAT,
        build=build,
        store_epoch=store_epoch,
        first_entry=1,
        start_time=start_time,
        start_wall=start_wall,
        config=config,
        eviction=_describe_eviction(eviction),
        swap=_describe_swap(swap),
    )


def make_store(heading: Heading) -> Store:
    eviction = _make_eviction(heading.eviction, heading.config)
    return Store(heading.config, eviction, _make_swap(heading.swap), make_admission(eviction))


def _describe_eviction(policy: EvictionPolicy) -> Policy:
    """It has no parameters; what it has learnt comes with the events, once more."""
    name = type(policy).__name__
    if type(policy) not in EVICTION_POLICIES.values():
        raise _unknown(name)
    return Policy(name=name)


def _make_eviction(policy: Policy, config: StoreConfig) -> EvictionPolicy:
    if policy.name not in EVICTIONS or policy.parameters:
        raise _unknown(policy.name)
    return make_eviction(EVICTIONS[policy.name], config.frames)


def _describe_swap(policy: SwapPolicy) -> Policy:
    """Its parameters; what it has learnt comes with the events, once more."""
    if isinstance(policy, CostModel | LengthThreshold):
        parameters = (("drop_tokens_max", float(policy.drop_tokens_max)),)
        return Policy(name=type(policy).__name__, parameters=parameters)
    raise _unknown(type(policy).__name__)


def _make_swap(policy: Policy) -> SwapPolicy:
    match policy:
        case Policy(name=name, parameters=(("drop_tokens_max", most),)) if name in SWAP_POLICIES:
            return SWAP_POLICIES[name](int(most))
    raise _unknown(policy.name)


def _unknown(name: str) -> JournalInvalid:
    return JournalInvalid(
        "a policy that this version can't make for a replay",
        field="policy",
        value=name,
        remedy="use the version that wrote the journal, or list the policy in kvstore/observe/making.py",
    )
