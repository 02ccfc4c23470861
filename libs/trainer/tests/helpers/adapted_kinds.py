"""Models that strangers have, by kind: each is built, tried and told in ADAPT.md by tests/keras/test_adapted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_rs
import numpy as np
import tensorflow as tf
from planted import CITIES, ITEMS, TAGS, USERS, Kind, columns, named, pairs

layers = keras.layers


def inputs(**kinds: Any) -> dict[str, Any]:
    return {name: keras.Input(shape, name=name, dtype=kind) for name, (shape, kind) in kinds.items()}


def base() -> dict[str, Any]:
    return inputs(user=((), "int64"), item=((), "int64"), price=((1,), "float32"))


def row(ids: Any, rows: int = USERS, width: int = 4, **options: Any) -> Any:
    """Look up in a table of its own."""
    return layers.Flatten()(layers.Embedding(rows, width, **options)(ids))


def scored(given: Any, *parts: Any) -> Any:
    """One dense layer over all parts."""
    return keras.Model(given, layers.Dense(1)(layers.Concatenate()(list(parts))))


def deep(parts: list[Any], units: int = 8, activation: str | None = None) -> Any:
    x = layers.Concatenate()([layers.Flatten()(part) for part in parts])
    return layers.Dense(1, activation=activation)(layers.Dense(units, activation="relu")(x))


def functional(**options: Any) -> Any:
    given = base()
    parts = [
        layers.Embedding(USERS, 6, name="users", **options)(given["user"]),
        layers.Embedding(ITEMS, 6, name="items")(given["item"]),
        given["price"],
    ]
    return keras.Model(given, deep([layers.Reshape((-1,))(part) for part in parts]))


def unnamed() -> Any:
    user, item = keras.Input(()), keras.Input((1,))
    return scored([user, item], row(user), row(item, ITEMS))


def widths() -> Any:
    given = base()
    zeros = {"embeddings_initializer": "zeros"}
    wide = layers.Add()([row(given["user"], USERS, 1, **zeros), row(given["item"], ITEMS, 1, **zeros)])
    deep_parts = layers.Concatenate()([row(given["user"], USERS, 8), row(given["item"], ITEMS, 3), given["price"]])
    return keras.Model(given, layers.Add()([wide, layers.Dense(1)(deep_parts)]))


def shared() -> Any:
    given = inputs(user=((), "int64"), item=((), "int64"), tags=((3,), "int64"))
    table = layers.Embedding(USERS, 4, name="shared")
    return keras.Model(given, deep([table(each) for each in given.values()]))


def masked() -> Any:
    given = inputs(user=((), "int64"), tags=((None,), "int64"))
    history = layers.Embedding(TAGS, 4, mask_zero=True)(given["tags"])
    return scored(given, layers.GlobalAveragePooling1D()(history), layers.GRU(3)(history), row(given["user"]))


def tags_read(form: Callable[[Any], Any]) -> Callable[[int, int], Any]:
    """Return a `read` of users and their tags, in a form that takes the columns."""

    def read(start: int, length: int) -> Any:
        found = columns(start, length)
        return {"user": found["user"], "tags": form(found), "label": found["label"]}

    return read


def lists(found: Any) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(found["tags"], found["many"], strict=True)]


def text(prepare: Callable[[], Any], rows: int) -> Callable[[], Any]:
    def build() -> Any:
        given = inputs(user=((), "int64"), city=((1,), "string"))
        return scored(given, row(prepare()(given["city"]), rows), row(given["user"]))

    return build


def words() -> Any:
    given = inputs(user=((), "int64"), city=((1,), "string"))
    tokens = layers.TextVectorization(vocabulary=["rome", "oslo", "lima", "cairo"], output_sequence_length=2)
    x = layers.Embedding(6, 4, mask_zero=True)(tokens(given["city"]))
    return scored(given, layers.GlobalAveragePooling1D()(x), row(given["user"]))


def crossed() -> Any:
    given = inputs(user=((1,), "int64"), item=((1,), "int64"))
    x = layers.HashedCrossing(50, output_mode="int")((given["user"], given["item"]))
    known = layers.IntegerLookup(vocabulary=list(range(0, USERS, 2)), num_oov_indices=1)(given["user"])
    return keras.Model(given, deep([row(x, 50), row(known, USERS // 2 + 1)]))


def buckets() -> Any:
    given = inputs(user=((), "int64"), price=((1,), "float32"))
    bucket = layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5])(given["price"])
    one_hot = layers.CategoryEncoding(num_tokens=4, output_mode="one_hot")(bucket)
    return scored(given, row(given["user"]), row(bucket, 4), one_hot)


def feature_space() -> Any:
    kinds = keras.utils.FeatureSpace
    space = kinds(
        features={
            "city": kinds.string_categorical(num_oov_indices=1, output_mode="one_hot"),
            "user": kinds.integer_categorical(output_mode="int", num_oov_indices=1),
            "price": kinds.float_normalized(),
        },
        output_mode="dict",
    )
    found = columns(0, 200)
    known = {"city": found["city"].astype(str), "user": found["user"], "price": found["price"]}
    space.adapt(tf.data.Dataset.from_tensor_slices(known))
    encoded = space.get_encoded_features()
    return scored(space.get_inputs(), row(encoded["user"], USERS + 2), encoded["city"], encoded["price"])


def sequential() -> Any:
    return keras.Sequential(
        [keras.Input((3,), dtype="int64"), layers.Embedding(TAGS, 4), layers.Flatten(), layers.Dense(1)]
    )


def deferred_sequential() -> Any:
    return keras.Sequential(
        [layers.Embedding(TAGS, 4, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(1)]
    )


def tower(name: str, rows: int) -> Any:
    return keras.Sequential([layers.Embedding(rows, 4, name="table"), layers.Reshape((4,)), layers.Dense(3)], name=name)


def nested() -> Any:
    given = inputs(user=((), "int64"), item=((), "int64"))
    towers = [tower("query", USERS)(given["user"]), tower("candidate", ITEMS)(given["item"])]
    return keras.Model(given, layers.Dense(1)(layers.Concatenate()(towers)))


class TwoTowers(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = layers.Embedding(USERS, 4), layers.Embedding(ITEMS, 4)
        self.norm = layers.BatchNormalization()
        self.score = layers.Dense(1)

    def call(self, given: Any, training: bool = False) -> Any:
        both = keras.ops.concatenate([self.users(given["user"]), self.items(given["item"])], axis=-1)
        return self.score(self.norm(both, training=training))


class Retrieval(keras.Model):
    """The retrieval example of Keras RS: the loss looks candidates up, and an evaluation uses their whole table."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = layers.Embedding(USERS, 4), layers.Embedding(ITEMS, 4)
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=3, return_scores=False)
        self.loss_fn = keras.losses.MeanSquaredError()

    def build(self, shape: Any) -> None:
        self.users.build(shape)
        self.items.build(shape)
        self.retrieval.candidate_embeddings = self.items.embeddings
        self.retrieval.build(shape)
        super().build(shape)

    def call(self, ids: Any, training: bool = False) -> Any:
        users = self.users(ids)
        result = {"user_embeddings": users}
        if not training:
            result["predictions"] = self.retrieval(users)
        return result

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True) -> Any:
        items = self.items(y["item"])
        scores = keras.ops.sum(y_pred["user_embeddings"] * items, axis=1, keepdims=True)
        return self.loss_fn(keras.ops.expand_dims(y["stars"], -1), scores, sample_weight)


