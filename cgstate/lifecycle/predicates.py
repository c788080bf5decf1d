"""What the invariants say, evaluated: one small function a predicate, in the order of the invariants.

Each yields a witness, a sentence, for every way in which what it was given breaks the rule of its docstring. `invariants` gives
them their ids and says who checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter

from cgstate.lifecycle.observations import (
    CallAnswer,
    Destruction,
    FailedCapture,
    Footprint,
    Outcome,
    OutputComparison,
    PoolTurns,
    Profile,
    Turn,
)
from cgstate.lifecycle.states import ComponentState, EntryState, ManagerState, PoolKind, PoolState
from cgstate.lifecycle.world import Act, EntryView, World

CAPTURING = EntryState.CAPTURING

# -- I1 ---------------------------------------------------------------------------------------------------------------


def transaction_is_atomic(before: World, after: World, act: Act) -> Iterator[str]:
    """All entries of a transaction that ended are BOUND; or none is, and at most one of them, the failing one, newly FAILED."""
    now = {entry.name: entry for entry in after.entries}
    if act.transaction:
        ended = [was for was in before.entries if was.name in act.transaction & now.keys()]
    else:
        ended = [
            was for was in before.entries if was.name in now and was.state is CAPTURING and now[was.name].state is not CAPTURING
        ]
    if all(now[was.name].bound for was in ended):
        return
    failed = []
    for was in ended:
        origin = was.before if was.state is CAPTURING else was.state
        state = now[was.name].state
        if state is EntryState.FAILED and origin is not EntryState.FAILED:
            failed.append(was.name)
        elif state is not origin:
            yield f"{was.name} is {state} after {act.name}, where its transaction did not bind; it was {origin} before"
    if len(failed) > 1:
        yield f"one {act.name} failed {' and '.join(failed)}"


def nothing_is_half_bound(world: World) -> Iterator[str]:
    """A component that is not bound has no bound entry; one that is bound has an entry, or needs none."""
    for component in world.components:
        bound = sum([entry.bound for entry in world.of_component(component.name)])
        in_use = component.state in (ComponentState.BOUND, ComponentState.REPLAYING)
        if component.bound != bound:
            yield f"{component.name} counts {component.bound} bound entries, and there are {bound}"
        if bound and not in_use:
            yield f"{component.name} is {component.state} with {bound} bound entries"
        if in_use and not bound and not component.pure_lazy:
            yield f"{component.name} is {component.state} without a bound entry"


# -- I2 ---------------------------------------------------------------------------------------------------------------


def what_is_live_exists(world: World) -> Iterator[str]:
    """A pool holds at least the recordings of its CAPTURING, BOUND and REPLAYING entries."""
    for pool in world.pools:
        live = sum([entry.live for entry in world.of_pool(pool.name)])
        if pool.graphs < live:
            yield f"{pool.name} holds {pool.graphs} recordings for {live} live entries"


def destroyed_when_unused(destruction: Destruction) -> Iterator[str]:
    """Destroyed without a lease, and after the device finished the last replay."""
    if destruction.leases:
        yield f"{destruction.what} was destroyed with {destruction.leases} leases held on its memory"
    if not destruction.replays_done:
        yield f"{destruction.what} was destroyed before its last replay was complete"


# -- I3 ---------------------------------------------------------------------------------------------------------------


def one_capture_at_a_time(world: World) -> Iterator[str]:
    """The entry whose capture is open holds the gate; nobody else records, into any pool."""
    gate = world.gate
    recording = {entry.name: entry.pool for entry in world.entries if entry.records}
    if gate.free != (not gate.holder):
        yield f"the gate is {'free' if gate.free else 'taken'}, and its holder is '{gate.holder}'"
    for name in recording:
        if gate.holder != name:
            yield f"the capture of {name} is open, and the gate's holder is '{gate.holder}'"
    for entry in world.entries:
        if entry.name == gate.holder and not entry.records:
            yield f"{entry.name} holds the gate and its capture is not open"
    for pool in world.pools:
        if (pool.state is PoolState.RECORDING) != (pool.name in recording.values()):
            yield f"{pool.name} is {pool.state}, and captures are open into {sorted(recording.values())}"


def domains_know_their_captures(world: World) -> Iterator[str]:
    """The count that keeps eviction off a domain with an open transaction is right."""
    for domain in world.domains:
        capturing = sum([entry.state is CAPTURING for entry in world.of_domain(domain.name)])
        if domain.capturing != capturing:
            yield f"{domain.name} counts {domain.capturing} CAPTURING entries, and there are {capturing}"


def destroyed_outside_captures(destruction: Destruction) -> Iterator[str]:
    """Destroyed while no capture was open on the device."""
    if destruction.captures_open:
        yield f"{destruction.what} was destroyed while a capture was open"


# -- I4 ---------------------------------------------------------------------------------------------------------------


def profile_leaves_nothing(profile: Profile) -> Iterator[str]:
    """Everything reads as before, and nothing profiled is bound."""
    yield from _differences(profile.before, profile.after)
    for name in profile.bound:
        yield f"{name} is bound to something that was only profiled"


def _differences(before: Footprint, after: Footprint) -> Iterator[str]:
    for reading in sorted({*before, *after}):
        if reading not in before or reading not in after or before[reading] != after[reading]:
            yield f"{reading} was {before.get(reading, 'absent')} and is {after.get(reading, 'absent')}"


# -- I5 ---------------------------------------------------------------------------------------------------------------


def turns_do_not_overlap(pool: PoolTurns) -> Iterator[str]:
    """On the host, two calls' turns overlap only as one inside the other, on the same thread and stream."""
    around: list[Turn] = []
    for turn in _in_order(pool):
        around = [other for other in around if other.ended > turn.began]
        for other in around:
            same = (other.thread, other.stream) == (turn.thread, turn.stream)
            if not same or turn.ended > other.ended:
                yield f"{turn.call} began in {pool.pool} in the turn of {other.call}"
        around.append(turn)


