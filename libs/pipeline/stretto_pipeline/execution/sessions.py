"""Sessions of TensorFlow 1 with data workers: runs that take an element of a data set get it prepared elsewhere.

A *pass* begins where an iterator is initialised. Its first run that takes an element decides: either all runs of the
pass take elements of a twin of the source, or all take those of the program's own iterator. So each run meets the next
element, training and evaluation alike. Hooks, summaries, checkpoints and seeds are the program's own.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import finalize

from ..errors import ProgramRefused, in_words
from ..partition.cut import Prices
from ..partition.effects import INITIALIZERS, WRITES
from ..programs.sessions import FEED
from . import graphs
from .data_workers import DataWorkers
from .feed import Feed, Raw, Stream
from .graph_opening import PREFIX, GraphOpening
from .importing import Hook, replace_method
from .resume import Resume, dropped
from .session_places import SessionPlaces, Taken
from .session_steps import (
    Asked,
    Plan,
    Prepares,
    SessionGraph,
    as_array,
    callable_of,
    opening_of,
    own_run,
    plan_of,
    prepares,
    taken_by,
)
from .splitting import moved_in_words
from .values import packed

SIGNATURES_MAX = 16
"""Kinds of runs of one pass that get a callable of their own; a run of another kind is fed as a program feeds."""
_TRAINING = frozenset(each for each in WRITES - INITIALIZERS if "Apply" in each or "Scatter" in each)
"""Writes that train: an assignment of a fed value only loads a variable."""


@dataclass(frozen=True)
class _Call:
    """One run, as the program calls it."""

    session: Any
    fetches: Any
    feed_dict: Any
    options: Any
    run_metadata: Any
    handler: Any
    asked: Asked
    source: str

    def plain(self, original: Callable[..., Any]) -> Any:
        return original(self.session, self.fetches, self.feed_dict, self.options, self.run_metadata)


class _Twin:
    """The source of a data set in a graph and a session apart, with the options of the program's own session."""

    def __init__(self, opening: GraphOpening, session: Any, feeds: Mapping[str, Any]) -> None:
        import tensorflow as tf

        self._types = [dtype for dtype, _ in opening.raw]
        types, shapes = zip(*opening.raw, strict=True)
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(opening.source, name="")
            iterator = tf.raw_ops.IteratorV2(
                shared_name="", container="", output_types=types, output_shapes=shapes, name=f"{PREFIX}iterator"
            )
            last = graph.get_operation_by_name(opening.last).outputs[0]
            begin = tf.raw_ops.MakeIterator(dataset=last, iterator=iterator)
            element = tf.raw_ops.IteratorGetNext(
                iterator=iterator, output_types=types, output_shapes=shapes, name="IteratorGetNext"
            )
            self._session = tf.compat.v1.Session(graph=graph, config=session._config)
        own_run(self._session, [], [begin.name], {name: feeds[name] for name in feeds if _is_in(graph, name)})
        self._next = callable_of(self._session, [], [each.name for each in element])

    def __call__(self) -> list[Any]:
        """Return the next raw element."""
        return [as_array(value, dtype) for value, dtype in zip(self._next(), self._types, strict=True)]

    def drop(self, count: int) -> int:
        """Drop elements that the program has had; return how many there were. An error is one at its place."""
        return dropped(self, count)

    def close(self) -> None:
        self._session.close()


def _is_in(graph: Any, tensor: str) -> bool:
    try:
        graph.get_tensor_by_name(tensor)
    except KeyError:
        return False
    return True


@dataclass
class _Step:
    """A kind of run in a pass. extra: prepares at home what it takes and data workers do not give."""

    taken: tuple[str, ...]
    extra: Prepares | None
    targets: tuple[str, ...]
    call: Any


