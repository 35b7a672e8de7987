"""Metrics of the links between tiers: what moves, what waits, and at what rate."""

from kvstore.server.metrics_reading import Metric, by_lane, by_link

__all__ = ["OF_LINKS"]

OF_LINKS: tuple[Metric, ...] = (
    by_link("kvstore_link_transfers_total", "Transfers that were started.", lambda link: link.transfers),
    by_link(
        "kvstore_link_blocks_started_total", "Blocks that were to be moved.", lambda link: link.blocks_started
    ),
    by_link("kvstore_link_blocks_moved_total", "Blocks that arrived.", lambda link: link.blocks_moved),
    by_link(
        "kvstore_link_blocks_failed_total",
        "Blocks that did not: the call failed, or what was read was wrong.",
        lambda link: link.blocks_failed,
    ),
    by_link(
        "kvstore_link_bytes_moved_total",
        "Bytes of the blocks that arrived, on all ranks.",
        lambda link: link.bytes_moved,
    ),
    by_link(
        "kvstore_link_seconds_total",
        "Seconds from the start of each transfer to its end, waiting included; several may run at once.",
        lambda link: link.seconds,
    ),
    by_link(
        "kvstore_link_blocks_under_way", "Blocks that are being moved.", lambda link: link.blocks_under_way
    ),
    by_lane(
        "kvstore_link_blocks_waiting",
        "Blocks that wait in the store for their turn, by urgency.",
        lambda lane: lane.blocks_waiting,
    ),
    by_lane(
        "kvstore_link_transfers_under_way",
        "Transfers under way, by urgency.",
        lambda lane: lane.transfers_under_way,
    ),
    by_link(
        "kvstore_link_transfers_queued",
        "Transfers that the link has been given and has not begun the last piece of.",
        lambda link: link.transfers_queued,
    ),
    by_link(
        "kvstore_link_bytes_in_flight",
        "Bytes of transfers that the link has been given and that have not ended.",
        lambda link: link.bytes_in_flight,
    ),
    by_link(
        "kvstore_link_wait_seconds_total",
        "Seconds that transfers waited in the link for their first block.",
        lambda link: link.wait_seconds,
    ),
    by_link(
        "kvstore_link_busy_seconds_total",
        "Seconds that the link was at work, waits for its limit included.",
        lambda link: link.busy_seconds,
    ),
    by_link(
        "kvstore_link_limit_bytes_per_second",
        "The link's limit as it comes to now; 0: none.",
        lambda link: link.limit.effective_bytes_per_second,
    ),
    by_link(
        "kvstore_link_bandwidth_bytes_per_second",
        "What the link can do, as measured; 0: not known.",
        lambda link: link.rate.bandwidth_bytes_per_second,
    ),
)