def turns_are_ordered_on_the_device(pool: PoolTurns) -> Iterator[str]:
    """Work that comes on another stream than the work before it waits for that stream."""
    for one, other in pairwise(_in_order(pool)):
        if one.stream != other.stream and one.stream not in other.waited_for:
            yield f"{other.call} on stream {other.stream} does not wait for {one.call} on stream {one.stream} in {pool.pool}"


def turns_are_for_work(pool: PoolTurns) -> Iterator[str]:
    """A turn covers a write, a replay or a clone; an idle lease has none."""
    for turn in pool.turns:
        if not turn.work:
            yield f"{turn.call} held the turn of {pool.pool} for nothing"


def _in_order(pool: PoolTurns) -> list[Turn]:
    return sorted(pool.turns, key=attrgetter("began"))


# -- I6 ---------------------------------------------------------------------------------------------------------------


def retired_pools_are_empty(world: World) -> Iterator[str]:
    """A retired pool has no CAPTURING, BOUND or REPLAYING entry, and is ours; a gone one holds no recording."""
    for pool in world.pools:
        if pool.state in (PoolState.RETIRED, PoolState.GONE):
            if pool.kind is PoolKind.foreign:
                yield f"{pool.name} is foreign and was retired"
            for entry in world.of_pool(pool.name):
                if entry.live:
                    yield f"{pool.name} is {pool.state} and {entry.name} is {entry.state} in it"
        if pool.state is PoolState.GONE and pool.graphs:
            yield f"{pool.name} is GONE with {pool.graphs} recordings"


def domains_know_their_live_entries(world: World) -> Iterator[str]:
    """The count that keeps a domain's pool from retiring is right."""
    for domain in world.domains:
        live = sum([entry.live for entry in world.of_domain(domain.name)])
        if domain.live != live:
            yield f"{domain.name} counts {domain.live} live entries, and there are {live}"