class RankingLoss(keras.Model):
    """Rows that are looked up by the loss alone."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = layers.Embedding(USERS, 4), layers.Embedding(ITEMS, 4)

    def call(self, ids: Any) -> Any:
        return self.users(ids)

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
        scores = keras.ops.sum(y_pred * self.items(y["item"]), axis=1)
        return keras.ops.mean(keras.ops.square(scores - y["stars"]))


def retrieval_read(start: int, length: int) -> Any:
    found = columns(start, length)
    return found["user"], {"item": found["item"], "stars": found["stars"]}


class OwnLoss(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.score = layers.Embedding(USERS, 4), layers.Dense(1)

    def call(self, given: Any) -> Any:
        rows = self.users(given["user"])
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(rows)))
        return self.score(rows)


class Pairs(keras.Model):
    """A model of pairs, whose loss is added in its call: users prefer the first of two items."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = layers.Embedding(USERS, 4), layers.Embedding(ITEMS, 4)
        self.compile(keras.optimizers.SGD(0.5))

    def call(self, given: Any) -> Any:
        user, both = self.users(given["user"]), self.items(given["both"])
        scores = keras.ops.sum(user[:, None] * both, axis=-1)
        self.add_loss(keras.ops.mean(keras.ops.softplus(scores[:, 1] - scores[:, 0])))
        return scores


