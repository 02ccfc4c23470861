"""A recurrent policy over layers: P(a_l | a_1 … a_(l-1)) by an LSTM or an Elman network (HeterPS §5.2, Fig. 3)."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from stretto_messages.base import InvalidValue

from stretto_plugins.learning.features import Floats32, Form

# TensorFlow writes past Python, while it is imported already; oneDNN sums in an order that depends on the processor
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

Cell = Literal["lstm", "rnn"]
GATES: dict[Cell, int] = {"lstm": 4, "rnn": 1}
HIDDEN = 48
NAMES = ("kernel", "recurrent", "bias", "head", "head_bias")
LEARNING_RATE = 0.01
MOMENTS = (0.9, 0.999)
FORMAT = 1


class Policy:
    """Weights, and how they learn. A layer's input is its features and the type of the layer before, as one-hot."""

    def __init__(self, cell: Cell, form: Form, weights: Sequence[Floats32]) -> None:
        self.cell: Cell = cell
        self.form = form
        self.weights = [tf.Variable(tf.constant(value, dtype=tf.float32)) for value in weights]
        self.moments = [(tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in self.weights]
        self.updates = 0
        self._sample: Any = tf.function(self._sampled)
        self._gradients: Any = tf.function(self._gradient)

    @staticmethod
    def random(cell: Cell, form: Form, rng: np.random.Generator) -> Policy:
        """Glorot's uniform weights; an LSTM's forget gates begin open (bias 1)."""
        inputs, types, wide = form.width + len(form.types), len(form.types), GATES[cell] * HIDDEN

        def uniform(rows: int, columns: int) -> Floats32:
            limit = np.sqrt(6 / (rows + columns))
            return rng.uniform(-limit, limit, (rows, columns)).astype(np.float32)

        bias = np.zeros(wide, dtype=np.float32)
        if cell == "lstm":
            bias[HIDDEN : 2 * HIDDEN] = 1
        head = uniform(HIDDEN, types) * np.float32(0.1)  # begins nearly indifferent between the types
        return Policy(
            cell, form, [uniform(inputs, wide), uniform(HIDDEN, wide), bias, head, np.zeros(types, dtype=np.float32)]
        )

    @staticmethod
    def loaded(content: bytes) -> Policy:
        """Return the policy that :meth:`saved` wrote. Raises InvalidValue for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                told = json.loads(str(stored["form"]))
                weights = [stored[name] for name in NAMES]
            if told["format"] != FORMAT or told["cell"] not in GATES:
                raise InvalidValue(f"model has format {told['format']!r}, cell {told['cell']!r}; train a new one")
            form = Form(int(told["layers"]), tuple(told["kinds"]), tuple(told["types"]))
            expected = Policy.random(told["cell"], form, np.random.default_rng(0)).weights
            if [w.shape for w in weights] != [tuple(w.shape) for w in expected]:
                raise InvalidValue("model has weights of other shapes than its form says; train a new one")
            if not all(np.isfinite(w).all() for w in weights):
                raise InvalidValue("model has weights that are no finite numbers; train a new one")
        except InvalidValue:
            raise
        except Exception as error:  # whatever a file may hold
            raise InvalidValue(f"model cannot be read ({type(error).__name__}); train a new one") from error
        return Policy(told["cell"], form, weights)

    def saved(self) -> bytes:
        """A NumPy archive: the weights by name, and as ``form`` what inputs and outputs stand for."""
        told = json.dumps({"format": FORMAT, "cell": self.cell, **asdict(self.form)})
        content = io.BytesIO()
        arrays: dict[str, Any] = {name: w.numpy() for name, w in zip(NAMES, self.weights, strict=True)}
        np.savez(content, form=np.array(told), **arrays)
        return content.getvalue()

    def likeliest(self, features: Floats32) -> list[int]:
        """Return the most probable type, layer by layer."""
        return self.sample(features, np.zeros((1, len(features), len(self.form.types)), dtype=np.float32))[0]

    def sample(self, features: Floats32, noise: Floats32) -> list[list[int]]:
        """Sample a type per layer for each row of Gumbel noise by [row, layer, type]."""
        return self._sample(tf.constant(features), tf.constant(noise)).numpy().tolist()

    def learn(
        self,
        features: Floats32,
        actions: Sequence[Sequence[int]],
        advantages: NDArray[np.float64],
        curiosity: float = 0.0,
    ) -> None:
        """One step up the gradient of mean advantage x log P (Eq. 15-16), scaled as in Adam.

        ``curiosity`` times the entropy of the policy is added, so that it does not settle at once.
        """
        gradients = self._gradients(
            tf.constant(features),
            tf.constant(actions, dtype=tf.int32),
            tf.constant(advantages, dtype=tf.float32),
            tf.constant(curiosity, dtype=tf.float32),
        )
        self.updates += 1
        (first, second), t = MOMENTS, self.updates
        for variable, (mean, square), gradient in zip(self.weights, self.moments, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=first**t,
                beta2_power=second**t,
                lr=LEARNING_RATE,
                beta1=first,
                beta2=second,
                epsilon=1e-7,
                grad=gradient,
            )

    def _step(self, inputs: Any, hidden: Any, carried: Any) -> tuple[Any, Any, Any]:
        """Return (logits, hidden, carried) of the network after one layer; its input is already projected."""
        _, recurrent, bias, head, head_bias = self.weights
        gates = inputs + tf.matmul(hidden, recurrent) + bias
        if self.cell == "lstm":
            enter, forget, new, leave = tf.split(gates, 4, axis=1)
            carried = tf.sigmoid(forget) * carried + tf.sigmoid(enter) * tf.tanh(new)
            hidden = tf.sigmoid(leave) * tf.tanh(carried)
        else:
            hidden = tf.tanh(gates)
        return tf.matmul(hidden, head) + head_bias, hidden, carried

    def _sampled(self, features: Any, noise: Any) -> Any:
        """Gumbel's trick: the greatest of logit + noise is a draw from the softmax."""
        width, types = self.form.width, len(self.form.types)
        kernel, rows = self.weights[0], tf.shape(noise)[0]
        seen = tf.matmul(features, kernel[:width])
        zeros = tf.zeros((rows, HIDDEN))

        def step(state: Any, layer: Any) -> Any:
            before, hidden, carried = state
            inputs = seen[layer] + tf.gather(tf.pad(kernel[width:], [[0, 1], [0, 0]]), before)
            logits, hidden, carried = self._step(inputs, hidden, carried)
            return tf.argmax(logits + noise[:, layer], axis=1, output_type=tf.int32), hidden, carried

        first = (tf.fill([rows], types), zeros, zeros)  # no layer before the first: the row of zeros
        actions, _, _ = tf.scan(step, tf.range(tf.shape(features)[0]), first)
        return tf.transpose(actions)

    def _gradient(self, features: Any, actions: Any, advantages: Any, curiosity: Any) -> Any:
        """Return the gradient of the mean over rows of -advantage x log P - curiosity x entropy."""
        width, types = self.form.width, len(self.form.types)
        with tf.GradientTape() as tape:
            kernel, rows = self.weights[0], tf.shape(actions)[0]
            before = tf.one_hot(tf.pad(actions[:, :-1], [[0, 0], [1, 0]], constant_values=-1), types)
            own = tf.matmul(features, kernel[:width])
            inputs = tf.transpose(own[None] + tf.tensordot(before, kernel[width:], 1), [1, 0, 2])
            zeros = tf.zeros((rows, HIDDEN))

            def step(state: Any, at: Any) -> Any:
                return self._step(at, *state[1:])

            logits, _, _ = tf.scan(step, inputs, (tf.zeros((rows, types)), zeros, zeros))
            chosen = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.transpose(actions), logits)
            logs = tf.nn.log_softmax(logits)
            entropy = -tf.reduce_sum(tf.exp(logs) * logs, axis=[0, 2])
            loss = tf.reduce_mean(advantages * tf.reduce_sum(chosen, axis=0) - curiosity * entropy)
        return tape.gradient(loss, self.weights)