@dataclass
class _Pass:
    """One pass over a data set, from one initialisation of its iterator to the next.

    maker, feeds: the initialisation. original: `Session.run` as it was. say: writes a line to people, once.
    over: ends the pass in the feed; called when its session is dropped, too.
    """

    plan: Plan
    feed: Feed
    stream: Stream
    twin: _Twin
    maker: str
    feeds: Mapping[str, Any]
    original: Callable[..., Any]
    say: Callable[[str], None]
    over: Callable[[], object]
    taken: Taken
    _steps: dict[Asked, _Step] = field(default_factory=dict[Asked, _Step])
    _turn: Any = field(default_factory=threading.Lock)

    def run(self, call: _Call, known: SessionGraph) -> Any:
        """Run with the next element."""
        import tensorflow as tf

        with self._turn:
            if call.asked not in self._steps:
                self._steps[call.asked] = self._made(call, known)
            step = self._steps[call.asked]
            try:
                raw, values = self.feed.take(self.stream)
            except tf.errors.OpError as error:
                self.taken.is_over = isinstance(error, tf.errors.OutOfRangeError)
                self.taken.consumed += not self.taken.is_over
                return self._failed(call, error)
            self.taken.consumed += 1
        given = dict(zip(self.plan.prepared.names, values, strict=True))
        given |= {name: raw.element[place] for name, place in self.plan.local.items()}
        if step.extra is not None:
            given |= zip(step.extra.names, step.extra.here(raw.element), strict=True)
        return _finished(call, step, given, self.original)

    def _made(self, call: _Call, known: SessionGraph) -> _Step:
        """Return how a kind of run is done."""
        plan, asked = self.plan, call.asked
        taken, moved, part = taken_by(plan, known, asked, call.source)
        missing = [name for name in taken if name not in plan.prepared.names and name not in plan.local]
        extra = prepares(known, part, call.source, plan.opening, missing) if missing else None
        targets = tuple(name for name in asked.targets if name not in moved and name != call.source)
        if asked.fed or len(self._steps) >= SIGNATURES_MAX:
            if not asked.fed:
                self.say(f"more than {SIGNATURES_MAX} kinds of runs: the others are fed as a program feeds")
            return _Step(taken, extra, targets, None)
        fetches = [name for name in asked.fetched if name not in taken]
        made = callable_of(call.session, taken, fetches, targets, asked.options) if fetches or targets else _nothing
        return _Step(taken, extra, targets, made)

    def _failed(self, call: _Call, error: Any) -> Any:
        """Let the program's own run meet the end of the data, and raise the error of this element.

        The whole run does what depends on no sample, such as a draw of random numbers, as in the plain program.
        """
        import tensorflow as tf

        if not self.plan.opening.emptied:
            call.session._do_call(_raising(error))
        own_run(call.session, [], [self.maker], {**self.feeds, **self.plan.opening.emptied})
        if isinstance(error, tf.errors.OutOfRangeError):
            return call.plain(self.original)
        with suppress(tf.errors.OutOfRangeError):
            call.plain(self.original)
        return call.session._do_call(_raising(error))


@dataclass(eq=False)
class _Iterators:
    """Iterators of one session.

    begun: the initialisation that each had last, and what was fed to it. passes: None: its pass takes elements of the
    program's own iterator.
    """

    begun: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict[str, tuple[str, Mapping[str, Any]]])
    passes: dict[str, _Pass | None] = field(default_factory=dict[str, "_Pass | None"])
    taken: dict[str, Taken] = field(default_factory=dict[str, Taken])

    def begin(self, iterator: str, maker: str, feeds: Mapping[str, Any]) -> None:
        """Note an initialisation."""
        self.end(iterator)
        self.begun[iterator] = maker, feeds

    def end(self, iterator: str) -> None:
        """Forget the pass of an iterator."""
        self.taken.pop(iterator, None)
        ended = self.passes.pop(iterator, None)
        if ended is not None:
            ended.over()
            ended.twin.close()

    def close(self) -> None:
        """Forget all passes."""
        for iterator in [*self.passes]:
            self.end(iterator)


_Key = tuple[frozenset[tuple[str, str]], str, Asked]
"""Tables of the graph that never change, and the initialisation and the first run of a pass."""
_KNOWN = "_stretto"
"""Attribute of graphs and of sessions with what is known of them: it refers to them, and is freed with them."""