def retired_is_for_good(before: World, after: World, act: Act) -> Iterator[str]:
    """No act leads out of RETIRED but to GONE, and none out of GONE."""
    now = {pool.name: pool.state for pool in after.pools}
    for pool in before.pools:
        state = now.get(pool.name, PoolState.GONE)
        if pool.state is PoolState.RETIRED and state not in (PoolState.RETIRED, PoolState.GONE):
            yield f"{act.name} made {pool.name} {state} after it was retired"
        if pool.state is PoolState.GONE and state is not PoolState.GONE:
            yield f"{act.name} made {pool.name} {state} after it was gone"


# -- I7 ---------------------------------------------------------------------------------------------------------------


def ledger_is_honest(world: World) -> Iterator[str]:
    """The total is the sum of its parts, and each part is what the allocator says; a pool that records still grows."""
    charged = sum([pool.charged for pool in world.pools]) + world.outside_bytes
    if world.ledger_bytes != charged:
        yield f"the ledger says {world.ledger_bytes} bytes, and {charged} are charged"
    for pool in world.pools:
        if pool.measured is None or pool.state is PoolState.RECORDING:
            continue
        if pool.charged > pool.measured or (pool.charged != pool.measured and pool.kind is not PoolKind.foreign):
            yield f"{pool.name} is charged {pool.charged} bytes, and has {pool.measured}"


def closed_owes_nothing(world: World) -> Iterator[str]:
    """Nothing is charged after close."""
    if world.manager.state is ManagerState.CLOSED and world.ledger_bytes:
        yield f"the manager is CLOSED with {world.ledger_bytes} bytes charged"


# -- I8 ---------------------------------------------------------------------------------------------------------------


def only_the_living_are_leased(world: World) -> Iterator[str]:
    """An entry has leases exactly while it is REPLAYING."""
    for entry in world.entries:
        if (entry.state is EntryState.REPLAYING) != (entry.leases > 0):
            yield f"{entry.name} is {entry.state} with {entry.leases} leases"


def leases_are_given_to_the_living(before: World, after: World, act: Act) -> Iterator[str]:
    """A lease is given only on an entry that is bound, unmarked, of the current epoch and resident, by a manager that serves."""
    was = {entry.name: entry for entry in before.entries}
    components = {component.name: component for component in before.components}
    for entry in after.entries:
        old = was.get(entry.name)
        if old is None or entry.leases <= old.leases:
            continue
        component = components[entry.component]
        wrong = {
            f"it was {old.state}": not old.bound,
            "it was retiring": old.retiring,
            "it had failed": old.failed,
            "its addresses were stale": old.noted != component.epoch,
            "its memory was suspended": not component.resident,
            "the manager was not serving": not before.manager.serving,
        }
        yield from (f"{act.name} leased {entry.name}: {reason}" for reason, holds in wrong.items() if holds)


# -- I9 ---------------------------------------------------------------------------------------------------------------


def calls_are_answered(answer: CallAnswer) -> Iterator[str]:
    """The value that eager returns, or one of the named errors; eagerly, and counted, where an obstacle demands it."""
    if answer.outcome is Outcome.other_error:
        yield f"a call of {answer.component} raised an error that it may not raise"
    if answer.obstacle is not None and answer.outcome not in (Outcome.eager, Outcome.routine_error):
        yield f"a call of {answer.component} met {answer.obstacle} and ended as {answer.outcome}, not eagerly"
    if answer.obstacle is not None and not answer.counted:
        yield f"a call of {answer.component} met {answer.obstacle}, and no reason was counted"
    if answer.as_eager is False:
        yield f"a call of {answer.component} returned something else than eager does"


# -- I10 --------------------------------------------------------------------------------------------------------------


def leases_are_conserved(world: World) -> Iterator[str]:
    """Leases given less leases ended are the leases held; no count is negative."""
    held = sum([entry.leases for entry in world.entries])
    if world.acquires - world.releases != held:
        yield f"{world.acquires} acquires and {world.releases} releases leave {held} leases"
    for entry in world.entries:
        if entry.leases < 0:
            yield f"{entry.name} has {entry.leases} leases"


