"""Random histories of objects under a model of Kueue: what the decider promises, and errors that have to be found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

import kueue_model
import pytest
from job_builders import plan_decided
from kueue_model import ElasticJob, Kueue
from stretto_core.decider import machine as machine_module
from stretto_core.decider.machine import DeciderMachine
from stretto_core.decider.observations import ObjectFound, ObjectObserved
from stretto_core.decider.quota import PodsInQueue, free_pods
from stretto_core.decider.state import DeciderRules, DeciderState
from stretto_core.decider.transition import at_rest
from stretto_core.machine import Tick
from stretto_messages.objects.decider import SizeDecided, SizeSettled
from stretto_messages.values import NOTHING, Plan

REFUSED_AFTER = 15
STEPS, QUIET_STEPS = 90, 6 * REFUSED_AFTER


def plan_of(workers: int) -> Plan:
    return Plan(workers, 1, 1.0, 0.001, 2**30, 2**20)


@dataclass
class Decider:
    """A machine and its edge: what it is shown, and how its patches are written."""

    name: str
    target: int
    machine: DeciderMachine
    blind_until: int = 0
    version: int = 1
    decided_at: dict[int, int] = field(default_factory=dict)
    purposes: dict[int, str] = field(default_factory=dict)
    outcomes: dict[int, str] = field(default_factory=dict)
    patches: dict[int, int] = field(default_factory=dict)
    patched_since: int = 0
    """Patches since something else than this decider has changed for the object."""
    around: object = None


class History:
    """A history of objects. ``faults``: the promises that the history broke."""

    def __init__(self, seed: int, kind: type[DeciderMachine] = DeciderMachine) -> None:
        self.dice = dice = Random(seed)
        self.kueue = Kueue(dice.randint(4, 16), dice, dice.randint(1, 4), dice.choice((1, 3, 8)))
        self.faults: list[str] = []
        self.deciders: list[Decider] = []
        self.made = 0
        self.quiet = False
        for number in range(dice.randint(1, 3)):
            name, count = f"elastic-{number}", dice.randint(1, 4)
            job = self.kueue.submit(name, count)
            job.cap, job.gated = dice.choice((count, count + 2, 10**6)), dice.random() < 0.2
            job.elastic = not job.gated
            made = Decider(name, dice.randint(1, 12), kind(DeciderState(), DeciderRules(REFUSED_AFTER)))
            self.deciders.append(made)
            self.hand(made, ObjectFound(job=name, spec="{}", least=1))
            self.retarget(made, made.target)

    def run(self) -> History:
        for step in range(STEPS + QUIET_STEPS):
            self.quiet = step >= STEPS
            if not self.quiet and self.dice.random() < 0.25:
                self.disturb()
            self.kueue.step()
            for decider in self.deciders:
                self.look(decider)
        for decider in self.deciders:
            self.check_end(decider)
        return self

    # ---- the world --------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        """Somebody else comes, goes, takes quota back, or wants another size; or a watch is lost."""
        kueue, dice, decider = self.kueue, self.dice, self.dice.choice(self.deciders)
        rigid = [name for name, job in kueue.jobs.items() if name.startswith("rigid") and not job.done]
        job = kueue.jobs[decider.name]
        match dice.choice(("come", "go", "suspend", "write", "order", "target", "blind")):
            case "come":
                self.made += 1
                kueue.submit(f"rigid-{self.made}", dice.randint(1, kueue.nominal), False, dice.choice((-1, 1)))
            case "go" if rigid:
                kueue.finish(dice.choice(rigid))
            case "suspend" if job.admitted:
                kueue.preempt(decider.name, "suspend")
            case "write" if job.elastic and job.admitted > 1:
                kueue.preempt(decider.name, "write", dice.randint(1, job.admitted - 1))
            case "order" if job.elastic or job.suspended:
                kueue.order(decider.name, dice.randint(1, 12))
            case "target":
                self.retarget(decider, dice.randint(1, 12))
            case "blind":
                decider.blind_until = max(decider.blind_until, kueue.now + dice.randint(1, 2 * REFUSED_AFTER))
            case _:
                pass

    def retarget(self, decider: Decider, workers: int) -> None:
        decider.target, decider.version = workers, decider.version + 1
        plan = plan_of(workers)
        self.hand(decider, plan_decided(decider.name, decider.version, "improve", plan, NOTHING))

    # ---- the decider's edge -----------------------------------------------------------------------------------

    def look(self, decider: Decider) -> None:
        """Show the decider its object unless its watch is lost, and write what it decided."""
        if (around := self.around(decider)) != decider.around:
            decider.around, decider.patched_since = around, 0
        fresh, overdue = self.kueue.observe(decider.name), decider.machine.is_overdue(self.kueue.now)
        if self.kueue.now >= decider.blind_until and (fresh != self.seen(decider) or overdue):
            self.hand(decider, fresh)
        self.hand(decider, Tick())
        write = decider.machine.state.write
        if write is not None and not write.written and self.dice.random() < 0.8:
            self.write(decider)

    def write(self, decider: Decider) -> None:
        """Read before the write; patch only what the decision was made for."""
        kueue, write = self.kueue, decider.machine.state.write
        job, fresh = kueue.jobs[decider.name], kueue.observe(decider.name)
        assert write is not None
        if fresh != self.seen(decider):
            self.hand(decider, fresh)
            return
        stale = self.dice.random() < 0.2
        rest = at_rest(fresh)
        growth = len(job.pods) + write.count - write.before
        if stale:
            kueue.jobs[decider.name].version += 1
            assert not kueue.patch(decider.name, job.version - 1, write.count, write.number)
            return
        alone = self.kueue.alive - len(job.pods)
        if not kueue.patch(decider.name, job.version, write.count, write.number):
            raise AssertionError("a patch of the version that was read")
        self.note_patch(decider, rest, alone + growth)
        if self.dice.random() < 0.5:
            self.hand(decider, kueue.observe(decider.name))

    def note_patch(self, decider: Decider, rest: bool, pods: int) -> None:
        write, job = decider.machine.state.write, self.kueue.jobs[decider.name]
        assert write is not None
        decider.patches[write.number] = decider.patches.get(write.number, 0) + 1
        if write.purpose != "back" or decider.patched_since:  # else it takes back a growth of before the change
            decider.patched_since += 1
        if decider.patches[write.number] > 1:
            self.faults.append("more than one patch for a decision")
        if decider.patched_since > 2:
            self.faults.append("flapping")
        if write.purpose == "grow" and pods > self.kueue.nominal:
            self.faults.append("more pods than quota")
        if write.purpose == "grow" and sum(max(len(one.pods), one.asked) for one in self.all()) > self.kueue.nominal:
            self.faults.append("more pods asked for than quota")
        if write.opens and write.count > write.before and sum(one.asked for one in self.all()) > self.kueue.nominal:
            self.faults.append("begun with more pods than quota")
        taken_back = write.purpose == "back" and decider.outcomes.get(write.number - 1) == "refused"
        fitted = write.purpose == "fit" and not job.admitted
        if not (rest or taken_back or fitted):
            self.faults.append("a patch in an open transition")

    def around(self, decider: Decider) -> object:
        """Facts that are not the decider's doing: the others' workloads and pods, Kueue's orders, and its plan."""
        others = [(name, job.admitted, len(job.pods)) for name, job in self.kueue.jobs.items() if name != decider.name]
        waiting = [name for name, job in self.kueue.jobs.items() if name != decider.name and self.kueue.waits(job)]
        return others, waiting, self.kueue.orders.get(decider.name), decider.version

    def all(self) -> Iterable[ElasticJob]:
        return self.kueue.jobs.values()

    def seen(self, decider: Decider) -> ObjectObserved | None:
        return decider.machine.state.seen

    def hand(self, decider: Decider, event: object) -> None:
        for action in decider.machine.handle(event, float(self.kueue.now)):  # type: ignore[arg-type]
            fact = action.fact  # type: ignore[union-attr]
            if isinstance(fact, SizeDecided):
                decider.decided_at[fact.number] = self.kueue.now
                decider.purposes[fact.number] = fact.purpose
                assert fact.reason
            elif isinstance(fact, SizeSettled) and fact.number:
                assert fact.number not in decider.outcomes, "a decision ends once"
                assert fact.reason
                decider.outcomes[fact.number] = fact.outcome
                if self.kueue.now > max(decider.decided_at[fact.number] + REFUSED_AFTER, decider.blind_until):
                    self.faults.append("a decision that ended too late")

    # ---- the end ----------------------------------------------------------------------------------------------

    def check_end(self, decider: Decider) -> None:
        """In a quiet world every decision has ended, and free quota is in use unless it was refused."""
        if decider.decided_at.keys() != decider.outcomes.keys():
            self.faults.append("a decision without an end")
        seen, state = self.kueue.observe(decider.name), decider.machine.state
        if seen.gated:
            self.faults.append("a gate that stays closed")
        is_able = at_rest(seen) and not seen.fixed and seen.room and not seen.others_wait and state.refused is None
        if is_able and seen.count < decider.target:
            self.faults.append("free quota is not used")
        obeys = state.order is not None and state.order.version == state.version
        if at_rest(seen) and not seen.fixed and seen.count > decider.target and not obeys:
            self.faults.append("more than the plan")