def pairs_read(start: int, length: int) -> Any:
    user = columns(start, length)["user"]
    return ({"user": user, "both": np.stack([user % 20, 20 + user % 20], axis=1)},)


class Measured(keras.Model):
    """A model with metrics that it was not compiled with. looks_up: the metrics look rows up, too."""

    def __init__(self, looks_up: bool = False) -> None:
        super().__init__()
        self.users, self.score = layers.Embedding(USERS, 4), layers.Dense(1)
        self.rmse = keras.metrics.RootMeanSquaredError(name="rmse")
        self.first_users = keras.metrics.Mean(name="first_users")
        self.looks_up = looks_up
        self.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])

    def call(self, given: Any) -> Any:
        return self.score(self.users(given["user"]))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.rmse.update_state(keras.ops.reshape(y, (-1, 1)), y_pred)
        self.first_users.update_state(keras.ops.cast(x["user"] < 30, "float32"))
        if self.looks_up:
            self.users(x["user"])
        return super().compute_metrics(x, y, y_pred, sample_weight)


class Drawing(keras.Model):
    """A model that draws in its call, as sampled softmax does. The gradient of its loss does not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.score = layers.Embedding(USERS, 4), layers.Dense(1)
        self.compile(keras.optimizers.SGD(0.5), lambda label, output: (1 - 2 * label) * output)

    def call(self, given: Any) -> Any:
        score = self.score(self.users(given["user"]))
        return score + tf.random.uniform(tf.shape(score), maxval=0.01)


class Offset(layers.Embedding):
    """A subclass that changes ids before the lookup, and what is looked up after it."""

    def call(self, ids: Any) -> Any:
        return 2.0 * super().call(ids + 1)


def subclassed_layer() -> Any:
    given = base()
    return keras.Model(given, deep([Offset(USERS + 1, 4)(given["user"]), row(given["item"], ITEMS)]))


def positions() -> Any:
    given = inputs(user=((), "int64"), tags=((3,), "int64"))

    class Positions(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.table = layers.Embedding(3, 4)

        def build(self, shape: Any) -> None:
            self.table.build()

        def call(self, x: Any) -> Any:
            return x + self.table(keras.ops.arange(3))

    x = Positions()(layers.Embedding(TAGS, 4)(given["tags"]))
    return scored(given, layers.Flatten()(x), row(given["user"]))


def tied() -> Any:
    class Tied(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.users = layers.Embedding(ITEMS, 4), layers.Embedding(USERS, 4)

        def call(self, given: Any) -> Any:
            liked = self.items(given["item"])
            scores = keras.ops.matmul(self.users(given["user"]), keras.ops.transpose(self.items.embeddings))
            return keras.ops.sum(scores, axis=-1, keepdims=True) + keras.ops.sum(liked, axis=-1, keepdims=True)

    return Tied()


def embed_reduce() -> Any:
    given = inputs(user=((), "int64"), tags=((3,), "int64"), weights=((3,), "float32"))
    kind = keras_rs.layers.EmbedReduce
    tags = kind(TAGS, 4, combiner="sqrtn")(given["tags"], weights=given["weights"])
    return scored(given, tags, kind(USERS, 4, combiner="sum")(given["user"]))


def weighted_tags(start: int, length: int) -> Any:
    found = columns(start, length)
    weights = (found["tags"] > 0) * np.array([1.0, 0.5, 0.25], np.float32)
    return {"user": found["user"], "tags": found["tags"], "weights": weights, "label": found["label"]}


def distributed_embedding() -> Any:
    table, feature = keras_rs.layers.TableConfig, keras_rs.layers.FeatureConfig
    tags = table(name="tags", vocabulary_size=TAGS, embedding_dim=4, combiner="mean")
    users = table(name="users", vocabulary_size=USERS, embedding_dim=6, combiner="sum")
    configs = {
        "tags": feature(name="tags", table=tags, input_shape=(None, 3), output_shape=(None, 4)),
        "user": feature(name="user", table=users, input_shape=(None, 1), output_shape=(None, 6)),
    }

    class Distributed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.tables = keras_rs.layers.DistributedEmbedding(configs)
            self.score = layers.Dense(1)

        def call(self, given: Any) -> Any:
            ids = {"tags": given["tags"], "user": keras.ops.expand_dims(given["user"], -1)}
            found = self.tables(ids)
            return self.score(keras.ops.concatenate([found["tags"], found["user"]], axis=-1))

    return Distributed()


def no_tables() -> Any:
    given = inputs(city=((1,), "string"), price=((1,), "float32"))
    city = layers.StringLookup(vocabulary=list(CITIES[1:]), output_mode="one_hot")(given["city"])
    return scored(given, city, layers.Rescaling(2.0)(given["price"]))


def frozen() -> Any:
    given = base()
    return keras.Model(given, deep([row(given["user"], trainable=False), row(given["item"], ITEMS)]))


def with_weights() -> Any:
    weights = np.random.default_rng(5).normal(size=(USERS, 6)).astype(np.float32)
    return functional(weights=weights)


def loaded() -> Any:
    model = functional()
    weights = np.linspace(-1, 1, USERS * 6).reshape(USERS, 6)
    model.get_layer("users").set_weights([weights])
    return model


def two_outputs(**compiled: Any) -> Any:
    given = base()
    x = layers.Concatenate()([row(given["user"]), row(given["item"], ITEMS)])
    x = layers.Dense(8, activation="relu")(x)
    outputs = {name: layers.Dense(1, activation="sigmoid", name=name)(x) for name in ("click", "buy")}
    model = keras.Model(given, outputs)
    if compiled:
        model.compile(optimizer=keras.optimizers.SGD(0.5), **compiled)
    return model


def compiled_two_outputs() -> Any:
    return two_outputs(
        loss={"click": "binary_crossentropy", "buy": "binary_crossentropy"},
        loss_weights={"click": 1.0, "buy": 0.3},
        metrics={"click": ["accuracy", keras.metrics.AUC(name="auc")], "buy": ["accuracy"]},
    )


def compiled(loss: Any, units: int = 1, activation: str | None = None, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        given = base()
        x = layers.Concatenate()([row(given["user"]), row(given["item"], ITEMS)])
        model = keras.Model(given, layers.Dense(units, activation=activation)(x))
        model.compile(optimizer=keras.optimizers.SGD(0.5), loss=loss, **options)
        return model

    return build


def labelled(label: Any, weight: str | None = None) -> Callable[[int, int], Any]:
    """Return a `read` of all inputs, with another label and weight."""
    read = pairs(label=label, weight=weight)

    def with_inputs(start: int, length: int) -> Any:
        found = columns(start, length)
        return ({name: found[name] for name in ("user", "item", "price")}, *read(start, length)[1:])

    return with_inputs


both_labels = labelled({"click": "label", "buy": "bought"})


def dependent_ids() -> Any:
    given = base()
    first = layers.Embedding(USERS, 4, name="first")(given["user"])
    return keras.Model(given, deep([first, row(keras.ops.argmax(first, axis=-1), 4, name="second")]))


def own_step() -> Any:
    class Stepping(TwoTowers):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    return Stepping()


def own_test() -> Any:
    class Testing(TwoTowers):
        def test_step(self, data: Any) -> Any:
            return super().test_step(data)

    return Testing()


def constrained() -> Any:
    given = base()
    both = layers.Concatenate()([layers.Reshape((-1,))(row(given["user"])), given["price"]])
    return keras.Model(given, layers.Dense(1, kernel_constraint="non_neg", name="head")(both))


def assigning() -> Any:
    class Clamped(layers.Dense):
        def call(self, inputs: Any) -> Any:
            self.kernel.assign(keras.ops.maximum(self.kernel, 0.0))
            return super().call(inputs)

    given = base()
    both = layers.Concatenate()([layers.Reshape((-1,))(row(given["user"])), given["price"]])
    return keras.Model(given, Clamped(1, name="head")(both))


def counting() -> Any:
    class Counting(layers.Dense):
        def build(self, shape: Any) -> None:
            super().build(shape)
            self.steps = self.add_weight(shape=(), dtype="int32", trainable=False, name="steps")

        def call(self, inputs: Any, training: bool = False) -> Any:
            self.steps.assign(self.steps + int(training))
            return super().call(inputs)

    given = base()
    return keras.Model(given, Counting(1, name="head")(layers.Concatenate()([row(given["user"]), given["price"]])))


def forgetting() -> Any:
    class Forgetting(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.users = layers.Embedding(USERS, 4, name="users")

        def call(self, ids: Any, training: bool = False) -> Any:
            return self.users(ids * (1 - int(training)))

    given = base()
    return scored(given, layers.Flatten()(Forgetting()(given["user"])), given["price"])


def table_regularizer() -> Any:
    return functional(embeddings_regularizer=keras.regularizers.OrthogonalRegularizer())


def failing_call() -> Any:
    class Failing(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = layers.Embedding(USERS, 4)

        def call(self, given: Any) -> Any:
            return self.users(given["nothing"])

    return Failing()


def ragged_input() -> Any:
    tags = keras.Input((None,), name="tags", dtype="int64", ragged=True)
    return keras.Model(tags, layers.Dense(1)(keras.ops.sum(layers.Embedding(TAGS, 4)(tags), axis=1)))


TAKEN: dict[str, Kind] = {
    "functional": Kind("functional models with any number of `Embedding` layers", functional),
    "unnamed": Kind("inputs without names, filled by position", unnamed, pairs("user", "item")),
    "widths": Kind("tables of different widths", widths),
    "shared": Kind("a table that several inputs share", shared, named("user", "item", "tags")),
    "masked": Kind("padded lists with `mask_zero`: pooled, or in recurrent layers", masked, named("user", "tags")),
    "ragged": Kind(
        "ragged data (`tf.RaggedTensor`)", masked, tags_read(lambda found: tf.ragged.constant(lists(found)))
    ),
    "lists": Kind("lists of different lengths", masked, tags_read(lists)),
    "sparse": Kind("sparse data (`tf.SparseTensor`)", masked, tags_read(lambda of: tf.sparse.from_dense(of["tags"]))),
    "strings": Kind(
        "texts through `StringLookup`",
        text(lambda: layers.StringLookup(vocabulary=list(CITIES[1:4])), 4),
        named("user", "city"),
    ),
    "hashed": Kind("texts through `Hashing`", text(lambda: layers.Hashing(20), 20), named("user", "city")),
    "words": Kind("`TextVectorization`", words, named("user", "city")),
    "crossed": Kind("`HashedCrossing` and `IntegerLookup`", crossed, named("user", "item")),
    "buckets": Kind("`Discretization` and `CategoryEncoding`", buckets, named("user", "price")),
    "feature space": Kind("`FeatureSpace`", feature_space, named("city", "user", "price")),
    "embed reduce": Kind("`keras_rs.layers.EmbedReduce`, with weights", embed_reduce, weighted_tags),
    "distributed": Kind("`keras_rs.layers.DistributedEmbedding`", distributed_embedding, named("user", "tags")),
    "sequential": Kind("`Sequential` with an `Input`", sequential, pairs("tags")),
    "deferred sequential": Kind("`Sequential` without one", deferred_sequential, pairs("tags")),
    "nested": Kind("models within models, with layers of the same name", nested, named("user", "item")),
    "subclassed": Kind("subclassed models", TwoTowers, named("user", "item")),
    "retrieval": Kind("an own `compute_loss`, with a table that is used as a whole", Retrieval, retrieval_read),
    "ranking loss": Kind("rows that are looked up in `compute_loss`", RankingLoss, retrieval_read),
    "own loss": Kind("penalties by `add_loss`", OwnLoss, named("user")),
    "pairs": Kind("a loss that is added in the call (`add_loss`), without labels", Pairs, pairs_read),
    "measured": Kind("an own `compute_metrics`", Measured, labelled("stars")),
    "drawing": Kind(
        "a call that draws at random (not compared with the original)", Drawing, labelled("label"), noise=0.01
    ),
    "subclassed layer": Kind("subclasses of `Embedding` that look up by `super().call`", subclassed_layer),
    "positions": Kind("positions (kept as dense parameters up to 1,000,000 floats)", positions, named("user", "tags")),
    "tied": Kind("tied weights (kept as dense parameters up to 1,000,000 floats)", tied, named("user", "item")),
    "no tables": Kind("models without an `Embedding` layer", no_tables, named("city", "price")),
    "frozen": Kind("`trainable=False`: each worker holds the table", frozen),
    "normal": Kind(
        "initial values that are not uniform: kept exactly",
        lambda: functional(embeddings_initializer=keras.initializers.RandomNormal(stddev=0.3)),
    ),
    "constant": Kind("constant ones", lambda: functional(embeddings_initializer=keras.initializers.Constant(0.2))),
    "glorot": Kind(
        "`glorot_uniform` and the other uniform ones", lambda: functional(embeddings_initializer="glorot_uniform")
    ),
    "weights": Kind("`weights=`", with_weights),
    "loaded": Kind("`set_weights` and `load_weights`", loaded),
    "regularized": Kind(
        "`embeddings_regularizer` of kind L1, L2, L1L2: of the rows of a batch",
        lambda: functional(embeddings_regularizer=keras.regularizers.L1L2(0.01, 0.02)),
    ),
    "outputs": Kind("several outputs with losses and weights", compiled_two_outputs, both_labels),
    "sample weights": Kind(
        "sample weights", compiled("binary_crossentropy", activation="sigmoid"), labelled("label", "importance")
    ),
    "regression": Kind("regression", compiled("mse", metrics=["mae"]), labelled("stars")),
    "classes": Kind(
        "several classes",
        compiled("sparse_categorical_crossentropy", 3, "softmax", metrics=["accuracy"]),
        labelled("class"),
    ),
}
REFUSED: dict[str, Kind] = {
    "constraint": Kind(
        "`embeddings_constraint`",
        lambda: functional(embeddings_constraint="non_neg"),
        refused="layer users: embeddings_constraint is applied to the whole table",
        why="it is applied to the whole table after each update",
    ),
    "lora": Kind("LoRA", lambda: functional(lora_rank=2), refused="layer users: LoRA", why="it keeps the table fixed"),
    "half": Kind(
        "tables in half precision",
        lambda: functional(dtype="float16"),
        refused="layer users: .*float16",
        why="parameters are float32",
    ),
    "dependent": Kind(
        "ids that depend on other rows or on parameters",
        dependent_ids,
        refused="layer second: its ids depend on the rows of layer first",
        why="they are not known when the rows are requested",
    ),
    "other regularizer": Kind(
        "other regularisers of tables",
        table_regularizer,
        refused="layer users: embeddings_regularizer Orthogonal",
        why="they are no sums over rows",
    ),
    "own step": Kind(
        "an own `train_step`",
        own_step,
        named("user", "item"),
        refused="its own train_step",
        why="it updates parameters where they are not; `compute_loss` is taken",
    ),
    "own test": Kind(
        "an own `test_step`",
        own_test,
        named("user", "item"),
        refused="its own test_step",
        why="no evaluation calls it; `compute_loss` and `compute_metrics` are taken",
    ),
    "dense constraint": Kind(
        "constraints of other layers",
        constrained,
        refused="variable .*head/kernel has the constraint NonNeg",
        why="they are applied after each update; compute the weights in the layer's call",
    ),
    "assigning": Kind(
        "a call that assigns a trainable variable",
        assigning,
        refused="assigns the trainable variable .*head/kernel",
        why="the next step gets it from the servers as it was",
    ),
    "counting": Kind(
        "states of other types than float32 that a step changes",
        counting,
        refused="the state .*head/steps of type int32 changes in a step",
        why="no checkpoint or export would have them; make them float32",
    ),
    "forgetting": Kind(
        "ids that are others in training than in a prediction",
        forgetting,
        refused="layer users looks up other ids, when it is trained",
        why="they are found as in a prediction; change them in `read`",
    ),
    "no loss": Kind(
        "several outputs without a loss",
        two_outputs,
        both_labels,
        refused="and no loss: compile it",
        why="nothing says what is trained",
    ),
    "no labels": Kind(
        "neither labels nor an added loss",
        functional,
        lambda start, length: ({name: columns(start, length)[name] for name in ("user", "item", "price")}, None),
        refused="read gave no labels: return",
        why="nothing says what is trained",
    ),
    "nan": Kind(
        "outputs that are NaN before training, as those of a list that is masked as a whole",
        deferred_sequential,
        lambda start, length: (columns(start, length)["tags"] * (np.arange(length) != 3)[:, None], np.zeros(length)),
        refused="the model itself, as build\\(\\) made it, gives NaN for sample 3: output output_0",
        why="give an empty list an id",
    ),
    "failing": Kind(
        "a call that fails",
        failing_call,
        named("user"),
        refused="Failing.*failed on the first samples",
        why="the message of Keras is passed on",
    ),
    "ragged input": Kind(
        "inputs that are ragged or sparse by themselves",
        ragged_input,
        pairs("tags"),
        refused="'tags' is ragged",
        why="make them dense, of shape `(None,)`; ragged data are padded for them",
    ),
}