def components_know_their_leases(world: World) -> Iterator[str]:
    """A component counts its REPLAYING entries, and is REPLAYING exactly while there are any."""
    for component in world.components:
        leased = sum([entry.state is EntryState.REPLAYING for entry in world.of_component(component.name)])
        if component.leased != leased:
            yield f"{component.name} counts {component.leased} REPLAYING entries, and there are {leased}"
        if (component.state is ComponentState.REPLAYING) != (leased > 0):
            yield f"{component.name} is {component.state} with {leased} REPLAYING entries"


# -- I11 --------------------------------------------------------------------------------------------------------------


def capacity_is_kept(world: World) -> Iterator[str]:
    """Live + capturing + not yet reclaimed entries are counted, and fit."""
    for component in world.components:
        held = sum([entry.live + entry.unreclaimed for entry in world.of_component(component.name)])
        if component.held != held:
            yield f"{component.name} counts {component.held} graphs held, and there are {held}"
        if held > component.capacity:
            yield f"{component.name} holds {held} graphs and may hold {component.capacity}"


# -- I12 --------------------------------------------------------------------------------------------------------------


def failure_is_clean(failure: FailedCapture) -> Iterator[str]:
    """Everything reads as before, but for growth that is charged as stranded; eager work and the next capture succeed."""
    before, after = dict(failure.before), dict(failure.after)
    for reading, growth in failure.stranded.items():
        value = before.get(reading)
        before[reading] = value + growth if isinstance(value, int) else value
    yield from (f"after the failed capture of {failure.entry} {change}" for change in _differences(before, after))
    if not failure.eager_works:
        yield f"eager work fails after the failed capture of {failure.entry}"
    if not failure.next_capture_works:
        yield f"the next capture fails after the failed capture of {failure.entry}"


# -- I13 --------------------------------------------------------------------------------------------------------------


def books_are_bounded(world: World) -> Iterator[str]:
    """No book holds more than its limit."""
    for book in world.books:
        if book.size > book.limit:
            yield f"{book.name} holds {book.size} of at most {book.limit}"


# -- I14 --------------------------------------------------------------------------------------------------------------


def outputs_agree(comparison: OutputComparison) -> Iterator[str]:
    """Bit for bit on the same shapes where eager is repeatable, within the tolerance elsewhere; a NaN agrees with nothing."""
    if comparison.repeatable and not comparison.bitwise:
        yield f"{comparison.entry} differs from eager in some bit"
    if not comparison.repeatable and not comparison.padded_error <= comparison.tolerance:
        yield f"{comparison.entry} differs from eager by {comparison.padded_error}; {comparison.tolerance} is allowed"
    if not comparison.unpadded_error <= comparison.tolerance:
        yield f"{comparison.entry} differs from unpadded eager by {comparison.unpadded_error}; {comparison.tolerance} is allowed"


# -- I15 --------------------------------------------------------------------------------------------------------------


def everything_has_settled(world: World) -> Iterator[str]:
    """Nothing is half done: no capture open, no transaction open, and nothing left to reclaim that no lease holds back."""
    if not world.gate.free:
        yield f"the gate is still held by {world.gate.holder}"
    for entry in world.entries:
        if entry.state is CAPTURING:
            yield f"{entry.name} is still CAPTURING"
        if entry.unreclaimed and not _held_back(world, entry):
            yield f"{entry.unreclaimed} recordings of {entry.name} are not reclaimed"
    for component in world.components:
        if component.state is ComponentState.CAPTURING:
            yield f"{component.name} is still CAPTURING"
    for pool in world.pools:
        if pool.state is PoolState.RETIRED and not any(entry.leases for entry in world.of_domain(pool.domain)):
            yield f"{pool.name} is retired and not reclaimed"
    if world.manager.state in (ManagerState.CAPTURING, ManagerState.PROFILING):
        yield f"the manager is still {world.manager.state}"


def _held_back(world: World, entry: EntryView) -> bool:
    return any(other.leases for other in world.of_domain(entry.domain))