def faults_of(seeds: range, kind: type[DeciderMachine] = DeciderMachine) -> Iterator[tuple[int, list[str]]]:
    for seed in seeds:
        if faults := History(seed, kind).run().faults:
            yield seed, faults


@pytest.mark.parametrize("seeds", [range(200), pytest.param(range(200, 10_200), marks=pytest.mark.night)], ids=str)
def test_no_history_breaks_a_promise(seeds: range) -> None:
    assert next(faults_of(seeds), None) is None


def test_histories_have_every_purpose_and_outcome() -> None:
    deciders = [decider for seed in range(100) for decider in History(seed).run().deciders]
    assert {each for one in deciders for each in one.purposes.values()} == {"grow", "shrink", "back", "fit"}
    ends = {(one.purposes[number], end) for one in deciders for number, end in one.outcomes.items()}
    assert {("grow", "accepted"), ("grow", "refused"), ("grow", "taken"), ("back", "accepted")} <= ends


class Fighting(DeciderMachine):
    """Takes a size that Kueue writes for a conflict with its own, and writes its own again."""

    def _decide(self, seen: ObjectObserved, now: float) -> machine_module.Facts:
        if self.state.plan is not None and seen.count < self.state.size:
            return [self._write("grow", seen, self.state.size, "conflict", now)]
        return super()._decide(seen, now)

    def _is_still_wanted(self, write: object, seen: object, now: float) -> bool:
        return True