@dataclass
class Sessions:
    """The hooks, and all that they know of the program."""

    workers: DataWorkers
    resume: Resume
    name: str = "Session.run"
    was_asked: bool = False
    """Set once a session ran."""
    _said: set[str] = field(default_factory=set[str])
    _numbers: Any = field(default_factory=itertools.count)
    _turn: Any = field(default_factory=threading.RLock)
    _original: Any = None

    def __post_init__(self) -> None:
        self.places = SessionPlaces(self.resume)

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        return {"tensorflow.python.client.session": self._hook}

    def _hook(self, module: ModuleType) -> None:
        def run_hook(original: Any) -> Any:
            self._original = original

            @wraps(original)
            def run(
                session: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
            ) -> Any:
                self.was_asked = True
                return self._run(module, session, fetches, feed_dict, options, run_metadata)

            return run

        def callable_hook(original: Any) -> Any:
            @wraps(original)
            def make(session: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
                call = self._call(module, session, fetches, dict.fromkeys(feed_list or ()), None, None)
                if call is None:
                    return original(session, fetches, feed_list, accept_options)

                def run(*values: Any, options: Any = None, run_metadata: Any = None) -> Any:
                    fed = dict(zip(feed_list or (), values, strict=True))
                    return session.run(fetches, fed, options, run_metadata)

                return run

            return make

        def close_hook(original: Any) -> Any:
            @wraps(original)
            def close(session: Any) -> None:
                # without a lock: the collector of garbage closes sessions in any thread
                state: _Iterators | None = vars(session).pop(_KNOWN, None)
                if state is not None:
                    state.close()
                original(session)

            return close

        replace_method(module.BaseSession, "run", run_hook)
        replace_method(module.BaseSession, "make_callable", callable_hook)
        replace_method(module.BaseSession, "close", close_hook)

    # --- runs ---------------------------------------------------------------------------------------------

    def _run(
        self, module: ModuleType, session: Any, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any
    ) -> Any:
        call = self._call(module, session, fetches, feed_dict, options, run_metadata)
        if call is None:
            return self._original(session, fetches, feed_dict, options, run_metadata)
        known = self._known(session.graph)
        reached = known.reached(call.asked)
        if reached.makers:
            result = call.plain(self._original)
            with self._turn:
                fed = _arrays(session.graph, _fed(module, session.graph, feed_dict))
                state = self._iterators_of(session)
                for maker in reached.makers:
                    state.begin(known.iterator_of(maker).name, maker, fed)
            return result
        with self._turn:
            current = self._pass(call, known)
        return self._counted(call, known) if current is None else current.run(call, known)

    def _counted(self, call: _Call, known: SessionGraph) -> Any:
        """Run with an element of the program's own iterator."""
        import tensorflow as tf

        taken = self._iterators_of(call.session).taken.get(known.iterator_of(call.source).name, Taken())
        if len(sources := known.reached(call.asked).sources) > 1:
            taken.unknown = f"a run takes elements at {len(sources)} places"
        try:
            result = call.plain(self._original)
        except tf.errors.OutOfRangeError:
            taken.is_over = True
            raise
        except tf.errors.OpError:
            taken.unknown = "a run failed that takes an element"
            raise
        taken.consumed += 1
        return result

    def _iterators_of(self, session: Any) -> _Iterators:
        found: _Iterators | None = vars(session).get(_KNOWN)
        if found is None:
            vars(session)[_KNOWN] = found = _Iterators()
            self.places.add(found)
        return found

    def _call(
        self, module: ModuleType, session: Any, fetches: Any, feed_dict: Any, options: Any, run_metadata: Any
    ) -> _Call | None:
        """Return a run that takes elements or initialises iterators; None: it is none of ours."""
        known = self._known(session.graph)
        if not known.has_iterators and not feed_dict:
            return None
        fetch_handler: Any = vars(module)["_FetchHandler"]
        try:
            handler = fetch_handler(session.graph, fetches, {})
            asked = Asked(
                tuple(each.name for each in handler.fetches()),
                tuple(each.name for each in handler.targets()),
                tuple(sorted(_fed(module, session.graph, feed_dict))),
                b"" if options is None else options.SerializeToString(deterministic=True),
            )
        except (TypeError, ValueError, KeyError):  # the run itself tells the program
            return None
        reached = known.reached(asked)
        sources = reached.sources
        if sources or reached.makers:
            source = sources[0] if sources else ""
            return _Call(session, fetches, feed_dict, options, run_metadata, handler, asked, source)
        if asked.fed and reached.types & _TRAINING:
            self._refuse(FEED.format(names=", ".join(asked.fed)))
        return None

    def _known(self, graph: Any) -> SessionGraph:
        with self._turn:
            known: SessionGraph | None = getattr(graph, _KNOWN, None)
            if known is None or known.version != graph.version:
                known = SessionGraph(graph, graph.version, known)
                setattr(graph, _KNOWN, known)
            return known

    def _refuse(self, reason: str) -> None:
        self._say_once(f"nothing moves to data workers: {reason}")

    def _say_once(self, text: str) -> None:
        known = re.sub(r"[0-9.]+", "", text)  # figures of the same reason differ
        if known not in self._said:
            self._said.add(known)
            self.workers.say(f"{self.name}: {text}")

    # --- decisions ----------------------------------------------------------------------------------------

    def _pass(self, call: _Call, known: SessionGraph) -> _Pass | None:
        """Return the pass that a run belongs to; None: it takes elements of the program's own iterator."""
        iterator = known.iterator_of(call.source)
        state = self._iterators_of(call.session)
        if iterator.name not in state.passes:
            if iterator.name not in state.begun and iterator.type in ("Iterator", "IteratorV2"):
                return None  # it was never initialised, which the run itself tells
            maker, feeds = state.begun.get(iterator.name, ("", {}))
            taken = state.taken[iterator.name] = Taken()
            place = self.places.claimed(known, call.source, maker, taken)
            begun = state.passes[iterator.name] = self._begun(call, known, maker, feeds, taken)
            if place is not None:
                if begun is None:
                    self.places.advance(call.session, call.source, maker, feeds, taken)
                if taken.consumed == place.consumed:
                    self.resume.say_at(place)
        return state.passes[iterator.name]

    # --- passes -------------------------------------------------------------------------------------------

    def _begun(
        self, call: _Call, known: SessionGraph, maker: str, feeds: Mapping[str, Any], taken: Taken
    ) -> _Pass | None:
        key = _key(call, known, maker)
        if known.plans.get(key, self) is None:
            return None
        twin: list[_Twin] = []
        try:
            return self._decided(call, known, maker, feeds, twin, taken)
        except Exception as error:  # data workers never stop a program that would run without them
            reason = in_words(error)
        for each in twin:
            each.close()
        known.plans[key] = None
        self._refuse(reason)
        return None

    def _decided(
        self,
        call: _Call,
        known: SessionGraph,
        maker: str,
        feeds: Mapping[str, Any],
        twin: list[_Twin],
        taken: Taken,
    ) -> _Pass:
        """Begin a pass whose elements data workers prepare. Raises what stands in the way; `twin` is to be closed."""
        _check(call, known, known.reached(call.asked).sources)
        key = _key(call, known, maker)
        plan = known.plans.get(key)
        opening = opening_of(known, call.source, maker) if plan is None else plan.opening
        if missing := [name for name in opening.fed if f"{name}:0" not in feeds]:
            raise ProgramRefused(f"the data set needs {missing[0]}, which its initialisation was not fed")
        twin.append(_Twin(opening, call.session, feeds))
        first = [twin[0]()]
        if plan is None:
            plan = plan_of(known, call.asked, call.source, opening, first[0], Prices())
        feed = self.workers.started(graphs.FRAMEWORK, _settings(call.session))
        if key not in known.plans:
            self._tell_moved(plan)
            known.plans[key] = plan
        used = plan.prepared.used
        if taken.consumed:
            first.clear()
            if (there := 1 + twin[0].drop(taken.consumed - 1)) < taken.consumed:
                self.places.too_short(taken, there)
                twin.append(_Twin(opening, call.session, feeds))

        def pull() -> Raw:
            element = first.pop() if first else twin[-1]()
            return Raw(element, packed([element[place] for place in used]))

        stream = Stream(f"pass {next(self._numbers)} of sessions", plan.prepared.preparation, pull, plan.prepared.here)
        over = finalize(call.session, feed.end, stream.name)
        return _Pass(plan, feed, stream, twin[-1], maker, feeds, self._original, self._say_once, over, taken)

    def _tell_moved(self, plan: Plan) -> None:
        found = plan.partition
        what = moved_in_words(found, plan.opening.moved)
        self.workers.say(
            f"{self.name}: {self.workers.chain.in_words} prepare {what}: {found.moved_us / 1e3:.2f} ms of CPU a step"
        )


def _key(call: _Call, known: SessionGraph, maker: str) -> _Key:
    return frozenset(known.initializers.items()), maker, call.asked


def _check(call: _Call, known: SessionGraph, sources: Sequence[str]) -> None:
    """Raise ProgramRefused for a run whose elements cannot be prepared elsewhere."""
    known.check()
    if call.session.sess_str:
        raise ProgramRefused(f"the session runs in another process ({call.session.sess_str})")
    if len(sources) != 1:
        raise ProgramRefused(f"the run takes elements at {len(sources)} places: {', '.join(sorted(sources)[:3])}")
    source = known.graph.get_operation_by_name(call.source)
    if source.type != "IteratorGetNext":
        raise ProgramRefused(
            f"the samples come from {source.name} ({source.type}), which is no iterator's next element"
        )


def _settings(session: Any) -> dict[str, Any]:
    """Return the settings of data workers: the threads of the session, where it names them."""
    found = graphs.settings()
    config = session._config
    if config is not None:
        found["inside"] = config.intra_op_parallelism_threads or found["inside"]
        found["between"] = config.inter_op_parallelism_threads or found["between"]
    return found


def _finished(call: _Call, step: _Step, given: Mapping[str, Any], original: Any) -> Any:
    """Do home's part of a run; return what the program asked for."""
    graph, asked = call.session.graph, call.asked
    feeds = {name: given[name] for name in step.taken}
    fetches = [name for name in asked.fetched if name not in feeds]
    if step.call is not None:
        metadata = {} if call.run_metadata is None else {"run_metadata": call.run_metadata}
        found = call.session._do_call(lambda: step.call(*feeds.values(), **metadata))
    else:
        fed = {**(call.feed_dict or {}), **{graph.get_tensor_by_name(name): each for name, each in feeds.items()}}
        asks = [*fetches, *(graph.get_operation_by_name(name) for name in step.targets)]
        found = original(call.session, asks, fed, call.options, call.run_metadata)[: len(fetches)] if asks else []
    values = dict(zip(fetches, found, strict=True)) | {name: _scalar(each) for name, each in feeds.items()}
    return call.handler.build_results(call.session, [values[name] for name in asked.fetched])


def _scalar(value: Any) -> Any:
    """Return a value as a session gives it: one without dimensions is no array."""
    return value[()] if value.ndim == 0 else value


def _nothing(*values: Any, **options: Any) -> list[Any]:
    return []


def _raising(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def _fed(module: ModuleType, graph: Any, feed_dict: Any) -> dict[str, Any]:
    """Return the values of a feed by the names of its tensors. Raises TypeError, ValueError, KeyError."""
    from tensorflow.python.util import nest

    expansions: Any = vars(module)["_REGISTERED_EXPANSIONS"]
    found: dict[str, Any] = {}
    fed: Any = nest.flatten_dict_items(feed_dict or {})
    for key, value in fed.items():
        expand = next(feed for kind, _, feed, _ in expansions if isinstance(key, kind))
        for part, its in expand(key, value):
            found[graph.as_graph_element(part, allow_operation=False).name] = its
    return found


def _arrays(graph: Any, fed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_array(value, graph.get_tensor_by_name(name).dtype) for name, value in fed.items()}