def finds(fault: str, kind: type[DeciderMachine] = DeciderMachine) -> bool:
    return any(fault in faults for _, faults in faults_of(range(100), kind))


def test_quota_that_is_counted_free_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kueue_model, "free_pods", lambda nominal, used, _, each: free_pods(nominal, used, {}, each))
    assert finds("more pods than quota")


def test_objects_that_grow_into_the_same_room_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = lambda pods, _, admitted, each: PodsInQueue(pods, 0, admitted, each)  # noqa: E731
    monkeypatch.setattr(kueue_model, "PodsInQueue", counted)
    assert finds("more pods asked for than quota")


def test_objects_that_begin_with_the_same_room_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ElasticJob.asked.fget
    uncounted = property(lambda one: 0 if one.suspended else asked(one))  # type: ignore[misc]
    observe = kueue_model.Kueue.observe

    def blind(kueue: Kueue, name: str) -> ObjectObserved:
        with monkeypatch.context() as patched:
            patched.setattr(ElasticJob, "asked", uncounted)
            return observe(kueue, name)

    monkeypatch.setattr(kueue_model.Kueue, "observe", blind)
    assert finds("begun with more pods than quota")


def test_a_preemption_that_is_taken_for_a_conflict_is_found() -> None:
    assert finds("more pods than quota", Fighting)
    assert finds("a patch in an open transition", Fighting)


def test_a_patch_in_an_open_transition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "at_rest", lambda seen: not seen.suspended)
    assert finds("a patch in an open transition")


def test_a_refusal_that_is_forgotten_flaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeciderMachine, "_may_try_again", lambda *_: True)
    assert finds("flapping")
